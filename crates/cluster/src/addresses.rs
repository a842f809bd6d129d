//! Stores the addresses of peers: configured addresses, and names that are looked up periodically.
//!
//! A name that stops resolving keeps its last addresses, because a failed resolver must not split a cluster. The status
//! shows the reason for the failure.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;

use crate::settings::Peer;

/// Looks up addresses of names without blocking.
pub trait Resolve: fmt::Debug + Send + Sync {
    /// Starts a lookup immediately. The returned future waits for the result.
    fn look_up(&self, host: &str) -> Pin<Box<dyn Future<Output = NameLookup> + Send>>;

    /// Returns the delay until the next lookup of a name, or `None` if no further lookup is needed.
    /// `is_known` is `true` if addresses of the name are known.
    fn again(&self, interval: Option<Duration>, is_known: bool) -> Option<Duration>;
}

/// Result of a lookup: at least one address, without duplicates, or the reason for the failure.
pub type NameLookup = Result<Arc<[IpAddr]>, String>;

/// Lookups in progress. Each result includes the peer's name.
pub(crate) type Lookups = JoinSet<(Arc<str>, NameLookup)>;

#[derive(Debug)]
pub(crate) struct PeerAddresses {
    resolver: Arc<dyn Resolve>,
    entries: Vec<AddressEntry>,
    /// Time between two rounds of lookups. `None` if lookups end once all names are known.
    interval: Option<Duration>,
    /// Time of the last round of lookups. `None` if none has taken place since the configuration
    /// was loaded.
    looked_up: Option<Duration>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ConfiguredPeer {
    pub name: Arc<str>,
    /// Addresses from the last successful lookup.
    pub addresses: Vec<SocketAddr>,
    /// Number of addresses that are not used because they exceed the limit.
    pub ignored: usize,
    pub problem: Option<String>,
}

#[derive(Clone, Debug)]
struct AddressEntry {
    peer: ConfiguredPeer,
    /// Host and port to look up; `None` if the peer is configured by its address.
    lookup: Option<(String, u16)>,
    pending: bool,
}

impl PeerAddresses {
    pub(crate) fn new(resolver: Arc<dyn Resolve>) -> Self {
        Self {
            resolver,
            entries: Vec::new(),
            interval: None,
            looked_up: None,
        }
    }

    /// Sets the configured peers and the interval between lookups. A name keeps its addresses until
    /// its next lookup.
    pub(crate) fn set(&mut self, peers: &[Peer], interval: Option<Duration>) {
        self.interval = interval;
        self.looked_up = None;
        let mut before = std::mem::take(&mut self.entries);
        for peer in peers {
            let known = before.iter().position(|entry| entry.peer.name == peer.name);
            let known = known.map(|at| before.swap_remove(at));
            self.entries.push(AddressEntry::new(peer, known));
        }
    }

    pub(crate) fn peers(&self) -> impl Iterator<Item = &ConfiguredPeer> {
        self.entries.iter().map(|entry| &entry.peer)
    }

    pub(crate) fn all(&self) -> Vec<SocketAddr> {
        let addresses = self.peers().flat_map(|peer| &peer.addresses);
        addresses.copied().collect()
    }

    /// Returns the configured name of the peer at this address.
    pub(crate) fn name_of(&self, address: SocketAddr) -> Option<Arc<str>> {
        let mut peers = self.peers();
        let found = peers.find(|peer| peer.addresses.contains(&address))?;
        Some(Arc::clone(&found.name))
    }

    /// Returns the time at which the caller must call [`Self::look_up`], or `None` if no lookup is
    /// needed.
    pub(crate) fn due(&self) -> Option<Duration> {
        let mut named = self.entries.iter().filter(|entry| entry.lookup.is_some());
        let first = named.next()?;
        let Some(at) = self.looked_up else {
            return Some(Duration::ZERO);
        };
        let known = |entry: &AddressEntry| !entry.peer.addresses.is_empty();
        let all_known = known(first) && named.all(known);
        Some(at + self.resolver.again(self.interval, all_known)?)
    }

