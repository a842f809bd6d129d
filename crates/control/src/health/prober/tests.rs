//! Tests of the prober with scripted names and real sockets: servers in service, and resolved
//! addresses.

use std::net::TcpListener;
use std::sync::Mutex;

use becket_config::backend::{self, RequestPath};
use becket_config::choices::CheckKind;
use becket_sys::clock::Clock;
use tokio::runtime::{Builder, Runtime};

use super::*;

const CHECKED: backend::HealthSection = backend::HealthSection {
    check: CheckKind::Connect,
    interval: Duration::from_secs(10),
    fast_interval: Duration::from_secs(1),
    timeout: Duration::from_secs(5),
    rise: 1,
    fall: 2,
    path: RequestPath(String::new()),
    host: None,
    expect: Vec::new(),
    slow_start: Some(Duration::from_secs(10)),
    passive_failures: None,
    passive_pause: Duration::ZERO,
};

/// Next result of the resolver, and the number of lookups.
#[derive(Clone, Debug, Default)]
struct Oracle(Arc<Mutex<(Vec<String>, usize)>>);

impl Oracle {
    fn says(&self, addresses: &[&str]) {
        self.0.lock().unwrap().0 = addresses.iter().map(ToString::to_string).collect();
    }
}

impl Oracle {
    fn resolver(&self) -> HostResolver {
        let Self(told) = self.clone();
        HostResolver::by(move |_| {
            let mut told = told.lock().unwrap();
            told.1 += 1;
            let found = told.0.iter();
            found
                .map(|one| one.parse().map_err(std::io::Error::other))
                .collect()
        })
    }
}

struct Fixture {
    runtime: Runtime,
    prober: Prober,
    backends: Backends,
    oracle: Oracle,
    now: Now,
}

impl Fixture {
    fn new() -> Self {
        let oracle = Oracle::default();
        Self {
            runtime: Builder::new_current_thread().enable_all().build().unwrap(),
            prober: Prober::new(oracle.resolver()),
            backends: Backends::default(),
            oracle,
            now: Clock::start().now(),
        }
    }

    fn adopt(&mut self, backend: Backend) -> Arc<ServerState> {
        let backend = [Arc::new(backend)];
        let states = self.backends.adopt_all(&backend);
        self.prober.adopt(&backend, &self.backends, self.now.mono);
        Arc::clone(&states[0].servers()[0])
    }

    /// Runs all due tasks and their consequences.
    fn settle(&mut self) {
        let Self {
            runtime,
            prober,
            now,
            ..
        } = self;
        runtime.block_on(async {
            prober.advance(*now);
            while !(prober.checks.is_empty() && prober.lookups.is_empty()) {
                let ended = prober.ended().await;
                prober.take(ended, *now);
            }
        });
    }

    fn after(&mut self, seconds: u64) {
        self.now.mono += Duration::from_secs(seconds);
        self.settle();
    }
}

fn backend(server: &str, address: &str, health: backend::HealthSection) -> Backend {
    let addresses = vec![ServerAddress::Tcp(address.parse().unwrap())];
    let mut backend = Backend::plain("app", vec![Server::plain(server, addresses)]);
    backend.keys.health = health;
    backend.keys.resolve_interval = Some(Duration::from_secs(60));
    backend
}

#[test]
fn a_server_goes_out_of_service_and_returns() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let text = address.to_string();
    let mut fixture = Fixture::new();
    let server = fixture.adopt(backend(&text, &text, CHECKED));
    assert_eq!(server.watched().condition, Condition::OnTrial);
    fixture.settle();
    assert_eq!(server.watched().condition, Condition::InService);
    drop(listener);
    fixture.after(11);
    assert!(server.is_in_service(), "one bad check is not enough");
    fixture.after(2);
    assert!(!server.is_in_service());
    let (_, reason) = server.watched().change.unwrap();
    assert!(reason.contains("refused"), "{reason}");
    let _listener = TcpListener::bind(address).unwrap();
    fixture.after(11);
    assert!(server.is_in_service());
    assert_eq!(server.weight(), 1, "it starts slowly");
    fixture.after(5);
    assert_eq!(server.weight(), 50);
    fixture.after(5);
    assert_eq!(server.weight(), 100);
    assert_eq!(server.watched().outages, 1);
    assert_eq!(server.watched().check_failures, 2);
}

