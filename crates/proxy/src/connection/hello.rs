//! What the first bytes of a client are: a ClientHello, the beginning of one, or something else.
//!
//! The same whether TLS ends here or passes. What is no hello is told apart, and answered where there is an answer: HTTP in clear text with a status 400, TLS
//! that is none with a fatal alert.

use becket_proto::client_hello::{ClientHello, Malformed, NotHello, Peek, peek};
use becket_proto::plain_http::PLAIN_HTTP_ANSWER;

use super::closing::Closing;
use super::{Context, Net, Next};
use crate::socket::Socket;
use becket_proto::close_reason::CloseReason;
use becket_tls::names;

/// Why there will be no TLS.
#[derive(Debug)]
pub(super) struct Refusal {
    /// For the metrics.
    pub(super) reason: CloseReason,
    /// For the log, where the reason alone does not say enough.
    pub(super) detail: String,
    /// For the client. Nothing, and a reset, for those who are turned away so that others can be
    /// served.
    answer: Option<Vec<u8>>,
}

impl Refusal {
    pub(super) fn new(reason: CloseReason, detail: String) -> Self {
        Self {
            reason,
            detail,
            answer: Some(Vec::new()),
        }
    }

    pub(super) fn shed(reason: CloseReason) -> Self {
        Self {
            answer: None,
            ..Self::new(reason, String::new())
        }
    }

    /// A fatal alert, in clear.
    pub(super) fn by_alert(alert: u8, reason: CloseReason) -> Self {
        let detail = format!("answered with alert {}", names::alert(alert.into()));
        Self::new(reason, detail).answering(&fatal_alert(alert))
    }

    pub(super) fn answering(self, answer: &[u8]) -> Self {
        Self {
            answer: self.answer.map(|_| answer.to_vec()),
            ..self
        }
    }

    /// Writes the line of the log, counts, and has the client told.
    pub(super) fn close<N: Net>(self, cx: &mut Context<'_, '_, N>) -> Next<N> {
        let reason = self.reason;
        cx.note(reason, &self.detail);
        let Some(answer) = self.answer else {
            cx.core.client.socket.reset_on_close();
            return cx.end_handshake(reason);
        };
        cx.turn.counters.handshakes_ended.add(1);
        Closing::begin(reason, answer.into(), cx)
    }
}

/// Looks for a whole hello of at most `limit` bytes; `None` when more has to come.
///
/// # Errors
///
/// When it is something else, or too long.
pub(super) fn look(input: &[u8], limit: usize) -> Result<Option<ClientHello<'_>>, Refusal> {
    match peek(input) {
        Peek::Hello(hello) if hello.wire_len() <= limit => Ok(Some(hello)),
        Peek::Incomplete if input.len() < limit => Ok(None),
        Peek::Hello(_) | Peek::Incomplete => {
            let detail = format!("above the limit of {limit} bytes");
            Err(Refusal::new(CloseReason::HelloTooLarge, detail)
                .answering(&fatal_alert(DECODE_ERROR)))
        }
        Peek::Refused(other) => {
            let detail = match other {
                NotHello::Alert { description, .. } => {
                    format!("the client sent alert {}", names::alert(description.into()))
                }
                other => other.to_string(),
            };
            let refusal = Refusal::new(reason_of(other), detail);
            Err(match other.alert() {
                Some(alert) => refusal.answering(&fatal_alert(alert)),
                None if other == NotHello::PlainHttp => refusal.answering(PLAIN_HTTP_ANSWER),
                None => refusal,
            })
        }
    }
}

fn reason_of(other: NotHello) -> CloseReason {
    match other {
        NotHello::PlainHttp => CloseReason::PlainHttp,
        NotHello::NotTls | NotHello::ProxyHeader => CloseReason::NotTls,
        NotHello::Malformed(Malformed::OversizedHello) => CloseReason::HelloTooLarge,
        _ => CloseReason::HandshakeFailed,
    }
}

/// A record with one fatal alert, in clear: no keys exist yet (RFC 8446, sections 5.1 and 6).
pub(super) fn fatal_alert(description: u8) -> [u8; 7] {
    [21, 0x03, 0x03, 0, 2, 2, description]
}

/// RFC 8446, section 6.2: "some field was out of the specified range". It is what rustls says to
/// messages above its own limit.
pub(super) const DECODE_ERROR: u8 = 50;
