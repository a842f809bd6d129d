//! Nodes of a cluster share ordered certificates: each becket runs in a separate network namespace, with the authority on the hub.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use becket_e2e::{
    Capture, Client, Network, Node, Over, Pebble, Place, Trust, Verdict, becket_done, eventually,
};

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;

use crate::certificates_are_ordered::{NAME, trust};

/// Returns the certificate that a node serves to a client that trusts the authority.
fn served(node: &Node<'_>, trust: &Trust, name: &str) -> Option<Vec<u8>> {
    let (at, trust) = (node.web(), trust.clone());
    node.hub.within(|| {
        let client = Client::connect_as(at, &trust, name).ok()?;
        let chain = client.tls.peer_certificates()?;
        Some(chain.first()?.to_vec())
    })
}

/// Waits until the nodes serve one certificate other than `before`, and returns it.
#[track_caller]
pub(crate) fn share_one<'n>(
    nodes: &[&Node<'n>],
    trust: &Trust,
    before: Option<&Vec<u8>>,
) -> Vec<u8> {
    let mut found = None;
    eventually("the nodes serve one new certificate", || {
        let mut all = nodes.iter().map(|node| served(node, trust, NAME));
        found = all.next().flatten();
        found.is_some() && found.as_ref() != before && all.all(|other| other == found)
    });
    found.unwrap()
}

