//! Format of session tickets, and the keys that may open a ticket.
//!
//! A ticket has a clear-text header, which is authenticated as associated data, and a sealed part. The sealed part
//! contains the origin of the session and rustls' state. This module encodes and decodes the header and the origin,
//! selects the key, and checks the age. It neither seals nor opens: `crates/tls/src/sessions/tickets.rs` does, with an
//! AEAD.
//!
//! Layout, integers big-endian:
//!
//! ```text
//! version u8 | secret id u32 | policy tag u32 | epoch start u32 | node u16 | nonce 12 | sealed ( origin || state )
//! origin = id u64 | at u64
//! ```
//!
//! Invariants: a key ring belongs to one policy, so none of its keys can open a ticket of another
//! policy (the fault of CVE-2025-23419). The header identifies the key exactly, so at most one AEAD
//! operation is tried. If no key matches, `KeyRing::select` returns the cause. The content of a header is unverified
//! until that operation succeeds.
//!
//! Source: RFC 5077 section 4 and RFC 8446 section 4.6.1, which leave the format of a ticket to the server.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Keys of one policy: the key that seals new tickets, and further keys that only open tickets.
///
/// Moving a value in memory can leave a copy of its bytes behind, so `K` should be a pointer (`Box`, `Arc`) to a key
/// that erases itself on drop. The ring never clones a key.
pub struct KeyRing<K> {
    policy: TicketPolicy,
    sealing: RingKey<K>,
    opening: Vec<RingKey<K>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyId {
    /// Configured secret from which the key is derived.
    pub secret: SecretId,
    pub epoch: Epoch,
}

/// Result of [`KeyRing::select`]: the key that may open a ticket, or the reason why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Selection<'a, K> {
    /// The one key that can open the ticket, if it is genuine.
    Key(&'a K),
    /// The ticket is not from becket, or uses a layout or a state encoding that this build does not
    /// support.
    UnknownVersion,
    /// The ticket was sealed with a secret that this process does not accept.
    UnknownSecret,
    /// The ticket was sealed for another policy.
    OtherPolicy,
    /// The ticket was sealed in an epoch whose key is erased or does not exist yet.
    OtherEpoch,
}

struct RingKey<K> {
    id: KeyId,
    key: K,
}

impl<K> KeyRing<K> {
    pub fn new(policy: TicketPolicy, id: KeyId, key: K) -> Self {
        Self {
            policy,
            sealing: RingKey { id, key },
            opening: Vec::new(),
        }
    }

    /// Adds a key that only opens tickets: a key of another accepted secret, or of an epoch that a
    /// peer may use.
    ///
    /// Replaces an opening key with the same ID, but never the key that seals.
    pub fn accept(&mut self, id: KeyId, key: K) {
        if id != self.sealing.id {
            self.opening.retain(|held| held.id != id);
            self.opening.push(RingKey { id, key });
        }
    }

    /// Returns the key that seals, and its ID for the header.
    pub fn sealing(&self) -> (KeyId, &K) {
        (self.sealing.id, &self.sealing.key)
    }

    /// Selects the only key that can open a ticket with this header.
    ///
    /// Checks version, secret, policy and epoch in this order, so a returned reason implies that all earlier checks
    /// passed.
    pub fn select(&self, header: &TicketHeader) -> Selection<'_, K> {
        if header.version != TicketHeader::VERSION {
            return Selection::UnknownVersion;
        }
        if !self.keys().any(|held| held.id.secret == header.key.secret) {
            return Selection::UnknownSecret;
        }
        if header.policy != self.policy {
            return Selection::OtherPolicy;
        }
        match self.keys().find(|held| held.id == header.key) {
            Some(held) => Selection::Key(&held.key),
            None => Selection::OtherEpoch,
        }
    }

    pub fn policy(&self) -> TicketPolicy {
        self.policy
    }

    fn keys(&self) -> impl Iterator<Item = &RingKey<K>> {
        std::iter::once(&self.sealing).chain(&self.opening)
    }
}

impl<K> fmt::Debug for KeyRing<K> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<KeyId> = self.keys().map(|held| held.id).collect();
        out.debug_struct("KeyRing")
            .field("policy", &self.policy)
            .field("keys", &ids)
            .finish_non_exhaustive()
    }
}

/// Clear-text part of a ticket, authenticated as associated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketHeader {
    /// Version of the ticket's layout *and* of rustls' private encoding of the state inside.
    pub version: u8,
    pub key: KeyId,
    /// Short name of the policy; the full policy is in the associated data.
    pub policy: TicketPolicy,
    /// Node that sealed the ticket: a hint for routing, never trusted.
    pub node: NodeId,
    pub nonce: [u8; 12],
}

