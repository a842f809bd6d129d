//! Examples for special clients: each one is tested with the program that it is for.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;

use becket_e2e::{
    Becket, Client, Kept, OpenSsl, Pebble, Place, Tool, Trust, eventually, finish, fresh_address,
    fresh_host,
};
use rustls::HandshakeKind;
use rustls::version::{TLS12, TLS13};

use crate::certificates_are_ordered::{NAME, is_served, trust};
use crate::examples_run::{furnish, moved};
use crate::starttls::{MAIL, Postgres, mail_server};

/// Creates a place with the files that the examples need.
fn furnished() -> Place {
    let place = Place::new();
    furnish(&place);
    place
}

/// Starts an example after `change` has replaced its addresses.
fn start(place: &Place, example: &str, change: impl FnOnce(String) -> String) -> Becket {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/");
    let text = fs::read_to_string(format!("{folder}{example}")).unwrap();
    let admin = fresh_address();
    let name = format!("{}.toml", admin.ip());
    place.write(&name, &change(text));
    let flags = ["--admin", &admin.to_string(), "--workers", "1"];
    let command = Becket::command(place, &[&["run", "--config", &name], &flags[..]].concat());
    // The test knows the listener's address from the example, so `web` is not used.
    let becket = Becket::spawn(command, place.folder(), admin, admin);
    becket.ready();
    becket
}

