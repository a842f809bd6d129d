//! A handshake that is refused: the reason, the line of the log, and the answer that the client gets.

use becket_proto::close_reason::CloseReason;
use becket_tls::names;

/// Why there will be no TLS.
#[derive(Debug)]
pub(super) struct HandshakeRefusal {
    pub(super) reason: CloseReason,
    /// For the log, if the reason alone does not say enough.
    pub(super) detail: String,
    /// For the client. `None` is a reset: the client is turned away so that others can be served.
    pub(super) answer: Option<Vec<u8>>,
}

impl HandshakeRefusal {
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
}

/// A record with one fatal alert, in clear: no keys exist yet (RFC 8446, sections 5.1 and 6).
pub(super) fn fatal_alert(description: u8) -> [u8; 7] {
    [21, 0x03, 0x03, 0, 2, 2, description]
}

/// RFC 8446, section 6.2: "some field was out of the specified range". It is what rustls says to
/// messages above its own limit.
pub(super) const DECODE_ERROR: u8 = 50;