impl TicketHeader {
    /// Version of the tickets that this build seals, and the only one that it opens. Increment it when the layout or
    /// rustls' encoding of its server session state changes.
    pub const VERSION: u8 = 1;
    /// Length of an encoded header in bytes.
    pub const LEN: usize = 27;

    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[0] = self.version;
        out[1..5].copy_from_slice(&self.key.secret.0.to_be_bytes());
        out[5..9].copy_from_slice(&self.policy.0.to_be_bytes());
        out[9..13].copy_from_slice(&self.key.epoch.0.to_be_bytes());
        out[13..15].copy_from_slice(&self.node.0.to_be_bytes());
        out[15..27].copy_from_slice(&self.nonce);
        out
    }

    /// Splits a ticket into its header and its sealed part. Returns `None` if the ticket is too short.
    ///
    /// Does not validate the header, which [`KeyRing::select`] checks. The associated data for opening is the ticket's
    /// first [`TicketHeader::LEN`] bytes.
    pub fn decode(ticket: &[u8]) -> Option<(Self, &[u8])> {
        let (version, rest) = take::<1>(ticket)?;
        let (secret, rest) = take(rest)?;
        let (policy, rest) = take(rest)?;
        let (epoch, rest) = take(rest)?;
        let (node, rest) = take(rest)?;
        let (nonce, sealed) = take(rest)?;
        let header = Self {
            version: version[0],
            key: KeyId {
                secret: SecretId(u32::from_be_bytes(secret)),
                epoch: Epoch(u32::from_be_bytes(epoch)),
            },
            policy: TicketPolicy(u32::from_be_bytes(policy)),
            node: NodeId(u16::from_be_bytes(node)),
            nonce,
        };
        Some((header, sealed))
    }
}

/// Identity and time of the full handshake from which a session descends. Resumed sessions inherit
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Random ID, equal for all sessions that descend from the handshake.
    pub id: OriginId,
    /// Time of the handshake, never of a later ticket.
    pub at: UnixSeconds,
}

impl Origin {
    /// Length of an encoded origin in bytes.
    pub const LEN: usize = 16;

    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.id.0.to_be_bytes());
        out[8..].copy_from_slice(&self.at.0.to_be_bytes());
        out
    }

    /// Splits the plaintext of a ticket into the origin and rustls' state. Returns `None` if it is
    /// too short.
    pub fn decode(opened: &[u8]) -> Option<(Self, &[u8])> {
        let (id, rest) = take(opened)?;
        let (at, state) = take(rest)?;
        let origin = Self {
            id: OriginId(u64::from_be_bytes(id)),
            at: UnixSeconds(u64::from_be_bytes(at)),
        };
        Some((origin, state))
    }

    /// Returns `true` if the full handshake is at least `max_age` ago at `now`, so that the session must not be
    /// resumed.
    ///
    /// The handshake may appear to be in the future, if a clock was set back or if the clocks of two nodes differ. It
    /// then counts as new if it is at most `max_age` ahead, and as too old otherwise. So no session is usable for more
    /// than twice `max_age`, even with wrong clocks.
    pub fn is_too_old(&self, now: UnixSeconds, max_age: Duration) -> bool {
        now.0.abs_diff(self.at.0) >= max_age.as_secs()
    }
}

/// Identifies a configured secret: the same secret has the same ID on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SecretId(pub u32);

/// Short name of a policy in a ticket, used to select a key. It is not authenticated before the
/// ticket is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TicketPolicy(pub u32);

/// Start of a ticket key's epoch, in seconds since the Unix epoch (until 2106).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct NodeId(pub u16);

/// 64 random bits, generated at a full handshake and inherited by every session that descends from
/// it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct OriginId(pub u64);

/// Wall-clock time in whole seconds since the Unix epoch.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct UnixSeconds(pub u64);

impl From<Duration> for UnixSeconds {
    /// Rounds the time since the epoch down to whole seconds.
    fn from(since_epoch: Duration) -> Self {
        Self(since_epoch.as_secs())
    }
}

