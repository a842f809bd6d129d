//! Hosts without peers share ordered certificates through Redis. Each becket runs in a separate network namespace, with the authority
//! and the store on the hub.

use std::fs;

use becket_e2e::{Network, Node, Pebble, Place, RedisServer, becket_done, eventually};

use crate::certificates_are_ordered::{NAME, trust};
use crate::certificates_are_shared::{issued, share_one};

#[test]
#[ignore = "slow: .ci/run test"]
fn hosts_with_a_store_order_a_certificate_once_and_answer_each_others_challenges() {
    let Some(network) = Network::of(3) else {
        return;
    };
    let place = Place::new();
    let mut nodes: Vec<Node<'_>> = (1..=3).map(|number| Node::new(&network, number)).collect();
    let hub = &network.hub;
    let at = (hub.address, 6379).into();
    let open = ["--protected-mode", "no"];
    let store = hub.within(|| RedisServer::start_at(&place, at, &open));
    // The authority always asks the third host, whichever orders.
    let asked = (nodes[2].web(), 1);
    let pebble = hub.within(|| Pebble::start_at(&place, hub.address.into(), asked, |_| {}));
    let (Some(store), Some(pebble)) = (store, pebble) else {
        return;
    };
    let trust = hub.within(|| trust(&pebble));
    nodes[0].secret("secret");
    nodes[0].give("secret", &nodes[1]);
    nodes[0].give("secret", &nodes[2]);
    let certificate = format!("[[acme.certificate]]\nnames = [\"{NAME}\"]");
    let keys = format!("secret = \"secret\"\nstore = \"redis://{at}\"");
    for node in &mut nodes {
        let shape = node.shape.clone().certificates("").listener("acme = true");
        node.shape = shape.section(&pebble.section(&certificate));
        node.start(&keys);
    }
    let all: Vec<&Node<'_>> = nodes.iter().collect();
    let first = share_one(&all, &trust, None);
    assert_eq!(issued(&all), 1);
    becket_done(&all[1].place, &["acme", "renew", NAME]);
    let second = share_one(&all, &trust, Some(&first));
    assert_eq!(issued(&all), 2);

    // A value of another writer is no certificate, and hosts replace it.
    let ask = |command: &[&str]| hub.within(|| store.ask(command));
    let keys_of = || hub.within(|| store.keys());
    let stored = keys_of();
    assert!(stored.len() >= 3, "{stored:?}");
    for key in &stored {
        ask(&["SET", key, "forged"]);
    }
    eventually("the bundle is in the store again", || {
        let restored = stored.iter().filter(|key| ask(&["GET", key]).len() > 1000);
        restored.count() == 1
    });
    assert!(ask(&["SAVE"]).contains("OK"));
    let dump = fs::read(place.path("dump.rdb")).unwrap();
    assert!(dump.windows(7).any(|part| part == b"becket:"));
    for text in ["PRIVATE KEY", NAME] {
        let has = dump.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(!has, "{text}");
    }

    // A pod that starts without files takes the bundle from the store.
    drop(all);
    nodes[2].kill();
    fs::remove_dir_all(nodes[2].place.path("acme")).unwrap();
    nodes[2].start(&keys);
    let all: Vec<&Node<'_>> = nodes.iter().collect();
    assert_eq!(share_one(&all, &trust, Some(&first)), second);
    assert_eq!(issued(&all), 2);
}
