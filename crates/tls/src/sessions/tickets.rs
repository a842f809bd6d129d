//! Session tickets, encrypted with AES-256-GCM-SIV. Each policy has one key per epoch (rotation
//! period).
//!
//! A ticket consists of a header, the origin and the rustls state; the latter two are encrypted
//! ([`becket_proto::ticket`] contains the layout). The header and the policy digest are associated
//! data, so a ticket cannot be decrypted under another policy. The header selects the key, so each
//! ticket takes at most one AEAD operation. GCM-SIV (RFC 8452) is safe with random nonces from many
//! nodes under one key.
//!
//! A [`Ticketer`] is immutable and owned by one worker. The control thread creates new
//! [`TicketSecrets`] at every rotation, including the secret of a cluster's next epoch. Workers
//! then derive their keys and build new configurations. Old keys are dropped with the last
//! handshake that uses them, at most `timeouts.handshake` later.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use becket_proto::session::PolicyTag;
use becket_proto::ticket::{KeyId, KeyRing, NodeId, Origin, Selection, TicketHeader};
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

use super::context::{self, OpenedSession};
use super::stored::ReturningClients;
use crate::random;
use crate::resumption::Resumption;
use crate::secret::shared::SecretBytes;

/// Secrets of all epochs whose tickets are accepted; never empty. `crates/control/src/rotation/`
/// creates them.
#[derive(Debug)]
pub struct TicketSecrets {
    pub rotation: Duration,
    /// Number of this node; 0 without a cluster. Each ticket that this node seals contains the
    /// number as a hint.
    pub node: NodeId,
    /// Secrets by epoch. The last secret encrypts new tickets; all other secrets only decrypt
    /// tickets. The list includes the secret of the next epoch, for tickets from nodes whose clocks
    /// are ahead.
    pub epochs: Vec<EpochSecret>,
}

#[derive(Clone, Debug)]
pub struct EpochSecret {
    pub id: KeyId,
    pub secret: SecretBytes,
}

impl TicketSecrets {
    /// Compares node, rotation and the IDs of the secrets, but not the secret bytes.
    pub fn same_as(&self, other: &Self) -> bool {
        let ids = |of: &Self| -> Vec<KeyId> { of.epochs.iter().map(|epoch| epoch.id).collect() };
        self.node == other.node && self.rotation == other.rotation && ids(self) == ids(other)
    }
}

#[derive(Debug)]
pub struct Ticketer {
    ring: KeyRing<Arc<LessSafeKey>>,
    policy: [u8; 32],
    node: NodeId,
    lifetime: Duration,
    max_age: Duration,
    clients: ReturningClients,
    longest: usize,
}

impl Ticketer {
    /// Derives the policy's ticket keys, one per epoch. Returns `None` if there is no secret.
    pub fn new(secrets: &TicketSecrets, policy: [u8; 32], max_age: Duration) -> Option<Self> {
        let (sealing, opening) = secrets.epochs.split_last()?;
        let tag = PolicyTag::from_digest(&policy).for_ticket();
        let mut ring = KeyRing::new(tag, sealing.id, derive(sealing, &policy)?);
        for epoch in opening {
            ring.accept(epoch.id, derive(epoch, &policy)?);
        }
        Some(Self {
            ring,
            policy,
            node: secrets.node,
            // Every ticket can be decrypted for at least this time, even if it was issued at the
            // end of its epoch.
            lifetime: secrets.rotation.min(max_age).min(LONGEST_LIFETIME),
            max_age,
            clients: ReturningClients::default(),
            longest: usize::MAX,
        })
    }

    /// Adds a check of the client's certificate before a session is resumed.
    pub fn admitting(self, clients: ReturningClients) -> Self {
        Self { clients, ..self }
    }

    /// Limits the size of tickets in bytes, because a larger ticket would make the client's next
    /// ClientHello too large.
    pub fn at_most(self, longest: usize) -> Self {
        Self { longest, ..self }
    }

