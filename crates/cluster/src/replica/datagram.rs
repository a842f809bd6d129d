//! Encodes and decodes datagram headers, and the plaintext of a join. A join is a message with
//! which two nodes agree on keys.
//!
//! A header is not authenticated until the datagram is decrypted. It only selects the key to try.

use super::names::{Boot, PeerName};
use super::status::DropCause;
use super::vault::{JOIN_NONCE_LEN, NONCE_LEN, SHARE_LEN};
use becket_proto::reader::Reader;
use becket_proto::ticket::{NodeId, SecretId};

/// ID of the key for datagrams to a node. The node chooses it for each pair and for each join in
/// progress. Random and never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PairId(pub(super) u32);

/// Header of a datagram, which selects its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    Pair {
        to: PairId,
        sequence: u64,
    },
    Join {
        secret: SecretId,
        /// ID of the HELLO that a WELCOME answers. `None` in a HELLO.
        to: Option<PairId>,
        nonce: [u8; JOIN_NONCE_LEN],
    },
}

/// Message of a join, sent between nodes that share no keys yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Join {
    pub(super) kind: JoinKind,
    pub(super) from: PeerName,
    /// ID that the receiver must put into datagrams to the sender.
    pub(super) id: PairId,
    pub(super) nonce: [u8; NONCE_LEN],
    /// Nonce of the HELLO that a WELCOME answers.
    pub(super) echo: [u8; NONCE_LEN],
    pub(super) share: [u8; SHARE_LEN],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JoinKind {
    Hello,
    Welcome,
}

impl Header {
    /// Decodes the header, and returns it with the offset of the sealed part.
    pub(super) fn decode(datagram: &[u8]) -> Result<Self, DropCause> {
        if datagram.len() > MAX_DATAGRAM {
            return Err(DropCause::Oversized);
        }
        let mut reader = Reader::new(datagram);
        match reader.array() {
            Some(MAGIC) => Self::behind_magic(&mut reader).ok_or(DropCause::Garbage),
            Some([a, b, c, _]) if [a, b, c] == SIGNATURE => Err(DropCause::UnknownVersion),
            _ => Err(DropCause::Garbage),
        }
    }

    fn behind_magic(reader: &mut Reader<'_>) -> Option<Self> {
        let to = reader.u32()?;
        if to != 0 {
            let sequence = reader.array().map(u64::from_be_bytes)?;
            let to = PairId(to);
            return Some(Self::Pair { to, sequence });
        }
        let secret = SecretId(reader.u32()?);
        let to = Some(PairId(reader.u32()?)).filter(|to| to.0 != 0);
        let nonce = reader.array()?;
        Some(Self::Join { secret, to, nonce })
    }

    /// Returns the associated data of the seal: the first [`HEADER_LEN`] bytes of the datagram.
    pub(super) fn encode(&self) -> [u8; HEADER_LEN] {
        let (id, rest) = match self {
            Self::Pair { to, sequence } => (to.0, *sequence),
            Self::Join { secret, to, .. } => {
                let to = to.map_or(0, |to| to.0);
                (0, u64::from(secret.0) << 32 | u64::from(to))
            }
        };
        let mut out = [0; HEADER_LEN];
        out[..4].copy_from_slice(&MAGIC);
        out[4..8].copy_from_slice(&id.to_be_bytes());
        out[8..].copy_from_slice(&rest.to_be_bytes());
        out
    }
}

impl Join {
    /// Length of an encoded join in bytes. All kinds have the same length, so that an answer is never longer than its
    /// request.
    pub(super) const LEN: usize = 1 + 2 + 8 + 4 + 2 * NONCE_LEN + SHARE_LEN;

