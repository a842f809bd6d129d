//! TLS 1.2 sessions by ID in a Redis server: hosts without peers resume each other's sessions. A server that fails, is full or lies
//! costs full handshakes and nothing else. openssl is the client.

use std::fs;
use std::io::Write as _;

use becket_e2e::{
    Backend, Becket, Client, CuttingRelay, OpenSsl, Place, RedisServer, Shape, Trust, eventually,
    finish,
};
use rustls::version::TLS12;
use serde_json::Value;

/// Two hosts that share a secret, certificates and a store.
struct Fleet {
    hosts: Vec<Becket>,
    shapes: Vec<Shape>,
    places: Vec<Place>,
    openssl: OpenSsl,
    backend: Backend,
}

impl Fleet {
    /// Prepares the folders. Returns `None` if openssl is not installed.
    #[track_caller]
    fn prepare() -> Option<Self> {
        let openssl = OpenSsl::find()?;
        let places = vec![Place::new(), Place::new()];
        let run = finish(Becket::command(&places[0], &["secret", "secret"]), "");
        assert_eq!(run.code, 0, "{}", run.all());
        for file in ["secret", "ca.pem", "site.pem"] {
            fs::copy(places[0].path(file), places[1].path(file)).expect("a copy");
        }
        Some(Self {
            hosts: Vec::new(),
            shapes: Vec::new(),
            places,
            openssl,
            backend: Backend::http("well met"),
        })
    }

    #[track_caller]
    fn start(&mut self, keys: &str) {
        for number in 0..self.places.len() {
            let shape = self.shape(number, keys);
            self.hosts.push(Becket::start(&self.places[number], &shape));
            self.shapes.push(shape);
        }
    }

    /// Starts both hosts, which then use the store.
    #[track_caller]
    fn start_with(keys: &str) -> Option<Self> {
        let mut fleet = Self::prepare()?;
        fleet.start(keys);
        (0..2).for_each(|host| fleet.is_available(host));
        Some(fleet)
    }

    fn shape(&self, number: usize, keys: &str) -> Shape {
        let node = number + 1;
        let keys = format!("secret = \"secret\"\nnode = {node}\nstore-timeout = \"1s\"\n{keys}");
        let mut shape = Shape::new(self.backend.address).section(&format!("[cluster]\n{keys}"));
        if let Some(before) = self.shapes.get(number) {
            (shape.web, shape.admin) = (before.web, before.admin);
        }
        shape
    }

    #[track_caller]
    fn reload(&self, host: usize, keys: &str) -> bool {
        let text = self.shape(host, keys).text();
        self.places[host].write("becket.toml", &text);
        self.hosts[host].reload()
    }

    #[track_caller]
    fn store(&self, host: usize) -> Value {
        self.hosts[host].status()["store"].clone()
    }

    #[track_caller]
    fn count(&self, host: usize, outcome: &str) -> u64 {
        self.store(host)[outcome].as_u64().expect("a number")
    }

    #[track_caller]
    fn is_available(&self, host: usize) {
        eventually("the store is used", || {
            self.store(host)["available"] == true
        });
    }

    #[track_caller]
    fn is_unavailable(&self, host: usize) {
        eventually("the store is not used", || {
            self.store(host)["available"] == false
        });
    }

    /// Sends a request with these flags and returns the kind of handshake.
    #[track_caller]
    fn visit(&self, host: usize, flags: &[&str]) -> String {
        let run = self
            .openssl
            .ask(&self.places[0], self.shapes[host].web, flags);
        assert!(run.stdout.contains("well met"), "{}", run.all());
        let line = self.hosts[host].next_access();
        line["handshake"].as_str().expect("a kind").to_owned()
    }

    /// Creates a session on the first host, in a file.
    #[track_caller]
    fn create(&self, file: &str, more: &[&str]) -> String {
        let file = self.places[0].text(file);
        let flags = ["-tls1_2", "-no_ticket", "-sess_out", &file];
        assert_eq!(self.visit(0, &[&flags[..], more].concat()), "full");
        file
    }

    /// Creates a session on the first host and waits until it is in the store.
    #[track_caller]
    fn make_session(&self, file: &str) -> String {
        let before = self.count(0, "written");
        let file = self.create(file, &[]);
        eventually("the session is stored", || {
            self.count(0, "written") > before
        });
        file
    }