    /// Returns `true` if the header of a ticket refers to a known key. The ticket may still fail to
    /// open.
    pub fn recognises(&self, ticket: &[u8]) -> bool {
        TicketHeader::decode(ticket)
            .is_some_and(|(header, _)| matches!(self.ring.select(&header), Selection::Key(_)))
    }

    fn seal(&self, origin: Origin, state: &[u8]) -> Option<Vec<u8>> {
        let (id, key) = self.ring.sealing();
        let mut nonce = [0; 12];
        random::fill(&mut nonce).ok()?;
        let header = TicketHeader {
            version: TicketHeader::VERSION,
            key: id,
            policy: self.ring.policy(),
            node: self.node,
            nonce,
        }
        .encode();
        let whole = length(state);
        let mut ticket = Vec::with_capacity(whole);
        ticket.extend_from_slice(&header);
        ticket.extend_from_slice(&origin.encode());
        ticket.extend_from_slice(state);
        let sealed = ticket.get_mut(TicketHeader::LEN..)?;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = key
            .seal_in_place_separate_tag(nonce, self.associated(&header), sealed)
            .ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    fn open(&self, ticket: &[u8]) -> Result<(Origin, Vec<u8>), Resumption> {
        let (header, sealed) = TicketHeader::decode(ticket).ok_or(Resumption::Unknown)?;
        let key = match self.ring.select(&header) {
            Selection::Key(key) => key,
            Selection::UnknownVersion => return Err(Resumption::Unknown),
            Selection::UnknownSecret => return Err(Resumption::UnknownSecret),
            Selection::OtherPolicy => return Err(Resumption::OtherPolicy),
            Selection::OtherEpoch => return Err(Resumption::Expired),
        };
        let mut sealed = Zeroizing::new(sealed.to_vec());
        let nonce = Nonce::assume_unique_for_key(header.nonce);
        let opened = key
            .open_in_place(nonce, self.associated(&header.encode()), &mut sealed)
            .map_err(|_| Resumption::BadSeal)?;
        let (origin, state) = Origin::decode(opened).ok_or(Resumption::BadSeal)?;
        Ok((origin, state.to_vec()))
    }

    fn associated(&self, header: &[u8; TicketHeader::LEN]) -> Aad<[u8; TicketHeader::LEN + 32]> {
        let mut bytes = [0; TicketHeader::LEN + 32];
        let (first, second) = bytes.split_at_mut(TicketHeader::LEN);
        first.copy_from_slice(header);
        second.copy_from_slice(&self.policy);
        Aad::from(bytes)
    }
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.lifetime.as_secs()).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let mut room = Zeroizing::default();
        let (origin, state) = context::with(|handshake| {
            let state = handshake.client.kept(plain, &mut room)?;
            let fits = length(state) <= self.longest;
            handshake.resumption.withheld |= !fits;
            fits.then(|| (handshake.origin(self.max_age), state))
        })??;
        self.seal(origin, state)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        let now = context::with(|handshake| handshake.clock.unix)?;
        let result = self.open(cipher).and_then(|(origin, state)| {
            if origin.is_too_old(now, self.max_age) {
                return Err(Resumption::TooOld);
            }
            self.clients.admits(&state)?;
            Ok((origin, state))
        });
        context::with(|handshake| {
            handshake
                .resumption
                .note(&result, |(origin, _)| OpenedSession {
                    origin: *origin,
                    by_id: false,
                });
            result.ok().map(|(_, state)| state)
        })?
    }
}

/// Returns the size in bytes of the ticket for a session state.
fn length(state: &[u8]) -> usize {
    TicketHeader::LEN + Origin::LEN + state.len() + TAG
}

/// Derives a ticket key by HKDF-SHA256 (RFC 5869) from the epoch's secret. The info parameter
/// consists of the policy digest with its length, and the start of the epoch.
fn derive(epoch: &EpochSecret, policy: &[u8; 32]) -> Option<Arc<LessSafeKey>> {
    let extracted = Salt::new(HKDF_SHA256, b"becket ticket 1").extract(epoch.secret.expose());
    let length = (policy.len() as u32).to_be_bytes();
    let start = epoch.id.epoch.0.to_be_bytes();
    let info = [&length[..], policy, &start];
    let mut key = Zeroizing::new([0; 32]);
    extracted
        .expand(&info, HKDF_SHA256)
        .and_then(|okm| okm.fill(&mut key[..]))
        .ok()?;
    let key = UnboundKey::new(&AES_256_GCM_SIV, &key[..]).ok()?;
    Some(Arc::new(LessSafeKey::new(key)))
}

