//! Cryptography of the store: what it contains is sealed, and its keys reveal nothing.
//!
//! Two keys are derived from each cluster secret by HKDF-SHA256 (RFC 5869). The *name key* makes the store's key of a
//! value by HMAC-SHA256 of its *context*: its kind, and what it belongs to, such as policy and ID of a session. The *seal
//! key* seals the value with AES-256-GCM-SIV (RFC 8452) under a random nonce; the context is associated data. So a value
//! that is copied to another key, or that was sealed by another secret, does not open.
//!
//! ```text
//! value      version u8 | nonce 12 | sealed | tag 16
//! sealed     expires u64 | text
//! session    origin 16 | state
//! ```
//!
//! A writer to the store can put back an older value of the same session until it expires, and can remove values.

use std::fmt;
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk, Salt};
use aws_lc_rs::hmac;
use becket_cluster::Secret;
use becket_proto::acme::LONGEST_BUNDLE;
use becket_proto::session::{Session, SessionName};
use becket_proto::ticket::{Origin, UnixSeconds};
use zeroize::Zeroizing;

/// Keys of all cluster secrets. The first secret seals.
pub struct StoreVault(Vec<StoreSecret>);

struct StoreSecret {
    naming: hmac::Key,
    sealing: LessSafeKey,
}

/// Lifetimes on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Maximum time for which a session is stored.
    pub id_lifetime: Duration,
    /// Age since the full handshake after which a session is no longer resumed.
    pub max_age: Duration,
}

/// A session with its remaining lifetime.
#[derive(Debug)]
pub struct Live {
    pub session: Session,
    pub ttl: Duration,
}

impl StoreVault {
    /// Derives the keys. Returns `None` if there is no secret, or if AWS-LC cannot derive a key.
    pub fn new(secrets: &[Secret]) -> Option<Self> {
        let derive = |secret: &Secret| StoreSecret::new(&secret.key);
        let secrets: Vec<_> = secrets.iter().map(derive).collect::<Option<_>>()?;
        (!secrets.is_empty()).then_some(Self(secrets))
    }

    /// Number of secrets, each of which gives a session another key in the store.
    pub fn secrets(&self) -> usize {
        self.0.len()
    }

    /// Returns the key of a session in the store under the secret with this index.
    pub fn key(&self, secret: usize, name: &SessionName) -> Option<String> {
        self.key_of(secret, &associated(name))
    }

    /// Returns the key of a value in the store under the secret with this index.
    pub(crate) fn key_of(&self, secret: usize, context: &[u8]) -> Option<String> {
        let tag = hmac::sign(&self.0.get(secret)?.naming, context);
        let hex = tag.as_ref().iter().take(NAME_LEN);
        let hex = hex.map(|byte| format!("{byte:02x}"));
        Some(PREFIX.to_owned() + &hex.collect::<String>())
    }

    /// Seals a session for the store. Returns `None` if it is too large or if there are no random bytes.
    pub fn seal(&self, name: &SessionName, live: &Live, now: UnixSeconds) -> Option<Vec<u8>> {
        let origin = live.session.origin.encode();
        let text = [&origin[..], &live.session.state];
        self.seal_value(
            &associated(name),
            &text,
            now.0.saturating_add(live.ttl.as_secs()),
        )
    }

    /// Seals a value that ends at a time, in seconds since 1970.
    pub(crate) fn seal_value(
        &self,
        context: &[u8],
        text: &[&[u8]],
        expires: u64,
    ) -> Option<Vec<u8>> {
        let secret = self.0.first()?;
        let mut nonce = [0; NONCE_LEN];
        aws_lc_rs::rand::fill(&mut nonce).ok()?;
        let length = text.iter().map(|part| part.len()).sum::<usize>();
        // This buffer is never reallocated, because a freed buffer would contain a key.
        let mut value = Vec::with_capacity(1 + NONCE_LEN + 8 + length + 16);
        value.push(VERSION);
        value.extend(nonce);
        value.extend(expires.to_be_bytes());
        text.iter().for_each(|part| value.extend_from_slice(part));
        let (_, sealed) = value.split_at_mut(1 + NONCE_LEN);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let aad = Aad::from(context);
        let sealed = secret
            .sealing
            .seal_in_place_separate_tag(nonce, aad, sealed);
        value.extend(sealed.ok()?.as_ref());
        (value.len() <= MOST_VALUE).then_some(value)
    }

    /// Opens a value that was found under the key of the secret with this index. Returns `None` if another writer made
    /// it, or if the session has expired by the lifetimes of this host.
    pub fn open(
        &self,
        secret: usize,
        name: &SessionName,
        value: Vec<u8>,
        (now, most): (UnixSeconds, Lifetimes),
    ) -> Option<Live> {
        let text = self.open_sealed(secret, &associated(name), value)?;
        decode(&text, now, most)
    }

