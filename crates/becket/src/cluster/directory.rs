//! Where the peers are: addresses as configured, and names that are looked up again and again.
//!
//! Lookups run beside everything else, each on a thread of its own, since a resolver may take its
//! time. A name that stops resolving keeps its last addresses and says why in the status: a broken
//! resolver must not take a cluster apart.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::task::JoinSet;

use crate::config::cluster::Peer;
use crate::config::values::Address;

/// The peers of the configuration and their addresses.
#[derive(Debug, Default)]
pub struct Directory {
    entries: Vec<Entry>,
    /// Between two rounds of lookups; without, there are none.
    interval: Option<Duration>,
    /// When names were last looked up, by the monotonic clock.
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
pub type Found = (Arc<str>, io::Result<Vec<SocketAddr>>);

/// Lookups that are under way.
pub type Lookups = JoinSet<Found>;

impl Directory {
    /// Takes the peers of a configuration, and how often their names are looked up. A name that did
    /// not resolve in it keeps what it had.
    pub fn set(&mut self, peers: &[Peer], interval: Option<Duration>) {
        self.interval = interval;
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
        let interval = self.interval?;
        let named = self.entries.iter().any(|entry| entry.lookup.is_some());
        named.then(|| self.looked_up.map_or(Duration::ZERO, |at| at + interval))
    }

    /// Starts to look up every name that is not being looked up already.
    pub fn look_up(&mut self, now: Duration, lookups: &mut Lookups) {
        self.looked_up = Some(now);
        for entry in &mut self.entries {
            let Some(lookup) = &entry.lookup else {
                continue;
            };
            if entry.pending {
                entry.problem = Some("the resolver does not answer".to_owned());
                continue;
            }
            entry.pending = true;
            let (name, lookup) = (Arc::clone(&entry.name), lookup.clone());
            lookups.spawn(async move {
                let found = lookup_host(lookup).await;
                let found = found.map(|found| found.take(MOST_FOUND).collect());
                (name, found)
            });
        }
    }

    /// Takes the outcome of a lookup. True when addresses changed.
    pub fn found(&mut self, (name, found): Found) -> bool {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.name == name) else {
            return false;
        };
        entry.pending = false;
        let addresses = match found {
            Ok(addresses) if addresses.is_empty() => {
                entry.complain("the name has no address");
                return false;
            }
            Ok(addresses) => addresses,
            Err(error) => {
                entry.complain(&error.to_string());
                return false;
            }
        };
        let (addresses, ignored) = bounded(addresses);
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
        let unresolved = lookup.is_some() && peer.addresses.is_empty();
        let mut entry = Self {
            name: Arc::clone(&peer.name),
            addresses,
            ignored: known.map_or(0, |known| known.ignored),
            problem: unresolved.then(|| "the name does not resolve yet".to_owned()),
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

/// Addresses that are looked at in one answer of a resolver.
const MOST_FOUND: usize = 256;

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
        let addresses = addresses.iter().map(|at| at.parse().unwrap()).collect();
        ("b.test:1".into(), Ok(addresses))
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
        let failed = || io::Error::other("no such host");
        assert!(!directory.found(("b.test:1".into(), Err(failed()))));
        assert!(!directory.found(found(&[])));
        assert_eq!(directory.addresses(), all);
        let problem = directory.entries()[1].problem.as_deref();
        assert_eq!(problem, Some("the name has no address"));
        assert!(!directory.found(found(&["192.0.2.2:1"])));
        assert_eq!(directory.entries()[1].problem, None);
    }

    #[test]
    fn a_name_that_moves_is_told_once() {
        let mut directory = directory();
        assert!(directory.found(found(&["192.0.2.9:1", "192.0.2.8:1", "192.0.2.9:1"])));
        assert!(!directory.found(found(&["192.0.2.8:1", "192.0.2.9:1"])));
        assert_eq!(directory.addresses().len(), 3);
        let at = "192.0.2.9:1".parse().unwrap();
        assert_eq!(directory.name_of(at).map(|name| &**name), Some("b.test:1"));
    }

    #[test]
    fn of_many_addresses_the_same_few_are_used_and_the_others_counted() {
        let many: Vec<String> = (1..=20).map(|host| format!("192.0.2.{host}:1")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let turned: Vec<&str> = many.iter().rev().copied().collect();
        let mut directory = directory();
        assert!(directory.found(found(&many)));
        let used = directory.entries()[1].addresses.clone();
        assert_eq!((used.len(), directory.entries()[1].ignored), (8, 12));
        assert!(!directory.found(found(&turned)), "in another order");
        directory.set(&[peer("b.test:1", &turned)], AGAIN);
        assert_eq!(directory.entries()[0].addresses, used);
        assert_eq!(directory.entries()[0].ignored, 12);
        directory.set(&[peer("b.test:1", &[])], AGAIN);
        assert_eq!(directory.entries()[0].ignored, 12, "as it was");
        assert!(directory.found(found(&["192.0.2.1:1"])));
        assert_eq!(directory.entries()[0].ignored, 0);
    }

    #[test]
    fn a_reload_while_the_resolver_is_broken_keeps_what_was_known() {
        let mut directory = directory();
        directory.set(&[peer("b.test:1", &[]), peer("c.test:1", &[])], AGAIN);
        assert_eq!(directory.addresses(), ["192.0.2.2:1".parse().unwrap()]);
        assert!(
            directory
                .entries()
                .iter()
                .all(|entry| entry.problem.is_some())
        );
    }

    #[test]
    fn only_names_are_looked_up() {
        let mut directory = Directory::default();
        directory.set(&[peer("192.0.2.1:1", &["192.0.2.1:1"])], AGAIN);
        assert_eq!(directory.due(), None);
        directory.set(&[peer("localhost:1", &[])], None);
        assert_eq!(directory.due(), None, "not even then");
        directory.set(&[peer("localhost:1", &[])], AGAIN);
        assert_eq!(directory.due(), Some(Duration::ZERO));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let mut lookups = Lookups::new();
            directory.look_up(Duration::ZERO, &mut lookups);
            assert_eq!(directory.due(), AGAIN);
            let found = lookups.join_next().await.unwrap().unwrap();
            directory.found(found);
            assert!(!directory.addresses().is_empty());
        });
    }
}
