//! A rejected handshake: its reason, its log detail, and the answer to the client.

use becket_proto::close_reason::CloseReason;
use becket_tls::names;

#[derive(Debug)]
pub(super) struct HandshakeRefusal {
    pub(super) reason: CloseReason,
    /// Detail for the log; empty if the close reason says enough.
    pub(super) detail: String,
    /// Bytes to send to the client. `None` means that the connection is reset without an answer, to
    /// save resources.
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

    /// Creates a refusal with a fatal plaintext alert.
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

/// Returns a record with a fatal alert in plaintext, because no keys exist yet (RFC 8446, sections
/// 5.1 and 6).
pub(super) fn fatal_alert(description: u8) -> [u8; 7] {
    [21, 0x03, 0x03, 0, 2, 2, description]
}

/// Alert `decode_error` (RFC 8446, section 6.2). Like rustls, becket also sends it for a message
/// that is too long.
pub(super) const DECODE_ERROR: u8 = 50;
