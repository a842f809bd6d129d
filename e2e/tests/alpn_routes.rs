//! ALPN chooses the protocol and, where a route says so, the backend.

use std::fs;
use std::process::Command;

use becket_e2e::{
    Backend, Becket, Client, Kept, OpenSsl, Place, REQUEST, Shape, Tool, Trust, eventually,
    fresh_address,
};

#[test]
fn protocols_go_to_the_backends_of_their_routes() {
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
        (&["-alpn", "acme-tls/1"], "one", None),
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
fn a_resumed_session_may_agree_on_another_protocol() {
    let place = Place::new();
    let backend = Backend::http("one");
    let shape = Shape::new(backend.address).listener("alpn = [\"a\", \"b\"]");
    let becket = Becket::start(&place, &shape);
    let trust = Trust::new(&place);
    for (offer, handshake) in [("a", "full"), ("b", "psk"), ("none", "psk")] {
        let mut client = Client::connect(becket.web, &trust.alpn(&[offer])).unwrap();
        client.ask(REQUEST).unwrap();
        drop(client);
        let line = becket.next_access();
        assert_eq!(line["handshake"], handshake, "{line}");
        let agreed = (offer != "none").then_some(offer);
        assert_eq!(line["alpn"].as_str(), agreed, "{line}");
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn curl_speaks_h2_to_nginx_through_it() {
    let (Some(curl), Some(nginx)) = (Tool::find("curl"), Tool::find("nginx")) else {
        return;
    };
    let place = Place::new();
    let (h1, h2) = (fresh_address(), fresh_address());
    let folder = place.folder().display().to_string();
    let configuration = format!(
        "daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr;\n\
         events {{}}\n\
         http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;\n\
         fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n\
         server {{ listen {h1}; return 200 \"by $server_protocol\\n\"; }}\n\
         server {{ listen {h2} http2; return 200 \"by $server_protocol\\n\"; }} }}\n"
    );
    let path = place.write("nginx.conf", &configuration);
    let log = fs::File::create(place.path("nginx.log")).unwrap();
    let mut command: Command = nginx.command(["-c".as_ref(), path.as_os_str()]);
    let _nginx = Kept(command.stderr(log).spawn().unwrap());
    eventually("nginx listens", || std::net::TcpStream::connect(h2).is_ok());
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
