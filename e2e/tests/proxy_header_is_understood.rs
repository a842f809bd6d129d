//! HAProxy and nginx accept becket's PROXY headers of versions 1 and 2.

use std::net::SocketAddr;

use becket_e2e::{
    Becket, Client, Place, REQUEST, Shape, Tool, Trust, fresh_address, haproxy, nginx, until,
};
use rustls::version::{TLS12, TLS13};

/// Sends a request. Returns the response and the client's address.
fn ask(becket: &Becket, trust: &Trust) -> (String, SocketAddr) {
    let mut client = Client::connect(becket.web, trust).unwrap();
    let own = client.socket.local_addr().unwrap();
    let answer = client.ask(REQUEST).unwrap();
    (String::from_utf8_lossy(&answer).into_owned(), own)
}

#[test]
#[ignore = "slow: .ci/run test"]
fn haproxy_accepts_both_versions() {
    let Some(tool) = Tool::find("haproxy") else {
        return;
    };
    let place = Place::new();
    let at = fresh_address();
    let text = format!(
        "defaults\n mode http\n timeout client 10s\n timeout server 10s\n timeout connect 5s\n\
         frontend main\n bind {at} accept-proxy\n http-request return status 200 \
         content-type text/plain lf-string \
         \"from %[src]:%[src_port] to %[dst]:%[dst_port] named %[fc_pp_authority] \
         id %[fc_pp_unique_id]\"\n"
    );
    let _haproxy = haproxy(&tool, &place, &text, at);
    for version in ["v1", "v2"] {
        let also = if version == "v2" {
            "proxy-tlvs = [\"unique-id\", \"client-certificate\"]"
        } else {
            ""
        };
        let shape = Shape::new(at).backend(&format!("proxy-header = \"{version}\"\n{also}"));
        let becket = Becket::start(&place, &shape);
        for tls in [&TLS12, &TLS13] {
            let (answer, own) = ask(&becket, &Trust::only(&place, tls));
            let expected = format!("from {own} to {} named ", becket.web);
            assert!(answer.contains(&expected), "{version}: {answer}");
            let line = until("the line of this client", || {
                let mut lines = becket.access().into_iter();
                lines.find(|line| line["client"] == own.to_string())
            });
            let id = line["unique_id"].as_str().map(str::to_owned);
            assert_eq!(id.is_some(), version == "v2");
            let name = id.map(|id| format!("named www.example.org id {id}"));
            assert!(answer.ends_with(&name.unwrap_or_default()), "{answer}");
        }
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn nginx_accepts_both_versions() {
    let Some(tool) = Tool::find("nginx") else {
        return;
    };
    let place = Place::new();
    let at = fresh_address();
    let http = format!(
        "server {{ listen {at} proxy_protocol; return 200 \"from $proxy_protocol_addr:\
         $proxy_protocol_port to $proxy_protocol_server_addr:$proxy_protocol_server_port\"; }}"
    );
    let _nginx = nginx(&tool, &place, &http, at);
    for version in ["v1", "v2"] {
        let also = if version == "v2" {
            "proxy-tlvs = [\"unique-id\"]"
        } else {
            ""
        };
        let shape = Shape::new(at).backend(&format!("proxy-header = \"{version}\"\n{also}"));
        let becket = Becket::start(&place, &shape);
        let (answer, own) = ask(&becket, &Trust::new(&place));
        let expected = format!("from {own} to {}", becket.web);
        assert!(answer.ends_with(&expected), "{version}: {answer}");
    }
}
