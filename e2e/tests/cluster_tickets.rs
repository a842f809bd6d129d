//! A ticket of one host is accepted on every other host with the same secret and policy, even after the first host has failed. Each
//! becket has its own host, and openssl is the client.

use becket_e2e::{Backend, Finished, Network, Node, OpenSsl, answer_all, read_proxy_header};

/// Flags of openssl, and the kind of handshake in becket's log when such a client resumes by ticket.
const KINDS: [(&str, &str); 2] = [("-tls1_3", "psk"), ("-tls1_2", "ticket")];

/// Keys of `[cluster]` that also enable tickets for TLS 1.2.
const BOTH: &str = "secret = \"secret\"\ntls12-tickets = true";

/// Prepares nodes that share only a secret.
fn nodes(network: &Network, count: usize) -> Vec<Node<'_>> {
    let all: Vec<Node<'_>> = (1..=count).map(|n| Node::new(network, n)).collect();
    all[0].secret("secret");
    all[1..].iter().for_each(|node| all[0].give("secret", node));
    all
}

/// Creates a session with a full handshake and stores it in `file`.
#[track_caller]
fn leave(node: &Node<'_>, openssl: &OpenSsl, kind: &str, file: &str) -> String {
    let file = node.place.text(file);
    let flags = [kind, "-sess_out", &file];
    assert_eq!(node.visit(openssl, &flags), "full", "{kind}");
    file
}

/// Offers a session and returns the kind of handshake.
#[track_caller]
fn offer(node: &Node<'_>, openssl: &OpenSsl, kind: &str, session: &str) -> String {
    node.visit(openssl, &[kind, "-sess_in", session])
}

