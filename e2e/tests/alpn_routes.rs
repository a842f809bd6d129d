//! ALPN selects the protocol and, with a route, the backend.

use becket_e2e::{Backend, Becket, OpenSsl, Place, Shape, Tool, fresh_address, nginx};

#[test]
fn routes_select_a_backend_by_protocol() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    let (plain, second) = (Backend::http("one"), Backend::http("two"));
    let shape = Shape::new(plain.address)
        .listener("alpn = [\"http/1.1\"]\n[[listener.route]]\nalpn = [\"h2\"]\nbackend = \"h2\"")
        .pool("h2", second.address);
    let becket = Becket::start(&place, &shape);
    let cases: [(&[&str], &str, Option<&str>); 5] = [
        (&["-alpn", "h2"], "two", Some("h2")),
        (&["-alpn", "http/1.1,h2"], "two", Some("h2")),
        (&["-alpn", "http/1.1"], "one", Some("http/1.1")),
        (&["-alpn", "h3"], "one", None),
        (&[], "one", None),
    ];
    for version in ["-tls1_2", "-tls1_3"] {
        for (flags, body, protocol) in cases {
            let run = openssl.ask(&place, becket.web, &[flags, &[version]].concat());
            assert!(run.stdout.contains(body), "{flags:?}: {}", run.all());
            let agreed = match protocol {
                Some(protocol) => format!("ALPN protocol: {protocol}"),
                None => "No ALPN negotiated".to_owned(),
            };
            assert!(run.stdout.contains(&agreed), "{flags:?}: {}", run.all());
            assert_eq!(becket.next_access()["alpn"].as_str(), protocol);
        }
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn curl_uses_http_2_with_nginx_through_becket() {
    let (Some(curl), Some(tool)) = (Tool::find("curl"), Tool::find("nginx")) else {
        return;
    };
    let place = Place::new();
    let (h1, h2) = (fresh_address(), fresh_address());
    let http = format!(
        "server {{ listen {h1}; return 200 \"by $server_protocol\\n\"; }}
         server {{ listen {h2} http2; return 200 \"by $server_protocol\\n\"; }}"
    );
    let _nginx = nginx(&tool, &place, &http, h2);
    let shape = Shape::new(h1)
        .listener("alpn = [\"http/1.1\"]\n[[listener.route]]\nalpn = [\"h2\"]\nbackend = \"h2\"")
        .pool("h2", h2);
    let becket = Becket::start(&place, &shape);
    let to = format!("www.example.org:443:{}", becket.web);
    let ca = place.text("ca.pem");
    for (flag, protocol) in [("--http2", "HTTP/2.0"), ("--http1.1", "HTTP/1.1")] {
        let fixed = ["-sS", "--noproxy", "*", "--cacert", &ca, "--connect-to"];
        let connect = to.replacen(":443:", "::", 1);
        let run = curl.run(
            [&fixed[..], &[&connect, flag, "https://www.example.org/"]].concat(),
            "",
        );
        assert_eq!(run.stdout, format!("by {protocol}\n"), "{}", run.all());
    }
}
