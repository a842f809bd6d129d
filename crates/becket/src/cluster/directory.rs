//! Where the peers are: addresses as configured, and names that are looked up again and again.
//!
//! Names are looked up when a configuration is taken over, and then again and again, beside everything
//! else, by the [`Resolver`] that all share. A name that stops resolving keeps its last addresses and says why in the status: a broken
//! resolver must not take a cluster apart.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::backend::health::prober::again;
use crate::config::cluster::Peer;
use crate::config::values::Address;
use crate::resolver::{self, Resolver};

/// The peers of the configuration and their addresses.
#[derive(Debug, Default)]
pub struct Directory {
    entries: Vec<Entry>,
    /// Between two rounds of lookups; without, there are none once all are known.
    interval: Option<Duration>,
    /// When names were last looked up, by the monotonic clock; not since the configuration was taken over without.
    looked_up: Option<Duration>,
}

/// One peer of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As configured.
    pub name: Arc<str>,
    /// Where it was last found.
    pub addresses: Vec<SocketAddr>,
    /// Further addresses of it, which are not used.
    pub ignored: usize,
    /// Why it was not found anew, the last time.
    pub problem: Option<String>,
    /// Host and port to look up; nothing for an address.
    lookup: Option<(String, u16)>,
    /// It is being looked up.
    pending: bool,
}

/// The outcome of a lookup: of which name, and what was found.
pub type Found = (Arc<str>, resolver::Found);

/// Lookups that are under way.
pub type Lookups = JoinSet<Found>;

impl Directory {
    /// Takes the peers of a configuration, and how often their names are looked up. A name keeps what it
    /// had until it was.
    pub fn set(&mut self, peers: &[Peer], interval: Option<Duration>) {
        self.interval = interval;
        self.looked_up = None;
        let before = std::mem::take(&mut self.entries);
        self.entries = peers
            .iter()
            .map(|peer| {
                let known = before.iter().find(|entry| entry.name == peer.name);
                Entry::new(peer, known)
            })
            .collect();
    }

    /// All entries.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// All addresses of all peers.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let addresses = self.entries.iter().flat_map(|entry| &entry.addresses);
        addresses.copied().collect()
    }

    /// What the configuration calls the peer at this address.
    pub fn name_of(&self, address: SocketAddr) -> Option<&Arc<str>> {
        let entry = self
            .entries
            .iter()
            .find(|entry| entry.addresses.contains(&address))?;
        Some(&entry.name)
    }

    /// When [`Self::look_up`] is due; never when no peer has a name, or names are not looked up.
    pub fn due(&self) -> Option<Duration> {
        let mut named = self.entries.iter().filter(|entry| entry.lookup.is_some());
        let first = named.next()?;
        let Some(at) = self.looked_up else {
            return Some(Duration::ZERO);
        };
        let known = |entry: &Entry| !entry.addresses.is_empty();
        Some(at + again(self.interval, known(first) && named.all(known))?)
    }

    /// Starts to look up every name that is not being looked up already.
    pub fn look_up(&mut self, now: Duration, resolver: &Resolver, lookups: &mut Lookups) {
        self.looked_up = Some(now);
        for entry in &mut self.entries {
            let Some((host, _)) = &entry.lookup else {
                continue;
            };
            if entry.pending {
                entry.problem = Some("the resolver does not answer".to_owned());
                continue;
            }
            entry.pending = true;
            let (name, found) = (Arc::clone(&entry.name), resolver.look_up(host));
            lookups.spawn(async move { (name, found.await) });
        }
    }

    /// Takes the outcome of a lookup. True when addresses changed.
    pub fn found(&mut self, (name, found): Found) -> bool {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.name == name) else {
            return false;
        };
        entry.pending = false;
        let Some((_, port)) = entry.lookup else {
            // The peer has become one with an address.
            return false;
        };
        let found = match found {
            Ok(found) => found,
            Err(why) => {
                entry.complain(&why);
                return false;
            }
        };
        let addresses = found.iter().map(|ip| SocketAddr::new(*ip, port));
        let (addresses, ignored) = bounded(addresses.collect());
        entry.problem = None;
        entry.ignore(ignored);
        if entry.addresses == addresses {
            return false;
        }
        tracing::info!(name = %entry.name, ?addresses, "a peer has other addresses");
        entry.addresses = addresses;
        true
    }
}

impl Entry {
    fn new(peer: &Peer, known: Option<&Self>) -> Self {
        let (addresses, ignored) = match (known, &peer.addresses[..]) {
            (Some(known), []) => (known.addresses.clone(), known.ignored),
            (_, found) => bounded(found.to_vec()),
        };
        let lookup = match &peer.address {
            Address::Name(host, port) => Some((host.clone(), *port)),
            Address::Ip(..) | Address::Any(_) | Address::Unix(_) => None,
        };
        let mut entry = Self {
            name: Arc::clone(&peer.name),
            addresses,
            ignored: known.map_or(0, |known| known.ignored),
            problem: known.and_then(|known| known.problem.clone()),
            lookup,
            pending: known.is_some_and(|known| known.pending),
        };
        entry.ignore(ignored);
        entry
    }

    /// Keeps how many addresses are not used, and logs it when that changes.
    fn ignore(&mut self, ignored: usize) {
        if self.ignored != ignored && ignored > 0 {
            let used = MOST_OF_NAME;
            tracing::warn!(name = %self.name, used, ignored, "a peer has more addresses than are used");
        }
        self.ignored = ignored;
    }

