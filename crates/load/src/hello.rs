//! Determines from the client's own ClientHello which resumption method it offers.
//!
//! rustls does not report how a TLS 1.2 session was resumed, but the ClientHello shows the method: a pre-shared key
//! (RFC 8446, 4.2.11), a non-empty SessionTicket extension (RFC 5077, 3.2), or a session ID in a ClientHello without
//! TLS 1.3 (RFC 5246, 7.4.1.2).

use becket_proto::client_hello::peek;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// No resumption, so the handshake will be full.
    Nothing,
    /// A TLS 1.2 session ID.
    Id,
    /// A TLS 1.2 ticket.
    Ticket,
    /// A TLS 1.3 pre-shared key.
    Psk,
}

impl Offered {
    /// Parses the first flight of a client. Returns `Nothing` if it is not a whole ClientHello.
    pub fn of(flight: &[u8]) -> Self {
        let Ok(Some(hello)) = peek(flight) else {
            return Self::Nothing;
        };
        if hello.psk_identities().next().is_some() {
            Self::Psk
        } else if hello.session_ticket().is_some_and(|it| !it.is_empty()) {
            Self::Ticket
        } else if !hello.session_id().is_empty() && !hello.offers_tls13() {
            // A TLS 1.3 ClientHello contains a random session ID for compatibility with middleboxes.
            Self::Id
        } else {
            Self::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(session_id: &[u8], extensions: &[(u8, &[u8])]) -> Vec<u8> {
        let bytes = |length: usize| [0, length as u8];
        let extensions = extensions
            .iter()
            .flat_map(|(kind, body)| [&[0, *kind][..], &bytes(body.len()), body].concat());
        let extensions: Vec<u8> = extensions.collect();
        let body = [
            &[3, 3][..],
            &[0; 32],
            &[session_id.len() as u8],
            session_id,
            &[0, 2, 0x13, 0x01, 1, 0],
            &bytes(extensions.len()),
            &extensions,
        ];
        let body = body.concat();
        let message = [&[1, 0][..], &bytes(body.len()), &body].concat();
        [&[22, 3, 1][..], &bytes(message.len()), &message].concat()
    }

    #[test]
    fn each_method_of_resumption_is_recognised() {
        let (tls13, ticket) = ((0x2b, &[2, 3, 4][..]), &[1, 2][..]);
        let psk = [&[0, 7, 0, 1, 9, 0, 0, 0, 0, 0, 33, 32][..], &[0; 32]].concat();
        for (offered, session_id, extensions) in [
            (Offered::Nothing, &[][..], vec![(0x23, &[][..])]),
            (Offered::Ticket, &[7; 32], vec![(0x23, ticket)]),
            (Offered::Id, &[7; 32], vec![]),
            (Offered::Nothing, &[7; 32], vec![tls13]),
            (Offered::Psk, &[7; 32], vec![tls13, (0x29, &psk)]),
        ] {
            assert_eq!(Offered::of(&hello(session_id, &extensions)), offered);
        }
    }

    #[test]
    fn a_truncated_hello_offers_nothing() {
        let whole = hello(&[7; 32], &[(0x23, &[1, 2])]);
        for length in 0..whole.len() {
            assert_eq!(Offered::of(&whole[..length]), Offered::Nothing, "{length}");
        }
    }
}