    /// Offers a session and returns the kind of handshake.
    #[track_caller]
    fn offer(&self, host: usize, session: &str) -> String {
        self.visit(host, &["-tls1_2", "-no_ticket", "-sess_in", session])
    }
}

fn url(server: &RedisServer) -> String {
    format!("store = \"redis://{}\"", server.address)
}

#[test]
fn a_session_resumes_on_a_host_that_knows_no_peers() {
    let place = Place::new();
    let Some(server) = RedisServer::start(&place, &[]) else {
        return;
    };
    let Some(fleet) = Fleet::start_with(&url(&server)) else {
        return;
    };
    let session = fleet.make_session("session.pem");
    assert_eq!(fleet.offer(1, &session), "id");
    assert_eq!(fleet.count(1, "found"), 1);
    // The second host now has the session in its table, and needs no store for it.
    assert_eq!(fleet.offer(1, &session), "id");
    assert_eq!(fleet.count(1, "found"), 1);
    // A client with TLS 1.3 sends a random ID, which is not looked up; neither is a first visit.
    for flags in [&["-tls1_2", "-no_ticket"][..], &["-tls1_3"], &[]] {
        assert_eq!(fleet.visit(1, flags), "full");
    }
    let store = fleet.store(1);
    assert_eq!(
        (&store["missing"], &store["skipped"]),
        (&0.into(), &0.into())
    );
    let metrics = fleet.hosts[1].metrics();
    let found = metrics.sum("becket_store_lookups_total", &["outcome=\"found\""]);
    assert_eq!(
        (found, metrics.sum("becket_store_available", &[])),
        (1.0, 1.0)
    );
    // The session lives in the store no longer than in a table.
    let keys = server.keys();
    let [first, ..] = &keys[..] else {
        panic!("no key");
    };
    assert!(
        keys.iter().all(|key| key.starts_with("becket:")),
        "{keys:?}"
    );
    let left: i64 = server.ask(&["--raw", "TTL", first]).trim().parse().unwrap();
    assert!((1..=300).contains(&left), "{left}");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn nothing_in_the_store_is_readable_or_made_by_others() {
    let place = Place::new();
    let Some(server) = RedisServer::start(&place, &[]) else {
        return;
    };
    let Some(fleet) = Fleet::start_with(&url(&server)) else {
        return;
    };
    let log = fleet.places[0].text("keys.log");
    let session = fleet.create("session.pem", &["-keylogfile", &log]);
    eventually("the session is stored", || fleet.count(0, "written") == 1);
    let text = fleet
        .openssl
        .0
        .run(["sess_id", "-noout", "-text", "-in", &session], "");
    let id = hex(text.stdout.split("Session-ID: ").nth(1).expect("an ID"));
    let log = fleet.places[0].read("keys.log");
    let master = log.lines().find(|line| line.starts_with("CLIENT_RANDOM "));
    let master = hex(master
        .and_then(|line| line.split(' ').nth(2))
        .expect("a secret"));
    assert_eq!((id.len(), master.len()), (32, 48));
    // The search finds what is stored in clear.
    server.ask(&["SET", "clear", "www.example.org"]);
    assert!(server.ask(&["SAVE"]).contains("OK"));
    let dump = fs::read(place.path("dump.rdb")).expect("a dump");
    let has = |text: &[u8]| dump.windows(text.len()).any(|part| part == text);
    assert!(has(b"www.example.org") && has(b"becket:"));
    for secret in [&master[..], &id, &master[..16], &id[..16], b"well met"] {
        assert!(!has(secret), "readable");
    }
    // A value that another writer made, or moved from another session, resumes nothing.
    let mut keys = server.keys();
    keys.retain(|key| key != "clear");
    let [first] = &keys[..] else {
        panic!("not one key: {keys:?}");
    };
    fleet.make_session("other.pem");
    let other = server.keys();
    let is_new = |key: &&String| key.starts_with("becket:") && *key != first;
    let other = other.iter().find(is_new).expect("another key");
    for (number, command) in (1..).zip([
        &["COPY", other, first, "REPLACE"][..],
        &["SETRANGE", first, "40", "forged"],
        &["SET", first, "forged"],
        &["SET", first, &"forged".repeat(20_000)],
    ]) {
        server.ask(command);
        assert_eq!(fleet.offer(1, &session), "full", "{command:?}");
        assert_eq!(fleet.count(1, "rejected"), number);
    }
    server.ask(&["DEL", first]);
    server.ask(&["LPUSH", first, "forged"]);
    assert_eq!(fleet.offer(1, &session), "full");
    let store = fleet.store(1);
    assert_eq!(
        (&store["rejected"], &store["available"]),
        (&5.into(), &true.into())
    );
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.chars().take_while(char::is_ascii_hexdigit).collect();
    let bytes = digits.chunks(2).map(|pair| {
        let pair: String = pair.iter().collect();
        u8::from_str_radix(&pair, 16).expect("hex")
    });
    bytes.collect()
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_killed_or_stopped_store_costs_full_handshakes_until_it_is_back() {
    let place = Place::new();
    let Some(mut server) = RedisServer::start(&place, &[]) else {
        return;
    };
    let Some(fleet) = Fleet::start_with(&url(&server)) else {
        return;
    };
    let session = fleet.make_session("session.pem");
    server.kill();
    fleet.is_unavailable(0);
    assert_eq!(fleet.offer(1, &session), "full");
    fleet.is_unavailable(1);
    assert_eq!(fleet.offer(0, &session), "id", "in the table of its host");
    let problems = fleet.hosts[1].status()["problems"].to_string();
    assert!(problems.contains("store redis://"), "{problems}");
    server.start_again();
    (0..2).for_each(|host| fleet.is_available(host));
    let session = fleet.make_session("session.pem");
    assert_eq!(fleet.offer(1, &session), "id");
    // A stopped server accepts connections, but does not answer.
    let late = fleet.make_session("late.pem");
    let trust = Trust::only(&fleet.places[0], &TLS12).without_tickets();
    trust.visit(fleet.shapes[0].web).unwrap();
    assert_eq!(fleet.hosts[0].next_reason(), "finished");
    let signal = |name| finish(kill(name, server.pid()), "");
    assert_eq!(signal("-STOP").code, 0);
    // A client that leaves while the store is asked is closed at once.
    let mut client = Client::begin(fleet.shapes[1].web, &trust, "www.example.org").unwrap();
    client.tls.write_tls(&mut client.socket).unwrap();
    eventually("the client is asked for", || {
        let open = fleet.hosts[1].metrics().sum("becket_connections", &[]);
        open == 1.0
    });
    drop(client);
    assert_eq!(fleet.hosts[1].next_reason(), "handshake-aborted");
    while fleet.store(1)["available"] == true {
        assert_eq!(fleet.offer(1, &late), "full");
    }
    assert!(fleet.count(1, "failed") >= 1);
    assert_eq!(fleet.offer(1, &late), "full");
    assert!(fleet.count(1, "skipped") >= 1);
    assert_eq!(signal("-CONT").code, 0);
    fleet.is_available(1);
    assert_eq!(fleet.offer(1, &late), "id");
    // Each host logs an outage once, however often it tries to connect.
    let lines = fleet.hosts[1].log();
    let outages = lines.matches("store not available").count() as u64;
    assert_eq!(outages, fleet.count(1, "outages"));
    assert!(outages <= 4, "{lines}");
}

fn kill(signal: &str, pid: u32) -> std::process::Command {
    let mut command = std::process::Command::new("kill");
    command.args([signal, &pid.to_string()]);
    command
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_store_that_is_full_or_cuts_its_answers_fails_no_client() {
    let place = Place::new();
    let Some(server) = RedisServer::start(&place, &[]) else {
        return;
    };
    let relay = CuttingRelay::to(server.address);
    let keys = format!("store = \"redis://{}\"", relay.address);
    let Some(fleet) = Fleet::start_with(&keys) else {
        return;
    };
    let session = fleet.make_session("session.pem");
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    for refused in 1..=3 {
        fleet.create("refused.pem", &[]);
        eventually("the store refuses", || fleet.count(0, "refused") == refused);
    }
    let lines = fleet.hosts[0].log();
    assert_eq!(lines.matches("store refused a write").count(), 1);
    assert_eq!(fleet.offer(1, &session), "id", "what is stored can be read");
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    let session = fleet.make_session("session.pem");
    relay.cut(true);
    assert_eq!(fleet.offer(1, &session), "full");
    fleet.is_unavailable(1);
    assert_eq!(fleet.offer(1, &session), "full");
    relay.cut(false);
    fleet.is_available(1);
    assert_eq!(fleet.offer(1, &session), "id");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_session_that_the_store_evicted_costs_a_full_handshake() {
    let place = Place::new();
    let evicts = ["--maxmemory-policy", "allkeys-lru"];
    let Some(server) = RedisServer::start(&place, &evicts) else {
        return;
    };
    let Some(fleet) = Fleet::start_with(&url(&server)) else {
        return;
    };
    let sessions: Vec<String> = (1..=3)
        .map(|number| fleet.make_session(&format!("{number}.pem")))
        .collect();
    let memory = server.ask(&["INFO", "memory"]);
    let used = memory
        .lines()
        .find_map(|it| it.strip_prefix("used_memory:"));
    let most: u64 = used.expect("a line").trim().parse().expect("a number");
    let most = (most + 1024 * 1024).to_string();
    server.ask(&["CONFIG", "SET", "maxmemory", &most]);
    let mut number = 0;
    eventually("the sessions are evicted", || {
        number += 1;
        server.ask(&["SETRANGE", &number.to_string(), "100000", "x"]);
        !server.keys().iter().any(|key| key.starts_with("becket:"))
    });
    for session in &sessions {
        assert_eq!(fleet.offer(1, session), "full");
    }
    // The full handshakes made new sessions, which the store takes.
    eventually("they are stored", || fleet.count(1, "written") == 3);
    let counts = |host, outcomes: &[&str]| {
        let counts = outcomes.iter().map(|outcome| fleet.count(host, outcome));
        counts.collect::<Vec<_>>()
    };
    let nothing = [
        "found", "rejected", "failed", "skipped", "dropped", "refused", "outages",
    ];
    assert_eq!(
        (fleet.count(1, "missing"), counts(1, &nothing)),
        (3, vec![0; 7])
    );
    assert_eq!(
        (fleet.count(0, "written"), counts(0, &nothing)),
        (3, vec![0; 7])
    );
    // A session that ends with its connection is removed from the store, and counts as no session.
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    server.ask(&["FLUSHALL"]);
    let trust = Trust::only(&fleet.places[0], &TLS12).without_tickets();
    let mut client = Client::connect(fleet.shapes[0].web, &trust).unwrap();
    eventually("it is stored", || server.keys().len() == 1);
    let forged = [&[23, 3, 3, 0, 64], &[0; 64][..]].concat();
    client.socket.write_all(&forged).unwrap();
    assert_eq!(fleet.hosts[0].next_reason(), "client-tls-error");
    eventually("it is removed", || server.keys().is_empty());
    assert_eq!(fleet.count(0, "written"), 4);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_password_is_read_from_a_file_and_never_shown() {
    let place = Place::new();
    let password = ["--requirepass", "correct-horse"];
    let Some(server) = RedisServer::start(&place, &password) else {
        return;
    };
    let Some(mut fleet) = Fleet::prepare() else {
        return;
    };
    let write = |fleet: &Fleet, file: &str, text: &str| {
        for place in &fleet.places {
            let path = place.write(file, text);
            assert_eq!(finish(mode(&path), "").code, 0);
        }
    };
    write(&fleet, "wrong", "battery-staple\n");
    write(&fleet, "right", "correct-horse\n");
    let keys = |file: &str| format!("{}\nstore-password-file = \"{file}\"", url(&server));
    fleet.start(&keys("wrong"));
    for host in 0..2 {
        eventually("the password is refused", || {
            fleet.store(host)["error"]
                .to_string()
                .contains("authentication failed")
        });
    }
    let session = fleet.create("session.pem", &[]);
    assert_eq!(fleet.offer(1, &session), "full");
    // A URL with a password is refused, and nothing changes.
    let in_url = format!("store = \"redis://:correct-horse@{}\"", server.address);
    assert!(!fleet.reload(0, &in_url));
    for host in 0..2 {
        assert!(fleet.reload(host, &keys("right")));
        fleet.is_available(host);
    }
    // A user with the rights that the guide names.
    let rights = ["~becket:*", "+getrange", "+set", "+del", "+ping"];
    let user = [
        &["ACL", "SETUSER", "becket", "on", ">correct-horse"],
        &rights[..],
    ]
    .concat();
    let login = ["-a", "correct-horse", "--no-auth-warning"];
    assert!(server.ask(&[&login[..], &user].concat()).contains("OK"));
    for host in 0..2 {
        let keys = format!("{}\nstore-user = \"becket\"", keys("right"));
        assert!(fleet.reload(host, &keys));
        fleet.is_available(host);
    }
    let session = fleet.make_session("session.pem");
    assert_eq!(fleet.offer(1, &session), "id");
    for host in &fleet.hosts {
        let shown = host.logs() + &host.status().to_string();
        for password in ["battery-staple", "correct-horse"] {
            assert!(!shown.contains(password), "{shown}");
        }
    }
}

fn mode(path: &std::path::Path) -> std::process::Command {
    let mut command = std::process::Command::new("chmod");
    command.arg("600").arg(path);
    command
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_store_with_tls_must_have_a_certificate_of_the_ca() {
    let place = Place::new();
    let (chain, ca) = (place.text("site.pem"), place.text("ca.pem"));
    let address = becket_e2e::fresh_address();
    let port = address.port().to_string();
    let tls = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        &chain,
        "--tls-key-file",
        &chain,
    ];
    let tls = [
        &tls[..],
        &["--tls-ca-cert-file", &ca, "--tls-auth-clients", "no"],
    ]
    .concat();
    let Some(_server) = RedisServer::start_with_tls(&place, address, &tls) else {
        return;
    };
    let Some(mut fleet) = Fleet::prepare() else {
        return;
    };
    for at in &fleet.places {
        fs::copy(&ca, at.path("store-ca.pem")).expect("a copy");
    }
    let keys = |ca: &str| format!("store = \"rediss://localhost:{port}\"\nstore-ca = \"{ca}\"");
    fleet.start(&keys("ca.pem"));
    eventually("the certificate is refused", || {
        fleet.store(0)["error"].to_string().contains("certificate")
    });
    for host in 0..2 {
        assert!(fleet.reload(host, &keys("store-ca.pem")));
        fleet.is_available(host);
    }
    let session = fleet.make_session("session.pem");
    assert_eq!(fleet.offer(1, &session), "id");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn sentinels_name_the_new_primary_after_a_failover() {
    let (place, second, third) = (Place::new(), Place::new(), Place::new());
    let Some(mut primary) = RedisServer::start(&place, &[]) else {
        return;
    };
    let (host, port) = (
        primary.address.ip().to_string(),
        primary.address.port().to_string(),
    );
    let Some(replica) = RedisServer::start_replica(&second, primary.address) else {
        return;
    };
    let monitor = format!(
        "sentinel monitor main {host} {port} 1\nsentinel down-after-milliseconds main 5000\n\
         sentinel failover-timeout main 2000\n"
    );
    let file = third.write("sentinel.conf", &monitor);
    let file = file.to_string_lossy();
    let Some(sentinel) = RedisServer::start_sentinel(&third, &file) else {
        return;
    };
    eventually("the sentinel knows the replica", || {
        let known = sentinel.ask(&["SENTINEL", "REPLICAS", "main"]);
        known.contains(&replica.address.port().to_string())
    });
    let keys = format!("store = \"redis+sentinel://{}/main\"", sentinel.address);
    let Some(fleet) = Fleet::start_with(&keys) else {
        return;
    };
    let session = fleet.make_session("session.pem");
    assert_eq!(fleet.offer(1, &session), "id");
    eventually("the session is replicated", || !replica.keys().is_empty());
    primary.kill();
    eventually("the replica is the primary", || {
        replica.ask(&["ROLE"]).contains("master")
    });
    eventually("both hosts use it", || {
        (0..2)
            .all(|host| fleet.store(host)["available"] == true && fleet.count(host, "outages") > 0)
    });
    let session = fleet.make_session("later.pem");
    assert_eq!(fleet.offer(1, &session), "id");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_redis_cluster_stores_sessions_on_all_its_nodes() {
    let place = Place::new();
    let cluster = [
        "--cluster-enabled",
        "yes",
        "--cluster-require-full-coverage",
        "yes",
    ];
    let Some(server) = RedisServer::start(&place, &cluster) else {
        return;
    };
    // One node with all slots is a whole cluster.
    assert!(
        server
            .ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
            .contains("OK")
    );
    eventually("the cluster is whole", || {
        server
            .ask(&["CLUSTER", "INFO"])
            .contains("cluster_state:ok")
    });
    let keys = format!("store = \"redis+cluster://{}\"", server.address);
    let Some(fleet) = Fleet::start_with(&keys) else {
        return;
    };
    for file in ["one.pem", "two.pem", "three.pem"] {
        let session = fleet.make_session(file);
        assert_eq!(fleet.offer(1, &session), "id");
    }
    assert_eq!(server.keys().len(), 3);
}
