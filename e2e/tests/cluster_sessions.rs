//! TLS 1.2 sessions are replicated by ID to other hosts: each becket runs in a separate network namespace, with real datagrams
//! between them and openssl as the client.

use std::net::{SocketAddr, UdpSocket};

use becket_e2e::{
    Becket, Client, Network, Node, OpenSsl, Place, Shape, Trust, eventually, finish, skip,
};
use rustls::HandshakeKind;
use rustls::version::TLS12;
use serde_json::Value;

use crate::upgrades_lose_nothing::{TWO_WORKERS, asking};

/// Port of nodes that listen on IPv6 or on every address.
const PORT: u16 = 7443;

/// Makes a TLS 1.2 connection without tickets, and returns the kind of handshake in becket's log.
#[track_caller]
fn visit(node: &Node<'_>, openssl: &OpenSsl, flags: &[&str]) -> String {
    let flags = [&["-tls1_2", "-no_ticket"], flags].concat();
    node.visit(openssl, &flags)
}

/// Creates a session and stores it in `file` of this node.
#[track_caller]
fn make_session(node: &Node<'_>, openssl: &OpenSsl, file: &str) -> String {
    let file = node.place.text(file);
    assert_eq!(visit(node, openssl, &["-sess_out", &file]), "full");
    file
}

/// Waits until the node has `held` sessions, then resumes the session in `file`.
#[track_caller]
fn resumes(node: &Node<'_>, openssl: &OpenSsl, file: &str, held: u64) {
    eventually("the node has the session", || node.holds() >= held);
    assert_eq!(visit(node, openssl, &["-sess_in", file]), "id");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_session_of_one_host_resumes_on_all_others_and_survives_its_host() {
    let (Some(network), Some(openssl)) = (Network::of(3), OpenSsl::find()) else {
        return;
    };
    let mut nodes = Node::cluster(&network, 3);
    let session = make_session(&nodes[0], &openssl, "session.pem");
    for node in &nodes {
        resumes(node, &openssl, &session, 1);
    }
    nodes[0].kill();
    resumes(&nodes[1], &openssl, &session, 1);
    let other = make_session(&nodes[1], &openssl, "session.pem");
    resumes(&nodes[2], &openssl, &other, 2);
    // The first node restarts with an empty table and receives the sessions of the others.
    let addresses: Vec<SocketAddr> = nodes.iter().map(Node::address).collect();
    nodes[0].replicate(&Node::peers(&addresses));
    resumes(&nodes[0], &openssl, &session, 2);
    resumes(&nodes[0], &openssl, &other, 2);
    for node in &nodes {
        let cluster = node.status()["cluster"].clone();
        assert_eq!(cluster["faults"], Value::Array(Vec::new()), "{cluster}");
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn no_secret_of_a_session_is_sent_in_clear() {
    let (Some(network), Some(openssl)) = (Network::of(2), OpenSsl::find()) else {
        return;
    };
    let capture = network.capture();
    let nodes = Node::cluster(&network, 2);
    let (a, b) = (&nodes[0], &nodes[1]);
    let secrets = a.place.text("keys.log");
    let file = a.place.text("session.pem");
    let flags = ["-sess_out", &file, "-keylogfile", &secrets];
    assert_eq!(visit(a, &openssl, &flags), "full");
    resumes(b, &openssl, &file, 1);
    let master = master_secret(&a.place.read("keys.log"));
    assert_eq!(capture.count(&master), 0);
    assert!(capture.count(b"BKT3") > 2, "the datagrams were seen");
    // The search finds the secret if it is sent in clear.
    let other = (b.host.address, 9);
    a.host.within(|| {
        let socket = UdpSocket::bind((a.host.address, 0)).expect("a socket");
        socket.send_to(&master, other).expect("sent");
    });
    eventually("the secret is found in clear", || {
        capture.count(&master) > 0
    });
}

/// Returns the master secret in openssl's key log of a TLS 1.2 handshake.
fn master_secret(log: &str) -> Vec<u8> {
    let line = log.lines().find(|line| line.starts_with("CLIENT_RANDOM "));
    let hex = line.and_then(|line| line.split(' ').nth(2)).expect("a key");
    let bytes = hex.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).expect("ASCII");
        u8::from_str_radix(pair, 16).expect("hex")
    });
    let master: Vec<u8> = bytes.collect();
    assert_eq!(master.len(), 48);
    master
}