fn take<const N: usize>(bytes: &[u8]) -> Option<([u8; N], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    Some((*head, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: TicketPolicy = TicketPolicy(7);

    fn id(secret: u32, epoch: u32) -> KeyId {
        KeyId {
            secret: SecretId(secret),
            epoch: Epoch(epoch),
        }
    }

    fn header(key: KeyId) -> TicketHeader {
        TicketHeader {
            version: TicketHeader::VERSION,
            key,
            policy: POLICY,
            node: NodeId(3),
            nonce: [9; 12],
        }
    }

    #[test]
    fn the_header_is_encoded_as_documented() {
        let bytes = TicketHeader {
            version: 1,
            key: id(0x0203_0405, 0x0a0b_0c0d),
            policy: TicketPolicy(0x0607_0809),
            node: NodeId(0x0e0f),
            nonce: [
                0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b,
            ],
        }
        .encode();
        assert!(bytes.iter().copied().eq(0x01..=0x1b));
    }

    #[test]
    fn a_mismatch_is_reported_with_its_cause() {
        let mut ring = KeyRing::new(POLICY, id(1, 1000), "now");
        ring.accept(id(1, 900), "before");
        let good = header(id(1, 900));
        assert_eq!(ring.select(&good), Selection::Key(&"before"));
        assert_eq!(
            ring.select(&TicketHeader { version: 2, ..good }),
            Selection::UnknownVersion
        );
        assert_eq!(ring.select(&header(id(2, 900))), Selection::UnknownSecret);
        assert_eq!(
            ring.select(&TicketHeader {
                policy: TicketPolicy(8),
                ..good
            }),
            Selection::OtherPolicy
        );
        assert_eq!(ring.select(&header(id(1, 901))), Selection::OtherEpoch);
    }

    #[test]
    fn debug_output_shows_no_key() {
        let ring = KeyRing::new(POLICY, id(1, 1000), "hunter2");
        assert!(!format!("{ring:?}").contains("hunter2"));
    }

    fn origin(at: u64) -> Origin {
        Origin {
            id: OriginId(1),
            at: UnixSeconds(at),
        }
    }

    #[test]
    fn a_session_expires_at_its_maximum_age() {
        let max_age = Duration::from_secs(60);
        assert!(!origin(1000).is_too_old(UnixSeconds(1059), max_age));
        assert!(origin(1000).is_too_old(UnixSeconds(1060), max_age));
        assert!(origin(1000).is_too_old(UnixSeconds(1000), Duration::ZERO));
    }

    #[test]
    fn an_origin_in_the_future_is_accepted_within_the_maximum_age() {
        let max_age = Duration::from_secs(60);
        assert!(!origin(1000).is_too_old(UnixSeconds(941), max_age));
        assert!(origin(1000).is_too_old(UnixSeconds(940), max_age));
        assert!(origin(u64::MAX).is_too_old(UnixSeconds(0), max_age));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn any_header_survives_the_round_trip(
            version: u8, secret: u32, policy: u32, epoch: u32, node: u16, nonce: [u8; 12], sealed: Vec<u8>,
        ) {
            let header = TicketHeader {
                version, key: id(secret, epoch), policy: TicketPolicy(policy), node: NodeId(node), nonce,
            };
            let mut ticket = header.encode().to_vec();
            ticket.extend_from_slice(&sealed);
            prop_assert_eq!(TicketHeader::decode(&ticket), Some((header, &sealed[..])));
        }

        #[test]
        fn any_origin_survives_the_round_trip(id: u64, at: u64, state: Vec<u8>) {
            let origin = Origin { id: OriginId(id), at: UnixSeconds(at) };
            let mut opened = origin.encode().to_vec();
            opened.extend_from_slice(&state);
            prop_assert_eq!(Origin::decode(&opened), Some((origin, &state[..])));
        }

        #[test]
        fn decoded_headers_encode_to_the_same_bytes(ticket in proptest::collection::vec(any::<u8>(), 0..64)) {
            match TicketHeader::decode(&ticket) {
                Some((header, sealed)) => {
                    prop_assert_eq!([&header.encode()[..], sealed].concat(), ticket.clone());
                    let ring = KeyRing::new(POLICY, id(1, 1), ());
                    prop_assert!(!matches!(ring.select(&header), Selection::Key(())) || header.key == id(1, 1));
                }
                None => prop_assert!(ticket.len() < TicketHeader::LEN),
            }
            prop_assert_eq!(Origin::decode(&ticket).is_none(), ticket.len() < Origin::LEN);
        }

        /// The model stores every key ever added, and recomputes which must be kept.
        #[test]
        fn the_ring_agrees_with_a_model(steps in proptest::collection::vec((0_u32..3, 0_u32..12), 1..40)) {
            let sealing = id(0, 25);
            let mut ring = KeyRing::new(POLICY, sealing, usize::MAX);
            let mut held = vec![(sealing, usize::MAX)];
            for (serial, (secret, epoch)) in steps.into_iter().enumerate() {
                let new = id(secret, epoch * 5);
                ring.accept(new, serial);
                if new != sealing {
                    held.retain(|(old, _)| *old != new);
                    held.push((new, serial));
                }
                prop_assert_eq!(ring.sealing(), (sealing, &usize::MAX));
                for (secret, epoch) in (0..3).flat_map(|secret| (0..12).map(move |epoch| (secret, epoch * 5))) {
                    let wanted = id(secret, epoch);
                    let known = held.iter().any(|(old, _)| old.secret.0 == secret);
                    let expected = match held.iter().find(|(old, _)| *old == wanted) {
                        Some((_, serial)) => Selection::Key(serial),
                        None if known => Selection::OtherEpoch,
                        None => Selection::UnknownSecret,
                    };
                    prop_assert_eq!(ring.select(&header(wanted)), expected);
                }
            }
        }
    }
}
