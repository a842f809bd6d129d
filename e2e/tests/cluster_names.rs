//! Peers with host names are followed when their address changes, and keep their address when the lookup fails. The system's
//! resolver uses a DNS server of the test.

use std::net::IpAddr;
use std::process::Command;

use becket_e2e::{Answer, Dns, Network, Node, OpenSsl, becket_program, eventually, finish};
use serde_json::Value;

const PEER: &str = "peers = [\"peer.test:7443\"]\nresolve-interval = \"1s\"";

/// Failures of a lookup, and a word in each error message.
const FAILURES: [(Answer, &str); 4] = [
    (Answer::NoSuchName, "not known"),
    (Answer::Addresses(Vec::new()), "no address"),
    (Answer::Failure, "emporary failure"),
    (Answer::Silence, "emporary failure"),
];

/// Prepares nodes with a shared secret. The first node uses a DNS server on the hub.
fn nodes(network: &Network, count: usize) -> Option<(Dns, Vec<Node<'_>>)> {
    let dns = Dns::on(&network.hub);
    let mut all: Vec<Node<'_>> = (1..=count).map(|n| Node::new(network, n)).collect();
    all[0].secret("secret");
    all[1..].iter().for_each(|node| all[0].give("secret", node));
    all[0].launcher = dns.launcher(&all[0].place)?;
    Some((dns, all))
}

/// Returns the status of the only name in a node's list.
fn name(node: &Node<'_>) -> Value {
    node.status()["cluster"]["names"][0].clone()
}

fn unresolved(node: &Node<'_>) -> u64 {
    let metrics = node.metrics();
    metrics.sum("becket_cluster_names_unresolved", &[]) as u64
}

/// Returns the output of `becket status`.
fn page(node: &Node<'_>) -> String {
    let admin = node.becket().admin.to_string();
    let mut command = Command::new(becket_program());
    command.args(["status", "--admin", &admin]);
    node.host.within(|| finish(command, "")).stdout
}

/// Checks that a session created on one node resumes by ID on the other.
#[track_caller]
fn replicates(openssl: &OpenSsl, from: &Node<'_>, to: &Node<'_>) {
    let (file, held) = (from.place.text("session.pem"), to.holds());
    let flags = ["-tls1_2", "-no_ticket"];
    let make = [&flags[..], &["-sess_out", &file]].concat();
    assert_eq!(from.visit(openssl, &make), "full");
    eventually("the node has the session", || to.holds() > held);
    let resume = [&flags[..], &["-sess_in", &file]].concat();
    assert_eq!(to.visit(openssl, &resume), "id");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_peer_is_found_when_its_name_resolves_and_followed_when_it_moves() {
    let (Some(network), Some(openssl)) = (Network::of(3), OpenSsl::find()) else {
        return;
    };
    let Some((dns, mut nodes)) = nodes(&network, 3) else {
        return;
    };
    // Only this node has a list of peers.
    nodes[0].replicate(PEER);
    let started = nodes[0].becket().pid();
    eventually("the status shows that the name does not resolve", || {
        page(&nodes[0]).contains("peer.test:7443: failed to lookup")
    });
    assert_eq!(unresolved(&nodes[0]), 1);
    nodes[1].replicate("");
    dns.points("peer.test", &[nodes[1].host.address.into()]);
    nodes[0].has_peers(1);
    eventually("the name resolves", || {
        unresolved(&nodes[0]) == 0 && name(&nodes[0])["problem"] == Value::Null
    });
    replicates(&openssl, &nodes[0], &nodes[1]);
    // Move the node to another host.
    nodes[1].kill();
    nodes[2].number = 2;
    nodes[2].replicate("");
    dns.points("peer.test", &[nodes[2].host.address.into()]);
    let new = nodes[2].address().to_string();
    eventually("the new address is a live peer", || {
        let peers = nodes[0].status()["cluster"]["peers"].clone();
        let mut peers = peers.as_array().into_iter().flatten();
        peers.any(|peer| peer["state"] == "live" && peer["address"] == *new)
    });
    assert_eq!(name(&nodes[0])["addresses"], Value::from(vec![new]));
    replicates(&openssl, &nodes[0], &nodes[2]);
    replicates(&openssl, &nodes[2], &nodes[0]);
    assert_eq!(nodes[0].becket().pid(), started);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_name_that_no_longer_resolves_keeps_its_address_and_is_reported() {
    let (Some(network), Some(openssl)) = (Network::of(2), OpenSsl::find()) else {
        return;
    };
    let Some((dns, mut nodes)) = nodes(&network, 2) else {
        return;
    };
    let address = [IpAddr::from(nodes[1].host.address)];
    dns.points("peer.test", &address);
    nodes
        .iter_mut()
        .zip([PEER, ""])
        .for_each(|(node, keys)| node.replicate(keys));
    nodes[0].has_peers(1);
    let kept = Value::from(vec![nodes[1].address().to_string()]);
    for (failure, word) in FAILURES {
        dns.set("peer.test", failure.clone());
        eventually("the status shows the problem of the name", || {
            let problem = name(&nodes[0])["problem"].clone();
            problem
                .as_str()
                .is_some_and(|problem| problem.contains(word))
        });
        assert_eq!(
            (unresolved(&nodes[0]), &name(&nodes[0])["addresses"]),
            (1, &kept)
        );
        let faults = nodes[0].status()["cluster"]["faults"].to_string();
        assert!(
            faults.contains("1 addresses are kept"),
            "{failure:?}: {faults}"
        );
        // A reload does not change this, although its lookup also fails.
        let keys = nodes[0].replication(PEER);
        assert!(nodes[0].reload(&keys), "{}", nodes[0].becket().log());
        assert_eq!(name(&nodes[0])["addresses"], kept);
        nodes[0].has_peers(1);
        dns.points("peer.test", &address);
        eventually("the name resolves again", || {
            name(&nodes[0])["problem"].is_null()
        });
    }
    // The kept address is used: a restarted peer without a list of peers is found at this address.
    dns.set("peer.test", Answer::NoSuchName);
    eventually("the name does not resolve", || unresolved(&nodes[0]) == 1);
    nodes[1].kill();
    nodes[1].replicate("");
    nodes[1].has_peers(1);
    replicates(&openssl, &nodes[0], &nodes[1]);
}