#[test]
#[ignore = "slow: .ci/run test"]
fn nodes_support_ipv6() {
    let (Some(network), Some(openssl)) = (Network::of(3), OpenSsl::find()) else {
        return;
    };
    if !std::path::Path::new("/proc/net/if_inet6").exists() {
        return skip("needs IPv6");
    }
    let mut nodes: Vec<Node<'_>> = [1, 2, 3].map(|n| Node::new(&network, n)).into();
    nodes[0].secret("secret");
    nodes[0].give("secret", &nodes[1]);
    nodes[0].give("secret", &nodes[2]);
    let at = |node: usize| SocketAddr::from((network.hosts[node].address_v6, PORT)).to_string();
    let peers = format!("peers = [{:?}]", at(0));
    let starts = [
        (at(0), String::new()),
        (at(1), peers.clone()),
        // This node listens on all addresses of both families and receives the other peers from its only one.
        (format!(":{PORT}"), peers),
    ];
    for (node, (listen, keys)) in nodes.iter_mut().zip(starts) {
        node.start(&format!(
            "secret = \"secret\"\nlisten = \"{listen}\"\n{keys}"
        ));
    }
    nodes[0].has_peers(2);
    let session = make_session(&nodes[0], &openssl, "session.pem");
    resumes(&nodes[1], &openssl, &session, 1);
    resumes(&nodes[2], &openssl, &session, 1);
}

/// Returns the state of a node's only peer.
fn peer_state(node: &Node<'_>) -> Value {
    node.status()["cluster"]["peers"][0]["state"].clone()
}

#[test]
#[ignore = "slow: .ci/run test"]
fn reloads_can_stop_and_restart_replication() {
    let (Some(network), Some(openssl)) = (Network::of(2), OpenSsl::find()) else {
        return;
    };
    let nodes = Node::cluster(&network, 2);
    let (a, b) = (&nodes[0], &nodes[1]);
    let session = make_session(a, &openssl, "session.pem");
    resumes(b, &openssl, &session, 1);
    assert!(b.reload("secret = \"secret\""));
    eventually("the node has left", || peer_state(a) == "left");
    assert_eq!(b.status()["cluster"], Value::Null);
    eventually("the socket is closed", || {
        b.host.within(|| UdpSocket::bind(b.address()).is_ok())
    });
    // Existing sessions resume; new sessions of the other node are not received.
    resumes(b, &openssl, &session, 1);
    let other = make_session(a, &openssl, "other.pem");
    let own = make_session(b, &openssl, "own.pem");
    assert_eq!(visit(b, &openssl, &["-sess_in", &other]), "full");
    assert_eq!(visit(a, &openssl, &["-sess_in", &own]), "full");
    let peers = Node::peers(&[a.address(), b.address()]);
    assert!(b.reload(&b.replication(&peers)));
    a.has_peers(1);
    b.has_peers(1);
    // After the restart of replication, the node requests the sessions that it missed.
    eventually("the node has the other session", || {
        visit(b, &openssl, &["-sess_in", &other]) == "id"
    });
    let later = make_session(b, &openssl, "later.pem");
    eventually("the other node has the session", || {
        visit(a, &openssl, &["-sess_in", &later]) == "id"
    });
    // Without the whole section, the node uses its own ticket keys again.
    let text = b.place.read("becket.toml");
    let (before, section) = text.split_once("[cluster]").expect("the section");
    let (_, after) = section.split_once("\n[").expect("another section");
    b.place.write("becket.toml", &format!("{before}[{after}"));
    assert!(b.host.within(|| b.becket().reload()));
    eventually("the node has left", || peer_state(a) == "left");
    assert_eq!(b.status()["cluster"], Value::Null);
    assert_eq!(visit(b, &openssl, &["-sess_in", &later]), "id");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_port_in_use_prevents_the_start_with_a_message() {
    let place = Place::new();
    let run = finish(Becket::command(&place, &["secret", "secret"]), "");
    assert_eq!(run.code, 0, "{}", run.all());
    let taken = UdpSocket::bind((becket_e2e::fresh_host(), 0)).expect("a socket");
    let address = taken.local_addr().expect("its address");
    let shape = Shape::new("127.0.0.1:9").section(&format!(
        "[cluster]\nsecret = \"secret\"\nnode = 1\nlisten = \"{address}\""
    ));
    place.write("becket.toml", &shape.text());
    let run = Becket::command(&place, &["run", "--config", "becket.toml"]);
    let run = finish(run, "");
    assert_eq!(run.code, 2, "{}", run.all());
    let complaint = place.read("stderr.log") + &run.stderr;
    assert!(complaint.contains("cluster.listen"), "{complaint}");
}

/// Starts two nodes with supervisors and a list of each other.
fn two_that_can_be_upgraded(network: &Network) -> Vec<Node<'_>> {
    let mut nodes: Vec<Node<'_>> = [1, 2].map(|n| Node::new(network, n)).into();
    nodes[0].secret("secret");
    nodes[0].give("secret", &nodes[1]);
    let peers = Node::peers(&[nodes[0].address(), nodes[1].address()]);
    for node in &mut nodes {
        let shape = node.shape.clone().process(TWO_WORKERS);
        node.shape = shape.timeouts("handshake = \"1m\"");
        node.replicate(&peers);
    }
    nodes.iter().for_each(|node| node.has_peers(1));
    nodes
}

