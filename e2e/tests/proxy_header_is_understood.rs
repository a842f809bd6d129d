//! The PROXY header, v1 and v2, as HAProxy, nginx and the specification read it.

use std::net::{SocketAddr, TcpStream};

use becket_e2e::{
    Becket, Client, Kept, Place, REQUEST, Shape, Tool, Trust, eventually, fresh_address, until,
};
use rustls::version::{TLS12, TLS13};

/// What a client is told, and the address from which it asked.
fn ask(becket: &Becket, trust: &Trust) -> (String, SocketAddr) {
    let mut client = Client::connect(becket.web, trust).unwrap();
    let own = client.socket.local_addr().unwrap();
    let answer = client.ask(REQUEST).unwrap();
    (String::from_utf8_lossy(&answer).into_owned(), own)
}

/// Runs a server in the foreground until it listens at `at`.
fn serve(place: &Place, tool: &Tool, arguments: &[&str], at: SocketAddr) -> Kept {
    let log = std::fs::File::create(place.path("peer.log")).unwrap();
    let mut command = tool.command(arguments);
    let kept = Kept(
        command
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap(),
    );
    eventually("the peer listens", || TcpStream::connect(at).is_ok());
    kept
}

#[test]
#[ignore = "slow: .ci/run test"]
fn haproxy_understands_both_versions() {
    let Some(haproxy) = Tool::find("haproxy") else {
        return;
    };
    let place = Place::new();
    let at = fresh_address();
    place.write(
        "haproxy.cfg",
        &format!(
            "defaults\n mode http\n timeout client 10s\n timeout server 10s\n timeout connect 5s\n\
             frontend main\n bind {at} accept-proxy\n http-request return status 200 \
             content-type text/plain lf-string \
             \"from %[src]:%[src_port] to %[dst]:%[dst_port] named %[fc_pp_authority] \
             id %[fc_pp_unique_id]\"\n"
        ),
    );
    let configuration = place.text("haproxy.cfg");
    let _haproxy = serve(&place, &haproxy, &["-f", &configuration, "-db"], at);
    for version in ["v1", "v2"] {
        let also = if version == "v2" {
            "proxy-tlvs = [\"crc32c\", \"unique-id\", \"client-certificate\"]"
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
            let id = line["id"].as_str().map(str::to_owned);
            assert_eq!(id.is_some(), version == "v2");
            let name = id.map(|id| format!("named www.example.org id {id}"));
            assert!(answer.ends_with(&name.unwrap_or_default()), "{answer}");
        }
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn nginx_understands_both_versions() {
    let Some(nginx) = Tool::find("nginx") else {
        return;
    };
    let place = Place::new();
    let at = fresh_address();
    let folder = place.folder().display().to_string();
    place.write(
        "nginx.conf",
        &format!(
            "daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr;\n\
             events {{}}\n\
             http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;\n\
             fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n\
             server {{ listen {at} proxy_protocol; return 200 \"from $proxy_protocol_addr:\
             $proxy_protocol_port to $proxy_protocol_server_addr:$proxy_protocol_server_port\"; }} }}"
        ),
    );
    let _nginx = serve(&place, &nginx, &["-c", &place.text("nginx.conf")], at);
    for version in ["v1", "v2"] {
        let also = if version == "v2" {
            "proxy-tlvs = [\"crc32c\", \"unique-id\"]"
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
