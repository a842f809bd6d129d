//! A becket in front of beckets: TLS passes by name, and a client finds back to its session.

use std::io::Write;
use std::net::TcpStream;

use becket_e2e::{
    Backend, Becket, Client, Key, OpenSsl, Place, REQUEST, Shape, Tool, Trust, finish,
    fresh_address,
};
use rustls::version::TLS13;

/// Two beckets that end TLS, each with its own server, and their places.
struct Farm {
    ends: Vec<(Becket, Place, Backend)>,
}

impl Farm {
    /// `cluster` goes into `[cluster]` of both, where it is not empty.
    fn new(first: &Place, listener: &str, cluster: &str) -> Self {
        let end = |node: usize| {
            let place = Place::new();
            for file in ["site.pem", "ca.pem", "secret"] {
                if first.path(file).exists() {
                    std::fs::copy(first.path(file), place.path(file)).unwrap();
                }
            }
            let backend = Backend::http(&format!("node {node}"));
            let mut shape = Shape::new(backend.address).listener(listener);
            if !cluster.is_empty() {
                let at = fresh_address();
                let keys = format!("[cluster]\nnode = {node}\nlisten = \"{at}\"\n{cluster}");
                shape = shape.section(&keys);
            }
            (Becket::start(&place, &shape), place, backend)
        };
        Self {
            ends: [1, 2].map(end).into(),
        }
    }

    /// The becket in front of them; `backend` goes into its backend.
    fn front(&self, place: &Place, listener: &str, backend: &str) -> Becket {
        let front = fresh_address();
        let mut shape = Shape::new("SERVER");
        shape.web = front;
        let shape = shape
            .certificates("")
            .listener(&format!("mode = \"passthrough\"\n{listener}"))
            .backend(backend)
            .process("workers = 2");
        let servers: Vec<String> = self
            .ends
            .iter()
            .enumerate()
            .map(|(index, (end, ..))| {
                format!(
                    "[[backend.server]]\naddress = \"{}\"\nnode = {}\n",
                    end.web,
                    index + 1
                )
            })
            .collect();
        let text = shape.text();
        let text = text.replace(
            "[[backend.server]]\naddress = \"SERVER\"\n",
            &servers.concat(),
        );
        place.write("becket.toml", &text);
        let command = Becket::command(place, &["run", "--config", "becket.toml"]);
        let becket = Becket::spawn(command, place.folder(), front, shape.admin);
        becket.ready();
        becket
    }
}

/// Who answered, and whether the client's session was resumed.
fn visit(front: &Becket, trust: &Trust, name: &str) -> (String, bool) {
    let mut client = Client::connect_as(front.web, trust, name).unwrap();
    let answer = client.ask(REQUEST).unwrap();
    let resumed = client.tls.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    (
        answer.rsplit("\r\n").next().unwrap_or_default().to_owned(),
        resumed,
    )
}

#[test]
fn names_lead_to_their_terminator() {
    let place = Place::new();
    let farm = Farm::new(&place, "", "");
    let [(one, ..), (two, ..)] = &farm.ends[..] else {
        panic!("two")
    };
    let front = Becket::start(
        &place,
        &Shape::new(one.web)
            .certificates("")
            .listener(
                "mode = \"passthrough\"\n[[listener.route]]\nnames = [\"*.example.org\"]\n\
                 backend = \"two\"",
            )
            .pool("two", two.web),
    );
    let trust = Trust::new(&place);
    for (name, node) in [("internal.example.org", "node 2"), ("localhost", "node 1")] {
        assert_eq!(visit(&front, &trust, name).0, node, "{name}");
        let line = front.next_access();
        assert_eq!(
            (&line["sni"], &line["reason"]),
            (&name.into(), &"finished".into())
        );
        assert_eq!(
            line["version"],
            serde_json::Value::Null,
            "TLS ends elsewhere"
        );
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn one_port_ends_the_tls_of_one_name_and_passes_that_of_another() {
    let (Some(openssl), Some(curl)) = (OpenSsl::find(), Tool::find("curl")) else {
        return;
    };
    let place = Place::new();
    let behind = place.issue("behind.pem", &["passed.example.org"], Key::Ecdsa);
    let (own, far) = (Backend::http("ends here"), Backend::http("ends behind"));
    let far_place = Place::new();
    behind.write(&far_place.path("site.pem"));
    let accepts = "accept-proxy = \"v2\"\ntrusted-networks = [\"127.0.0.0/8\"]";
    let far = Becket::start(&far_place, &Shape::new(far.address).listener(accepts));
    let front = Becket::start(
        &place,
        &Shape::new(own.address)
            .listener(
                "[[listener.route]]\nnames = [\"passed.example.org\"]\nmode = \"passthrough\"\n\
                 backend = \"far\"",
            )
            .section(&format!(
                "[[backend]]\nname = \"far\"\nproxy-header = \"v2\"\n\
                 [[backend.server]]\naddress = \"{}\"",
                far.web
            )),
    );
    let ca = place.text("ca.pem");
    for (name, body, version) in [
        ("www.example.org", "ends here", Some("TLSv1.3")),
        ("passed.example.org", "ends behind", None),
    ] {
        let by_openssl = openssl.ask_unnamed(&place, front.web, &["-servername", name]);
        assert!(by_openssl.stdout.contains(body), "{}", by_openssl.all());
        let (to, url) = (format!("::{}", front.web), format!("https://{name}/"));
        let flags = ["-sS", "--noproxy", "*", "--cacert", &ca, "--connect-to"];
        let by_curl = curl.run([&flags[..], &[&to, &url]].concat(), "");
        assert_eq!(by_curl.stdout, body, "{}", by_curl.all());
        for _ in 0..2 {
            let line = front.next_access();
            assert_eq!(line["sni"], name, "{line}");
            assert_eq!(line["version"].as_str(), version, "{line}");
            assert_eq!(line["reason"], "finished", "{line}");
        }
    }
    assert_eq!(far.next_access()["sni"], "passed.example.org");
    let mut client = TcpStream::connect(front.web).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(
        becket_e2e::read_to_end(&mut client)
            .0
            .starts_with(b"HTTP/1.1 400 ")
    );
    let routes = &front.status()["listeners"][0]["routes"];
    assert!(routes[0]["policy"].is_null(), "{routes}");
    assert_eq!(routes[1]["policy"]["name"], "web", "{routes}");
    let check = finish(
        Becket::command(&place, &["check", "--config", "becket.toml"]),
        "",
    );
    assert_eq!(check.code, 0, "{}", check.all());
    assert!(
        check.stdout.contains("handshake www.example.org"),
        "{}",
        check.all()
    );
    assert!(
        !check.stdout.contains("handshake passed."),
        "{}",
        check.all()
    );
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_ticket_leads_to_the_node_that_made_it() {
    let place = Place::new();
    let made = finish(Becket::command(&place, &["secret", "secret"]), "");
    assert_eq!(made.code, 0, "{}", made.all());
    let farm = Farm::new(&place, "", "secret = \"secret\"");
    let front = farm.front(&place, "", "");
    let mut homes = Vec::new();
    for _ in 0..4 {
        let trust = Trust::only(&place, &TLS13);
        let (home, resumed) = visit(&front, &trust, "www.example.org");
        assert!(!resumed);
        for _ in 0..3 {
            let again = visit(&front, &trust, "www.example.org");
            assert_eq!(again, (home.clone(), true));
        }
        homes.push(home);
    }
    homes.sort();
    homes.dedup();
    assert_eq!(homes, ["node 1", "node 2"], "new clients are spread");
}
