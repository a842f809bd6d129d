//! Two beckets with one secret open each other's tickets, through restarts, deaths and changes of
//! the secret; with another secret, under another policy, or for TLS 1.2, they do not.

use std::fs;

use becket_e2e::{
    Backend, Becket, Client, Key, OpenSsl, Place, Shape, Signal, Trust, eventually, finish,
    fresh_address,
};
use rustls::version::{TLS12, TLS13};

const REQUEST: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

/// One host: a folder of its own with the same certificates, and what it serves.
struct Host {
    place: Place,
    shape: Shape,
}

impl Host {
    /// A host that serves like `first`, or the first one.
    fn beside(first: Option<&Self>, backend: &Backend) -> Self {
        let place = Place::new();
        if let Some(first) = first {
            for file in ["site.pem", "ca.pem"] {
                place.write(file, &first.place.read(file));
            }
        }
        let shape = Shape::new(backend.address);
        Self { place, shape }
    }

    /// Two of them.
    fn pair(backend: &Backend) -> (Self, Self) {
        let first = Self::beside(None, backend);
        let second = Self::beside(Some(&first), backend);
        (first, second)
    }

    /// Makes a secret.
    fn secret(&self, file: &str) {
        self.make(&["secret", file]);
    }

    fn make(&self, arguments: &[&str]) {
        let run = finish(Becket::command(&self.place, arguments), "");
        assert_eq!(run.code, 0, "{}", run.all());
    }

    /// Copies a file with its mode, as `scp -p` would.
    fn give(&self, file: &str, to: &Self) {
        fs::copy(self.place.path(file), to.place.path(file)).expect("a copy");
    }

    /// Starts with `[cluster]` and these keys.
    fn start(&self, keys: &str) -> Becket {
        Becket::start(&self.place, &self.shape_of(keys))
    }

    /// Gives a running becket other keys of `[cluster]`; whether it takes them.
    fn reload(&self, becket: &Becket, keys: &str) -> bool {
        self.place.write("becket.toml", &self.shape_of(keys).text());
        becket.reload()
    }

    fn shape_of(&self, keys: &str) -> Shape {
        self.shape.clone().section(&format!("[cluster]\n{keys}"))
    }
}

/// Connects, asks, and says how the handshake went.
#[track_caller]
fn visit(becket: &Becket, trust: &Trust) -> String {
    let mut client = Client::connect(becket.web, trust).expect("a handshake");
    client.ask(REQUEST).expect("an answer");
    drop(client);
    let line = becket.next_access();
    line["handshake"].as_str().expect("a kind").to_owned()
}

/// A full handshake here: what it leaves behind is resumed elsewhere.
#[track_caller]
fn begin(becket: &Becket, trust: &Trust) {
    assert_eq!(visit(becket, trust), "full");
}

fn outcomes(becket: &Becket, outcome: &str) -> u64 {
    let label = format!("outcome=\"{outcome}\"");
    let metrics = becket.metrics();
    metrics.sum("becket_resumptions_offered_total", &[&label]) as u64
}

#[test]
fn openssl_resumes_on_the_other_host_and_after_the_first_is_gone() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let backend = Backend::http("well met");
    let (a, b) = Host::pair(&backend);
    a.secret("secret");
    a.give("secret", &b);
    let mut one = a.start("secret = \"secret\"\nnode = 1");
    let two = b.start("secret = \"secret\"\nnode = 2");
    let session = a.place.text("session.pem");
    let first = ["-tls1_3", "-sess_out", &session];
    let run = openssl.ask(&a.place, one.web, &first);
    assert!(run.stdout.contains("New, TLS"), "{}", run.all());
    let resumes = |at: &Becket| {
        let again = ["-tls1_3", "-sess_in", &session];
        let run = openssl.ask(&a.place, at.web, &again);
        assert!(run.stdout.contains("Reused, TLS"), "{}", run.all());
        assert!(run.stdout.contains("well met"), "{}", run.all());
        assert_eq!(at.next_access()["handshake"], "psk");
    };
    resumes(&two);
    // A restart forgets nothing, since nothing was kept in memory alone.
    one.signal(Signal::TERM);
    assert_eq!(one.ended(), Some(0));
    fs::remove_file(a.place.path("access.log")).expect("a log");
    one = a.start("secret = \"secret\"\nnode = 1");
    resumes(&one);
    // And a host that dies takes nothing with it.
    one.signal(Signal::KILL);
    assert_eq!(one.ended(), None);
    resumes(&two);
    assert_eq!(outcomes(&two, "opened"), 2);
}

