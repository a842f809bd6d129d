//! States of all backends and servers by name, so that they survive a reload.
//!
//! The workers' pools hold the states, so the data path does not use the registry. A reload reuses
//! the state of a server if the names of the server and of its backend are unchanged. A removed
//! state exists while connections hold it. If its server is configured again in this time, the
//! state is reused, so that `maxconn` includes the old connections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use becket_cluster::replica::{ServerTag, StickCursor};
use becket_cluster::{PeerStick, StickMemory};
use becket_config::choices::StickBy;
use becket_proto::ticket::OriginId;

use super::backend_state::BackendState;
use super::inbox::Inbox;
use super::server_state::ServerState;
use becket_tls::config::overrides::Overrides;
use becket_tls::config::{Backend, Config, Server};

/// Creates the state of a backend outside a configuration, for checks, tests and benchmarks.
/// `inboxes` belong to the workers that use the backend.
pub fn lone_state(backend: &Backend, inboxes: Vec<Arc<dyn Inbox>>) -> Arc<BackendState> {
    let inboxes = Arc::new(OnceLock::from(inboxes));
    let state = Arc::new(BackendState::new(backend.keys.name.to_string(), inboxes));
    adopt_servers(&state, backend);
    state
}

/// Backends whose clients stick by TLS session, with the numbers (tags) that identify their servers
/// in messages between cluster nodes.
#[derive(Debug, Default)]
struct KnownToPeers {
    servers: HashMap<ServerTag, Arc<ServerState>>,
    sticky: Vec<Sticky>,
}

#[derive(Debug)]
struct Sticky {
    backend: Arc<BackendState>,
    /// Tags of the servers by [`ServerState::key`]. A map is used, because a dump looks up the
    /// server of each client under a lock that workers need.
    tags: HashMap<u64, ServerTag>,
}

/// A configuration and the states of its backends. Workers receive both together, so that the
/// states always match the configuration.
#[derive(Clone, Debug)]
pub struct Adopted {
    config: Arc<Config>,
    states: Arc<[Arc<BackendState>]>,
}

impl Adopted {
    pub fn config(&self) -> &Arc<Config> {
        &self.config
    }

    pub fn backends(&self) -> impl Iterator<Item = (&Arc<Backend>, &Arc<BackendState>)> {
        self.config.backends.iter().zip(self.states.iter())
    }
}

#[derive(Debug, Default)]
pub struct Backends {
    by_name: Mutex<HashMap<String, Arc<BackendState>>>,
    /// Backends that are not configured any more but may still have connections.
    gone: Mutex<Vec<Weak<BackendState>>>,
    /// Finds the server for the tag in a peer's stick entry. Rebuilt at each reload.
    known_to_peers: Mutex<Arc<KnownToPeers>>,
    inboxes: Arc<OnceLock<Vec<Arc<dyn Inbox>>>>,
}

impl Backends {
    /// Sets the inboxes of the workers. Only the first call has an effect.
    pub fn set_inboxes(&self, inboxes: Vec<Arc<dyn Inbox>>) {
        // A process sets its workers only once, so a second call is ignored.
        let _first = self.inboxes.set(inboxes);
    }

    /// Applies a configuration: creates new states, updates existing ones, removes others.
    pub fn adopt(&self, config: &Arc<Config>) -> Adopted {
        Adopted {
            states: self.adopt_all(&config.backends),
            config: Arc::clone(config),
        }
    }

    /// Combines a configuration with the existing states of its backends, without changing them.
    pub fn keep(&self, config: &Arc<Config>) -> Adopted {
        let by_name = self.lock();
        let state = |backend: &Arc<Backend>| {
            let state = by_name.get(&*backend.keys.name).cloned();
            state.unwrap_or_else(|| self.make(backend))
        };
        Adopted {
            states: config.backends.iter().map(state).collect(),
            config: Arc::clone(config),
        }
    }

