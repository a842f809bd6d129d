//! Certificates by server name, and the choice among the keys of one name.
//!
//! A [`CertificateMap`] contains the certificates of a listener: for exact names, wildcard names
//! (one label, RFC 6125 section 6.4.3), IP addresses and a default. Each name has a [`KeySet`] with
//! one chain per kind of key. Clients that support ECDSA receive an ECDSA certificate, because an
//! ECDSA signature costs 3 to 5 times less CPU time than RSA. Lookups do not allocate. The module
//! `keys` reads the files.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use becket_config::address::NamePattern;
use becket_proto::own_line::OwnLine;
use becket_proto::ticket::UnixSeconds;
use rustls::sign::CertifiedKey;
use rustls::{DistinguishedName, SignatureAlgorithm, SignatureScheme};

use super::facts;
use super::ocsp::OcspStatus;
use super::presented::Presented;
use crate::signing::Offload;

#[derive(Clone, Debug)]
pub struct CertificateMap {
    exact: HashMap<String, KeySet>,
    wildcard: HashMap<String, KeySet>,
    default: KeySet,
    /// `true` if a certificate contains an IP address. Addresses are stored as exact names, because
    /// no client can send an address as its server name.
    has_addresses: bool,
}

impl CertificateMap {
    /// Creates a map that returns `default` for unknown names.
    pub fn new(default: KeySet) -> Self {
        Self {
            exact: HashMap::new(),
            wildcard: HashMap::new(),
            default,
            has_addresses: false,
        }
    }

    /// Returns the keys for a name, to add chains.
    pub fn keys_mut(&mut self, name: NamePattern) -> &mut KeySet {
        let set = match name {
            NamePattern::Exact(name) => {
                self.has_addresses |= name.parse::<IpAddr>().is_ok();
                self.exact.entry(name)
            }
            NamePattern::Wildcard(suffix) => self.wildcard.entry(suffix),
        };
        set.or_default()
    }

    /// Returns the keys for a lower-case server name: an exact match, then a wildcard match.
    /// Ignores a trailing dot, which some clients send.
    pub fn named(&self, name: &str) -> Option<&KeySet> {
        let name = name.strip_suffix('.').unwrap_or(name);
        self.exact.get(name).or_else(|| {
            let (_, suffix) = name.split_once('.')?;
            self.wildcard.get(suffix)
        })
    }

    /// Returns the exact or wildcard name in the map that matches a lower-case server name.
    pub fn covering(&self, name: &str) -> Option<NamePattern> {
        let name = name.strip_suffix('.').unwrap_or(name);
        if self.exact.contains_key(name) {
            return Some(NamePattern::Exact(name.to_owned()));
        }
        let (_, suffix) = name.split_once('.')?;
        let is_covered = self.wildcard.contains_key(suffix);
        is_covered.then(|| NamePattern::Wildcard(suffix.to_owned()))
    }

    /// Returns the keys for a server name, or the default keys if the name is unknown or missing.
    pub fn keys_for(&self, name: Option<&str>) -> &KeySet {
        name.and_then(|name| self.named(name))
            .unwrap_or_else(|| self.default_keys())
    }

    /// Returns the local address as the server name, for a client that sends no name. Returns
    /// `None` if no certificate contains this address. Calls `address` only if a certificate
    /// contains any address.
    pub fn name_by_address(
        &self,
        address: impl FnOnce() -> Option<SocketAddr>,
    ) -> Option<Box<str>> {
        let address = self.has_addresses.then(address)??;
        let name = address.ip().to_canonical().to_string();
        self.exact.contains_key(&name).then(|| name.into())
    }

    /// Returns the keys for clients that send no name or an unknown name.
    pub fn default_keys(&self) -> &KeySet {
        &self.default
    }

    /// Returns `true` if at least one key signs on crypto threads.
    pub fn needs_crypto_threads(&self) -> bool {
        let sets = self.exact.values().chain(self.wildcard.values());
        let all = sets.chain([&self.default]).flat_map(|set| &set.keys);
        let mut offloads = all.map(|held| held.offload);
        offloads.any(|offload| matches!(offload, Offload::Batches | Offload::Always))
    }

    /// Returns every name with its keys: exact names first, otherwise unordered.
    pub fn names(&self) -> impl Iterator<Item = (NamePattern, &KeySet)> {
        let exact = self
            .exact
            .iter()
            .map(|(name, keys)| (NamePattern::Exact(name.clone()), keys));
        let wildcard = self
            .wildcard
            .iter()
            .map(|(name, keys)| (NamePattern::Wildcard(name.clone()), keys));
        exact.chain(wildcard)
    }
}

/// The chains of one server name, at most one per kind of key.
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    /// At most one chain per signature algorithm, sorted by [`preference`]: algorithms with fast
    /// signatures first.
    keys: Vec<HeldKey>,
    policy: Option<Arc<str>>,
    /// Number of completed handshakes for this name. Clones share the counter.
    handshakes: Arc<OwnLine<AtomicU64>>,
}