    /// Opens a value, and returns its text and remaining lifetime. Returns `None` if another writer made it, or if it
    /// has expired.
    pub(crate) fn open_value(
        &self,
        secret: usize,
        context: &[u8],
        value: Vec<u8>,
        now: UnixSeconds,
    ) -> Option<(Zeroizing<Vec<u8>>, Duration)> {
        let mut text = self.open_sealed(secret, context, value)?;
        let expires = text.first_chunk().copied().map(u64::from_be_bytes)?;
        let left = expires.checked_sub(now.0).filter(|left| *left > 0)?;
        text.drain(..8);
        Some((text, Duration::from_secs(left)))
    }

    fn open_sealed(
        &self,
        secret: usize,
        context: &[u8],
        value: Vec<u8>,
    ) -> Option<Zeroizing<Vec<u8>>> {
        let mut value = Zeroizing::new(value);
        let ([VERSION], rest) = value.split_first_chunk_mut()? else {
            return None;
        };
        let (nonce, sealed) = rest.split_first_chunk_mut::<NONCE_LEN>()?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let sealing = &self.0.get(secret)?.sealing;
        let length = sealing
            .open_in_place(nonce, Aad::from(context), sealed)
            .ok()?
            .len();
        value.drain(..1 + NONCE_LEN);
        value.truncate(length);
        Some(value)
    }
}

/// Decodes a sealed text.
pub fn decode(text: &[u8], now: UnixSeconds, most: Lifetimes) -> Option<Live> {
    let (expires, rest) = text.split_first_chunk()?;
    let (origin, state) = Origin::decode(rest)?;
    let seconds = u64::from_be_bytes(*expires).checked_sub(now.0)?;
    let age = Duration::from_secs(now.0.saturating_sub(origin.at.0));
    let left = most.max_age.checked_sub(age)?;
    let ttl = Duration::from_secs(seconds).min(most.id_lifetime).min(left);
    (!ttl.is_zero()).then(|| Live {
        session: Session::new(state.to_vec(), origin),
        ttl,
    })
}

impl StoreSecret {
    fn new(secret: &[u8; 32]) -> Option<Self> {
        let extracted = Salt::new(HKDF_SHA256, STORE).extract(secret);
        let sealing = UnboundKey::new(&AES_256_GCM_SIV, &expand(&extracted, SEAL)?[..]);
        Some(Self {
            naming: hmac::Key::new(hmac::HMAC_SHA256, &expand(&extracted, NAME)?[..]),
            sealing: LessSafeKey::new(sealing.ok()?),
        })
    }
}

fn expand(extracted: &Prk, label: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
    let mut key = Zeroizing::new([0; 32]);
    let info = [label];
    let expanded = extracted.expand(&info, HKDF_SHA256).ok()?;
    expanded.fill(&mut key[..]).ok()?;
    Some(key)
}

/// Returns kind, version, policy and ID. Only the ID has a variable length.
fn associated(name: &SessionName) -> Vec<u8> {
    [KIND, &[VERSION], &name.policy().0.to_be_bytes(), name.id()].concat()
}

impl fmt::Debug for StoreVault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("StoreVault").finish_non_exhaustive()
    }
}

/// Maximum length of a value in bytes: a certificate with chain and key, and what seals it. Sessions with client
/// certificates have 1 to 4 KB.
pub const MOST_VALUE: usize = LONGEST_BUNDLE + 64;
/// Start of all keys in the store, for its access rules.
pub const PREFIX: &str = "becket:";
/// Bytes of the HMAC in a key. With 16 bytes, two sessions never have one key by chance.
const NAME_LEN: usize = 16;
const VERSION: u8 = 1;
// Labels for key derivation and associated data. No label is a prefix of another one.
const STORE: &[u8] = b"becket store 1";
const NAME: &[u8] = b"becket store name 1";
const SEAL: &[u8] = b"becket store seal 1";
const KIND: &[u8] = b"becket session by id";

#[cfg(test)]
mod tests {
    use becket_proto::session::PolicyTag;
    use becket_proto::ticket::{OriginId, SecretId};
    use proptest::prelude::*;

    use super::*;

    /// Length of everything except the state.
    const OVERHEAD: usize = 1 + NONCE_LEN + 8 + Origin::LEN + 16;
    const NOW: UnixSeconds = UnixSeconds(1_000_000);
    const MOST: Lifetimes = Lifetimes {
        id_lifetime: Duration::from_secs(300),
        max_age: Duration::from_secs(3600),
    };

