//! The datagram by which stud and hitch announce new sessions to each other; read only.
//!
//! `session id[32, padded with zeros] | DER of OpenSSL's SSL_SESSION, at most 512 | unix time u32 | HMAC-SHA1[20]`, all
//! big endian; the HMAC covers everything before it, and its key is the SHA-1 of the PKCS#1 form of the server's RSA key.
//! This module has only the layout; [`super::intake`] verifies the HMAC, and [`super::session`] reads the DER.
//!
//! Borrows from the datagram and allocates nothing. Never panics.
//!
//! Source: the behaviour of hitch 1.8.0 (`handle_shcupd`, `shcupd_session_new`), OpenSSL's `ssl/ssl_asn1.c`, X.690.

/// Maximum datagram in bytes: the size of hitch's buffer, without the slack after the HMAC.
pub(super) const MAX_DATAGRAM: usize = ID_LEN + MAX_DER + TIME_LEN + MAC_LEN;
/// Length of an untruncated HMAC-SHA1 in bytes (RFC 2104).
const MAC_LEN: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Bytes that the HMAC covers: everything before it.
    pub sealed: &'a [u8],
    pub mac: &'a [u8; MAC_LEN],
    /// Session ID, padded with zeros.
    pub id: &'a [u8; ID_LEN],
    /// OpenSSL's SSL_SESSION: 1 to 512 bytes, not verified to be DER.
    pub der: &'a [u8],
    /// Creation time by the sender's clock, in seconds since 1970. Wraps in 2106.
    pub time: u32,
}

impl<'a> Datagram<'a> {
    /// Splits a datagram into its parts. Returns `None` if it is too short or too long. Does not
    /// check the contents, which must not be parsed before the HMAC is verified.
    pub fn parse(datagram: &'a [u8]) -> Option<Self> {
        if datagram.len() > MAX_DATAGRAM {
            return None;
        }
        let (sealed, mac) = datagram.split_last_chunk()?;
        let (rest, time) = sealed.split_last_chunk()?;
        let (id, der) = rest.split_first_chunk()?;
        (!der.is_empty()).then_some(Self {
            sealed,
            mac,
            id,
            der,
            time: u32::from_be_bytes(*time),
        })
    }

    /// Returns `true` if the padded session ID equals `id`.
    pub fn is_of(&self, id: &[u8]) -> bool {
        let Some((front, padding)) = self.id.split_at_checked(id.len()) else {
            return false;
        };
        front == id && padding.iter().all(|byte| *byte == 0)
    }
}

const ID_LEN: usize = 32;
/// hitch's `SHSESS_MAX_DATA_LEN`.
const MAX_DER: usize = 512;
const TIME_LEN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(der: &[u8]) -> Vec<u8> {
        let mut bytes = vec![7; 16];
        bytes.extend([0; 16]);
        bytes.extend(der);
        bytes.extend(0x0102_0304_u32.to_be_bytes());
        bytes.extend([9; MAC_LEN]);
        bytes
    }

    #[test]
    fn the_parts_are_where_hitch_puts_them() {
        let bytes = datagram(b"der");
        let parsed = Datagram::parse(&bytes).unwrap();
        assert_eq!(parsed.der, b"der");
        assert_eq!(parsed.time, 0x0102_0304);
        assert_eq!(parsed.mac, &[9; MAC_LEN]);
        assert_eq!(parsed.sealed, &bytes[..bytes.len() - MAC_LEN]);
    }

    #[test]
    fn too_short_and_too_long_are_no_datagrams() {
        let longest = datagram(&[1; MAX_DER]);
        assert_eq!(longest.len(), MAX_DATAGRAM);
        assert!(Datagram::parse(&longest).is_some());
        assert!(Datagram::parse(&datagram(&[1; MAX_DER + 1])).is_none());
        let shortest = datagram(&[1]);
        for len in 0..shortest.len() {
            assert!(Datagram::parse(&shortest[..len]).is_none(), "{len}");
        }
    }

    #[test]
    fn an_id_matches_only_with_zeros_behind_it() {
        let bytes = datagram(b"der");
        let parsed = Datagram::parse(&bytes).unwrap();
        assert!(parsed.is_of(&[7; 16]));
        let padded = [[7; 16], [0; 16]].concat();
        assert!(parsed.is_of(&padded));
        assert!(!parsed.is_of(&[7; 15]));
        assert!(!parsed.is_of(&[7; 17]));
        assert!(!parsed.is_of(&[0; 33]));
    }
}