fn start_at(place: &Place, example: &str, host: Ipv4Addr) -> Becket {
    start(place, example, |text| moved(&text, host))
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_client_mode_connects_curl_to_a_server_that_requires_a_certificate() {
    let (Some(curl), Some(openssl)) = (Tool::find("curl"), OpenSsl::find()) else {
        return;
    };
    let (place, host) = (furnished(), fresh_host());
    let (at, own) = (SocketAddr::from((host, 8081)), place.text("certs/site.pem"));
    let (listen, ca) = (at.to_string(), place.text("ca.pem"));
    let fixed = ["s_server", "-www", "-accept", &listen, "-cert", &own];
    let asks = ["-Verify", "1", "-verify_return_error", "-CAfile", &ca];
    let mut command = openssl
        .0
        .command([&fixed[..], &["-key", &own], &asks].concat());
    let log = fs::File::create(place.path("s_server.log")).unwrap();
    command.stdout(log.try_clone().unwrap()).stderr(log);
    let _server = Kept(command.spawn().unwrap());
    eventually("the server listens", || TcpStream::connect(at).is_ok());
    let _becket = start_at(&place, "client.toml", host);
    let url = format!("http://{host}:8443/");
    let found = finish(curl.command(["-sS", "--max-time", "20", &url]), "");
    assert_eq!(found.code, 0, "{}", found.all());
    // The server shows the client certificate.
    assert!(
        found.stdout.contains("Client certificate"),
        "{}",
        found.all()
    );
    assert!(found.stdout.contains("TLSv1.3"), "{}", found.all());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn an_authority_issues_the_certificate_of_an_example() {
    let place = Place::new();
    let at = SocketAddr::from((fresh_host(), 8443));
    let Some(pebble) = Pebble::start(&place, at, 1) else {
        return;
    };
    let section = pebble.section("");
    let _becket = start(&place, "acme.toml", |text| {
        text.replace("[acme]\n", &section)
            .replace("127.0.0.1", &at.ip().to_string())
    });
    is_served(&place, at, &trust(&pebble), NAME);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_browser_shows_the_files_of_a_folder() {
    let Some(browser) = Tool::find("chromium") else {
        return;
    };
    let (place, host) = (furnished(), fresh_host());
    fs::create_dir(place.path("www/assets")).unwrap();
    place.write("www/assets/letters.txt", "alphabet");
    // A script, which is itself a served file, sets the title to the result of a range request.
    place.write(
        "www/assets/page.js",
        "fetch('letters.txt', { headers: { Range: 'bytes=5-7' } })\n\
         .then(got => got.text().then(text => { document.title = got.status + ' ' + text; }));",
    );
    place.write(
        "www/index.html",
        "<!doctype html><title>None</title><base href='/assets/'><p>It works.<script src='page.js'></script>",
    );
    let _becket = start_at(&place, "files.toml", host);
    let mut command = Command::new(browser.path());
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu"])
        .args(["--ignore-certificate-errors", "--virtual-time-budget=10000"])
        .arg(format!("--host-resolver-rules=MAP www.example.org {host}"))
        .arg(format!("--user-data-dir={}", place.text("profile")))
        .arg(format!("--log-net-log={}", place.text("network.json")))
        .arg("--net-log-capture-mode=Everything")
        // This URL redirects to https.
        .args(["--dump-dom", "http://www.example.org:8000/"]);
    let shown = finish(command, "");
    assert!(
        shown.stdout.contains("<title>206 bet</title>") && shown.stdout.contains("It works."),
        "{}",
        shown.all()
    );
    // Chromium has decompressed brotli: in base64, a handshake message of type 25 (RFC 8879).
    assert!(place.read("network.json").contains("\"bytes\":\"GQ"));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn psql_connects_to_postgresql() {
    let Some(psql) = Tool::find("psql") else {
        return;
    };
    let (place, host) = (furnished(), fresh_host());
    let Some(_postgres) = Postgres::start(&place, (host, 8082).into()) else {
        return;
    };
    let _becket = start_at(&place, "postgresql.toml", host);
    let connection = format!(
        "host=www.example.org hostaddr={host} port=8443 user=postgres dbname=postgres \
         sslmode=verify-full sslrootcert={} connect_timeout=20",
        place.text("ca.pem")
    );
    let query = "select 'well' || ' met'";
    let ask = || finish(psql.command(["-XAtc", query, &connection]), "");
    // The server may still be starting.
    eventually("psql is served", || ask().stdout.trim() == "well met");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_mail_server_receives_mail_by_starttls() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let (place, host) = (furnished(), fresh_host());
    let greeting = |wanted| MAIL.iter().find(|(name, _)| *name == wanted).unwrap().1;
    let _smtp = mail_server((host, 8025).into(), greeting("smtp"));
    let _imap = mail_server((host, 8143).into(), greeting("imap"));
    let _becket = start_at(&place, "mail.toml", host);
    let ca = place.text("ca.pem");
    let asked: &[&str] = &["-starttls", "smtp"];
    for (port, flags) in [(8024, asked), (8465, &[]), (8993, &[])] {
        let to = format!("{host}:{port}");
        let fixed = ["s_client", "-connect", &to, "-CAfile", &ca, "-ign_eof"];
        let named = [
            "-verify_return_error",
            "-verify_hostname",
            "mail.example.org",
        ];
        let sni = ["-servername", "mail.example.org"];
        let all = [&fixed[..], &named, &sni, flags].concat();
        let found = openssl.0.run(all, "well met\r\nQUIT\r\n");
        let said = "server heard WELL MET";
        assert!(found.stdout.contains(said), "{port}: {}", found.all());
    }
}

/// Runs HAProxy with these proxies and waits until it listens at `at`.
fn haproxy(tool: &Tool, place: &Place, at: SocketAddr, proxies: &str) -> Kept {
    let times = "timeout client 30s\n timeout server 30s\n timeout connect 5s";
    let text = format!("global\n nbthread 1\ndefaults\n {times}\n{proxies}\n");
    let path = place.write(&format!("{}.cfg", at.ip()), &text);
    let log = fs::File::create(place.path(&format!("{}.log", at.ip()))).unwrap();
    let mut command = tool.command(["-db".as_ref(), "-f".as_ref(), path.as_os_str()]);
    let kept = Kept(command.stderr(log).spawn().unwrap());
    eventually("haproxy listens", || TcpStream::connect(at).is_ok());
    kept
}

/// Starts a server that expects a PROXY header and answers with its name and the client's address.
fn telling(tool: &Tool, place: &Place, at: SocketAddr, name: &str) -> Kept {
    let says = "http-request return status 200 content-type text/plain lf-string";
    let proxies =
        format!("frontend all\n mode http\n bind {at} accept-proxy\n {says} \"{name} to %ci:%cp\"");
    haproxy(tool, place, at, &proxies)
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_balancer_in_front_passes_on_the_clients_address() {
    let Some(tool) = Tool::find("haproxy") else {
        return;
    };
    let (place, host) = (furnished(), fresh_host());
    let _server = telling(&tool, &place, (host, 8080).into(), "app");
    let _becket = start_at(&place, "behind-a-proxy.toml", host);
    let front = fresh_address();
    let proxies =
        format!("listen all\n mode tcp\n bind {front}\n server becket {host}:8443 send-proxy-v2");
    let _front = haproxy(&tool, &place, front, &proxies);
    for name in ["www.example.org", "internal.example.org"] {
        visit(front, &Trust::new(&place), name).expect("app");
    }
}

/// Result of a request.
struct Visit {
    /// Name of the server that answered.
    server: String,
    handshake: Option<HandshakeKind>,
}

impl Visit {
    #[track_caller]
    fn expect(&self, server: &str) {
        assert_eq!(self.server, server);
    }
}

/// Sends a request and checks that the server knows the client's address.
#[track_caller]
fn visit(front: SocketAddr, trust: &Trust, name: &str) -> Visit {
    let mut client = Client::connect_as(front, trust, name).unwrap();
    let own = client.socket.local_addr().unwrap();
    let answer = client.ask(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let text = String::from_utf8_lossy(&answer).into_owned();
    let body = text.rsplit("\r\n").next().unwrap_or_default();
    let (server, told) = body.split_once(" to ").expect("an answer");
    assert_eq!(told, own.to_string(), "whom the server answers");
    Visit {
        server: server.to_owned(),
        handshake: client.tls.handshake_kind(),
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_farm_returns_clients_to_the_member_with_their_session() {
    let Some(tool) = Tool::find("haproxy") else {
        return;
    };
    let place = furnished();
    let members = [1, 2].map(|number| {
        let host = fresh_host();
        let name = format!("member {number}");
        let server = telling(&tool, &place, (host, 8080).into(), &name);
        let change = |text: String| {
            let text = text.replace("node = 1", &format!("node = {number}"));
            moved(&text, host)
        };
        (host, start(&place, "farm-member.toml", change), server)
    });
    let [one, two] = [&members[0], &members[1]].map(|(host, ..)| format!("{host}:8443"));
    let host = fresh_host();
    let front = start(&place, "farm.toml", |text| {
        let text = text.replace("127.0.0.1:8080", &one);
        moved(&text.replace("127.0.0.1:8082", &two), host)
    });
    eventually("the members are in service", || {
        front
            .metrics()
            .sum("becket_server_checks_total", &["backend=\"farm\""])
            >= 2.0
    });
    let at = SocketAddr::from((host, 8443));
    let ways: [fn(&Place) -> Trust; 2] = [
        |place| Trust::only(place, &TLS13),
        |place| Trust::only(place, &TLS12).without_tickets(),
    ];
    for way in ways {
        let mut homes = Vec::new();
        for _ in 0..4 {
            let trust = way(&place);
            let first = visit(at, &trust, "www.example.org");
            assert_eq!(first.handshake, Some(HandshakeKind::Full));
            for _ in 0..3 {
                let again = visit(at, &trust, "www.example.org");
                again.expect(&first.server);
                assert_eq!(again.handshake, Some(HandshakeKind::Resumed));
            }
            homes.push(first.server);
        }
        homes.sort();
        homes.dedup();
        assert_eq!(homes, ["member 1", "member 2"], "new clients are spread");
    }
}