    pub(super) fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[0] = match self.kind {
            JoinKind::Hello => 1,
            JoinKind::Welcome => 2,
        };
        out[1..3].copy_from_slice(&self.from.node.0.to_be_bytes());
        out[3..11].copy_from_slice(&self.from.boot.0.to_be_bytes());
        out[11..15].copy_from_slice(&self.id.0.to_be_bytes());
        out[15..31].copy_from_slice(&self.nonce);
        out[31..47].copy_from_slice(&self.echo);
        out[47..].copy_from_slice(&self.share);
        out
    }

    /// Decodes a join. Ignores additional bytes, which a newer version may append.
    pub(super) fn decode(text: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(text);
        let kind = match reader.u8()? {
            1 => JoinKind::Hello,
            2 => JoinKind::Welcome,
            _ => return None,
        };
        let node = NodeId(reader.u16()?);
        let boot = Boot(reader.array().map(u64::from_be_bytes)?);
        Some(Self {
            kind,
            from: PeerName { node, boot },
            id: PairId(reader.u32().filter(|id| *id != 0)?),
            nonce: reader.array()?,
            echo: reader.array()?,
            share: reader.array()?,
        })
    }
}

/// Length in bytes of the header in a datagram of a pair. The encrypted part follows it.
pub(super) const HEADER_LEN: usize = 16;

/// Maximum length of a datagram in bytes. It fits an MTU of 1500 with room for tunnel headers.
pub const MAX_DATAGRAM: usize = 1400;

/// First bytes of every datagram, in all versions including future ones. A datagram without them is dropped before
/// decryption.
pub const SIGNATURE: [u8; 3] = *b"BKT";

/// Signature and version, which begin every datagram.
const MAGIC: [u8; 4] = *b"BKT3";

#[cfg(test)]
mod tests {
    use super::*;

    fn join(kind: JoinKind) -> Join {
        Join {
            kind,
            from: PeerName {
                node: NodeId(0x0102),
                boot: Boot(0x0304_0506_0708_090a),
            },
            id: PairId(0x0b0c_0d0e),
            nonce: [0x11; NONCE_LEN],
            echo: [0x22; NONCE_LEN],
            share: [0x33; SHARE_LEN],
        }
    }

    #[test]
    fn headers_survive_the_round_trip() {
        let pair = Header::Pair {
            to: PairId(7),
            sequence: 0x0102_0304_0506_0708,
        };
        assert_eq!(Header::decode(&pair.encode()), Ok(pair));
        for to in [None, Some(PairId(9))] {
            let nonce = [5; JOIN_NONCE_LEN];
            let secret = SecretId(0xa0b0_c0d0);
            let header = Header::Join { secret, to, nonce };
            let mut bytes = header.encode().to_vec();
            bytes.extend(nonce);
            assert_eq!(Header::decode(&bytes), Ok(header));
        }
    }

    #[test]
    fn invalid_headers_are_rejected_with_the_cause() {
        let mut bytes = Header::Pair {
            to: PairId(7),
            sequence: 1,
        }
        .encode()
        .to_vec();
        for len in 0..bytes.len() {
            assert_eq!(Header::decode(&bytes[..len]), Err(DropCause::Garbage));
        }
        bytes[3] = b'1';
        assert_eq!(Header::decode(&bytes), Err(DropCause::UnknownVersion));
        assert_eq!(Header::decode(&[b'B'; 1401]), Err(DropCause::Oversized));
    }

    #[test]
    fn a_join_is_decoded_despite_trailing_bytes_but_not_if_truncated() {
        for kind in [JoinKind::Hello, JoinKind::Welcome] {
            let mut text = join(kind).encode().to_vec();
            for len in 0..text.len() {
                assert_eq!(Join::decode(&text[..len]), None);
            }
            text.push(1);
            assert_eq!(Join::decode(&text), Some(join(kind)));
        }
    }

    #[test]
    fn a_join_of_unknown_kind_or_without_a_key_id_is_rejected() {
        let mut text = join(JoinKind::Hello).encode();
        text[0] = 3;
        assert_eq!(Join::decode(&text), None);
        let nameless = Join {
            id: PairId(0),
            ..join(JoinKind::Hello)
        };
        assert_eq!(Join::decode(&nameless.encode()), None);
    }
}