#[test]
fn a_secret_is_changed_by_reloads_and_no_session_is_lost() {
    let backend = Backend::http("well met");
    let (a, b) = Host::pair(&backend);
    for file in ["old", "new"] {
        a.secret(file);
        a.give(file, &b);
    }
    let keys = |secret: &str, accepted: &str, node: u16| {
        format!("secret = \"{secret}\"\naccept-secrets = [{accepted}]\nnode = {node}")
    };
    let one = a.start(&keys("old", "", 1));
    let two = b.start(&keys("old", "", 2));
    let trust = Trust::only(&a.place, &TLS13);
    let before = one.status()["tickets"]["secrets"].clone();
    begin(&one, &trust);
    // Each step is taken by one host after the other; a client goes to and fro between them.
    let steps = [("old", "\"new\""), ("new", "\"old\"")];
    for (secret, accepted) in steps {
        for (host, becket, node) in [(&a, &one, 1), (&b, &two, 2)] {
            assert!(
                host.reload(becket, &keys(secret, accepted, node)),
                "{}",
                becket.log()
            );
            for at in [&one, &two, &one] {
                settled(at, &trust);
            }
        }
    }
    // Whoever has come since then has a ticket of the new secret: the old one can go.
    for (host, becket, node) in [(&a, &one, 1), (&b, &two, 2)] {
        assert!(
            host.reload(becket, &keys("new", "", node)),
            "{}",
            becket.log()
        );
        assert_eq!(visit(becket, &trust), "psk");
    }
    assert_ne!(one.status()["tickets"]["secrets"], before);
    assert_eq!(
        outcomes(&one, "unknown-secret") + outcomes(&two, "unknown-secret"),
        0
    );
}

/// Resumes, and goes on until what it is given is sealed as the last reload says: workers read
/// their mail after the reload is done.
#[track_caller]
fn settled(becket: &Becket, trust: &Trust) {
    for _ in 0..4 {
        assert_eq!(visit(becket, trust), "psk");
    }
}

#[test]
fn another_secret_opens_nothing_and_is_counted_as_that() {
    let backend = Backend::http("well met");
    let (a, b) = Host::pair(&backend);
    a.secret("secret");
    b.secret("secret");
    let one = a.start("secret = \"secret\"\nnode = 1");
    let two = b.start("secret = \"secret\"\nnode = 2");
    let trust = Trust::only(&a.place, &TLS13);
    begin(&one, &trust);
    begin(&two, &trust);
    let offers = "becket_resumptions_offered_total";
    let labels = ["kind=\"psk\"", "outcome=\"unknown-secret\""];
    assert_eq!(two.metrics().sum(offers, &labels) as u64, 1);
    assert_eq!(outcomes(&two, "unknown"), 0);
    // The client that was turned away has a ticket of the other host now; there it is at home.
    assert_eq!(visit(&two, &trust), "psk");
}

#[test]
fn a_certificate_that_one_name_requires_is_not_skipped_with_a_ticket_of_another_host() {
    let (public, internal) = (Backend::http("public"), Backend::http("internal"));
    let (a, b) = Host::pair(&public);
    let host = |host: Host| Host {
        shape: host
            .shape
            .listener(
                "alpn = [\"open\"]\n[[listener.route]]\nnames = [\"internal.example.org\"]\n\
                 policy = \"staff\"\nbackend = \"internal\"\n[[listener.route]]\n\
                 alpn = [\"locked\"]\npolicy = \"staff\"\nbackend = \"internal\"",
            )
            .section(
                "[[policy]]\nname = \"staff\"\nclient-certificates = \"required\"\n\
                 client-ca = \"ca.pem\"",
            )
            .pool("internal", internal.address),
        ..host
    };
    let (a, b) = (host(a), host(b));
    a.secret("secret");
    a.give("secret", &b);
    let keys = "secret = \"secret\"\ntls12-tickets = true\n";
    let one = a.start(&format!("{keys}node = 1"));
    let two = b.start(&format!("{keys}node = 2"));
    for (kind, version) in [("psk", &TLS13), ("ticket", &TLS12)] {
        let trust = Trust::only(&a.place, version);
        let (open, locked) = (trust.alpn(&["open"]), trust.alpn(&["locked"]));
        begin(&one, &open);
        // Shown first: the same ticket resumes where nothing is asked for.
        assert_eq!(visit(&two, &open), kind);
        let refused = Client::connect(two.web, &locked).and_then(|mut c| c.ask(REQUEST));
        assert!(refused.is_err(), "{kind} crossed");
        assert_eq!(two.next_reason(), "client-certificate");
    }
    assert_eq!(outcomes(&two, "other-policy"), 2);
    assert_eq!(internal.served(), 0);
    // A session that was made with a certificate does resume, on the other host, too.
    let own = a.place.authority.issue(&["alice"], Key::Ecdsa);
    let trust = Trust::with(&a.place, &[&TLS13], Some(&own)).alpn(&["locked"]);
    begin(&one, &trust);
    assert_eq!(visit(&two, &trust), "psk");
    assert_eq!(internal.served(), 2);
}