#[test]
fn a_ticket_is_accepted_on_all_hosts_after_its_issuer_restarts_or_fails() {
    let (Some(network), Some(openssl)) = (Network::of(3), OpenSsl::find()) else {
        return;
    };
    let mut nodes = nodes(&network, 3);
    nodes.iter_mut().for_each(|node| node.start(BOTH));
    let sessions = KINDS.map(|(kind, how)| {
        let file = leave(&nodes[0], &openssl, kind, &format!("{how}.pem"));
        (kind, how, file)
    });
    let resume = |node: &Node<'_>| {
        for (kind, how, file) in &sessions {
            assert_eq!(offer(node, &openssl, kind, file), *how);
        }
    };
    nodes.iter().for_each(resume);
    // A restart loses no session, because tickets do not depend on memory.
    nodes[0].stop();
    nodes[0].start(BOTH);
    resume(&nodes[0]);
    // A failed host does not affect its tickets either.
    nodes[0].kill();
    nodes[1..].iter().for_each(resume);
    assert_eq!(nodes[1].offered("opened"), 4);
    let node = |number: usize| nodes[number].status()["tickets"]["node"].clone();
    assert_eq!((node(1), node(2)), (2.into(), 3.into()));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn tls12_tickets_are_issued_only_if_enabled() {
    let (Some(network), Some(openssl)) = (Network::of(2), OpenSsl::find()) else {
        return;
    };
    let mut nodes = nodes(&network, 2);
    let has_ticket = |run: &Finished| run.stdout.contains("TLS session ticket:");
    let file = nodes[0].place.text("session.pem");
    let flags = ["-tls1_2", "-sess_out", &file];
    nodes[0].start("secret = \"secret\"");
    nodes[1].start("secret = \"secret\"");
    assert!(!has_ticket(&nodes[0].ask(&openssl, &flags)));
    assert_eq!(offer(&nodes[1], &openssl, "-tls1_2", &file), "full");
    assert_eq!(nodes[1].offered("opened"), 0);
    // With tickets enabled, the same client receives one, which is accepted only where tickets are enabled.
    nodes[0].kill();
    nodes[0].start(BOTH);
    assert!(has_ticket(&nodes[0].ask(&openssl, &flags)));
    assert_eq!(offer(&nodes[1], &openssl, "-tls1_2", &file), "full");
    nodes[1].kill();
    nodes[1].start(BOTH);
    assert_eq!(offer(&nodes[1], &openssl, "-tls1_2", &file), "ticket");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_ticket_of_another_secret_is_declined_and_counted() {
    let (Some(network), Some(openssl)) = (Network::of(2), OpenSsl::find()) else {
        return;
    };
    let mut nodes = [1, 2].map(|number| Node::new(&network, number));
    for node in &mut nodes {
        node.secret("secret");
        node.start(BOTH);
    }
    let [a, b] = &nodes;
    for (count, (kind, how)) in (1..).zip(KINDS) {
        let file = leave(a, &openssl, kind, "session.pem");
        // The client makes a full handshake and receives a ticket of this host.
        let flags = [kind, "-sess_in", &file, "-sess_out", &file];
        assert_eq!(b.visit(&openssl, &flags), "full", "{kind}");
        assert_eq!(b.offered("unknown-secret"), count);
        assert_eq!(offer(b, &openssl, kind, &file), how);
    }
    assert_eq!(b.offered("unknown"), 0);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_required_certificate_cannot_be_avoided_with_a_ticket_of_another_host() {
    let (Some(network), Some(openssl)) = (Network::of(2), OpenSsl::find()) else {
        return;
    };
    let mut nodes = nodes(&network, 2);
    nodes[0].give("ca.pem", &nodes[1]);
    nodes[0].give("site.pem", &nodes[1]);
    for node in &mut nodes {
        node.shape = node.shape.clone().listener(
            "alpn = [\"open\"]\n[[listener.route]]\nnames = [\"internal.example.org\"]\n\
             policy = \"staff\"\nbackend = \"app\"\n[[listener.route]]\nalpn = [\"locked\"]\n\
             policy = \"staff\"\nbackend = \"app\"",
        );
        node.shape = node.shape.clone().section(
            "[[policy]]\nname = \"staff\"\nclient-certificates = \"required\"\n\
             client-ca = \"ca.pem\"",
        );
        node.start(BOTH);
    }
    let [a, b] = &nodes[..] else {
        panic!("two nodes");
    };
    let own = a.place.authority.issue(&["alice"], becket_e2e::Key::Ecdsa);
    own.write(&a.place.path("alice.pem"));
    for (kind, how) in KINDS {
        let file = a.place.text("session.pem");
        let open = [kind, "-alpn", "open", "-sess_out", &file];
        assert_eq!(a.visit(&openssl, &open), "full");
        // On a route without certificates this ticket resumes.
        let again = [kind, "-alpn", "open", "-sess_in", &file];
        assert_eq!(b.visit(&openssl, &again), how);
        let served = b.served();
        let locked = [kind, "-alpn", "locked", "-sess_in", &file];
        let run = b.ask(&openssl, &locked);
        assert!(!run.stdout.contains("well met"), "{}", run.all());
        assert_eq!(b.becket().next_reason(), "client-certificate");
        assert_eq!(b.served(), served);
        // A session with a certificate resumes on the route that requires one.
        let alice = a.place.text("alice.pem");
        let locked = [kind, "-alpn", "locked", "-cert", &alice];
        let make = [&locked[..], &["-sess_out", &file]].concat();
        assert_eq!(a.visit(&openssl, &make), "full");
        let again = [&locked[..], &["-sess_in", &file]].concat();
        assert_eq!(b.visit(&openssl, &again), how);
    }
    assert_eq!(b.offered("other-policy"), 2);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn early_data_is_accepted_only_on_the_host_of_its_session() {
    let (Some(network), Some(openssl)) = (Network::of(2), OpenSsl::find()) else {
        return;
    };
    let serve = || {
        Backend::new(|mut stream| {
            read_proxy_header(&mut stream)?;
            answer_all(stream, "well met")
        })
    };
    let mut nodes = [1, 2].map(|number| Node::serving(&network, number, serve));
    nodes[0].secret("secret");
    nodes[0].give("secret", &nodes[1]);
    let peers = Node::peers(&[nodes[0].address(), nodes[1].address()]);
    for node in &mut nodes {
        let shape = node.shape.clone().backend("proxy-header = \"v2\"");
        node.shape = shape.section(
            "[[policy]]
name = \"web\"
versions = [\"1.3\"]
early-data = \"17KiB\"",
        );
        node.replicate(&peers);
    }
    nodes.iter().for_each(|node| node.has_peers(1));
    let [a, b] = &mut nodes;
    let request = a.place.write("request", "GET /early HTTP/1.0\r\n\r\n");
    let request = request.to_string_lossy();
    let ask = |node: &Node<'_>, file: &str, outcome: &str| {
        let flags = ["-tls1_3", "-sess_in", file, "-early_data", &request];
        let run = node.ask(&openssl, &flags);
        let said = format!("Early data was {outcome}");
        assert!(run.stdout.contains(&said), "{}", run.all());
        assert!(run.stdout.contains("well met"), "{}", run.all());
        node.becket().next_access()["handshake"].clone()
    };
    let file = leave(a, &openssl, "-tls1_3", "session.pem");
    // On another host the session may resume, but the request arrives after the handshake.
    assert_ne!(ask(b, &file, "rejected"), "early");
    assert_eq!(
        ask(a, &file, "accepted"),
        "early",
        "its own host accepts it"
    );
    // After a restart, the host rejects early data of its earlier sessions.
    let file = leave(a, &openssl, "-tls1_3", "session.pem");
    a.stop();
    a.replicate(&peers);
    assert_ne!(ask(a, &file, "rejected"), "early");
    let accepted = |node: &Node<'_>| {
        let labels = ["outcome=\"accepted\""];
        node.metrics().sum("becket_early_data_total", &labels) as u64
    };
    assert_eq!((accepted(a), accepted(b)), (0, 0));
}
