//! What the first bytes of a client are: a ClientHello, the beginning of one, or something else.
//!
//! Shared by the phases that begin with a hello, whether TLS ends here or passes. What is no hello
//! is told apart, and answered where there is an answer: HTTP in clear text with a status 400, TLS
//! that is none with a fatal alert.

use becket_proto::client_hello::{ClientHello, Malformed, NotHello, Peek, peek};
use becket_proto::plain_http::PLAIN_HTTP_ANSWER;

use crate::close_reason::CloseReason;
use crate::scratch::Buffer;

/// Why there will be no hello.
#[derive(Debug)]
pub(super) struct NoHello {
    /// For the metrics.
    pub(super) reason: CloseReason,
    /// For the log.
    pub(super) detail: String,
}

/// Looks for a whole hello of at most `limit` bytes; `None` when more has to come.
///
/// # Errors
///
/// When it is something else, or too long; what there is to say to the client is in `out`.
pub(super) fn look<'a>(
    input: &'a [u8],
    limit: usize,
    out: &mut Buffer,
) -> Result<Option<ClientHello<'a>>, NoHello> {
    match peek(input) {
        Peek::Hello(hello) if hello.wire_len() <= limit => Ok(Some(hello)),
        Peek::Incomplete if input.len() < limit => Ok(None),
        Peek::Hello(_) | Peek::Incomplete => {
            out.push(&fatal_alert(DECODE_ERROR));
            Err(NoHello {
                reason: CloseReason::HelloTooLarge,
                detail: format!("above the limit of {limit} bytes"),
            })
        }
        Peek::Refused(other) => {
            answer(other, out);
            Err(NoHello {
                reason: reason_of(other),
                detail: format!("{other:?}"),
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

/// What to say to something that is not a ClientHello.
fn answer(other: NotHello, out: &mut Buffer) {
    match other.alert() {
        Some(alert) => out.push(&fatal_alert(alert)),
        None if other == NotHello::PlainHttp => out.push(PLAIN_HTTP_ANSWER),
        None => {}
    }
}

/// A record with one fatal alert, in clear: no keys exist yet (RFC 8446, sections 5.1 and 6).
pub(super) fn fatal_alert(description: u8) -> [u8; 7] {
    [21, 0x03, 0x03, 0, 2, 2, description]
}

/// RFC 8446, section 6.2: "some field was out of the specified range". It is what rustls says to
/// messages above its own limit.
pub(super) const DECODE_ERROR: u8 = 50;