#[test]
fn tls12_tickets_are_given_only_where_they_are_switched_on() {
    let backend = Backend::http("well met");
    let (a, b) = Host::pair(&backend);
    a.secret("secret");
    a.give("secret", &b);
    let trust = Trust::only(&a.place, &TLS12);
    {
        let one = a.start("secret = \"secret\"\nnode = 1");
        begin(&one, &trust);
        assert_eq!(visit(&one, &trust), "id");
        let Some(openssl) = OpenSsl::find() else {
            return;
        };
        let run = openssl.ask(&a.place, one.web, &["-tls1_2"]);
        assert!(!run.stdout.contains("session ticket"), "{}", run.all());
    }
    fs::remove_file(a.place.path("access.log")).expect("a log");
    let keys = "secret = \"secret\"\ntls12-tickets = true\n";
    let one = a.start(&format!("{keys}node = 1"));
    let two = b.start(&format!("{keys}node = 2"));
    let trust = Trust::only(&a.place, &TLS12);
    begin(&one, &trust);
    assert_eq!(visit(&two, &trust), "ticket");
}

#[test]
fn hosts_rotate_together_and_a_ticket_outlives_one_rotation() {
    let backend = Backend::http("well met");
    let (a, b) = Host::pair(&backend);
    a.secret("secret");
    a.give("secret", &b);
    let keys = "secret = \"secret\"\nrotation = \"3s\"\n";
    let one = a.start(&format!("{keys}node = 1"));
    let two = b.start(&format!("{keys}node = 2"));
    let epoch = |becket: &Becket| becket.status()["tickets"]["epoch"].as_u64();
    // Early in an epoch, or a slow machine would see two rotations between the two visits.
    let until_next = |becket: &Becket| {
        let start = epoch(becket);
        eventually("the next epoch", || epoch(becket) > start);
    };
    let trust = Trust::only(&a.place, &TLS13);
    eventually("a ticket of the epoch before opens", || {
        until_next(&one);
        visit(&one, &trust);
        let made = epoch(&one);
        until_next(&two);
        let resumed = visit(&two, &trust) == "psk";
        resumed && epoch(&two) == made.map(|made| made + 1)
    });
    assert_eq!(one.status()["tickets"]["node"], 1);
    assert_eq!(
        one.status()["tickets"]["secrets"],
        two.status()["tickets"]["secrets"]
    );
}

#[test]
fn a_state_goes_on_in_its_file_and_two_hosts_walk_alike() {
    let backend = Backend::http("well met");
    let (a, b) = Host::pair(&backend);
    a.make(&["secret", "--state", "--rotation", "3s", "state"]);
    a.give("state", &b);
    let first = a.place.read("state");
    let keys = "secret-state = \"state\"\nrotation = \"3s\"\n";
    let mut one = a.start(&format!("{keys}node = 1"));
    let two = b.start(&format!("{keys}node = 2"));
    let trust = Trust::only(&a.place, &TLS13);
    eventually("the file goes on", || {
        let now = a.place.read("state");
        now != first && chain(&now) != chain(&first)
    });
    let mode = fs::metadata(a.place.path("state")).expect("a file");
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&mode) & 0o777, 0o600);
    eventually("a ticket opens on the other host", || {
        visit(&one, &trust);
        visit(&two, &trust) == "psk"
    });
    one.signal(Signal::TERM);
    assert_eq!(one.ended(), Some(0));
    fs::remove_file(a.place.path("access.log")).expect("a log");
    one = a.start(&format!("{keys}node = 1"));
    eventually("a ticket opens after a restart", || {
        visit(&two, &trust);
        visit(&one, &trust) == "psk"
    });
    // What it was in the beginning is no longer to be found on either host.
    for host in [&a, &b] {
        assert!(!host.place.read("state").contains(&chain(&first)));
        assert!(!host.place.path("state.new").exists());
    }
}

