//! TLS passthrough: a becket in front of others routes connections by server name.

use std::io::Write;
use std::net::TcpStream;

use becket_e2e::{
    Backend, Becket, Client, Key, OpenSsl, Place, REQUEST, Shape, Tool, Trust, finish,
};

#[test]
fn server_names_select_the_terminator() {
    let place = Place::new();
    let (near, far) = (Backend::http("near"), Backend::http("far"));
    let end = |backend: &Backend| {
        let own = Place::new();
        std::fs::copy(place.path("site.pem"), own.path("site.pem")).unwrap();
        (Becket::start(&own, &Shape::new(backend.address)), own)
    };
    let ((one, _of_one), (two, _of_two)) = (end(&near), end(&far));
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
    for (name, body) in [("internal.example.org", "far"), ("localhost", "near")] {
        let mut client = Client::connect_as(front.web, &trust, name).unwrap();
        assert!(
            client.ask(REQUEST).unwrap().ends_with(body.as_bytes()),
            "{name}"
        );
        drop(client);
        let line = front.next_access();
        assert_eq!(
            (&line["sni"], &line["reason"]),
            (&name.into(), &"finished".into())
        );
        assert_eq!(
            line["version"],
            serde_json::Value::Null,
            "TLS is terminated elsewhere"
        );
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn one_port_terminates_tls_for_one_name_and_passes_it_through_for_another() {
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
        Becket::command(&place, &["check", "--dump", "--config", "becket.toml"]),
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
