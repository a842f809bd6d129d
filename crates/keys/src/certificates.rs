//! Certificates by server name, and the choice among the keys of one name.
//!
//! A [`CertificateMap`] contains the certificates of a listener in the order of the configuration,
//! and by name: exact names, wildcard names (one label, RFC 6125 section 6.4.3), IP addresses and a
//! default. Each name has a [`KeySet`] with one chain per kind of key. Clients that support ECDSA
//! receive an ECDSA certificate, because an ECDSA signature costs 3 to 5 times less CPU time than
//! RSA. Lookups do not allocate.
//!
//! A map does not change. [`CertificateMap::changed`] returns another map that shares all unchanged
//! parts ([`SortedChunks`]), so a changed certificate costs the same with any number of
//! certificates, and workers use the old map meanwhile. The module `keys` checks the certificates.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use becket_config::address::NamePattern;
use becket_config::choices::DefaultCertificate;
use becket_proto::sorted_chunks::SortedChunks;
use rustls::{DistinguishedName, SignatureAlgorithm, SignatureScheme};

use super::issuers::{FileParts, file_parts};
use super::loaded::{Loaded, Names, Precedence};
use crate::signing::Offload;

#[derive(Clone, Debug)]
pub struct CertificateMap {
    list: SortedChunks<Listed>,
    /// Names in the order of their hashes.
    names: SortedChunks<Named>,
    default: Arc<KeySet>,
    choice: DefaultCertificate,
    /// Number of names that are IP addresses. Addresses are stored as exact names, because no
    /// client can send an address as its server name.
    addresses: usize,
    /// `true` if a key of this or an earlier version of the map signs on crypto threads.
    needs_crypto_threads: bool,
}

/// Index of the entry of all on-demand certificates of the ACME companion.
pub const ON_DEMAND: u32 = u32::MAX;

/// A certificate, and the index of its entry in the list of the configuration. The files of a
/// folder have the same index, and are sorted by path.
#[derive(Clone, Debug)]
pub struct Listed {
    pub entry: u32,
    pub loaded: Arc<Loaded>,
}

impl Listed {
    fn order(&self, place: (u32, FileParts<'_>)) -> Ordering {
        // Within a folder this is the order of paths, and faster.
        self.place().cmp(&place)
    }

    fn place(&self) -> (u32, FileParts<'_>) {
        (self.entry, self.loaded.file_parts())
    }

    pub fn is_same(&self, other: &Self) -> bool {
        self.entry == other.entry && Arc::ptr_eq(&self.loaded, &other.loaded)
    }
}

#[derive(Clone, Debug)]
struct Named {
    hash: u64,
    keys: Arc<KeySet>,
}

impl Named {
    fn order(&self, hash: u64, name: NameParts<'_>) -> Ordering {
        let by_name = || parts_of(&self.keys.name).cmp(&name);
        self.hash.cmp(&hash).then_with(by_name)
    }
}

/// `true` for a wildcard, and the name without `*.`.
type NameParts<'a> = (bool, &'a str);

fn parts_of(name: &str) -> NameParts<'_> {
    match name.strip_prefix("*.") {
        Some(suffix) => (true, suffix),
        None => (false, name),
    }
}