#[test]
fn health_state_survives_a_reload_and_ends_with_the_checks() {
    let nobody = "127.0.0.1:9";
    let mut fixture = Fixture::new();
    let server = fixture.adopt(backend(nobody, nobody, CHECKED));
    fixture.settle();
    assert!(!server.is_in_service());
    let same = fixture.adopt(backend(nobody, nobody, CHECKED));
    assert!(Arc::ptr_eq(&server, &same) && !server.is_in_service());
    fixture.adopt(backend(nobody, nobody, backend::HealthSection::default()));
    assert!(server.is_in_service());
    assert_eq!(server.watched().condition, Condition::Unchecked);
    fixture
        .prober
        .adopt(&[], &fixture.backends, fixture.now.mono);
    assert!(fixture.prober.watches.is_empty());
}

#[test]
fn connects_that_fail_pause_a_server() {
    let health = backend::HealthSection {
        passive_failures: Some(3),
        passive_pause: Duration::from_secs(5),
        ..backend::HealthSection::default()
    };
    let mut fixture = Fixture::new();
    let server = fixture.adopt(backend("127.0.0.1:9", "127.0.0.1:9", health));
    for _ in 0..3 {
        server.note_failure();
    }
    fixture.settle();
    assert_eq!(server.watched().condition, Condition::OutOfService);
    assert!(!server.is_in_service());
    fixture.after(5);
    assert_eq!(server.watched().condition, Condition::OnTrial);
    assert!(server.is_in_service());
    server.note_connect();
    fixture.settle();
    assert_eq!(server.watched().condition, Condition::InService);
}

fn addresses(server: &ServerState) -> Vec<String> {
    let shown = |address: &ServerAddress| match address {
        ServerAddress::Tcp(address) => address.to_string(),
        ServerAddress::Unix(path) => path.display().to_string(),
    };
    server.addresses().iter().map(shown).collect()
}

#[test]
fn names_are_resolved_again_and_keep_their_addresses_on_failure() {
    let mut fixture = Fixture::new();
    let none = backend::HealthSection::default();
    let server = fixture.adopt(backend("app.test:80", "192.0.2.1:80", none));
    fixture.oracle.says(&["192.0.2.1", "192.0.2.2"]);
    fixture.settle();
    assert_eq!(fixture.oracle.0.lock().unwrap().1, 1, "at once");
    assert_eq!(addresses(&server), ["192.0.2.1:80", "192.0.2.2:80"]);
    let generation = server.generation();
    fixture
        .oracle
        .says(&["192.0.2.2", "192.0.2.1", "192.0.2.1"]);
    fixture.after(60);
    assert_eq!(server.generation(), generation, "the order is no news");
    for fails in [&[][..], &["garbage"]] {
        fixture.oracle.says(fails);
        fixture.after(60);
        assert!(server.dns_stale());
        assert_eq!(addresses(&server), ["192.0.2.1:80", "192.0.2.2:80"]);
    }
    fixture.oracle.says(&["192.0.2.9"]);
    fixture.after(60);
    assert!(!server.dns_stale());
    assert_eq!(addresses(&server), ["192.0.2.9:80"]);
    assert_eq!(fixture.oracle.0.lock().unwrap().1, 5);
}

#[test]
fn server_health_depends_on_addresses_reachable_within_the_retries() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (name, address) = (format!("app.test:{}", address.port()), address.to_string());
    for (retries, expected) in [(0, Condition::OutOfService), (1, Condition::InService)] {
        let mut config = backend(&name, &address, CHECKED);
        config.keys.retries = retries;
        let mut fixture = Fixture::new();
        // No server listens at the first address.
        fixture.oracle.says(&["127.0.73.9", "127.0.0.1"]);
        let server = fixture.adopt(config);
        fixture.settle();
        fixture.after(11);
        fixture.after(2);
        assert_eq!(server.watched().condition, expected);
    }
}

