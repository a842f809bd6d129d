//! Changes of the cluster secret by reload, and its automatic rotation, on running nodes: clients keep their sessions, with tickets
//! and with session IDs.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use becket_e2e::{Becket, Network, Node, OpenSsl, eventually, finish, until};
use serde_json::Value;

/// Flags of openssl, and the kind of handshake in becket's log when such a client resumes.
const KINDS: [(&[&str], &str); 3] = [
    (&["-tls1_3"], "psk"),
    (&["-tls1_2"], "ticket"),
    (&["-tls1_2", "-no_ticket"], "id"),
];

/// A session of each kind, stored in files of the first node's folder.
struct Sessions<'a> {
    openssl: &'a OpenSsl,
    files: [String; 3],
}

impl<'a> Sessions<'a> {
    /// Creates sessions on a node, and waits until all nodes have the one that is found by ID.
    #[track_caller]
    fn make(name: &str, openssl: &'a OpenSsl, at: &Node<'_>, all: &[Node<'_>]) -> Self {
        let files = KINDS.map(|(_, how)| all[0].place.text(&format!("{name}-{how}.pem")));
        let held: Vec<u64> = all.iter().map(Node::holds).collect();
        for ((kind, how), file) in KINDS.iter().zip(&files) {
            let flags = [kind, &["-sess_out", file][..]].concat();
            assert_eq!(at.visit(openssl, &flags), "full", "{how}");
        }
        eventually("the session is on all nodes", || {
            all.iter()
                .zip(&held)
                .all(|(node, held)| node.holds() > *held)
        });
        Self { openssl, files }
    }

    /// Offers each session to a node and returns the kinds of handshakes.
    #[track_caller]
    fn offered_to(&self, node: &Node<'_>) -> Vec<String> {
        let offers = KINDS.iter().zip(&self.files);
        offers
            .map(|((kind, _), file)| {
                let flags = [kind, &["-sess_in", file][..]].concat();
                node.visit(self.openssl, &flags)
            })
            .collect()
    }

    #[track_caller]
    fn resume_on(&self, nodes: &[Node<'_>]) {
        for node in nodes {
            assert_eq!(self.offered_to(node), KINDS.map(|(_, how)| how));
        }
    }

    /// Returns the IDs of the secrets that encrypted the two tickets.
    fn sealed_by(&self) -> [String; 2] {
        [&self.files[0], &self.files[1]].map(|file| {
            // The ticket starts with the version and the ID of the secret.
            let [_, a, b, c, d, ..] = self.openssl.ticket(file);
            format!("{:08x}", u32::from_be_bytes([a, b, c, d]))
        })
    }
}

/// Returns the IDs of a node's secrets. The first one encrypts new tickets.
fn secrets(node: &Node<'_>) -> Vec<String> {
    let list = node.status()["tickets"]["secrets"].clone();
    let list = list.as_array().expect("a list").iter();
    let text = |id: &Value| id.as_str().expect("an id").to_owned();
    list.map(text).collect()
}

/// Starts three nodes with replication and the secret `old`. The file `new` has another secret.
fn three(network: &Network) -> Vec<Node<'_>> {
    let mut nodes: Vec<Node<'_>> = (1..=3).map(|n| Node::new(network, n)).collect();
    for file in ["old", "new"] {
        nodes[0].secret(file);
        nodes[1..].iter().for_each(|node| nodes[0].give(file, node));
    }
    for index in 0..nodes.len() {
        let keys = keys(&nodes, index, "old", "");
        nodes[index].start(&keys);
    }
    nodes.iter().for_each(|node| node.has_peers(2));
    nodes
}

/// Returns the keys of `[cluster]` for the node with this index.
fn keys(nodes: &[Node<'_>], index: usize, secret: &str, accepted: &str) -> String {
    let all: Vec<_> = nodes.iter().map(Node::address).collect();
    format!(
        "secret = \"{secret}\"\naccept-secrets = [{accepted}]\nlisten = \"{}\"\n\
         tls12-tickets = true\n{}",
        all[index],
        Node::peers(&all)
    )
}

/// Reloads one node with other secrets, and checks that all nodes keep their peers.
#[track_caller]
fn reload(nodes: &[Node<'_>], index: usize, secret: &str, accepted: &str) {
    let keys = keys(nodes, index, secret, accepted);
    let node = &nodes[index];
    assert!(node.reload(&keys), "{}", node.becket().log());
    nodes.iter().for_each(|node| node.has_peers(2));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_secret_is_changed_by_reloads_without_loss_of_sessions() {
    let (Some(network), Some(openssl)) = (Network::of(3), OpenSsl::find()) else {
        return;
    };
    let mut nodes = three(&network);
    let first = Sessions::make("first", &openssl, &nodes[0], &nodes);
    let old = secrets(&nodes[0]);
    assert_eq!(first.sealed_by(), [&*old[0]; 2]);
    // These are the steps in docs/reference/configuration.md, each on one host after another. Sessions created in between on any host
    // resume on every host.
    for (secret, accepted) in [("old", "\"new\""), ("new", "\"old\"")] {
        for index in 0..nodes.len() {
            reload(&nodes, index, secret, accepted);
            let here = Sessions::make("here", &openssl, &nodes[index], &nodes);
            here.resume_on(&nodes);
            first.resume_on(&nodes);
        }
    }
    let new = secrets(&nodes[0]);
    assert_ne!(new[0], old[0]);
    let last = until("every worker has handled its messages", || {
        let made = Sessions::make("last", &openssl, &nodes[1], &nodes);
        (made.sealed_by() == [&*new[0]; 2]).then_some(made)
    });
    let unknown = |node: &Node<'_>| node.offered("unknown-secret");
    assert_eq!(nodes.iter().map(unknown).sum::<u64>(), 0);
    // In the last step the old secret is removed, so its tickets are no longer accepted. Sessions by ID do not depend on a
    // secret.
    for index in 0..nodes.len() {
        reload(&nodes, index, "new", "");
        last.resume_on(&nodes);
    }
    for node in &nodes {
        assert_eq!(secrets(node), [&*new[0]]);
        eventually("the workers have handled their messages", || {
            first.offered_to(node) == ["full", "full", "id"]
        });
        assert!(unknown(node) >= 2);
    }
    // A node that starts with only the new secret joins and receives the sessions.
    nodes[2].kill();
    let keys = keys(&nodes, 2, "new", "");
    nodes[2].start(&keys);
    nodes.iter().for_each(|node| node.has_peers(2));
    let told = last.files[2].clone();
    eventually("the node has the sessions of the others", || {
        let resume = ["-tls1_2", "-no_ticket", "-sess_in", &told];
        nodes[2].visit(&openssl, &resume) == "id"
    });
    last.resume_on(&nodes);
}

/// Creates a ticket on one node and offers it to another. Returns whether it resumes.
fn crosses(openssl: &OpenSsl, from: &Node<'_>, to: &Node<'_>) -> bool {
    let file = from.place.text("session.pem");
    let made = from.visit(openssl, &["-tls1_3", "-sess_out", &file]);
    assert_eq!(made, "full");
    to.visit(openssl, &["-tls1_3", "-sess_in", &file]) == "psk"
}

#[test]
#[ignore = "slow: .ci/run test"]
fn hosts_rotate_together_and_a_ticket_remains_valid_after_one_rotation() {
    let (Some(network), Some(openssl)) = (Network::of(2), OpenSsl::find()) else {
        return;
    };
    let keys = "secret = \"secret\"\nrotation = \"3s\"";
    let mut nodes = [1, 2].map(|number| Node::new(&network, number));
    nodes[0].secret("secret");
    nodes[0].give("secret", &nodes[1]);
    nodes.iter_mut().for_each(|node| node.start(keys));
    let [one, two] = nodes;
    let epoch = |node: &Node<'_>| node.status()["tickets"]["epoch"].as_u64();
    let until_next = |node: &Node<'_>| {
        let start = epoch(node);
        eventually("the next epoch begins", || epoch(node) > start);
    };
    let file = one.place.text("session.pem");
    // Create the ticket early in an epoch. Otherwise a slow machine could have two rotations between the two visits.
    eventually("a ticket of the previous epoch opens", || {
        until_next(&one);
        one.visit(&openssl, &["-tls1_3", "-sess_out", &file]);
        let made = epoch(&one);
        until_next(&two);
        let resumed = two.visit(&openssl, &["-tls1_3", "-sess_in", &file]) == "psk";
        resumed && epoch(&two) == made.map(|made| made + 1)
    });
    assert_eq!(one.status()["tickets"]["node"], 1);
    assert_eq!(secrets(&one), secrets(&two));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_secret_that_others_can_read_prevents_start_and_reload() {
    let (Some(network), Some(openssl)) = (Network::of(1), OpenSsl::find()) else {
        return;
    };
    let mut node = Node::new(&network, 1);
    node.secret("secret");
    let keys = "secret = \"secret\"";
    node.start(keys);
    let mode = |mode| {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(node.place.path("secret"), permissions).expect("chmod");
    };
    mode(0o644);
    assert!(!node.reload(keys));
    let errors = node.status()["reload"]["errors"].to_string();
    assert!(errors.contains("chmod 600"), "{errors}");
    assert!(crosses(&openssl, &node, &node), "the node works as before");
    let again = Becket::command(&node.place, &["run", "--config", "becket.toml"]);
    let run = finish(again, "");
    assert_eq!(run.code, 2, "{}", run.all());
    assert!(run.all().contains("chmod 600"), "{}", run.all());
    mode(0o600);
    assert!(node.reload(keys), "{}", node.becket().log());
}