#[derive(Clone, Debug)]
struct HeldKey {
    key: Arc<CertifiedKey>,
    offload: Offload,
    presented: Arc<Presented>,
    /// Expiry of the stapled OCSP response, and the chain without this response. `None` unless a
    /// response with an expiry is stapled.
    bare: Option<(UnixSeconds, Arc<CertifiedKey>)>,
}

impl KeySet {
    /// Adds a chain. Replaces and returns the chain with a key of the same kind, if any. Without
    /// `policy`, clients keep the current policy.
    pub fn insert(
        &mut self,
        key: Arc<CertifiedKey>,
        offload: Offload,
        policy: Option<&Arc<str>>,
    ) -> Option<Arc<CertifiedKey>> {
        if policy.is_some() {
            self.policy = policy.cloned();
        }
        let kind = key.key.algorithm();
        let leaf = key.cert.first();
        let presented = leaf.map(Presented::of).unwrap_or_default();
        let staple = leaf.zip(key.ocsp.as_deref());
        let status = staple.and_then(|(leaf, response)| OcspStatus::read(response, leaf).ok());
        let bare = status.and_then(|status| {
            let bare = CertifiedKey {
                ocsp: None,
                ..CertifiedKey::clone(&key)
            };
            Some((status.until?, Arc::new(bare)))
        });
        let new = HeldKey {
            bare,
            key,
            offload,
            presented: Arc::new(presented),
        };
        let same = self
            .keys
            .iter_mut()
            .find(|other| other.key.key.algorithm() == kind);
        if let Some(other) = same {
            return Some(std::mem::replace(other, new).key);
        }
        self.keys.push(new);
        self.keys
            .sort_by_key(|held| preference(held.key.key.algorithm()));
        None
    }

    /// Returns the policy name for clients that receive one of these chains; `None` means the
    /// policy of the route.
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// Returns the first chain in the order of `preference` whose key supports an accepted
    /// signature scheme. Prefers a chain with a certificate that one of `authorities` issued (RFC
    /// 8446, section 4.2.4).
    pub fn choose(
        &self,
        accepted: &[SignatureScheme],
        authorities: &[DistinguishedName],
    ) -> Option<&Arc<CertifiedKey>> {
        let is_usable = |key: &&Arc<CertifiedKey>| key.key.choose_scheme(accepted).is_some();
        let mut usable = self.iter().filter(is_usable);
        if authorities.is_empty() {
            return usable.next();
        }
        let is_named = |key: &&Arc<CertifiedKey>| {
            let mut chain = key.cert.iter().filter_map(|one| facts::certificate(one));
            let named = |issuer: &[u8]| authorities.iter().any(|name| name.as_ref() == issuer);
            chain.any(|one| named(one.issuer().as_raw()))
        };
        let named = usable.find(is_named);
        named.or_else(|| self.iter().find(is_usable))
    }

    /// Returns the handshake signatures that are sent to other threads. This is the maximum over
    /// all keys, because the handshake may use any key.
    pub fn offload(&self) -> Offload {
        let each = self.keys.iter().map(|held| held.offload);
        each.max().unwrap_or(Offload::Pointless)
    }

    /// Returns all chains in the order of `preference`, algorithms with fast signatures first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<CertifiedKey>> {
        self.keys.iter().map(|held| &held.key)
    }

    /// Returns the algorithm names of the chain at an index of [`Self::iter`].
    pub fn presented(&self, place: usize) -> Option<&Arc<Presented>> {
        self.keys.get(place).map(|held| &held.presented)
    }

    /// Returns the chain at an index of [`Self::iter`]. Omits an OCSP response that has expired at
    /// `now`.
    pub fn sent(&self, place: usize, now: UnixSeconds) -> Option<&Arc<CertifiedKey>> {
        let held = self.keys.get(place)?;
        let over = held.bare.as_ref().filter(|(until, _)| *until <= now);
        Some(over.map_or(&held.key, |(_, bare)| bare))
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub fn count_handshake(&self) {
        self.handshakes.fetch_add(1, Relaxed);
    }

    pub fn handshakes(&self) -> u64 {
        self.handshakes.load(Relaxed)
    }
}

/// Returns the rank of an algorithm; 0 is the most preferred. ECDSA and Ed25519 signatures need
/// less CPU time than RSA signatures. ML-DSA is last: a client that supports it may lack the CA.
fn preference(algorithm: SignatureAlgorithm) -> u8 {
    match algorithm {
        SignatureAlgorithm::ECDSA => 0,
        SignatureAlgorithm::ED25519 => 1,
        SignatureAlgorithm::RSA => 2,
        _ => 3,
    }
}
