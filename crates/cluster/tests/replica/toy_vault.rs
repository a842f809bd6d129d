//! A vault for tests: not secure, but it opens only text that was sealed under the same keys, unchanged.
//!
//! An [`Audit`] records the calls of all vaults of a test: a nonce that is used twice fails the test at once.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use becket_cluster::replica::{JOIN_NONCE_LEN, Role, SHARE_LEN, TAG_LEN, Transcript, Vault};
use becket_proto::ticket::SecretId;

/// The vault of one node.
#[derive(Clone)]
pub(crate) struct ToyVault {
    random: Random,
    ids: Vec<SecretId>,
    /// Values of the secrets.
    secrets: Vec<u64>,
    audit: Rc<RefCell<Audit>>,
}

/// Calls under all keys of a test.
#[derive(Default)]
pub(crate) struct Audit {
    sealed: HashSet<(u64, u64)>,
    pub(crate) opens: u64,
    pub(crate) agreements: u64,
}

/// A generator whose numbers are the same in every run: splitmix64.
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

pub(crate) struct Keys {
    sealing: u64,
    opening: u64,
}

impl ToyVault {
    /// Creates a vault. Each secret is a name and a value: two nodes can have different values for one name.
    pub(crate) fn new(seed: u64, secrets: &[(u32, u64)], audit: &Rc<RefCell<Audit>>) -> Self {
        Self {
            random: Random(seed),
            ids: secrets.iter().map(|(id, _)| SecretId(*id)).collect(),
            secrets: secrets.iter().map(|(_, value)| *value).collect(),
            audit: Rc::clone(audit),
        }
    }

    fn value(&self, secret: SecretId) -> Option<u64> {
        let at = self.ids.iter().position(|id| *id == secret)?;
        Some(self.secrets[at])
    }

    fn join_key(&self, secret: SecretId) -> Option<u64> {
        Some(mix(self.value(secret)?, b"join"))
    }
}

impl Vault for ToyVault {
    type Share = u64;
    type Keys = Keys;

    fn random(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let bytes = self.random.next().to_be_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }

    fn secrets(&self) -> &[SecretId] {
        &self.ids
    }

    fn share(&mut self) -> Option<(u64, [u8; SHARE_LEN])> {
        let exponent = self.random.next() >> 3 | 1;
        let mut share = [0; SHARE_LEN];
        share[..8].copy_from_slice(&power(3, exponent).to_be_bytes());
        Some((exponent, share))
    }

    fn agree(&mut self, ours: &u64, transcript: &Transcript, role: Role) -> Option<Keys> {
        self.audit.borrow_mut().agreements += 1;
        let theirs = transcript.their_share(role).first_chunk::<8>()?;
        let agreed = power(u64::from_be_bytes(*theirs), *ours);
        if agreed < 2 {
            return None;
        }
        let root = mix(
            self.value(transcript.secret)? ^ agreed,
            &transcript.encode(),
        );
        let (there, back) = (mix(root, b"there"), mix(root, b"back"));
        let (sealing, opening) = match role {
            Role::Initiator => (there, back),
            Role::Responder => (back, there),
        };
        Some(Keys { sealing, opening })
    }

    fn seal_join(
        &mut self,
        secret: SecretId,
        nonce: &[u8; JOIN_NONCE_LEN],
        header: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; TAG_LEN]> {
        let key = mix(self.join_key(secret)?, nonce);
        Some(seal(key, 0, header, text))
    }

    fn open_join(
        &mut self,
        secret: SecretId,
        nonce: &[u8; JOIN_NONCE_LEN],
        header: &[u8],
        sealed: &mut [u8],
    ) -> bool {
        self.audit.borrow_mut().opens += 1;
        let key = self.join_key(secret).map(|key| mix(key, nonce));
        key.is_some_and(|key| open(key, 0, header, sealed))
    }

    fn seal(
        &mut self,
        keys: &mut Keys,
        sequence: u64,
        header: &[u8],
        text: &mut [u8],
    ) -> Option<[u8; TAG_LEN]> {
        let first = self
            .audit
            .borrow_mut()
            .sealed
            .insert((keys.sealing, sequence));
        assert!(first, "sequence {sequence} was sealed twice under one key");
        Some(seal(keys.sealing, sequence, header, text))
    }

    fn open(&mut self, keys: &mut Keys, sequence: u64, header: &[u8], sealed: &mut [u8]) -> bool {
        self.audit.borrow_mut().opens += 1;
        open(keys.opening, sequence, header, sealed)
    }
}

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        finish(self.0)
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// Returns `true` in `percent` of 100 cases.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

fn seal(key: u64, sequence: u64, header: &[u8], text: &mut [u8]) -> [u8; TAG_LEN] {
    stream(key, sequence, text);
    tag(key, sequence, header, text)
}

fn open(key: u64, sequence: u64, header: &[u8], sealed: &mut [u8]) -> bool {
    let Some((text, found)) = sealed.split_last_chunk_mut::<TAG_LEN>() else {
        return false;
    };
    if tag(key, sequence, header, text) != *found {
        return false;
    }
    stream(key, sequence, text);
    true
}

fn stream(key: u64, sequence: u64, text: &mut [u8]) {
    let mut random = Random(key ^ finish(sequence));
    for chunk in text.chunks_mut(8) {
        for (byte, mask) in chunk.iter_mut().zip(random.next().to_be_bytes()) {
            *byte ^= mask;
        }
    }
}

fn tag(key: u64, sequence: u64, header: &[u8], text: &[u8]) -> [u8; TAG_LEN] {
    let first = mix(mix(key ^ finish(sequence), header), text);
    let mut tag = [0; TAG_LEN];
    tag[..8].copy_from_slice(&first.to_be_bytes());
    tag[8..].copy_from_slice(&finish(first ^ key).to_be_bytes());
    tag
}

fn mix(key: u64, bytes: &[u8]) -> u64 {
    let mut state = finish(key ^ bytes.len() as u64);
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = finish(state ^ u64::from_be_bytes(word));
    }
    state
}

fn finish(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Computes a power in the field of the Mersenne prime 2^61 - 1.
fn power(base: u64, mut exponent: u64) -> u64 {
    const PRIME: u128 = (1 << 61) - 1;
    let (mut result, mut base) = (1_u128, u128::from(base) % PRIME);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result * base % PRIME;
        }
        base = base * base % PRIME;
        exponent >>= 1;
    }
    result as u64
}
