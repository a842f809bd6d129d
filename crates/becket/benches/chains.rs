//! Measures the CPU time for rejecting the certificate chain that is most expensive to verify. A
//! worker or the control thread spends this time.
//!
//! Run with `cargo bench -p becket --bench chains`. webpki makes `MOST_STEPS` steps for this chain,
//! and each step parses the whole chain. The argument `filler` enlarges the chain up to the default
//! of `limits.certificate-chain`.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

#[path = "../tests/connection/tangle.rs"]
#[expect(dead_code, reason = "no handshake needs the key")]
mod tangle;

use std::sync::Arc;

use becket_config::choices::ClientCertificates;
use becket_config::policy::Policy;
use becket_config::process::LimitsSection;
use becket_tls::verifier;
use divan::Bencher;
use rustls::RootCertStore;
use rustls::pki_types::UnixTime;

use crate::tangle::{WORST, tangle};

fn main() {
    divan::main();
}

#[divan::bench(args = [0, 140])]
fn refuse_the_worst(bencher: Bencher<'_, '_>, filler: usize) {
    let mut roots = RootCertStore::empty();
    for name in ["A", "B", "C"] {
        roots
            .add(tangle(&[(name, name)], 0).chain[1].clone())
            .unwrap();
    }
    let policy = Policy {
        client_certificates: ClientCertificates::Required,
        ..Policy::default()
    };
    let limits = LimitsSection::default();
    let verifier =
        verifier::of_clients(&policy, (&Arc::new(roots), Vec::new()), &[], limits).unwrap();
    let worst = tangle(&WORST, filler);
    let bytes: usize = worst.chain.iter().map(|one| one.len()).sum();
    assert!(bytes <= MOST_BYTES, "{bytes}");
    let (leaf, intermediates) = worst.chain.split_first().unwrap();
    let now = UnixTime::now();
    bencher.bench(|| {
        verifier
            .verify_client_cert(leaf, intermediates, now)
            .unwrap_err()
    });
}

/// Default of `limits.certificate-chain`.
const MOST_BYTES: usize = 16 * 1024;