    /// Sets `backends` as the configured backends, and removes all other backends. Returns the
    /// states in the order of `backends`.
    pub fn adopt_all(&self, backends: &[Arc<Backend>]) -> Arc<[Arc<BackendState>]> {
        let mut by_name = self.lock();
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *by_name);
        let held: Vec<Arc<BackendState>> = gone.iter().filter_map(Weak::upgrade).collect();
        let found = |name: &str| held.iter().find(|state| state.name() == name).cloned();
        let mut adopt = |backend: &Arc<Backend>| {
            let state = before
                .remove(&*backend.keys.name)
                .or_else(|| found(&backend.keys.name))
                .unwrap_or_else(|| self.make(backend));
            by_name.insert(backend.keys.name.to_string(), Arc::clone(&state));
            adopt_servers(&state, backend);
            state
        };
        let states: Arc<[_]> = backends.iter().map(&mut adopt).collect();
        let is_back = |state: &Weak<_>| {
            by_name
                .values()
                .any(|one| state.as_ptr() == Arc::as_ptr(one))
        };
        gone.retain(|state| state.strong_count() > 0 && !is_back(state));
        gone.extend(before.values().map(Arc::downgrade));
        let known = Arc::new(KnownToPeers::new(backends, &states));
        drop((by_name, gone));
        let old = std::mem::replace(&mut *self.known_to_peers(), known);
        drop(old);
        before.values().for_each(|state| state.close());
        states
    }

    /// Removes changes that operators made at run time from all servers.
    pub fn restore(&self, adopted: &Adopted) {
        for (_, state) in adopted.backends() {
            for server in &*state.servers() {
                server.set_overrides(Overrides::default());
            }
        }
    }

    pub fn by_name(&self, name: &str) -> Option<Arc<BackendState>> {
        self.lock().get(name).cloned()
    }

    pub fn all(&self) -> Vec<Arc<BackendState>> {
        self.lock().values().cloned().collect()
    }

    /// Returns all servers, including removed servers that still have connections. Takes locks.
    pub fn known_servers(&self) -> Vec<Arc<ServerState>> {
        let configured = self.all();
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<_> = gone.iter().filter_map(Weak::upgrade).collect();
        let states = configured.iter().chain(&gone);
        states.flat_map(|state| state.known_servers()).collect()
    }

    fn make(&self, backend: &Backend) -> Arc<BackendState> {
        let inboxes = Arc::clone(&self.inboxes);
        Arc::new(BackendState::new(backend.keys.name.to_string(), inboxes))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<BackendState>>> {
        // The map is valid even after a panic, although entries may be missing.
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_to_peers(&self) -> MutexGuard<'_, Arc<KnownToPeers>> {
        // Valid even after a panic, because the value is replaced as a whole.
        self.known_to_peers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl StickMemory for Backends {
    fn learn_from_peer(&self, stick: &PeerStick, late: bool, now: Duration) -> bool {
        let known = Arc::clone(&self.known_to_peers());
        let Some(server) = known.servers.get(&stick.server) else {
            return false;
        };
        let (client, key, backend) = (stick.origin.0, server.key(), server.backend());
        if late {
            backend.learn_unless_known(client, key, now, stick.life)
        } else {
            backend.learn(client, key, now, stick.life)
        }
    }

    fn visit_sticks(
        &self,
        from: StickCursor,
        now: Duration,
        at_most: usize,
        show: &mut dyn FnMut(&PeerStick, Duration),
    ) -> Option<StickCursor> {
        let known = Arc::clone(&self.known_to_peers());
        let Sticky { backend, tags } = known.sticky.get(from.backend)?;
        let life = backend.stick_life();
        let at = backend.visit_sticks(from.at, now, at_most, |client, server, remaining| {
            if let Some(server) = tags.get(&server) {
                let stick = PeerStick {
                    origin: OriginId(client),
                    server: *server,
                    life: remaining,
                };
                show(&stick, life.saturating_sub(remaining));
            }
        });
        let next = StickCursor {
            backend: from.backend + usize::from(at.is_none()),
            at: at.unwrap_or_default(),
        };
        (next.backend < known.sticky.len()).then_some(next)
    }
}

impl KnownToPeers {
    fn new(backends: &[Arc<Backend>], states: &[Arc<BackendState>]) -> Self {
        let mut known = Self::default();
        let by_session =
            |(config, _): &(&Arc<Backend>, _)| config.keys.stick == StickBy::TlsSession;
        for (_, backend) in backends.iter().zip(states).filter(by_session) {
            let servers = backend.servers();
            let tagged = servers
                .iter()
                .map(|server| (server.tag(), Arc::clone(server)));
            known.servers.extend(tagged);
            known.sticky.push(Sticky {
                backend: Arc::clone(backend),
                tags: servers
                    .iter()
                    .map(|server| (server.key(), server.tag()))
                    .collect(),
            });
        }
        known
    }
}

fn adopt_servers(state: &Arc<BackendState>, backend: &Backend) {
    let before = state.known_servers();
    let server = |config: &Server| {
        let same = before.iter().find(|state| *state.name() == config.name);
        match same {
            Some(same) => {
                same.configure(config);
                Arc::clone(same)
            }
            None => Arc::new(ServerState::new(config, Arc::clone(state))),
        }
    };
    let servers = backend.servers.iter().map(server).collect();
    state.configure(backend, servers);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::slot::ServerSlot;
    use becket_tls::config::ServerAddress;

    fn config(backends: &[(&str, &[&str])]) -> Arc<Config> {
        let server = |name: &&str| {
            let mut server = Server::plain(name, vec![ServerAddress::Unix(name.into())]);
            server.keys.maxconn = Some(1);
            server
        };
        let backend = |(name, servers): &(&str, &[&str])| {
            Arc::new(Backend::plain(name, servers.iter().map(server).collect()))
        };
        Arc::new(Config {
            backends: backends.iter().map(backend).collect(),
            ..Config::default()
        })
    }

    fn server(backends: &Backends, name: &str) -> Arc<ServerState> {
        let servers = backends.by_name("app").unwrap().servers();
        let mut servers = servers.iter();
        Arc::clone(servers.find(|server| &**server.name() == name).unwrap())
    }

    #[test]
    fn kept_servers_retain_their_connections_and_adopt_new_limits() {
        let backends = Backends::default();
        backends.adopt(&config(&[("app", &["/a", "/b"])]));
        let before = server(&backends, "/b");
        let _slot = ServerSlot::claim(&before).unwrap();
        let mut other = config(&[("app", &["/c", "/b"])]);
        let backends_of = &mut Arc::get_mut(&mut other).unwrap().backends;
        Arc::get_mut(&mut backends_of[0]).unwrap().servers[1]
            .keys
            .maxconn = Some(2);
        backends.adopt(&other);
        let after = server(&backends, "/b");
        assert!(Arc::ptr_eq(&before, &after));
        assert_eq!((after.in_use(), after.maxconn()), (1, Some(2)));
    }

    #[test]
    fn stick_entries_of_peers_are_kept_for_configured_servers_only() {
        let backends = Backends::default();
        let with = |by: StickBy, servers: &[(&str, &[&str])]| {
            let mut config = config(servers);
            for backend in &mut Arc::get_mut(&mut config).unwrap().backends {
                let backend = Arc::get_mut(backend).unwrap();
                (backend.keys.stick_entries, backend.keys.stick) = (100, by);
            }
            config
        };
        let sticky = |servers: &[(&str, &[&str])]| with(StickBy::TlsSession, servers);
        let now = Duration::from_secs(1);
        backends.adopt(&sticky(&[("app", &["/a", "/b"]), ("other", &["/b"])]));
        let told = |name: &str, origin| PeerStick {
            origin: OriginId(origin),
            server: server(&backends, name).tag(),
            life: Duration::from_secs(60),
        };
        let (to_a, to_b) = (told("/a", 1), told("/b", 2));
        assert!(backends.learn_from_peer(&to_a, false, now));
        assert!(!backends.learn_from_peer(&to_a, false, now), "no news");
        assert!(backends.learn_from_peer(&to_b, false, now));
        let had = |backend, origin| {
            let state = backends.by_name(backend).unwrap();
            state.recall(origin, now)
        };
        assert_eq!(had("app", 2), Some(server(&backends, "/b").key()));
        assert_eq!(had("other", 2), None, "a tag names one backend's server");
        backends.adopt(&sticky(&[("app", &["/b"])]));
        let other = PeerStick {
            origin: OriginId(3),
            ..to_a
        };
        assert!(
            !backends.learn_from_peer(&other, false, now),
            "no such server"
        );
        backends.adopt(&with(StickBy::Source, &[("app", &["/a", "/b"])]));
        assert!(
            !backends.learn_from_peer(&other, false, now),
            "here, a client is an address"
        );
    }

    #[test]
    fn a_walk_shows_each_session_entry_in_a_form_that_peers_can_learn() {
        let with = |by: StickBy| {
            let mut config = config(&[("app", &["/a", "/b"]), ("other", &["/c"])]);
            for backend in &mut Arc::get_mut(&mut config).unwrap().backends {
                let backend = Arc::get_mut(backend).unwrap();
                (backend.keys.stick_entries, backend.keys.stick) = (1000, by);
            }
            config
        };
        let [here, there] = [0, 1].map(|_| Backends::default());
        let now = Duration::from_secs(1);
        here.adopt(&with(StickBy::TlsSession));
        there.adopt(&with(StickBy::TlsSession));
        let told = |origin| PeerStick {
            origin: OriginId(origin),
            server: server(&here, if origin % 2 == 0 { "/a" } else { "/b" }).tag(),
            life: Duration::from_secs(60),
        };
        (0..300).for_each(|origin| assert!(here.learn_from_peer(&told(origin), false, now)));
        let walk = || {
            let (mut shown, mut cursor) = (Vec::new(), Some(StickCursor::default()));
            while let Some(from) = cursor {
                cursor = here.visit_sticks(from, now, 7, &mut |stick, _| shown.push(*stick));
            }
            shown
        };
        let mut shown = walk();
        shown.sort_unstable_by_key(|stick| stick.origin.0);
        assert!(shown.iter().copied().eq((0..300).map(told)));
        // Known entries are kept.
        let other = PeerStick {
            server: told(1).server,
            ..told(0)
        };
        assert!(there.learn_from_peer(&other, false, now));
        let news = shown.iter();
        let news = news.filter(|stick| there.learn_from_peer(stick, true, now));
        assert_eq!(news.count(), 299);
        let kept = there.by_name("app").unwrap().recall(0, now);
        assert_eq!(kept, Some(server(&there, "/b").key()));
        here.adopt(&with(StickBy::Source));
        assert!(walk().is_empty(), "addresses mean nothing elsewhere");
    }

    #[test]
    fn a_readded_server_keeps_its_state_while_connections_use_it() {
        let backends = Backends::default();
        backends.adopt(&config(&[("app", &["/a", "/b"])]));
        let slot = ServerSlot::claim(&server(&backends, "/a")).unwrap();
        // Removes the server, then the whole backend, and adds both again each time.
        for without in [config(&[("app", &["/b"])]), config(&[("other", &["/a"])])] {
            backends.adopt(&without);
            backends.adopt(&config(&[("app", &["/a"])]));
            assert!(
                ServerSlot::claim(&server(&backends, "/a")).is_none(),
                "still in use"
            );
        }
        drop(slot);
        assert_eq!(server(&backends, "/a").in_use(), 0);
    }

    #[test]
    fn a_worker_with_an_older_configuration_shares_the_server_counts() {
        let backends = Backends::default();
        let first = backends.adopt(&config(&[("app", &["/a"]), ("old", &["/a"])]));
        backends.adopt(&config(&[("app", &["/b"])]));
        // A worker adopts the first configuration only now, after its backend was removed.
        let (backend, late) = first.backends().nth(1).unwrap();
        assert_eq!(&*backend.keys.name, "old");
        assert!(late.servers().is_empty(), "nobody is sent there");
        let third = backends.adopt(&config(&[("old", &["/a"])]));
        let (_, again) = third.backends().next().unwrap();
        assert!(Arc::ptr_eq(late, again), "counted in one place");
        let _slot = ServerSlot::claim(&late.servers()[0]).unwrap();
        assert!(ServerSlot::claim(&again.servers()[0]).is_none());
    }
}