    /// Starts a lookup for every name that has none in progress.
    pub(crate) fn look_up(&mut self, now: Duration, lookups: &mut Lookups) {
        self.looked_up = Some(now);
        for entry in &mut self.entries {
            let Some((host, _)) = &entry.lookup else {
                continue;
            };
            if entry.pending {
                entry.peer.problem = Some("the resolver does not answer".to_owned());
                continue;
            }
            entry.pending = true;
            let (name, found) = (Arc::clone(&entry.peer.name), self.resolver.look_up(host));
            lookups.spawn(async move { (name, found.await) });
        }
    }

    /// Stores the result of a lookup. Returns whether addresses changed.
    pub(crate) fn found(&mut self, name: &str, found: NameLookup) -> bool {
        let mut entries = self.entries.iter_mut();
        let Some(entry) = entries.find(|entry| &*entry.peer.name == name) else {
            return false;
        };
        entry.pending = false;
        let Some((_, port)) = entry.lookup else {
            // Ignore the result, because the peer now has a configured address.
            return false;
        };
        let peer = &mut entry.peer;
        match found {
            Ok(found) => {
                peer.problem = None;
                let changed =
                    peer.take(found.iter().map(|ip| SocketAddr::new(*ip, port)).collect());
                if changed {
                    let addresses = &peer.addresses;
                    tracing::info!(name: "peer-addresses-changed", name = %peer.name, ?addresses, "peer addresses changed");
                }
                changed
            }
            Err(why) => {
                peer.complain(why);
                false
            }
        }
    }
}

impl AddressEntry {
    fn new(peer: &Peer, known: Option<Self>) -> Self {
        let mut this = known.unwrap_or_else(|| Self {
            peer: ConfiguredPeer {
                name: Arc::clone(&peer.name),
                addresses: Vec::new(),
                ignored: 0,
                problem: None,
            },
            lookup: None,
            pending: false,
        });
        this.lookup.clone_from(&peer.lookup);
        if !peer.addresses.is_empty() {
            this.peer.take(peer.addresses.clone());
        }
        this
    }
}

impl ConfiguredPeer {
    /// Sets the addresses, and returns whether they changed. Uses the lowest addresses, so that the
    /// order of the DNS response does not matter.
    fn take(&mut self, mut addresses: Vec<SocketAddr>) -> bool {
        addresses.sort_unstable();
        addresses.dedup();
        let ignored = addresses.len().saturating_sub(MOST_OF_NAME);
        addresses.truncate(MOST_OF_NAME);
        if self.ignored != ignored && ignored > 0 {
            let used = MOST_OF_NAME;
            tracing::warn!(name: "peer-addresses-ignored", name = %self.name, used, ignored, "peer has too many addresses; ignoring the rest");
        }
        self.ignored = ignored;
        let changed = self.addresses != addresses;
        self.addresses = addresses;
        changed
    }

    /// Stores the reason for a failed lookup, and logs it if it has changed.
    fn complain(&mut self, why: String) {
        if self.problem.as_ref() != Some(&why) {
            let kept = self.addresses.len();
            tracing::warn!(name: "peer-lookup-failed", name = %self.name, error = why, kept, "cannot resolve the name of a peer");
            self.problem = Some(why);
        }
    }
}

/// Maximum number of addresses used per name, as many as live peers. Every address receives HELLOs
/// until a node answers.
const MOST_OF_NAME: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const AGAIN: Option<Duration> = Some(Duration::from_secs(30));

    fn peer(name: &str, addresses: &[&str]) -> Peer {
        let (host, port) = name.rsplit_once(':').unwrap();
        let is_name = host.parse::<IpAddr>().is_err();
        Peer {
            name: name.into(),
            lookup: is_name.then(|| (host.to_owned(), port.parse().unwrap())),
            addresses: addresses.iter().map(|at| at.parse().unwrap()).collect(),
        }
    }

    fn found(addresses: &mut PeerAddresses, found: &[&str]) -> bool {
        let found = found.iter().map(|at| at.parse().unwrap());
        addresses.found("b.test:1", Ok(found.collect()))
    }

    /// Resolves every name to loopback.
    #[derive(Debug)]
    struct Loopback;

    impl Resolve for Loopback {
        fn look_up(&self, _: &str) -> Pin<Box<dyn Future<Output = NameLookup> + Send>> {
            Box::pin(async { Ok([IpAddr::from([127, 0, 0, 1])].into()) })
        }

