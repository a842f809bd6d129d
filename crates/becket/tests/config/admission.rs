//! Tests of `[admission]`, and of the networks of listeners.

use std::num::NonZeroU32;

use becket_config::process::Admission;
use becket_proto::admission::{Prefixes, Rate, Share};

use crate::common::{Folder, site};

fn prepared(more: &str) -> Admission {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let text = site("['a.pem']") + more;
    let prepared = folder.prepare(&text);
    prepared
        .unwrap_or_else(|rejected| panic!("{rejected}"))
        .config
        .file
        .admission
        .clone()
}

fn rate(per_second: u32, burst: u32) -> Option<Rate> {
    Some(Rate::new(
        NonZeroU32::new(per_second)?,
        NonZeroU32::new(burst)?,
    ))
}

#[test]
fn the_default_burst_equals_the_rate_of_one_second() {
    let admission = prepared(
        "[admission]\nfull-handshakes-per-second = 100\nsource-full-handshakes-per-second = 10\n\
         source-burst = 30\nsource-full-handshakes-in-flight = 5\nconnections-per-source = 7\n\
         half-open-per-source = 8\n\
         prefix-v4 = 24\nprefix-v6 = 48\nsources = 1000\n\
         name = { full-handshakes-per-second = 20, burst = 40 }\n\
         ja4 = { full-handshakes-per-second = 7, refuse = ['T13d1516h2_8daaf6152771_e5627efa2ab1'] }\n",
    );
    let all = Share {
        rate: rate(100, 100),
        in_flight: None,
    };
    let source = Share {
        rate: rate(10, 30),
        in_flight: Some(5),
    };
    assert_eq!((admission.all(), admission.source()), (all, source));
    let rates = (admission.name().rate, admission.ja4().rate);
    assert_eq!(rates, (rate(20, 40), rate(7, 7)));
    let refused = admission.ja4.refuse[0].0.as_str();
    assert_eq!(refused, "t13d1516h2_8daaf6152771_e5627efa2ab1");
    assert_eq!(admission.prefixes(), Prefixes { v4: 24, v6: 48 });
    assert!(admission.limits_handshakes());
}

#[test]
fn every_fault_is_reported_with_its_key_path() {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let site = site("['a.pem']\nallow = ['192.0.2.1/24', '::/0']\ndeny = ['here']");
    let text = site
        + "[admission]\nfull-handshakes-per-second = 0\nsource-burst = 5\n\
           connections-per-source = 10000001\nhalf-open-per-source = 0\nprefix-v4 = 33\nprefix-v6 = 129\nsources = 0\n\
           name = { queue-share = 101, burst = 3 }\nja4 = { refuse = ['t13d', 'q13d1516h2_8daaf6152771_e5627efa2ab1'] }\n";
    folder.refuses(&text, &[
        "admission.full-handshakes-per-second = 0: not in range; accepted: 1 to 10000000",
        "admission.source-burst = 5: given, but admission.source-full-handshakes-per-second is not set",
        "admission.connections-per-source = 10000001: not in range",
        "admission.half-open-per-source = 0: not in range; accepted: 1 to 10000000",
        "admission.prefix-v4 = 33: not in range; accepted: 0 to 32",
        "admission.prefix-v6 = 129: not in range; accepted: 0 to 128",
        "admission.sources = 0: not in range",
        "admission.name.queue-share = 101: not in range; accepted: 1 to 100",
        "admission.name.burst = 3: given, but admission.name.full-handshakes-per-second is not set",
        "admission.ja4.refuse[0] = \"t13d\": not a fingerprint of TLS over TCP; accepted: a JA4 fingerprint such as",
        "admission.ja4.refuse[1] = \"q13d1516h2_8daaf6152771_e5627efa2ab1\": not a fingerprint",
        "listener[web].allow[0] = \"192.0.2.1/24\": host bits are set; the network is 192.0.2.0/24",
        "listener[web].deny[0] = \"here\": not an IP address; accepted: an address, or a network",
    ]);
}
