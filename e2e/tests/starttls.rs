//! STARTTLS: clients that start in cleartext reach servers without TLS, and an attacker cannot inject commands
//! before the handshake.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use becket_e2e::{
    Backend, Becket, OpenSsl, Place, Shape, Tool, eventually, finish, fresh_address, skip,
};
use rustix::process::{Pid, Signal, kill_process};

/// A server that sends a greeting and returns each line in capitals until it reads QUIT.
pub(crate) fn mail_server(at: SocketAddr, greeting: &'static str) -> Backend {
    Backend::at(at, move |mut stream| {
        stream.write_all(greeting.as_bytes())?;
        let mut lines = BufReader::new(stream.try_clone()?);
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line)? == 0 || line.starts_with("QUIT") {
                return Ok(());
            }
            stream.write_all(format!("server heard {}", line.to_uppercase()).as_bytes())?;
        }
    })
}

/// Protocols and the greetings of their servers.
pub(crate) const MAIL: [(&str, &str); 3] = [
    ("smtp", "220 mx.example.org ESMTP\r\n"),
    ("imap", "* OK [CAPABILITY IMAP4rev1 AUTH=PLAIN] ready\r\n"),
    ("pop3", "+OK <1@mx.example.org>\r\n"),
];

fn start(place: &Place, protocol: &str, server: SocketAddr) -> Becket {
    let keys = format!("starttls = \"{protocol}\"");
    Becket::start(place, &Shape::new(server).listener(&keys))
}

#[test]
fn openssl_reaches_the_mail_server_over_starttls() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    for (protocol, greeting) in MAIL {
        let backend = mail_server(fresh_address(), greeting);
        let becket = start(&place, protocol, backend.address);
        let (to, ca) = (becket.web.to_string(), place.text("ca.pem"));
        let arguments = [
            "s_client",
            "-starttls",
            protocol,
            "-connect",
            &to,
            "-CAfile",
            &ca,
            "-verify_return_error",
            "-servername",
            "www.example.org",
            "-ign_eof",
        ];
        let found = openssl.0.run(arguments, "well met\r\nQUIT\r\n");
        assert!(
            found.stdout.contains("server heard WELL MET"),
            "{protocol}: {}",
            found.all()
        );
        assert!(
            found.stdout.contains("Verification: OK"),
            "{protocol}: {}",
            found.all()
        );
        assert_eq!(becket.next_reason(), "finished", "{protocol}");
        assert_eq!(backend.served(), 1);
    }
}

/// A PostgreSQL server without TLS, started by the test.
pub(crate) struct Postgres {
    child: Child,
    address: SocketAddr,
}

impl Postgres {
    /// Starts PostgreSQL. Prints why the test is skipped and returns `None` if it is not installed.
    pub(crate) fn start(place: &Place, address: SocketAddr) -> Option<Self> {
        let Some(programs) = programs() else {
            skip("needs postgresql");
            return None;
        };
        let data = place.text("data");
        let log = std::fs::File::create(place.path("postgres.log")).unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(programs.join(program));
            command
                .args(arguments)
                .current_dir(place.folder())
                .env("LC_ALL", "C");
            command
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap());
            command.stderr(log.try_clone().unwrap());
            // PostgreSQL does not run as root.
            if rustix::process::geteuid().is_root() {
                command.uid(NOBODY).gid(NOBODY);
            }
            command
        };
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(place.folder(), std::fs::Permissions::from_mode(0o755))
                .unwrap();
            chown(place.folder(), Some(NOBODY), None).unwrap();
        }
        let made = run(
            "initdb",
            &["-D", &data, "-U", "postgres", "-A", "trust", "-N"],
        )
        .status();
        assert!(made.unwrap().success(), "{}", place.read("postgres.log"));
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        let options = [
            "-D", &data, "-h", &host, "-p", &port, "-k", "", "-F", "-c", "ssl=off",
        ];
        let child = run("postgres", &options).spawn().unwrap();
        let own = Self { child, address };
        eventually("postgres listens", || TcpStream::connect(address).is_ok());
        Some(own)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // SIGINT requests a "fast shutdown", which also ends the children.
        let _gone = kill_process(Pid::from_child(&self.child), Signal::INT);
        let _gone = self.child.wait();
    }
}

