//! Nodes of a cluster share ordered certificates: each becket runs in a separate network namespace, with the authority on the hub.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use becket_e2e::{Client, Network, Node, Pebble, Place, Trust, becket_done, eventually};

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
        }
    });
    count.into_inner()
}

/// Ends the load, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
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

#[test]
#[ignore = "slow: .ci/run test"]
fn three_nodes_renew_one_certificate_under_load_through_a_kill_and_a_partition() {
    let Some(network) = Network::of(3) else {
        return;
    };
    let capture = network.capture();
    let place = Place::new();
    let mut nodes: Vec<Node<'_>> = (1..=3).map(|number| Node::new(&network, number)).collect();
    // The authority always asks the third node, which does not order.
    let asked = nodes[2].web();
    let pebble = network
        .hub
        .within(|| Pebble::start_at(&place, network.hub.address.into(), (asked, 1), |_| {}));
    let Some(pebble) = pebble else {
        return;
    };
    let trust = network.hub.within(|| trust(&pebble));
    let addresses: Vec<SocketAddr> = nodes.iter().map(Node::address).collect();
    let peers = Node::peers(&addresses);
    nodes[0].secret("secret");
    nodes[0].give("secret", &nodes[1]);
    nodes[0].give("secret", &nodes[2]);
    let certificate = format!(
        "profile = \"shortlived\"\n[acme.on-demand]\nnames = [\"*.shops.test\"]\n[[acme.certificate]]\nnames = [\"{NAME}\"]"
    );
    for node in &mut nodes {
        let shape = node.shape.clone().certificates("").listener("acme = true");
        node.shape = shape.section(&pebble.section(&certificate));
        node.replicate(&peers);
    }
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

    // Three renewals under load.
    let stops = AtomicBool::new(false);
    thread::scope(|scope| {
        let targets: Vec<_> = all.iter().map(|node| (node.web(), *node)).collect();
        let (trust, stops) = (&trust, &stops);
        let loaded = scope.spawn(move || load(&targets, trust, stops));
        let stop = Stop(stops);
        for _ in 0..3 {
            becket_done(&all[0].place, &["acme", "renew", NAME]);
            latest = share_one(&all, trust, Some(&latest));
        }
        drop(stop);
        assert!(loaded.join().unwrap() > 3);
    });
    assert_eq!(issued(&all), 4);

    // A node that was unplugged gets the new certificate when it is back.
    network.unplug(1);
    becket_done(&all[0].place, &["acme", "renew", NAME]);
    latest = share_one(&[all[0], all[2]], &trust, Some(&latest));
    network.plug(1);
    assert_eq!(share_one(&all, &trust, None), latest);

    // Another node renews when the first is dead. The first gets the certificate at its next start.
    drop(all);
    nodes[0].kill();
    becket_done(&nodes[1].place, &["acme", "renew", NAME]);
    latest = share_one(&[&nodes[1], &nodes[2]], &trust, Some(&latest));
    nodes[0].replicate(&peers);
    let all: Vec<&Node<'_>> = nodes.iter().collect();
    assert_eq!(share_one(&all, &trust, None), latest);

    a_name_asked_at_two_nodes_is_ordered_once(&all, &trust);

    // No key was sent in clear.
    let bundle = all[0].place.read(&format!("acme/certificates/{NAME}.pem"));
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