/// Number of earlier epochs whose tickets can still be decrypted. So a ticket is accepted for one
/// to two rotation periods.
pub const KEPT_EPOCHS: u32 = 1;
/// RFC 8446, section 4.6.1: "Servers MUST NOT use any value greater than 604800 seconds".
const LONGEST_LIFETIME: Duration = Duration::from_secs(604_800);
/// Size of the authentication tag in bytes (RFC 8452).
const TAG: usize = 16;

#[cfg(test)]
mod tests {
    use becket_proto::ticket::{Epoch, SecretId, UnixSeconds};

    use super::context::HandshakeContext;
    use super::*;

    fn secrets(epochs: &[(u32, u8)]) -> TicketSecrets {
        let epochs = epochs.iter().map(|&(start, byte)| EpochSecret {
            id: KeyId {
                secret: SecretId(1),
                epoch: Epoch(start),
            },
            secret: SecretBytes::new(Zeroizing::new([byte; 32])),
        });
        TicketSecrets {
            rotation: Duration::from_secs(100),
            node: NodeId(5),
            epochs: epochs.collect(),
        }
    }

    fn ticketer(epochs: &[(u32, u8)], policy: u8) -> Ticketer {
        let day = Duration::from_secs(86_400);
        Ticketer::new(&secrets(epochs), [policy; 32], day).expect("secrets are given")
    }

    fn at(now: u64) -> Option<HandshakeContext> {
        let mut handshake = HandshakeContext::new(None);
        handshake.clock.unix = UnixSeconds(now);
        Some(handshake)
    }

    fn outcome(of: &Ticketer, ticket: &[u8], now: u64) -> Option<Resumption> {
        let mut handshake = at(now);
        let opened = context::lend(&mut handshake, || of.decrypt(ticket));
        let handshake = handshake?;
        assert_eq!(
            opened.is_some(),
            handshake.resumption.outcome == Some(Resumption::Opened)
        );
        handshake.resumption.outcome
    }

    #[test]
    fn a_ticket_opens_with_its_origin_and_state() {
        let one = ticketer(&[(1000, 7)], 1);
        let mut making = at(1005);
        let ticket = context::lend(&mut making, || one.encrypt(b"state")).expect("sealed");
        let mut opening = at(1010);
        let state = context::lend(&mut opening, || one.decrypt(&ticket));
        assert_eq!(state.as_deref(), Some(&b"state"[..]));
        let origin = making.expect("lent back").origin(one.max_age);
        assert_eq!(opening.expect("lent back").origin(one.max_age), origin);
        assert_eq!(origin.at, UnixSeconds(1005));
    }

    #[test]
    fn ticket_outcomes_are_reported_by_cause() {
        let one = ticketer(&[(1000, 7)], 1);
        let ticket = context::lend(&mut at(1000), || one.encrypt(b"state")).expect("sealed");
        assert_eq!(
            outcome(&ticketer(&[(1000, 7), (1100, 8)], 1), &ticket, 1101),
            Some(Resumption::Opened)
        );
        assert_eq!(
            outcome(&ticketer(&[(1200, 9)], 1), &ticket, 1201),
            Some(Resumption::Expired)
        );
        assert_eq!(
            outcome(&ticketer(&[(1000, 7)], 2), &ticket, 1001),
            Some(Resumption::OtherPolicy)
        );
        assert_eq!(
            outcome(&ticketer(&[(1000, 8)], 1), &ticket, 1001),
            Some(Resumption::BadSeal)
        );
        assert_eq!(
            outcome(&one, b"not one of ours", 1001),
            Some(Resumption::Unknown)
        );
        let mut foreign = ticket.clone();
        foreign[1] ^= 1;
        assert_eq!(
            outcome(&one, &foreign, 1001),
            Some(Resumption::UnknownSecret)
        );
        assert_eq!(
            outcome(&one, &ticket, 1000 + 86_400),
            Some(Resumption::TooOld)
        );
    }