    fn vault(bytes: &[u8]) -> StoreVault {
        let secrets = bytes.iter().map(|byte| Secret {
            id: SecretId((*byte).into()),
            key: Zeroizing::new([*byte; 32]),
        });
        StoreVault::new(&secrets.collect::<Vec<_>>()).unwrap()
    }

    fn name(policy: u64, id: &[u8]) -> SessionName {
        SessionName::new(PolicyTag(policy), id).unwrap()
    }

    fn live(state: &[u8]) -> Live {
        let origin = Origin {
            id: OriginId(7),
            at: UnixSeconds(NOW.0 - 60),
        };
        Live {
            session: Session::new(state.to_vec(), origin),
            ttl: Duration::from_secs(200),
        }
    }

    fn open(vault: &StoreVault, name: &SessionName, value: &[u8]) -> Option<Live> {
        vault.open(0, name, value.to_vec(), (NOW, MOST))
    }

    #[test]
    fn a_session_opens_with_its_origin_and_remaining_lifetime() {
        let (vault, name) = (vault(&[1]), name(1, b"id"));
        let value = vault.seal(&name, &live(b"state"), NOW).unwrap();
        let opened = open(&vault, &name, &value).unwrap();
        assert_eq!(opened.session, live(b"state").session);
        assert_eq!(opened.ttl, Duration::from_secs(200));
        let at = |seconds| vault.open(0, &name, value.clone(), (UnixSeconds(seconds), MOST));
        assert_eq!(at(NOW.0 + 50).unwrap().ttl, Duration::from_secs(150));
        assert!(at(NOW.0 + 199).is_some() && at(NOW.0 + 200).is_none());
        let short = Lifetimes {
            max_age: Duration::from_secs(60),
            ..MOST
        };
        assert!(
            vault.open(0, &name, value, (NOW, short)).is_none(),
            "too old"
        );
    }

    #[test]
    fn values_of_another_name_policy_or_secret_do_not_open() {
        let (ours, theirs) = (vault(&[1]), vault(&[2]));
        let name_1 = name(1, b"id");
        let value = ours.seal(&name_1, &live(b"state"), NOW).unwrap();
        assert!(open(&theirs, &name_1, &value).is_none(), "foreign");
        assert!(
            open(&ours, &name(1, b"ie"), &value).is_none(),
            "replayed under another key"
        );
        assert!(
            open(&ours, &name(2, b"id"), &value).is_none(),
            "another policy"
        );
        let both = vault(&[2, 1]);
        assert!(both.open(1, &name_1, value.clone(), (NOW, MOST)).is_some());
        assert!(both.open(2, &name_1, value, (NOW, MOST)).is_none());
    }

    #[test]
    fn keys_of_the_store_differ_and_reveal_no_name() {
        let ours = vault(&[1, 2]);
        let key = |secret, name: &SessionName| ours.key(secret, name).unwrap();
        let (one, two) = (name(1, b"id"), name(2, b"id"));
        assert_eq!(key(0, &one), key(0, &one));
        assert_eq!(key(0, &one).len(), PREFIX.len() + 2 * NAME_LEN);
        let keys = [
            key(0, &one),
            key(1, &one),
            key(0, &two),
            key(0, &name(1, b"ie")),
        ];
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        assert_eq!(ours.key(2, &one), None);
    }

    #[test]
    fn a_session_that_is_too_large_is_not_sealed() {
        let (vault, name) = (vault(&[1]), name(1, b"id"));
        let size = MOST_VALUE - OVERHEAD;
        assert!(vault.seal(&name, &live(&vec![1; size]), NOW).is_some());
        assert!(vault.seal(&name, &live(&vec![1; size + 1]), NOW).is_none());
    }

    proptest! {
        #[test]
        fn changed_values_do_not_open(
            state in proptest::collection::vec(any::<u8>(), 0..100),
            at in any::<prop::sample::Index>(),
            flip in 1u8..,
        ) {
            let (vault, name) = (vault(&[1]), name(1, b"id"));
            let value = vault.seal(&name, &live(&state), NOW).unwrap();
            prop_assert!(!state.is_empty() || value.len() == OVERHEAD);
            let mut changed = value.clone();
            let at = at.index(value.len());
            changed[at] ^= flip;
            prop_assert!(open(&vault, &name, &changed).is_none());
            prop_assert!(open(&vault, &name, &value[..at]).is_none());
            prop_assert!(open(&vault, &name, &value).is_some());
        }

        #[test]
        fn a_decoded_session_never_lives_longer_than_this_host_allows(
            text in proptest::collection::vec(any::<u8>(), 0..60),
            now in any::<u64>(),
        ) {
            if let Some(live) = decode(&text, UnixSeconds(now), MOST) {
                prop_assert!(live.ttl <= MOST.id_lifetime && !live.ttl.is_zero());
            }
        }
    }
}