/// Connects to the nodes in turn until `stops`. Returns the number of connections, and panics at the first that fails.
fn load(nodes: &[(SocketAddr, &Node<'_>)], trust: &Trust, stops: &AtomicBool) -> u64 {
    let (at, hub) = (nodes.iter().map(|it| it.0), nodes[0].1.hub);
    let (at, count): (Vec<_>, _) = (at.collect(), AtomicU64::new(0));
    let trust = trust.clone();
    hub.within(|| {
        while !stops.load(Relaxed) {
            for at in &at {
                Client::connect_as(*at, &trust, NAME)
                    .unwrap_or_else(|error| panic!("{at}: {error}"));
                count.fetch_add(1, Relaxed);
            }
            // Leaves the processor to the orders, which must be faster than the certificates expire.
            thread::sleep(Duration::from_millis(20));
        }
    });
    count.into_inner()
}

/// Returns how often the companions of a node logged this event.
fn logged(node: &Node<'_>, event: &str) -> usize {
    node.becket().logs().matches(event).count()
}

/// Returns how often the companions of all nodes logged that a certificate was issued.
pub(crate) fn issued(nodes: &[&Node<'_>]) -> usize {
    let issued = nodes
        .iter()
        .map(|node| logged(node, "acme-certificate-issued"));
    issued.sum()
}

#[track_caller]
fn a_name_asked_at_two_nodes_is_ordered_once(all: &[&Node<'_>], trust: &Trust) {
    let shop = |node: &Node<'_>| served(node, trust, "a.shops.test");
    let before = issued(all);
    eventually("both nodes serve the certificate for the name", || {
        let found = [shop(all[1]), shop(all[2])];
        found[0].is_some() && found[0] == found[1]
    });
    assert_eq!(issued(all), before + 1);
    assert_eq!(shop(all[0]), None);
}

/// Starts an authority on the hub. It always asks the last node, which does not order if the nodes share.
fn authority(
    network: &Network,
    place: &Place,
    change: impl FnOnce(&mut Command) + Send,
) -> Option<Pebble> {
    let last = network.hosts.last().unwrap().address;
    let own = network.hub.address.into();
    let start = || Pebble::start_at(place, own, ((last, 443).into(), 1), change);
    network.hub.within(start)
}

/// Starts a node on each host, with these keys of `[acme]`.
fn cluster<'n>(network: &'n Network, pebble: &Pebble, keys: &str) -> Vec<Node<'n>> {
    let numbers = 1..=network.hosts.len();
    let mut nodes: Vec<Node<'_>> = numbers.map(|number| Node::new(network, number)).collect();
    nodes[0].secret("secret");
    for node in &nodes[1..] {
        nodes[0].give("secret", node);
    }
    let peers = peers(&nodes);
    let keys = format!("{keys}\n[[acme.certificate]]\nnames = [\"{NAME}\"]");
    for node in &mut nodes {
        let shape = node.shape.clone().certificates("").listener("acme = true");
        node.shape = shape.section(&pebble.section(&keys));
        node.replicate(&peers);
    }
    nodes
}

fn peers(nodes: &[Node<'_>]) -> String {
    Node::peers(&nodes.iter().map(Node::address).collect::<Vec<_>>())
}

/// Panics if a frame contains the key that a node uses now.
#[track_caller]
fn no_key_is_in_clear(capture: &Capture, node: &Node<'_>) {
    let bundle = node.place.read(&format!("acme/certificates/{NAME}.pem"));
    let (_, key) = bundle.split_once("PRIVATE KEY-----\n").unwrap();
    let line = key.lines().nth(1).unwrap();
    let der = PrivateKeyDer::from_pem_slice(bundle.as_bytes()).unwrap();
    // The private number follows 36 bytes that all P-256 keys have in common.
    let number = &der.secret_der()[36..68];
    assert_eq!(
        (capture.count(line.as_bytes()), capture.count(number)),
        (0, 0)
    );
    assert!(capture.count(b"BKT3") > 2, "the datagrams were seen");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn three_nodes_share_one_certificate_through_a_kill_and_a_partition() {
    let Some(network) = Network::of(3) else {
        return;
    };
    let capture = network.capture();
    let place = Place::new();
    let Some(pebble) = authority(&network, &place, |_| {}) else {
        return;
    };
    let trust = network.hub.within(|| trust(&pebble));
    let keys = "profile = \"shortlived\"\n[acme.on-demand]\nnames = [\"*.shops.test\"]";
    let mut nodes = cluster(&network, &pebble, keys);
    let all: Vec<&Node<'_>> = nodes.iter().collect();
    let mut latest = share_one(&all, &trust, None);
    assert_eq!(
        (issued(&all), logged(all[0], "acme-certificate-issued")),
        (1, 1)
    );
    assert!(
        all[2]
            .becket()
            .access()
            .iter()
            .any(|it| it["reason"] == "acme-challenge")
    );

    // A node that was unplugged gets the new certificate when it is back.
    network.unplug(1);
    becket_done(&all[0].place, &["acme", "renew", NAME]);
    latest = share_one(&[all[0], all[2]], &trust, Some(&latest));
    network.plug(1);
    assert_eq!(share_one(&all, &trust, None), latest);

    // Another node renews when the first is dead. The first gets the certificate at its next start.
    drop(all);
    let addresses = peers(&nodes);
    nodes[0].kill();
    becket_done(&nodes[1].place, &["acme", "renew", NAME]);
    latest = share_one(&[&nodes[1], &nodes[2]], &trust, Some(&latest));
    nodes[0].replicate(&addresses);
    let all: Vec<&Node<'_>> = nodes.iter().collect();
    assert_eq!(share_one(&all, &trust, None), latest);

    a_name_asked_at_two_nodes_is_ordered_once(&all, &trust);
    no_key_is_in_clear(&capture, all[0]);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn three_nodes_renew_a_certificate_by_themselves_under_load() {
    let Some(network) = Network::of(3) else {
        return;
    };
    let capture = network.capture();
    let place = Place::new();
    let pebble = authority(&network, &place, |command| {
        command.env("PEBBLE_VA_NOSLEEP", "1");
        // The short-lived profile has 60 seconds instead of six days, so that a slow machine has half a minute for a renewal. Two nodes
        // may order, because their turns are shorter than an order.
        let settings = place.read("pebble.json").replace("518400", "60");
        place.write("pebble.json", &settings);
    });
    let Some(mut pebble) = pebble else {
        return;
    };
    let proxy = network.hub.within(|| pebble.behind_proxy(&place));
    // Pebble suggests to renew at any time until the expiry. Without a suggestion, half of the lifetime decides.
    proxy.set(|_, answer| match answer {
        Some(answer) => Verdict::Answer(answer.replace("renewalInfo", "renewalNone")),
        None => Verdict::Pass,
    });
    let trust = network.hub.within(|| trust(&pebble));
    let nodes = cluster(&network, &pebble, "profile = \"shortlived\"");
    let all: Vec<&Node<'_>> = nodes.iter().collect();
    let mut latest = share_one(&all, &trust, None);
    let stops = AtomicBool::new(false);
    thread::scope(|scope| {
        let targets: Vec<_> = all.iter().map(|node| (node.web(), *node)).collect();
        let (trust, stops) = (&trust, &stops);
        let loaded = scope.spawn(move || load(&targets, trust, stops));
        let stop = Over(stops);
        for _ in 0..3 {
            latest = share_one(&all, trust, Some(&latest));
        }
        drop(stop);
        assert!(loaded.join().unwrap() > 3);
    });
    assert!(issued(&all) > 3);
    no_key_is_in_clear(&capture, all[0]);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn nodes_that_do_not_share_order_certificates_of_their_own() {
    let Some(network) = Network::of(2) else {
        return;
    };
    let place = Place::new();
    // The authority can ask one node only, and the other does not answer for it.
    let pebble = authority(&network, &place, |command| {
        command.env("PEBBLE_VA_ALWAYS_VALID", "1");
    });
    let Some(pebble) = pebble else {
        return;
    };
    let trust = network.hub.within(|| trust(&pebble));
    let nodes = cluster(&network, &pebble, "share = false");
    let each = || [&nodes[0], &nodes[1]].map(|node| served(node, &trust, NAME));
    eventually("each node serves a certificate", || {
        each().iter().all(Option::is_some)
    });
    nodes.iter().for_each(|node| node.has_peers(1));
    let mut before = each();
    assert_ne!(before[0], before[1]);
    for (index, node) in nodes.iter().enumerate() {
        becket_done(&node.place, &["acme", "renew", NAME]);
        eventually("the node serves a new certificate", || {
            each()[index] != before[index]
        });
        let now = each();
        assert_eq!(now[1 - index], before[1 - index]);
        before = now;
    }
    for node in &nodes {
        let events = ["acme-certificate-issued", "acme-certificate-received"];
        assert_eq!(events.map(|it| logged(node, it)), [2, 0]);
    }
}