    #[test]
    fn a_ticket_names_the_node_that_sealed_it() {
        let one = ticketer(&[(1000, 7)], 1);
        let ticket = context::lend(&mut at(1000), || one.encrypt(b"state")).expect("sealed");
        let (header, _) = TicketHeader::decode(&ticket).expect("a header");
        assert_eq!(header.node, NodeId(5));
    }

    #[test]
    fn a_late_rotation_keeps_the_previous_epoch() {
        let ticket = {
            let one = ticketer(&[(1000, 7)], 1);
            context::lend(&mut at(1000), || one.encrypt(b"state")).expect("sealed")
        };
        for later in [1101, 5000, 900] {
            let two = ticketer(&[(1000, 7), (later, 8)], 1);
            assert_eq!(
                outcome(&two, &ticket, 1200),
                Some(Resumption::Opened),
                "{later}"
            );
        }
    }

    #[test]
    fn a_ticket_with_any_flipped_bit_is_rejected() {
        let one = ticketer(&[(1000, 7)], 1);
        let ticket = context::lend(&mut at(1000), || one.encrypt(b"state")).expect("sealed");
        for bit in 0..ticket.len() * 8 {
            let mut bad = ticket.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(
                outcome(&one, &bad, 1000),
                Some(Resumption::Opened),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn a_ticket_does_not_outlive_the_clients_certificate() {
        let (now, until) = (1_000_000, 1_000_050);
        let one = ticketer(&[(1_000_000, 7)], 1);
        let mut making = at(now);
        making.as_mut().expect("given").client.until = Some(UnixSeconds(until));
        let ticket = context::lend(&mut making, || one.encrypt(b"state")).expect("sealed");
        assert_eq!(outcome(&one, &ticket, until - 1), Some(Resumption::Opened));
        assert_eq!(outcome(&one, &ticket, until), Some(Resumption::TooOld));
    }

    #[test]
    fn a_ticket_above_the_maximum_length_is_withheld() {
        let longest = length(b"state");
        let one = ticketer(&[(1000, 7)], 1).at_most(longest);
        let mut making = at(1000);
        let ticket = context::lend(&mut making, || one.encrypt(b"state"));
        assert_eq!(ticket.map(|ticket| ticket.len()), Some(longest));
        assert!(!making.as_ref().expect("given").resumption.withheld);
        assert_eq!(context::lend(&mut making, || one.encrypt(b"states")), None);
        assert!(making.expect("given").resumption.withheld);
    }

    #[test]
    fn only_the_verified_path_of_the_client_chain_is_sealed() {
        let one = ticketer(&[(1000, 7)], 1);
        let mut making = at(1000);
        making.as_mut().expect("given").client.path = Some(vec![1, 0]);
        let shown = state_with(&[b"leaf", b"root", b"between", b"filler"]);
        let ticket = context::lend(&mut making, || one.encrypt(&shown)).expect("sealed");
        let state = context::lend(&mut at(1000), || one.decrypt(&ticket));
        assert_eq!(state, Some(state_with(&[b"leaf", b"between", b"root"])));
        // This state could not be verified later.
        assert_eq!(context::lend(&mut making, || one.encrypt(b"state")), None);
    }

    /// Encodes the parts of rustls' state that are parsed.
    fn state_with(chain: &[&[u8]]) -> Vec<u8> {
        let listed: Vec<u8> = (chain.iter())
            .flat_map(|one| [&[0, 0, one.len() as u8], *one].concat())
            .collect();
        let head = [0, 3, 4, 0x13, 1, 2, 7, 7, 1, 1, 0, 0, listed.len() as u8];
        [&head[..], &listed, b"behind"].concat()
    }

    #[test]
    fn tickets_are_not_sealed_outside_a_handshake() {
        assert!(ticketer(&[(1000, 7)], 1).encrypt(b"state").is_none());
    }
}
