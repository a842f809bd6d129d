//! Interface to the cryptography, and the transcript from which two nodes derive keys.
//!
//! A [`Vault`] holds the secrets, generates random bytes, encrypts and decrypts. The terminator implements it with
//! aws-lc-rs, tests with a toy cipher.
//!
//! There are two kinds of keys. A *join key* is derived from a configured secret and seals the datagrams of a join
//! under random nonces, so its cipher should be AES-256-GCM-SIV. *Pair keys*, one per direction, are derived from the
//! secret, an X25519 agreement and the whole [`Transcript`]; they seal all other datagrams, with the sequence number as
//! nonce.
//!
//! Both nodes contribute a fresh share and nonce to each join. No pair key is therefore derived twice, and a secret
//! that leaks later does not decrypt recorded datagrams.

use super::names::Boot;
use becket_proto::ticket::{NodeId, SecretId};

/// Cryptography of one node. No call may block.
pub trait Vault {
    /// Private key of an X25519 agreement; erased on drop.
    type Share;
    /// Keys of a pair, one per direction; erased on drop.
    type Keys;

    /// Fills `out` with random bytes that a peer cannot predict.
    fn random(&mut self, out: &mut [u8]);

    /// Returns the IDs of the configured secrets. Joins are sent under the first and accepted under any.
    fn secrets(&self) -> &[SecretId];

    /// Creates a private key for a key agreement, and the public share to send. Returns `None` on failure.
    fn share(&mut self) -> Option<(Self::Share, [u8; SHARE_LEN])>;

    /// Derives the keys of a pair from the transcript and the X25519 agreement with the peer's share. Returns `None` if
    /// the secret is unknown or the agreement yields all zeros.
    fn agree(
        &mut self,
        ours: &Self::Share,
        transcript: &Transcript,
        role: Role,
    ) -> Option<Self::Keys>;

    /// Seals `text` in place under a secret's join key and returns the tag; `header` is associated data.
    fn seal_join(
        &mut self,
        secret: SecretId,
        nonce: &[u8; JOIN_NONCE_LEN],
        header: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; TAG_LEN]>;

    /// Decrypts the output of [`seal_join`](Self::seal_join) in place; `sealed` ends with the tag. Returns `true` if
    /// the tag is valid.
    fn open_join(
        &mut self,
        secret: SecretId,
        nonce: &[u8; JOIN_NONCE_LEN],
        header: &[u8],
        sealed: &mut [u8],
    ) -> bool;

    /// Seals `text` in place under the sending key of a pair and returns the tag; `header` is associated data.
    /// `sequence` is the nonce and must not repeat for a pair.
    fn seal(
        &mut self,
        keys: &mut Self::Keys,
        sequence: u64,
        header: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; TAG_LEN]>;

    /// Decrypts the output of the peer's [`seal`](Self::seal) in place; `sealed` ends with the tag. Returns `true` if
    /// the tag is valid.
    fn open(
        &mut self,
        keys: &mut Self::Keys,
        sequence: u64,
        header: &[u8],
        sealed: &mut [u8],
    ) -> bool;
}

/// Values of a join from which both nodes derive the keys. Identical on both nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transcript {
    pub secret: SecretId,
    /// Sender of the HELLO.
    pub initiator: Party,
    /// Sender of the WELCOME.
    pub responder: Party,
}

/// Contribution of one node to a [`Transcript`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party {
    pub node: NodeId,
    pub boot: Boot,
    /// Random, fresh for each join.
    pub nonce: [u8; NONCE_LEN],
    /// X25519 public key, fresh for each join.
    pub share: [u8; SHARE_LEN],
}

/// Role of this node in a join. Selects the key for sending and the key for receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Initiator,
    Responder,
}

impl Transcript {
    pub const LEN: usize = 4 + 2 * Party::LEN;

    /// Encodes the transcript with fields of fixed length, so that different transcripts have different encodings.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&self.secret.0.to_be_bytes());
        out[4..4 + Party::LEN].copy_from_slice(&self.initiator.encode());
        out[4 + Party::LEN..].copy_from_slice(&self.responder.encode());
        out
    }

    pub fn their_share(&self, role: Role) -> &[u8; SHARE_LEN] {
        match role {
            Role::Initiator => &self.responder.share,
            Role::Responder => &self.initiator.share,
        }
    }
}

impl Party {
    const LEN: usize = 2 + 8 + NONCE_LEN + SHARE_LEN;

    fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..2].copy_from_slice(&self.node.0.to_be_bytes());
        out[2..10].copy_from_slice(&self.boot.0.to_be_bytes());
        out[10..26].copy_from_slice(&self.nonce);
        out[26..].copy_from_slice(&self.share);
        out
    }
}

pub(super) fn random<V: Vault, const N: usize>(vault: &mut V) -> [u8; N] {
    let mut out = [0; N];
    vault.random(&mut out);
    out
}

/// Tag length of AES-GCM and AES-GCM-SIV in bytes.
pub const TAG_LEN: usize = 16;
/// Length of a join datagram's random nonce in bytes.
pub const JOIN_NONCE_LEN: usize = 12;
/// Length in bytes of a nonce in HELLO or WELCOME, which the peer must echo.
pub const NONCE_LEN: usize = 16;
pub const SHARE_LEN: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transcripts_that_differ_anywhere_have_different_encodings() {
        let party = |byte: u8| Party {
            node: NodeId(byte.into()),
            boot: Boot(byte.into()),
            nonce: [byte; NONCE_LEN],
            share: [byte; SHARE_LEN],
        };
        let one = Transcript {
            secret: SecretId(1),
            initiator: party(1),
            responder: party(2),
        };
        let swapped = Transcript {
            initiator: one.responder,
            responder: one.initiator,
            ..one
        };
        let other_secret = Transcript {
            secret: SecretId(2),
            ..one
        };
        assert_ne!(one.encode(), swapped.encode());
        assert_ne!(one.encode(), other_secret.encode());
        assert_eq!(one.their_share(Role::Initiator), &[2; SHARE_LEN]);
        assert_eq!(one.their_share(Role::Responder), &[1; SHARE_LEN]);
    }
}