#[test]
#[ignore = "slow: .ci/run test"]
fn sessions_resume_on_both_hosts_during_an_upgrade_of_one() {
    let (Some(network), Some(openssl)) = (Network::of(2), OpenSsl::find()) else {
        return;
    };
    let nodes = two_that_can_be_upgraded(&network);
    let mut sessions = Vec::new();
    let mut make = |name: &str| {
        for (number, node) in nodes.iter().enumerate() {
            sessions.push(make_session(node, &openssl, &format!("{name}{number}.pem")));
        }
    };
    make("before");
    let upgraded = &nodes[0];
    let asked = upgraded.host.within(|| asking(upgraded.becket()));
    for round in 0.. {
        make(&format!("meanwhile{round}"));
        if asked.is_finished() {
            break;
        }
    }
    let asked = asked.join().unwrap();
    assert_eq!(asked.code, 0, "{}", asked.all());
    make("after");
    nodes.iter().for_each(|node| node.has_peers(1));
    make("together");
    for node in &nodes {
        for session in &sessions {
            eventually(session, || {
                visit(node, &openssl, &["-sess_in", session]) == "id"
            });
        }
    }
    let cluster = upgraded.status()["cluster"].clone();
    assert_eq!(cluster["faults"], Value::Array(Vec::new()), "{cluster}");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_handshake_that_ends_in_the_old_process_creates_a_session_for_all_hosts() {
    let Some(network) = Network::of(2) else {
        return;
    };
    let nodes = two_that_can_be_upgraded(&network);
    let upgraded = &nodes[0];
    let trust = Trust::only(&upgraded.place, &TLS12).without_tickets();
    let kind = |node: &Node<'_>| {
        let client = network.hub.within(|| Client::connect(node.web(), &trust));
        client.unwrap().tls.handshake_kind().unwrap()
    };
    let mut late = network.hub.within(|| {
        let mut late = Client::begin(upgraded.web(), &trust, "www.example.org").unwrap();
        late.tls.write_tls(&mut late.socket).unwrap();
        // Wait for the ServerHello, which shows that the old process handles the connection.
        late.socket.peek(&mut [0]).unwrap();
        late
    });
    let asked = upgraded.host.within(|| asking(upgraded.becket()));
    assert_eq!(asked.join().unwrap().code, 0);
    nodes.iter().for_each(|node| node.has_peers(1));
    while late.tls.is_handshaking() {
        late.tls.complete_io(&mut late.socket).unwrap();
    }
    assert_eq!(late.tls.handshake_kind(), Some(HandshakeKind::Full));
    for node in &nodes {
        eventually("the node has the session", || node.holds() >= 1);
        assert_eq!(kind(node), HandshakeKind::Resumed);
    }
}