        fn again(&self, interval: Option<Duration>, is_known: bool) -> Option<Duration> {
            interval.or((!is_known).then_some(SOON))
        }
    }

    const SOON: Duration = Duration::from_secs(5);

    fn empty() -> PeerAddresses {
        PeerAddresses::new(Arc::new(Loopback))
    }

    fn addresses() -> PeerAddresses {
        let mut addresses = empty();
        let peers = [
            peer("192.0.2.1:1", &["192.0.2.1:1"]),
            peer("b.test:1", &["192.0.2.2:1"]),
        ];
        addresses.set(&peers, AGAIN);
        addresses
    }

    #[test]
    fn a_failed_lookup_keeps_the_addresses_and_is_reported() {
        let mut addresses = addresses();
        let all = addresses.all();
        let failed = Err("no such host".to_owned());
        assert!(!addresses.found("b.test:1", failed));
        assert_eq!(addresses.all(), all);
        let problem = addresses.entries[1].peer.problem.as_deref();
        assert_eq!(problem, Some("no such host"));
        assert!(!found(&mut addresses, &["192.0.2.2"]));
        assert_eq!(addresses.entries[1].peer.problem, None);
    }

    #[test]
    fn an_address_change_is_reported_once() {
        let mut addresses = addresses();
        assert!(found(
            &mut addresses,
            &["192.0.2.9", "192.0.2.8", "192.0.2.9"]
        ));
        assert!(!found(&mut addresses, &["192.0.2.8", "192.0.2.9"]));
        assert_eq!(addresses.all().len(), 3);
        let at = "192.0.2.9:1".parse().unwrap();
        assert_eq!(addresses.name_of(at).as_deref(), Some("b.test:1"));
    }

    #[test]
    fn excess_addresses_are_ignored_consistently_and_counted() {
        let many: Vec<String> = (1..=100).map(|host| format!("192.0.2.{host}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let turned: Vec<&str> = many.iter().rev().copied().collect();
        let mut addresses = addresses();
        assert!(found(&mut addresses, &many));
        let used = addresses.entries[1].peer.addresses.clone();
        assert_eq!((used.len(), addresses.entries[1].peer.ignored), (64, 36));
        assert!(!found(&mut addresses, &turned), "in another order");
        addresses.set(&[peer("b.test:1", &[])], AGAIN);
        assert_eq!(addresses.entries[0].peer.ignored, 36, "as it was");
        assert!(found(&mut addresses, &["192.0.2.1"]));
        assert_eq!(addresses.entries[0].peer.ignored, 0);
    }

    #[test]
    fn a_reload_with_a_broken_resolver_keeps_known_addresses() {
        let mut addresses = addresses();
        addresses.found("b.test:1", Err("no such host".to_owned()));
        addresses.set(&[peer("b.test:1", &[]), peer("c.test:1", &[])], AGAIN);
        assert_eq!(addresses.all(), ["192.0.2.2:1".parse().unwrap()]);
        let [before, new] = &addresses.entries[..] else {
            panic!("two");
        };
        assert!(before.peer.problem.is_some(), "it is said until it is over");
        assert_eq!(new.peer.problem, None, "nobody knows yet");
        assert_eq!(addresses.due(), Some(Duration::ZERO), "asked at once");
    }

    #[test]
    fn only_names_are_looked_up() {
        let mut addresses = empty();
        addresses.set(&[peer("192.0.2.1:1", &["192.0.2.1:1"])], AGAIN);
        assert_eq!(addresses.due(), None);
        addresses.set(&[peer("localhost:1", &[])], None);
        assert_eq!(addresses.due(), Some(Duration::ZERO));
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let mut lookups = Lookups::new();
            addresses.look_up(Duration::ZERO, &mut lookups);
            assert_eq!(addresses.due(), Some(SOON), "nothing is known yet");
            let (name, found) = lookups.join_next().await.unwrap().unwrap();
            assert!(addresses.found(&name, found));
        });
        assert_eq!(addresses.due(), None, "it is known");
        addresses.set(&[peer("localhost:1", &[])], AGAIN);
        addresses.looked_up = Some(Duration::ZERO);
        assert_eq!(addresses.due(), AGAIN);
    }
}