/// Returns the newest directory with PostgreSQL's programs in Debian's layout.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    let mut found: Vec<PathBuf> = folders.filter(|folder| has_all(folder)).collect();
    found.sort();
    found.pop()
}

fn has_all(folder: &Path) -> bool {
    ["initdb", "postgres"]
        .iter()
        .all(|program| folder.join(program).is_file())
}

#[test]
#[ignore = "slow: .ci/run test"]
fn psql_reaches_a_postgresql_server_without_tls() {
    let Some(psql) = Tool::find("psql") else {
        return;
    };
    let place = Place::new();
    let Some(postgres) = Postgres::start(&place, fresh_address()) else {
        return;
    };
    let becket = start(&place, "postgresql", postgres.address);
    let ask = |mode: &str| {
        let connection = format!(
            "host=www.example.org hostaddr={} port={} user=postgres dbname=postgres \
             sslrootcert={} connect_timeout=20 {mode}",
            becket.web.ip(),
            becket.web.port(),
            place.text("ca.pem"),
        );
        let query = "select 'well' || ' met'";
        finish(
            psql.command(["-X", "-A", "-t", "-c", query, &connection]),
            "",
        )
    };
    // The server may still be starting up.
    eventually("psql is served", || ask("sslmode=verify-full").code == 0);
    for mode in [
        "sslmode=require",
        "sslmode=verify-full",
        "sslmode=prefer gssencmode=prefer",
    ] {
        let found = ask(mode);
        assert_eq!(found.stdout.trim(), "well met", "{mode}: {}", found.all());
    }
    let found = ask("sslmode=disable");
    assert_ne!(found.code, 0);
    assert!(
        found
            .stderr
            .contains("this server is reached through TLS only"),
        "{}",
        found.all()
    );
    eventually("the rejection is logged", || {
        let lines = becket.access();
        lines.iter().any(|line| line["reason"] == "cleartext")
    });
}