fn hash_of(name: NameParts<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// A certificate to add to a map, with its names. Without names, they are read from it.
pub type NewCertificate = (Listed, Option<Names>);

/// Certificates that a map does not serve as their files suggest.
#[derive(Debug, Default)]
pub struct MapFaults {
    /// A name, the certificate that is used for it, and another one with the same kind of key.
    pub hidden: Vec<(String, Arc<Loaded>, Arc<Loaded>)>,
    /// A name, and a certificate of the ACME companion that is not used because the operator has
    /// one.
    pub yielding: Vec<(String, Arc<Loaded>)>,
    /// Certificates without a name that are not the default.
    pub nameless: Vec<Arc<Loaded>>,
}

impl Default for CertificateMap {
    fn default() -> Self {
        Self::of(Vec::new(), DefaultCertificate::default()).0
    }
}

impl CertificateMap {
    /// Creates a map of certificates, which must be in the order of the configuration.
    pub fn of(certificates: Vec<NewCertificate>, choice: DefaultCertificate) -> (Self, MapFaults) {
        let mut faults = MapFaults::default();
        let mut list = Vec::with_capacity(certificates.len());
        let mut of_names = Vec::with_capacity(certificates.len());
        let mut nameless = Vec::new();
        for (listed, names) in certificates {
            let names = names.unwrap_or_else(|| listed.loaded.names().into());
            if names.is_empty() {
                nameless.push(Arc::clone(&listed.loaded));
            }
            for name in names {
                of_names.push((hash_of(parts_of(&name)), name, listed.clone()));
            }
            list.push(listed);
        }
        // A stable sort: later certificates of one name have precedence.
        of_names.sort_by(|(a, x, _), (b, y, _)| (a, parts_of(x)).cmp(&(b, parts_of(y))));
        let mut of_names = of_names.into_iter().peekable();
        let mut names = Vec::with_capacity(of_names.len());
        while let Some((hash, name, first)) = of_names.next() {
            let mut certificates = vec![first];
            while let Some((_, _, next)) = of_names.next_if(|(_, other, _)| *other == name) {
                certificates.push(next);
            }
            let keys = Arc::new(KeySet::new(name, certificates));
            keys.report(&mut faults);
            names.push(Named { hash, keys });
        }
        let mut map = Self {
            needs_crypto_threads: list.iter().any(|it| needs_threads(&it.loaded)),
            list: SortedChunks::of_sorted(list),
            default: Arc::default(),
            choice,
            addresses: names
                .iter()
                .filter(|it| is_address((false, &it.keys.name)))
                .count(),
            names: SortedChunks::of_sorted(names),
        };
        map.set_default(nameless, &mut faults);
        (map, faults)
    }

    /// Returns this map without `removed` and with `added`. An added certificate replaces the one
    /// of the same entry and file.
    pub fn changed(&self, removed: &[Listed], added: Vec<NewCertificate>) -> (Self, MapFaults) {
        let mut map = self.clone();
        let mut faults = MapFaults::default();
        let mut touched: BTreeMap<Box<str>, (Vec<Listed>, Vec<Listed>)> = BTreeMap::new();
        let mut nameless = Vec::new();
        let mut remove = |listed: &Listed| {
            for name in listed.loaded.names() {
                touched.entry(name).or_default().0.push(listed.clone());
            }
        };
        for listed in removed {
            if let Some(found) = map.list.remove(|it| it.order(listed.place())) {
                remove(&found);
            }
        }
        let mut new_names = Vec::new();
        for (listed, names) in added {
            let place = listed.place();
            if let Some(found) = map.list.insert(listed.clone(), |it| it.order(place)) {
                remove(&found);
            }
            let names = names.unwrap_or_else(|| listed.loaded.names().into());
            if names.is_empty() {
                nameless.push(Arc::clone(&listed.loaded));
            }
            map.needs_crypto_threads |= needs_threads(&listed.loaded);
            new_names.push((listed, names));
        }
        for (listed, names) in new_names {
            for name in names {
                touched.entry(name).or_default().1.push(listed.clone());
            }
        }
        for (name, (removed, added)) in touched {
            map.change_name(&name, &removed, added, &mut faults);
        }
        map.set_default(nameless, &mut faults);
        (map, faults)
    }

    fn change_name(
        &mut self,
        name: &str,
        removed: &[Listed],
        added: Vec<Listed>,
        faults: &mut MapFaults,
    ) {
        let parts = parts_of(name);
        let hash = hash_of(parts);
        let before = self.names.remove(|it| it.order(hash, parts));
        let had_name = before.is_some();
        let before = before.iter().flat_map(|it| it.keys.listed());
        let is_kept = |it: &&Listed| !removed.iter().any(|other| it.is_same(other));
        let mut certificates: Vec<Listed> = before.filter(is_kept).cloned().collect();
        certificates.extend(added);
        certificates.sort_by(|a, b| a.order(b.place()));
        let has_name = !certificates.is_empty();
        if is_address(parts) {
            self.addresses += usize::from(has_name && !had_name);
            self.addresses -= usize::from(had_name && !has_name);
        }
        if has_name {
            let keys = Arc::new(KeySet::new(name.into(), certificates));
            keys.report(faults);
            let named = Named { hash, keys };
            self.names.insert(named, |it| it.order(hash, parts));
        }
    }

    /// Returns this map with another choice of the default certificate.
    pub fn with_default(&self, choice: DefaultCertificate) -> (Self, MapFaults) {
        let mut map = self.clone();
        let mut faults = MapFaults::default();
        map.choice = choice;
        map.set_default(Vec::new(), &mut faults);
        (map, faults)
    }

    /// Chooses the default: the last or the first certificate of the operator, or else of the configured
    /// ones of the ACME companion, with all certificates that share a name with it.
    fn set_default(&mut self, mut nameless: Vec<Arc<Loaded>>, faults: &mut MapFaults) {
        let list = || self.list.iter().filter(|it| it.entry != ON_DEMAND);
        let is_own = |it: &&Listed| it.loaded.managed().is_none();
        let chosen = match self.choice {
            DefaultCertificate::Last => list().rfind(is_own).or(list().next_back()),
            DefaultCertificate::First => list().find(is_own).or(list().next()),
        };
        let Some(chosen) = chosen.cloned() else {
            self.default = Arc::default();
            return;
        };
        nameless.retain(|it| !Arc::ptr_eq(it, &chosen.loaded));
        faults.nameless = nameless;
        let mut certificates: Vec<Listed> = Vec::new();
        for name in chosen.loaded.names() {
            let sets = self.find(parts_of(&name)).into_iter();
            let sharing = sets.flat_map(|keys| keys.listed());
            certificates.extend(sharing.filter(|it| !it.is_same(&chosen)).cloned());
        }
        certificates.sort_by(|a, b| a.order(b.place()));
        certificates.dedup_by(|a, b| a.is_same(b));
        // The chosen certificate has precedence over others with the same kind of key.
        certificates.push(chosen);
        let before = self.default.listed();
        let both = before.iter().zip(&certificates);
        let is_same = before.len() == certificates.len() && { both }.all(|(a, b)| a.is_same(b));
        if !is_same {
            self.default = Arc::new(KeySet::new(Box::default(), certificates));
        }
    }

    fn find(&self, name: NameParts<'_>) -> Option<&KeySet> {
        let hash = hash_of(name);
        let named = self.names.get(|it| it.order(hash, name))?;
        Some(&named.keys)
    }

    /// Returns the keys of a name of a certificate.
    pub fn keys_of(&self, name: &str) -> Option<&KeySet> {
        self.find(parts_of(name))
    }

    /// Returns the keys for a lower-case server name: an exact match, a wildcard match, then an
    /// on-demand certificate. Ignores a trailing dot, which some clients send.
    pub fn named(&self, name: &str) -> Option<&KeySet> {
        let name = name.strip_suffix('.').unwrap_or(name);
        let exact = self.find((false, name));
        let is_final =
            exact.is_some_and(|keys| keys.listed().iter().any(|it| it.entry != ON_DEMAND));
        if is_final {
            return exact;
        }
        let (_, suffix) = name.split_once('.')?;
        self.find((true, suffix)).or(exact)
    }

    /// Returns the exact or wildcard name in the map that matches a lower-case server name.
    pub fn covering(&self, name: &str) -> Option<NamePattern> {
        self.named(name).map(KeySet::pattern)
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
        let address = (self.addresses > 0).then(address)??;
        let name = address.ip().to_canonical().to_string();
        self.find((false, &name)).map(|_| name.into())
    }

    /// Returns the keys for clients that send no name or an unknown name.
    pub fn default_keys(&self) -> &KeySet {
        &self.default
    }

    /// Returns `true` if at least one key signs on crypto threads.
    pub fn needs_crypto_threads(&self) -> bool {
        self.needs_crypto_threads
    }

    /// Returns the keys of every name, unordered.
    pub fn names(&self) -> impl Iterator<Item = &KeySet> {
        self.names.iter().map(|it| &*it.keys)
    }

    pub fn name_count(&self) -> usize {
        self.names.len()
    }

    /// Returns `true` if there is no certificate.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns all certificates in the order of the configuration.
    pub fn certificates(&self) -> impl Iterator<Item = &Listed> {
        self.list.iter()
    }

    /// Returns the certificates of an entry of the configuration, sorted by path.
    pub fn entry(&self, entry: u32) -> impl Iterator<Item = &Listed> {
        let all = self.list.starting_at(move |it| {
            if it.entry < entry {
                Ordering::Less
            } else {
                Ordering::Greater
            }
        });
        all.take_while(move |it| it.entry == entry)
    }

    /// Compares this map with a list of certificates in the order of the configuration. Returns the
    /// certificates that the list lacks, and the indices of certificates that the map lacks.
    pub fn difference(&self, list: &[NewCertificate]) -> (Vec<Listed>, Vec<usize>) {
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        let mut own = self.list.iter().peekable();
        for (index, (listed, _)) in list.iter().enumerate() {
            let place = listed.place();
            while let Some(before) = own.next_if(|it| it.order(place) == Ordering::Less) {
                removed.push(before.clone());
            }
            match own.next_if(|it| it.order(place) == Ordering::Equal) {
                Some(same) if same.is_same(listed) => {}
                _ => added.push(index),
            }
        }
        removed.extend(own.cloned());
        (removed, added)
    }

    /// Returns the certificate of a file in an entry of the configuration.
    pub fn certificate(&self, entry: u32, file: &Path) -> Option<&Listed> {
        self.list.get(|it| it.order((entry, file_parts(file))))
    }

    pub fn choice(&self) -> DefaultCertificate {
        self.choice
    }
}

fn is_address((is_wildcard, name): NameParts<'_>) -> bool {
    !is_wildcard && name.parse::<IpAddr>().is_ok()
}

fn needs_threads(loaded: &Loaded) -> bool {
    matches!(loaded.offload, Offload::Batches | Offload::Always)
}

/// The chains of one server name, at most one per kind of key.
#[derive(Debug)]
pub struct KeySet {
    /// The name as in certificates; empty for the default.
    name: Box<str>,
    chains: Chains,
    /// Number of completed handshakes for this name.
    handshakes: AtomicU64,
}

/// Most names have one certificate, which takes no further memory.
#[derive(Debug)]
enum Chains {
    One(Listed),
    Several(Box<SeveralChains>),
}

#[derive(Debug, Default)]
struct SeveralChains {
    /// All certificates of the name. The operator's have precedence over the ACME companion's, those
    /// over temporary ones, and later ones over earlier ones.
    listed: Vec<Listed>,
    /// At most one certificate per signature algorithm, sorted by [`preference`]: algorithms with
    /// fast signatures first.
    used: Vec<Arc<Loaded>>,
}

impl Default for KeySet {
    fn default() -> Self {
        Self::new(Box::default(), Vec::new())
    }
}

impl KeySet {
    /// Creates the keys of a name. Uses the last one of several certificates with the same kind of
    /// key.
    fn new(name: Box<str>, mut listed: Vec<Listed>) -> Self {
        let chains = if listed.len() == 1
            && let Some(only) = listed.pop()
        {
            Chains::One(only)
        } else {
            let mut used: Vec<Arc<Loaded>> = Vec::new();
            let best = best_precedence(&listed);
            let candidates = listed
                .iter()
                .filter(|it| Some(it.loaded.precedence()) == best);
            for it in candidates.rev() {
                let kind = it.loaded.algorithm();
                if !used.iter().any(|other| other.algorithm() == kind) {
                    used.push(Arc::clone(&it.loaded));
                }
            }
            used.sort_by_key(|it| preference(it.algorithm()));
            Chains::Several(Box::new(SeveralChains { listed, used }))
        };
        Self {
            name,
            chains,
            handshakes: AtomicU64::new(0),
        }
    }

    /// Returns the name as in certificates; empty for the default.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pattern(&self) -> NamePattern {
        match parts_of(&self.name) {
            (true, suffix) => NamePattern::Wildcard(suffix.to_owned()),
            (false, name) => NamePattern::Exact(name.to_owned()),
        }
    }

    fn listed(&self) -> &[Listed] {
        match &self.chains {
            Chains::One(only) => slice::from_ref(only),
            Chains::Several(several) => &several.listed,
        }
    }

    /// Adds each certificate that another one hides.
    fn report(&self, faults: &mut MapFaults) {
        let mut last: Vec<&Arc<Loaded>> = Vec::new();
        let best = best_precedence(self.listed());
        for it in self.listed() {
            let own = it.loaded.precedence();
            if own != Precedence::Operator && best == Some(Precedence::Operator) {
                let yielding = (self.name.to_string(), Arc::clone(&it.loaded));
                faults.yielding.push(yielding);
            }
            // Temporary certificates have one kind of key; the issued ones may have others.
            if Some(own) != best || own == Precedence::Temporary {
                continue;
            }
            let kind = it.loaded.algorithm();
            let same = last.iter_mut().find(|it| it.algorithm() == kind);
            match same {
                Some(same) => {
                    let hidden = std::mem::replace(same, &it.loaded);
                    let both = (Arc::clone(&it.loaded), Arc::clone(hidden));
                    faults.hidden.push((self.name.to_string(), both.0, both.1));
                }
                None => last.push(&it.loaded),
            }
        }
    }

    /// Returns the policy name for clients that receive one of these chains: that of the last
    /// certificate with one. `None` means the policy of the route.
    pub fn policy(&self) -> Option<&str> {
        let mut listed = self.listed().iter().rev();
        let policy = listed.find_map(|it| it.loaded.policy());
        policy.map(|policy| &**policy)
    }

    /// Returns all chains in the order of `preference`, algorithms with fast signatures first.
    pub fn chains(&self) -> &[Arc<Loaded>] {
        match &self.chains {
            Chains::One(only) => slice::from_ref(&only.loaded),
            Chains::Several(several) => &several.used,
        }
    }

    /// Returns the index of the first chain whose key supports an accepted signature scheme.
    /// Prefers a chain with a certificate that one of `authorities` issued (RFC 8446, section
    /// 4.2.4). If no key supports a scheme, returns the index of the first chain.
    pub fn choose(
        &self,
        accepted: &[SignatureScheme],
        authorities: &[DistinguishedName],
    ) -> Option<usize> {
        let chains = self.chains();
        // A single chain is sent in any case.
        if chains.len() <= 1 {
            return (!chains.is_empty()).then_some(0);
        }
        let is_usable = |it: &Arc<Loaded>| it.supports(accepted);
        let is_named = |it: &Arc<Loaded>| is_usable(it) && it.is_issued_by(authorities);
        let named = match authorities {
            [] => None,
            _ => chains.iter().position(is_named),
        };
        let chosen = named.or_else(|| chains.iter().position(is_usable));
        chosen.or(Some(0))
    }

    /// Returns the handshake signatures that are sent to other threads. This is the maximum over
    /// all keys, because the handshake may use any key.
    pub fn offload(&self) -> Offload {
        let each = self.chains().iter().map(|it| it.offload);
        each.max().unwrap_or(Offload::Pointless)
    }

    pub fn count_handshake(&self) {
        self.handshakes.fetch_add(1, Relaxed);
    }

    pub fn handshakes(&self) -> u64 {
        self.handshakes.load(Relaxed)
    }
}