    /// Keeps why, and logs it once.
    fn complain(&mut self, why: &str) {
        if self.problem.as_deref() != Some(why) {
            let kept = self.addresses.len();
            tracing::warn!(name = %self.name, why, kept, "a peer's name does not resolve");
            self.problem = Some(why.to_owned());
        }
    }
}

/// The lowest addresses, each once, in order, so that the same are used each time; and how many more there are.
fn bounded(mut addresses: Vec<SocketAddr>) -> (Vec<SocketAddr>, usize) {
    addresses.sort_unstable();
    addresses.dedup();
    let ignored = addresses.len().saturating_sub(MOST_OF_NAME);
    addresses.truncate(MOST_OF_NAME);
    (addresses, ignored)
}

/// Addresses of one name that are used: each is greeted until somebody answers there, and a host has a few.
const MOST_OF_NAME: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const AGAIN: Option<Duration> = Some(Duration::from_secs(30));

    fn peer(name: &str, addresses: &[&str]) -> Peer {
        let (host, port) = name.rsplit_once(':').unwrap();
        let port = port.parse().unwrap();
        Peer {
            name: name.into(),
            address: match host.parse() {
                Ok(ip) => Address::Ip(ip, port),
                Err(_) => Address::Name(host.to_owned(), port),
            },
            addresses: addresses.iter().map(|at| at.parse().unwrap()).collect(),
        }
    }

    fn found(addresses: &[&str]) -> Found {
        let addresses = addresses.iter().map(|at| at.parse().unwrap());
        ("b.test:1".into(), Ok(addresses.collect()))
    }

    fn directory() -> Directory {
        let mut directory = Directory::default();
        let peers = [
            peer("192.0.2.1:1", &["192.0.2.1:1"]),
            peer("b.test:1", &["192.0.2.2:1"]),
        ];
        directory.set(&peers, AGAIN);
        directory
    }

    #[test]
    fn a_name_that_stops_resolving_keeps_its_addresses_and_says_so() {
        let mut directory = directory();
        let all = directory.addresses();
        let failed = Err("no such host".to_owned());
        assert!(!directory.found(("b.test:1".into(), failed)));
        assert_eq!(directory.addresses(), all);
        let problem = directory.entries()[1].problem.as_deref();
        assert_eq!(problem, Some("no such host"));
        assert!(!directory.found(found(&["192.0.2.2"])));
        assert_eq!(directory.entries()[1].problem, None);
    }

    #[test]
    fn a_name_that_moves_is_told_once() {
        let mut directory = directory();
        assert!(directory.found(found(&["192.0.2.9", "192.0.2.8", "192.0.2.9"])));
        assert!(!directory.found(found(&["192.0.2.8", "192.0.2.9"])));
        assert_eq!(directory.addresses().len(), 3);
        let at = "192.0.2.9:1".parse().unwrap();
        assert_eq!(directory.name_of(at).map(|name| &**name), Some("b.test:1"));
    }

    #[test]
    fn of_many_addresses_the_same_few_are_used_and_the_others_counted() {
        let many: Vec<String> = (1..=20).map(|host| format!("192.0.2.{host}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let turned: Vec<&str> = many.iter().rev().copied().collect();
        let mut directory = directory();
        assert!(directory.found(found(&many)));
        let used = directory.entries()[1].addresses.clone();
        assert_eq!((used.len(), directory.entries()[1].ignored), (8, 12));
        assert!(!directory.found(found(&turned)), "in another order");
        directory.set(&[peer("b.test:1", &[])], AGAIN);
        assert_eq!(directory.entries()[0].ignored, 12, "as it was");
        assert!(directory.found(found(&["192.0.2.1"])));
        assert_eq!(directory.entries()[0].ignored, 0);
    }

    #[test]
    fn a_reload_while_the_resolver_is_broken_keeps_what_was_known() {
        let mut directory = directory();
        directory.found(("b.test:1".into(), Err("no such host".to_owned())));
        directory.set(&[peer("b.test:1", &[]), peer("c.test:1", &[])], AGAIN);
        assert_eq!(directory.addresses(), ["192.0.2.2:1".parse().unwrap()]);
        let [before, new] = directory.entries() else {
            panic!("two");
        };
        assert!(before.problem.is_some(), "it is said until it is over");
        assert_eq!(new.problem, None, "nobody knows yet");
        assert_eq!(directory.due(), Some(Duration::ZERO), "asked at once");
    }

    #[test]
    fn only_names_are_looked_up() {
        let mut directory = Directory::default();
        directory.set(&[peer("192.0.2.1:1", &["192.0.2.1:1"])], AGAIN);
        assert_eq!(directory.due(), None);
        directory.set(&[peer("localhost:1", &[])], None);
        assert_eq!(directory.due(), Some(Duration::ZERO));
        let resolver = Resolver::by(|_| Ok(vec![[127, 0, 0, 1].into()]));
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let mut lookups = Lookups::new();
            directory.look_up(Duration::ZERO, &resolver, &mut lookups);
            assert_eq!(directory.due(), again(None, false), "nothing is known yet");
            let found = lookups.join_next().await.unwrap().unwrap();
            assert!(directory.found(found));
        });
        assert_eq!(directory.due(), None, "it is known");
        directory.set(&[peer("localhost:1", &[])], AGAIN);
        directory.looked_up = Some(Duration::ZERO);
        assert_eq!(directory.due(), AGAIN);
    }
}