/// Starts a psql whose query takes longer than the test.
fn sleeper(psql: &Tool, becket: &Becket, name: &str) -> Child {
    let connection = format!(
        "host={name} hostaddr={} port={} user=postgres dbname=postgres sslmode=require connect_timeout=20",
        becket.web.ip(),
        becket.web.port(),
    );
    let mut command = psql.command(["-X", "-c", "select pg_sleep(120)", &connection]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Counts the running queries of [`sleeper`]s on a server. Returns `None` while the server starts up.
fn sleeping(psql: &Tool, postgres: &Postgres) -> Option<usize> {
    let (host, port) = (postgres.address.ip(), postgres.address.port());
    let connection = format!("host={host} port={port} user=postgres dbname=postgres");
    let query = "select count(*) from pg_stat_activity where query = 'select pg_sleep(120)' \
                 and state = 'active' and wait_event = 'PgSleep'";
    let found = finish(
        psql.command(["-X", "-A", "-t", "-c", query, &connection]),
        "",
    );
    found.stdout.trim().parse().ok()
}

/// Starts two servers, or returns `None` if PostgreSQL is not installed.
fn two_postgresqls(places: &[Place; 2]) -> Option<[Postgres; 2]> {
    let started = places
        .each_ref()
        .map(|place| Postgres::start(place, fresh_address()));
    let [one, two] = started;
    Some([one?, two?])
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_cancel_request_reaches_the_right_postgresql_server() {
    let Some(psql) = Tool::find("psql") else {
        return;
    };
    let places = [Place::new(), Place::new()];
    let Some([one, two]) = two_postgresqls(&places) else {
        return;
    };
    let shape = Shape::new(one.address)
        .server(two.address)
        .listener("starttls = \"postgresql\"");
    let place = &places[0];
    let becket = Becket::start(place, &shape);
    let both = [&one, &two];
    let asleep = || both.map(|postgres| sleeping(&psql, postgres));
    eventually("both have started", || !asleep().contains(&None));
    let mut clients = Vec::new();
    while asleep().contains(&Some(0)) {
        assert!(clients.len() < 32, "one server has all clients");
        clients.push(sleeper(&psql, &becket, "www.example.org"));
        eventually("its query runs", || {
            let all: usize = asleep().into_iter().flatten().sum();
            all == clients.len()
        });
    }
    for client in clients {
        let _gone = kill_process(Pid::from_child(&client), Signal::INT);
        let found = client.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&found.stderr).into_owned();
        assert!(
            said.contains("canceling statement due to user request"),
            "{said}"
        );
    }
    assert_eq!(asleep(), [Some(0); 2]);
    let cancels = |outcome: &str| {
        let label = format!("outcome=\"{outcome}\"");
        becket.metrics().sum("becket_cancels_total", &[&label])
    };
    eventually("the cancel requests are counted", || {
        cancels("passed") >= 4.0
    });
    assert_eq!(cancels("failed"), 0.0);
    eventually("the cancel requests are logged", || {
        let lines = becket.access();
        let cancels = lines.iter().filter(|line| line["reason"] == "cancel");
        cancels.count() >= 2
    });
    // A listener with `cancel-requests = false` forwards no cancel request.
    let refusing = shape.listener("cancel-requests = false");
    place.write("becket.toml", &refusing.text());
    assert!(becket.reload());
    let mut client = TcpStream::connect(becket.web).unwrap();
    client
        .write_all(&[0, 0, 0, 16, 4, 0xd2, 0x16, 0x2e, 0, 0, 0, 1, 1, 2, 3, 4])
        .unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    drop(client);
    eventually("the rejection is logged", || {
        let lines = becket.access();
        lines.iter().any(|line| line["reason"] == "cleartext")
    });
}

#[test]
#[ignore = "slow: .ci/run test"]
fn server_names_route_postgresql_sessions_and_cancel_requests() {
    let Some(psql) = Tool::find("psql") else {
        return;
    };
    let places = [Place::new(), Place::new()];
    let Some([www, api]) = two_postgresqls(&places) else {
        return;
    };
    let shape = Shape::new(www.address)
        .listener("starttls = \"postgresql\"")
        .listener("[[listener.route]]\nnames = [\"internal.example.org\"]\nbackend = \"other\"")
        .pool("other", api.address);
    let becket = Becket::start(&places[0], &shape);
    let asleep = || [&www, &api].map(|postgres| sleeping(&psql, postgres));
    eventually("both have started", || !asleep().contains(&None));
    let names = ["www.example.org", "internal.example.org"];
    for (name, postgres) in names.iter().zip([&www, &api]) {
        let connection = format!(
            "host={name} hostaddr={} port={} user=postgres dbname=postgres sslmode=require \
             connect_timeout=20",
            becket.web.ip(),
            becket.web.port(),
        );
        let query = "select inet_server_port()";
        let found = finish(
            psql.command(["-X", "-A", "-t", "-c", query, &connection]),
            "",
        );
        let port = postgres.address.port().to_string();
        assert_eq!(found.stdout.trim(), port, "{name}: {}", found.all());
    }
    let [first, second] = names.map(|name| sleeper(&psql, &becket, name));
    eventually("each server works on one query", || {
        asleep() == [Some(1); 2]
    });
    for (client, left) in [(second, [Some(1), Some(0)]), (first, [Some(0); 2])] {
        let _gone = kill_process(Pid::from_child(&client), Signal::INT);
        let found = client.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&found.stderr).into_owned();
        let cancelled = "canceling statement due to user request";
        assert!(said.contains(cancelled), "{said}");
        assert_eq!(asleep(), left, "only the query of this client has ended");
    }
    let cancels = || {
        let passed = becket.metrics();
        passed.sum("becket_cancels_total", &["outcome=\"passed\""])
    };
    eventually("each cancel request reached both servers", || {
        cancels() >= 4.0
    });
}

/// User and group ID of Debian's `nobody` and `nogroup`.
const NOBODY: u32 = 65_534;
