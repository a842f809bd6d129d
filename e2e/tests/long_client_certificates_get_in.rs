//! A client whose certificate is so long that no hello could carry it back gets in each time: it is given no ticket, and
//! makes full handshakes, or resumes by ID.

use becket_e2e::{Backend, Becket, Client, Place, Shape, Trust};
use rustls::version::{TLS12, TLS13};

const POLICY: &str =
    "[[policy]]\nname = \"web\"\nclient-certificates = \"required\"\nclient-ca = \"ca.pem\"\n";

#[test]
#[ignore = "slow: .ci/run test"]
fn no_ticket_locks_its_client_out() {
    let place = Place::new();
    let backend = Backend::http("inside");
    let becket = Becket::start(&place, &Shape::new(backend.address).section(POLICY));
    // Half of `limits.client-hello` is 8 KiB, `limits.certificate-chain` is 16.
    let own = place.authority.issue_large(&["alice"], 12 * 1024);
    let by = |version| Trust::with(&place, &[version], Some(&own));
    let ways = [
        ("full", by(&TLS13)),
        ("full", by(&TLS12)),
        ("id", by(&TLS12).without_tickets()),
    ];
    for (again, trust) in ways {
        for expected in ["full", again, again] {
            let mut client = Client::connect(becket.web, &trust).unwrap();
            client.ask(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            drop(client);
            let line = becket.next_access();
            assert_eq!(line["handshake"], expected);
            assert_eq!(line["subject"], "CN=alice");
        }
    }
    assert_eq!(
        becket.metrics().sum("becket_tickets_withheld_total", &[]),
        6.0
    );
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_chain_above_the_limit_is_told_so_by_alert() {
    let place = Place::new();
    let backend = Backend::http("inside");
    let becket = Becket::start(&place, &Shape::new(backend.address).section(POLICY));
    for bytes in [17 * 1024, 50 * 1024] {
        let own = place.authority.issue_large(&["alice"], bytes);
        for version in [&TLS12, &TLS13] {
            let trust = Trust::with(&place, &[version], Some(&own));
            let refused = Client::connect(becket.web, &trust)
                .and_then(|mut client| client.ask(b"GET / HTTP/1.0\r\n\r\n"))
                .unwrap_err()
                .to_string();
            assert!(refused.contains("CertificateUnknown"), "{refused}");
            assert_eq!(becket.next_reason(), "client-chain");
        }
    }
    assert_eq!(backend.served(), 0);
}