fn chain(state: &str) -> String {
    let line = state.lines().find_map(|line| line.strip_prefix("chain "));
    line.expect("a chain").to_owned()
}

#[test]
fn a_secret_that_others_may_read_starts_nothing_and_changes_nothing() {
    let backend = Backend::http("well met");
    let host = Host::beside(None, &backend);
    host.secret("secret");
    let keys = "secret = \"secret\"\nnode = 1";
    let becket = host.start(keys);
    let mode = |mode| {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(host.place.path("secret"), permissions).expect("chmod");
    };
    let trust = Trust::only(&host.place, &TLS13);
    begin(&becket, &trust);
    mode(0o644);
    assert!(!host.reload(&becket, keys));
    let errors = becket.status()["reload"]["errors"].to_string();
    assert!(errors.contains("chmod 600"), "{errors}");
    assert_eq!(visit(&becket, &trust), "psk");
    let again = Becket::command(&host.place, &["run", "--config", "becket.toml"]);
    let run = finish(again, "");
    assert_eq!(run.code, 2, "{}", run.all());
    assert!(run.all().contains("chmod 600"), "{}", run.all());
    mode(0o600);
    assert!(host.reload(&becket, keys), "{}", becket.log());
}

#[test]
fn the_flags_alone_make_a_cluster() {
    let backend = Backend::http("well met");
    let (a, b) = Host::pair(&backend);
    a.secret("secret");
    a.give("secret", &b);
    let start = |host: &Host, node: &str| {
        let (web, admin) = (host.shape.web, host.shape.admin);
        let (frontend, server) = (web.to_string(), backend.address.to_string());
        let command = Becket::command(
            &host.place,
            &[
                "run",
                "--frontend",
                &frontend,
                "--backend",
                &server,
                "--admin",
                &admin.to_string(),
                "--access-log",
                "access.log",
                "--log-format",
                "json",
                "--cluster-secret",
                "secret",
                "--node",
                node,
                "site.pem",
            ],
        );
        let becket = Becket::spawn(command, host.place.folder(), web, admin);
        becket.ready();
        becket
    };
    let (one, two) = (start(&a, "1"), start(&b, "2"));
    let trust = Trust::only(&a.place, &TLS13);
    begin(&one, &trust);
    assert_eq!(visit(&two, &trust), "psk");
    assert_eq!(two.status()["tickets"]["node"], 2);
}

#[test]
fn check_shows_what_all_hosts_must_have_in_common() {
    let backend = Backend::http("well met");
    let host = Host::beside(None, &backend);
    host.secret("secret");
    let (listen, peer) = (fresh_address(), fresh_address());
    let keys =
        format!("secret = \"secret\"\nnode = 3\nlisten = \"{listen}\"\npeers = [\"{peer}\"]");
    host.place
        .write("becket.toml", &host.shape_of(&keys).text());
    let check = ["check", "--config", "becket.toml"];
    let run = finish(Becket::command(&host.place, &check), "");
    assert_eq!(run.code, 0, "{}", run.all());
    for part in [
        "cluster\n  node      3\n",
        "seals and opens",
        &format!("  peer      {peer}\n"),
    ] {
        assert!(run.stdout.contains(part), "{}", run.all());
    }
    let json = [&check[..], &["--json"]].concat();
    let run = finish(Becket::command(&host.place, &json), "");
    let found: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
    let digest = found["policies"][0]["digest"].as_str().expect("a digest");
    let short = found["listeners"][0]["routes"][0]["digest"].as_str();
    assert!(digest.starts_with(short.expect("its beginning")));
    assert_eq!(found["cluster"]["rotation-seconds"], 28_800);
    let text = host.place.read("secret");
    assert!(!run.all().contains(text.trim_end()));
}
