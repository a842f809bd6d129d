//! Determines from the client's own ClientHello which resumption method it offers.
//!
//! rustls does not report how a TLS 1.2 session was resumed, but the ClientHello shows the method: a pre-shared key
//! (RFC 8446, 4.2.11), a non-empty SessionTicket extension (RFC 5077, 3.2), or a session ID in a ClientHello without
//! key shares (RFC 5246, 7.4.1.2).

use becket_proto::reader::Reader;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offered {
    /// No resumption, so the handshake will be full.
    #[default]
    Nothing,
    /// A TLS 1.2 session ID.
    Id,
    /// A TLS 1.2 ticket.
    Ticket,
    /// A TLS 1.3 pre-shared key.
    Psk,
}

impl Offered {
    /// Parses the first flight of a client. Returns `Nothing` if it is not a ClientHello in a
    /// single record.
    pub fn of(flight: &[u8]) -> Self {
        Self::read(flight).unwrap_or_default()
    }

    fn read(flight: &[u8]) -> Option<Self> {
        let mut hello = Reader::new(flight);
        hello.take(RECORD_AND_HANDSHAKE_HEADERS + 2 + 32)?;
        let session_id = hello.vec8()?;
        hello.vec16()?;
        hello.vec8()?;
        let mut extensions = hello.vec16()?;
        let (mut tls13, mut ticket) = (false, false);
        while !extensions.is_empty() {
            let kind = extensions.u16()?;
            let body = extensions.vec16()?;
            match kind {
                PRE_SHARED_KEY => return Some(Self::Psk),
                SESSION_TICKET => ticket = !body.is_empty(),
                KEY_SHARE => tls13 = true,
                _ => {}
            }
        }
        Some(if ticket {
            Self::Ticket
        } else if !session_id.is_empty() && !tls13 {
            // Returns `Id` only without key shares: a TLS 1.3 ClientHello contains a random session ID for
            // compatibility with middleboxes.
            Self::Id
        } else {
            Self::Nothing
        })
    }
}

/// Length of both headers: 5 bytes for the record, 4 for the handshake message.
const RECORD_AND_HANDSHAKE_HEADERS: usize = 9;
const SESSION_TICKET: u16 = 0x0023;
const PRE_SHARED_KEY: u16 = 0x0029;
const KEY_SHARE: u16 = 0x0033;

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(session_id: &[u8], extensions: &[(u8, &[u8])]) -> Vec<u8> {
        let mut out = vec![0; RECORD_AND_HANDSHAKE_HEADERS + 34];
        out.push(session_id.len() as u8);
        out.extend_from_slice(session_id);
        out.extend_from_slice(&[0, 2, 0x13, 0x01, 1, 0]);
        let body: Vec<u8> = extensions
            .iter()
            .flat_map(|(kind, body)| [&[0, *kind, 0, body.len() as u8], *body].concat())
            .collect();
        out.extend_from_slice(&[0, body.len() as u8]);
        out.extend_from_slice(&body);
        out
    }

    #[test]
    fn each_method_of_resumption_is_recognised() {
        assert_eq!(Offered::of(&hello(&[], &[(0x23, &[])])), Offered::Nothing);
        assert_eq!(
            Offered::of(&hello(&[7; 32], &[(0x23, &[1, 2])])),
            Offered::Ticket
        );
        assert_eq!(Offered::of(&hello(&[7; 32], &[])), Offered::Id);
        assert_eq!(
            Offered::of(&hello(&[7; 32], &[(0x33, &[1])])),
            Offered::Nothing
        );
        assert_eq!(
            Offered::of(&hello(&[7; 32], &[(0x33, &[1]), (0x29, &[1])])),
            Offered::Psk
        );
    }

    #[test]
    fn a_truncated_hello_offers_nothing() {
        let whole = hello(&[7; 32], &[(0x23, &[1, 2])]);
        for length in 0..whole.len() {
            assert_eq!(Offered::of(&whole[..length]), Offered::Nothing, "{length}");
        }
    }
}
