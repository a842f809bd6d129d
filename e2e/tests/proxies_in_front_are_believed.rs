//! A PROXY header from a trusted proxy is accepted in every form that real proxies send. Headers of other clients are
//! rejected.

use std::io::{Read, Write};
use std::net::SocketAddr;

use becket_e2e::{
    Backend, Becket, Client, Place, REQUEST, Shape, Tool, Trust, eventually, fresh_address,
    haproxy, serve,
};

fn shape(backend: &Backend, version: &str) -> Shape {
    Shape::new(backend.address)
        .listener(&format!(
            "accept-proxy = \"{version}\"\ntrusted-networks = [\"127.0.0.0/8\"]"
        ))
        .backend("proxy-header = \"v1\"")
}

/// Starts a server that answers with the PROXY header of version 1 that it received.
fn telling() -> Backend {
    Backend::new(|mut stream| {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            line.extend(byte);
        }
        becket_e2e::read_head(&mut stream)?;
        stream.write_all(&[&b"HTTP/1.0 200 OK\r\n\r\n"[..], &line].concat())
    })
}

/// Start of every HAProxy configuration here.
const DEFAULTS: &str = "defaults\n mode tcp\n timeout client 10s\n timeout server 10s\n \
                        timeout connect 5s\n timeout check 5s\n";

/// Sends a request through a proxy at `at`, and checks that the server receives the client's address.
#[track_caller]
fn ask_through(at: SocketAddr, becket: &Becket, place: &Place) {
    let mut client = Client::connect(at, &Trust::new(place)).unwrap();
    let own = client.socket.local_addr().unwrap();
    let answer = client.ask(REQUEST).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let expected = format!(
        "PROXY TCP4 {} {} {} {}\r\n",
        own.ip(),
        at.ip(),
        own.port(),
        at.port()
    );
    assert!(answer.ends_with(&expected), "{answer} for {expected}");
    drop(client);
    // The test's own probes of the proxy are connections too, and one may have used the same port.
    let found = becket_e2e::until("the line of this client", || {
        let lines = becket.access();
        lines
            .into_iter()
            .find(|line| line["client"] == own.to_string() && line["reason"] != "health-check")
    });
    assert_eq!(found["reason"], "finished");
}

#[test]
fn headers_of_haproxy_are_accepted() {
    let Some(tool) = Tool::find("haproxy") else {
        return;
    };
    let (place, backend) = (Place::new(), telling());
    for (version, send) in [
        ("v1", "send-proxy"),
        ("v2", "send-proxy-v2"),
        ("any", "send-proxy"),
        (
            "any",
            "send-proxy-v2 proxy-v2-options crc32c,unique-id,authority",
        ),
    ] {
        let becket = Becket::start(&place, &shape(&backend, version));
        let at = fresh_address();
        let text = format!(
            "{DEFAULTS}frontend front\n bind {at}\n unique-id-format %{{+X}}o-%ci:%cp\n \
             default_backend becket\nbackend becket\n server one {} {send}\n",
            becket.web
        );
        let _haproxy = haproxy(&tool, &place, &text, at);
        ask_through(at, &becket, &place);
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn health_checks_of_haproxy_with_a_local_header_are_answered() {
    let Some(tool) = Tool::find("haproxy") else {
        return;
    };
    let (place, backend) = (Place::new(), telling());
    let becket = Becket::start(&place, &shape(&backend, "v2"));
    let at = fresh_address();
    let text = format!(
        "{DEFAULTS}frontend front\n bind {at}\n default_backend becket\n\
         backend becket\n option httpchk GET /\n \
         server one {} send-proxy-v2 check check-send-proxy check-ssl verify none inter 100ms\n",
        becket.web
    );
    let _haproxy = haproxy(&tool, &place, &text, at);
    // The header has the command LOCAL, so its sender is the client.
    eventually("a check is answered", || {
        becket.access().iter().any(|line| {
            let client = line["client"].as_str().unwrap_or_default();
            client.starts_with("127.") && line["reason"] == "finished" && backend.served() > 0
        })
    });
}

/// Uses a PROXY header. Without one, HAProxy resets nearly every check before the kernel reports the connection.
#[test]
#[ignore = "slow: .ci/run test"]
fn checks_of_haproxy_do_not_count_as_failures() {
    let Some(tool) = Tool::find("haproxy") else {
        return;
    };
    let (place, backend) = (Place::new(), telling());
    for (version, how) in [
        ("v2", "check-send-proxy send-proxy-v2"),
        ("any", "check-send-proxy send-proxy"),
    ] {
        let shape = shape(&backend, version);
        let becket = Becket::start(&place, &shape);
        let at = fresh_address();
        let text = format!(
            "{DEFAULTS}frontend front\n bind {at}\n default_backend becket\n\
             backend becket\n server one {} check inter 100ms {how}\n",
            becket.web
        );
        let _haproxy = haproxy(&tool, &place, &text, at);
        eventually("checks are counted", || {
            becket.metrics().closed("health-check") >= 3
        });
        let metrics = becket.metrics();
        for failure in ["handshake-aborted", "proxy-header", "client-reset"] {
            assert_eq!(metrics.closed(failure), 0, "{how}: {failure}");
        }
        eventually("the checks are logged", || {
            let lines = becket.access();
            lines.iter().any(|line| line["reason"] == "health-check")
        });
        let log = becket.log();
        assert!(!log.contains("connection failed"), "{how}: {log}");
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn headers_of_nginx_are_accepted() {
    let Some(tool) = Tool::find("nginx") else {
        return;
    };
    let (place, backend) = (Place::new(), telling());
    let becket = Becket::start(&place, &shape(&backend, "any"));
    let at = fresh_address();
    let folder = place.folder().display().to_string();
    let modules = [
        "/usr/lib/nginx/modules/ngx_stream_module.so",
        "/usr/share/nginx/modules/ngx_stream_module.so",
    ];
    let module = modules
        .iter()
        .find(|path| std::path::Path::new(path).exists());
    let module = module.map(|path| format!("load_module {path};\n"));
    place.write(
        "nginx.conf",
        &format!(
            "{}daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr;\n\
             events {{}}\n\
             stream {{ server {{ listen {at}; proxy_pass {}; proxy_protocol on; }} }}",
            module.unwrap_or_default(),
            becket.web
        ),
    );
    let command = tool.command(["-c", &place.text("nginx.conf")]);
    let _nginx = serve(command, &place, "nginx", at);
    ask_through(at, &becket, &place);
}