#[test]
fn the_number_of_addresses_per_name_is_bounded() {
    let mut fixture = Fixture::new();
    let none = backend::HealthSection::default();
    let server = fixture.adopt(backend("app.test:80", "192.0.2.1:80", none));
    let many = (0..4000u32).map(|n| std::net::Ipv4Addr::from_bits(n).to_string());
    let many: Vec<String> = many.collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    fixture.oracle.says(&many);
    fixture.settle();
    let used = addresses(&server);
    assert_eq!(used.len(), MOST_ADDRESSES);
    assert_eq!(used[9], "0.0.0.9:80");
    let generation = server.generation();
    fixture.after(60);
    assert_eq!(server.generation(), generation, "no news");
}

#[test]
fn a_server_whose_name_never_resolved_is_neither_used_nor_checked_until_it_does() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (name, address) = (format!("app.test:{}", address.port()), address.to_string());
    let mut fixture = Fixture::new();
    let mut config = backend(&name, &address, CHECKED);
    config.servers[0].addresses.clear();
    let server = fixture.adopt(config);
    assert!(!server.is_in_service() && !server.dns_stale());
    fixture.settle();
    assert!(!server.is_in_service() && server.dns_stale());
    assert_eq!(server.watched().checks, 0, "nobody knows where");
    fixture.oracle.says(&["127.0.0.1"]);
    fixture.after(5);
    assert!(server.is_in_service() && !server.dns_stale());
    assert_eq!(fixture.oracle.0.lock().unwrap().1, 2);
    fixture.after(1);
    assert_eq!(server.watched().condition, Condition::InService);
    // From now on the name is looked up at the usual interval.
    fixture.after(58);
    assert_eq!(fixture.oracle.0.lock().unwrap().1, 2);
    fixture.after(1);
    assert_eq!(fixture.oracle.0.lock().unwrap().1, 3);
    // A reload while the resolver fails removes no address.
    let mut config = backend(&name, &address, CHECKED);
    config.servers[0].addresses.clear();
    fixture.oracle.says(&[]);
    fixture.adopt(config);
    assert!(server.is_in_service() && !server.dns_stale());
    fixture.settle();
    assert!(server.is_in_service() && server.dns_stale());
    assert_eq!(addresses(&server), [address]);
}

#[test]
fn without_an_interval_a_name_is_looked_up_until_it_resolves() {
    let mut fixture = Fixture::new();
    let mut config = backend(
        "app.test:80",
        "192.0.2.1:80",
        backend::HealthSection::default(),
    );
    config.servers[0].addresses.clear();
    config.keys.resolve_interval = None;
    let server = fixture.adopt(config);
    fixture.settle();
    fixture.oracle.says(&["192.0.2.1"]);
    fixture.after(5);
    assert_eq!(addresses(&server), ["192.0.2.1:80"]);
    fixture.after(1_000_000);
    assert_eq!(fixture.oracle.0.lock().unwrap().1, 2, "never again");
}

#[test]
fn an_address_or_a_socket_is_not_resolved() {
    let mut fixture = Fixture::new();
    fixture.adopt(backend(
        "192.0.2.1:80",
        "192.0.2.1:80",
        backend::HealthSection::default(),
    ));
    fixture.after(600);
    assert_eq!(fixture.oracle.0.lock().unwrap().1, 0);
}

#[test]
fn not_all_servers_are_checked_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = ServerAddress::Tcp(listener.local_addr().unwrap());
    let server = |index: usize| Server::plain(&format!("/{index}"), vec![address.clone()]);
    let mut fixture = Fixture::new();
    let mut backend = Backend::plain("app", (0..100).map(server).collect());
    backend.keys.health = CHECKED;
    fixture.adopt(backend);
    let Fixture {
        runtime,
        prober,
        now,
        ..
    } = &mut fixture;
    runtime.block_on(async { prober.advance(*now) });
    assert_eq!(prober.checks.len(), MOST_CHECKS);
    fixture.settle();
    fixture.settle();
    let states = fixture
        .prober
        .watches
        .iter()
        .map(|watch| watch.server.watched().checks);
    assert_eq!(states.sum::<u64>(), 100);
}