fn best_precedence(listed: &[Listed]) -> Option<Precedence> {
    listed.iter().map(|it| it.loaded.precedence()).min()
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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::PathBuf;

    use super::*;
    use crate::issuers::IssuerTable;
    use crate::loaded::tests::loaded_from;

    fn names(loaded: &Loaded) -> BTreeSet<String> {
        loaded.names().iter().map(ToString::to_string).collect()
    }

    /// Compares a map with what follows from the list of its certificates.
    fn check(map: &CertificateMap, model: &BTreeMap<(u32, PathBuf), Arc<Loaded>>) {
        let listed = map.certificates().map(|it| (it.entry, it.loaded.file()));
        assert!(listed.eq(model.keys().cloned()));
        let mut expected: BTreeMap<String, &Arc<Loaded>> = BTreeMap::new();
        for loaded in model.values() {
            expected.extend(names(loaded).into_iter().map(|name| (name, loaded)));
        }
        assert_eq!(map.name_count(), expected.len());
        for keys in map.names() {
            let name = keys.name();
            assert!(Arc::ptr_eq(&keys.chains()[0], expected[name]), "{name}");
            assert_eq!(keys.pattern().to_string(), name);
        }
        for (name, loaded) in &expected {
            let asked = name.replacen("*.", "any.", 1);
            let found = map.named(&asked).unwrap();
            assert!(found.name() != name || Arc::ptr_eq(&found.chains()[0], loaded));
        }
        let has_address = expected.keys().any(|name| name.parse::<IpAddr>().is_ok());
        assert_eq!(map.addresses > 0, has_address);
        let last = model.values().next_back();
        let default = map.default_keys().chains().first();
        assert_eq!(last.map(Arc::as_ptr), default.map(Arc::as_ptr));
        for entry in 0..4 {
            let of_model = model.keys().filter(|(of, _)| *of == entry).count();
            assert_eq!(map.entry(entry).count(), of_model);
        }
    }

    #[test]
    fn a_changed_map_is_equal_to_a_new_one_and_older_versions_stay() {
        let issuers = IssuerTable::default();
        let pool: Vec<Arc<Loaded>> = (0..40)
            .map(|number: usize| {
                let names = [
                    format!("{}.test", number % 9),
                    format!("*.{}.test", number % 4),
                    format!("192.0.2.{}", number % 3),
                ];
                let names: Vec<&str> = names[number % 3..].iter().map(|it| &**it).collect();
                let file = format!("/{}/{}.pem", number % 5, number % 7);
                Arc::new(loaded_from(Path::new(&file), &names, &issuers))
            })
            .collect();
        let listed = |loaded: &Arc<Loaded>, entry| Listed {
            entry,
            loaded: Arc::clone(loaded),
        };
        for seed in 0..30 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut model: BTreeMap<(u32, PathBuf), Arc<Loaded>> = BTreeMap::new();
            let (mut map, _) = CertificateMap::of(Vec::new(), DefaultCertificate::Last);
            let mut versions = Vec::new();
            for _ in 0..30 {
                let (mut removed, mut added) = (Vec::new(), Vec::new());
                let mut places = BTreeSet::new();
                for _ in 0..random.usize(0..4) {
                    let new = listed(&pool[random.usize(0..pool.len())], random.u32(0..4));
                    let at = (new.entry, new.loaded.file());
                    if !places.insert(at.clone()) {
                        continue;
                    }
                    if random.bool() {
                        let old = model.remove(&at);
                        removed.extend(old.map(|old| listed(&old, at.0)));
                    } else {
                        model.insert(at, Arc::clone(&new.loaded));
                        added.push((new, None));
                    }
                }
                let next = map.changed(&removed, added).0;
                let all = next.certificates().map(|it| (it.clone(), None));
                let all: Vec<NewCertificate> = all.collect();
                let (removed, added) = map.difference(&all);
                let added = added.into_iter().map(|index| all[index].clone()).collect();
                check(&map.changed(&removed, added).0, &model);
                map = next;
                check(&map, &model);
                let all = model.iter().map(|(at, it)| (listed(it, at.0), None));
                check(
                    &CertificateMap::of(all.collect(), DefaultCertificate::Last).0,
                    &model,
                );
                versions.push((map.clone(), model.clone()));
            }
            versions.iter().for_each(|(map, model)| check(map, model));
        }
    }

    #[test]
    fn a_certificate_on_demand_yields_to_wildcards_and_is_no_default() {
        let issuers = IssuerTable::default();
        let names = ["*.a.test", "own.test", "x.a.test", "y.test"];
        let listed = names.iter().zip([0, 1, ON_DEMAND, ON_DEMAND]);
        let listed = listed.map(|(name, entry)| {
            let loaded = Arc::new(loaded_from(Path::new(name), &[name], &issuers));
            (Listed { entry, loaded }, None)
        });
        let (map, _) = CertificateMap::of(listed.collect(), DefaultCertificate::Last);
        let name = |keys: &KeySet| keys.listed()[0].loaded.names().concat();
        for (asked, expected) in [("x.a.test", "*.a.test"), ("y.test", "y.test")] {
            assert_eq!(map.named(asked).map(name).as_deref(), Some(expected));
        }
        assert_eq!(name(map.default_keys()), "own.test");
        let (map, _) = map.with_default(DefaultCertificate::First);
        assert_eq!(name(map.default_keys()), "*.a.test");
    }

    #[test]
    fn a_name_with_one_certificate_takes_one_small_block() {
        assert!(size_of::<KeySet>() <= 48, "{}", size_of::<KeySet>());
    }
}
