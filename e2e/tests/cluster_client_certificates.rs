//! The identity of a client certificate is valid on every node until it is revoked there: its session resumes with the identity
//! or not at all.

use std::fs;

use becket_e2e::{Backend, Network, Node, OpenSsl, answer_all, eventually, read_proxy_header};

/// Flags of openssl, and the kind of handshake in becket's log when such a client resumes.
const KINDS: [(&[&str], &str); 3] = [
    (&["-tls1_3"], "psk"),
    (&["-tls1_2"], "ticket"),
    (&["-tls1_2", "-no_ticket"], "id"),
];

/// Starts a server whose response depends on the client's identity in the PROXY header.
fn presenting() -> Backend {
    Backend::new(|mut stream| {
        let header = read_proxy_header(&mut stream)?;
        // PP2_SUBTYPE_SSL_CN with a length of five bytes.
        let alice = b"\x22\x00\x05alice";
        let is_alice = header.windows(alice.len()).any(|part| part == alice);
        answer_all(
            stream,
            if is_alice {
                "well met, alice"
            } else {
                "well met"
            },
        )
    })
}

fn revoke(node: &Node<'_>, list: &str) {
    fs::write(node.place.path("crl.pem"), list).expect("a file");
}

/// Starts two nodes that require certificates of one authority, with replication.
fn pair(network: &Network) -> [Node<'_>; 2] {
    let mut nodes = [1, 2].map(|number| Node::serving(network, number, presenting));
    let nobody = nodes[0].place.authority.revocation_list(&[7]);
    revoke(&nodes[0], &nobody.pem().expect("a list"));
    nodes[0].secret("secret");
    for file in ["site.pem", "ca.pem", "crl.pem", "secret"] {
        nodes[0].give(file, &nodes[1]);
    }
    let keys = keys(&nodes);
    for node in &mut nodes {
        node.shape = node.shape.clone().backend("proxy-header = \"v2\"").section(
            "[[policy]]\nname = \"web\"\nclient-certificates = \"required\"\n\
             client-ca = \"ca.pem\"\ncrl = [\"crl.pem\"]",
        );
        node.replicate(&keys);
    }
    nodes.iter().for_each(|node| node.has_peers(1));
    nodes
}

fn keys(nodes: &[Node<'_>; 2]) -> String {
    let peers = Node::peers(&[nodes[0].address(), nodes[1].address()]);
    format!("tls12-tickets = true\n{peers}")
}

/// Returns whether a client with these flags is accepted. Checks that it is identified as alice in the log and in the PROXY header.
#[track_caller]
fn welcomes(node: &Node<'_>, openssl: &OpenSsl, flags: &[&str], how: &str) -> bool {
    let run = node.ask(openssl, flags);
    let line = node.becket().next_access();
    if line["reason"] == "client-certificate" {
        assert!(!run.stdout.contains("well met"), "{}", run.all());
        return false;
    }
    assert!(run.stdout.contains("well met, alice"), "{}", run.all());
    assert_eq!(line["subject"], "CN=alice", "{line}");
    assert_eq!(line["handshake"], how, "{line}");
    true
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_session_keeps_its_identity_on_every_host_until_it_is_revoked() {
    let (Some(network), Some(openssl)) = (Network::of(2), OpenSsl::find()) else {
        return;
    };
    let nodes = pair(&network);
    let [a, b] = &nodes;
    let own = a.place.authority.issue_numbered(&["alice"], 1);
    own.write(&a.place.path("alice.pem"));
    let own = a.place.text("alice.pem");
    let sessions = KINDS.map(|(kind, how)| {
        let file = a.place.text(&format!("{how}.pem"));
        let flags = [kind, &["-cert", &own, "-sess_out", &file][..]].concat();
        assert!(welcomes(a, &openssl, &flags, "full"));
        (kind, how, file)
    });
    eventually("the session is on the other node", || b.holds() > 0);
    let resumes = |node: &Node<'_>, (kind, how, file): &(&[&str], &str, String)| {
        // No certificate is presented here; the other host has verified it.
        let flags = [kind, &["-sess_in", file][..]].concat();
        welcomes(node, &openssl, &flags, how)
    };
    let connects = |node: &Node<'_>, (kind, ..): &(&[&str], &str, String)| {
        let flags = [kind, &["-cert", &own][..]].concat();
        welcomes(node, &openssl, &flags, "full")
    };
    for session in &sessions {
        assert!(resumes(b, session) && connects(b, session), "{session:?}");
    }
    // After a revocation on a host, that host accepts neither the session nor a new handshake.
    let list = a.place.authority.revocation_list(&[7, 1]);
    for (revoked, other) in [(b, Some(a)), (a, None)] {
        revoke(revoked, &list.pem().expect("a list"));
        let keys = revoked.replication(&keys(&nodes));
        assert!(revoked.reload(&keys), "{}", revoked.becket().log());
        let (known, served) = (revoked.offered("client-certificate"), revoked.served());
        for session in &sessions {
            assert!(!resumes(revoked, session), "{session:?}");
            assert!(!connects(revoked, session), "{session:?}");
            if let Some(other) = other {
                assert!(resumes(other, session), "{session:?}");
            }
        }
        assert_eq!(revoked.served(), served);
        // The sessions were known, so the revocation list is the reason.
        assert_eq!(revoked.offered("client-certificate"), known + 3);
    }
}