#[test]
fn a_check_occupies_a_slot_and_gets_the_next_free_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let checks = || std::iter::from_fn(|| listener.accept().ok()).count();
    let text = listener.local_addr().unwrap().to_string();
    let mut fixture = Fixture::new();
    let mut config = backend(&text, &text, CHECKED);
    config.servers[0].keys.maxconn = Some(2);
    let server = fixture.adopt(config);
    let mut held: Vec<ServerSlot> = (0..2).filter_map(|_| ServerSlot::claim(&server)).collect();
    fixture.settle();
    assert_eq!(
        (held.len(), checks()),
        (2, 0),
        "a full server is not connected"
    );
    drop(held.pop());
    assert!(ServerSlot::claim(&server).is_none(), "the check is next");
    fixture.settle();
    assert_eq!(checks(), 1);
    assert_eq!(server.in_use(), 1, "the check has given its slot back");
    held.extend(ServerSlot::claim(&server));
    assert_eq!(held.len(), 2, "clients have the whole limit again");
    // A waiting check is dropped together with its configuration.
    fixture.after(11);
    drop(held.pop());
    assert!(ServerSlot::claim(&server).is_none());
    fixture
        .prober
        .adopt(&[], &fixture.backends, fixture.now.mono);
    assert!(ServerSlot::claim(&server).is_some());
}

#[test]
fn a_check_that_gets_no_slot_within_its_time_out_is_made_without_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let checks = || std::iter::from_fn(|| listener.accept().ok()).count();
    let text = listener.local_addr().unwrap().to_string();
    let mut fixture = Fixture::new();
    let mut config = backend(&text, &text, CHECKED);
    config.servers[0].keys.maxconn = Some(1);
    let server = fixture.adopt(config);
    let hangs = ServerSlot::claim(&server);
    fixture.settle();
    fixture.after(4);
    assert_eq!((hangs.is_some(), checks()), (true, 0));
    fixture.after(1);
    assert_eq!(checks(), 1);
    assert_eq!(server.in_use(), 1, "the check had none to give back");
    drop(hangs);
    assert!(
        ServerSlot::claim(&server).is_some(),
        "nor does it wait for one"
    );
}

#[test]
fn a_check_counts_while_it_runs() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = listener.local_addr().unwrap().to_string();
    let mut fixture = Fixture::new();
    let mut config = backend(&text, &text, CHECKED);
    config.servers[0].keys.maxconn = Some(1);
    let server = fixture.adopt(config);
    let Fixture {
        runtime,
        prober,
        backends,
        now,
        ..
    } = &mut fixture;
    runtime.block_on(async { prober.advance(*now) });
    assert_eq!(server.in_use(), 1);
    assert!(ServerSlot::claim(&server).is_none());
    // A reload drops a running check and frees its slot.
    prober.adopt(&[], backends, now.mono);
    runtime.block_on(tokio::task::yield_now());
    assert_eq!(server.in_use(), 0);
    assert!(ServerSlot::claim(&server).is_some());
}

#[test]
fn a_new_process_inherits_server_health_and_addresses() {
    let mut named = backend("app.test:80", "127.0.0.1:1", CHECKED);
    named.servers[0].addresses.clear();
    let (mut old, mut new) = (Fixture::new(), Fixture::new());
    old.oracle.says(&["127.0.0.1"]);
    old.adopt(named.clone());
    old.settle();
    old.after(2);
    let known = old.prober.known(old.now);
    let server = new.adopt(named);
    assert!(!server.has_address());
    new.prober.take_over(&known, new.now);
    assert_eq!(
        *server.addresses(),
        *old.prober.watches[0].server.addresses()
    );
    assert!(server.is_failing(), "nobody listens there");
    assert_eq!(server.watched().condition, Condition::OutOfService);
    assert!(server.watched().change.is_some());
    // A server of another backend is a different server.
    let other = handover::Server {
        backend: "else".to_owned(),
        ..known[0].clone()
    };
    let mut third = Fixture::new();
    let server = third.adopt(backend("app.test:80", "127.0.0.1:1", CHECKED));
    third.prober.take_over(&[other], third.now);
    assert!(!server.is_failing());
}
