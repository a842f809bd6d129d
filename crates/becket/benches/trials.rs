//! What the trial of a policy costs a worker, for each client.
//!
//! Run with `cargo bench -p becket --bench trials`. `look` is what is done with a hello anyway. With `threads = 2` two workers count in
//! one trial. One that fails asks for a name that mostly has no row yet; its fingerprint is in the figure, and alone beside it. One that
//! shows a certificate might have failed, so its hello is kept until it does.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use becket_config::choices::ClientCertificates;
use becket_config::policy::Policy;
use becket_config::suites::Version;
use becket_proto::client_hello::{ClientHello, Peek, peek};
use becket_tls::ja4::Ja4;
use becket_tls::trial::{Judged, Trial, Trials, TriedClient};
use divan::Bencher;
use rustls::SignatureAlgorithm;
use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;

fn main() {
    divan::main();
}

#[derive(Clone, Copy)]
struct Sample(&'static str, &'static [u8]);

impl std::fmt::Display for Sample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

const CURL: Sample = Sample(
    "curl, TLS 1.3",
    include_bytes!("../../proto/testdata/client_hello/curl-h2.bin"),
);
const OLD: Sample = Sample(
    "openssl, TLS 1.2",
    include_bytes!("../../proto/testdata/client_hello/openssl-tls12.bin"),
);

fn hello(sample: Sample) -> ClientHello<'static> {
    match peek(sample.1) {
        Peek::Hello(hello) => hello,
        other => panic!("{other:?}"),
    }
}

fn trial(versions: &[Version]) -> Arc<Trial> {
    let tried = Policy {
        versions: versions.to_vec(),
        ..Policy::default()
    };
    Trials::default().of(&tried, ALL_CIPHER_SUITES.to_vec())
}

fn judge(trial: &Arc<Trial>, hello: &ClientHello<'_>) -> Judged {
    trial.judge(black_box(hello), |suite| {
        suite.usable_for_signature_algorithm(SignatureAlgorithm::ECDSA)
    })
}

fn client(name: &str) -> TriedClient<'_> {
    TriedClient {
        name: Some(name),
        address: [192, 0, 2, 7].into(),
    }
}

#[divan::bench(args = [CURL, OLD])]
fn look(bencher: Bencher<'_, '_>, sample: Sample) {
    bencher.bench(|| hello(black_box(sample)).wire_len());
}

#[divan::bench(args = [CURL, OLD], threads = [1, 2])]
fn one_that_passes(bencher: Bencher<'_, '_>, sample: Sample) {
    let trial = trial(&[Version::Tls12, Version::Tls13]);
    let hello = hello(sample);
    let fails = || panic!("it fails");
    bencher.bench(|| judge(&trial, &hello).count(false, fails, NOW));
}

#[divan::bench(args = [CURL, OLD], threads = [1, 2])]
fn one_that_shows_a_certificate(bencher: Bencher<'_, '_>, sample: Sample) {
    let tried = Policy {
        client_certificates: ClientCertificates::Required,
        ..Policy::default()
    };
    let trial = Trials::default().of(&tried, ALL_CIPHER_SUITES.to_vec());
    let hello = hello(sample);
    let fails = || panic!("it fails");
    bencher.bench(|| judge(&trial, &hello).count(true, fails, NOW));
}

#[divan::bench(threads = [1, 2])]
fn one_that_fails(bencher: Bencher<'_, '_>) {
    let trial = trial(&[Version::Tls13]);
    let hello = hello(OLD);
    let names: Vec<_> = (0..4096).map(|it| format!("{it}.example.org")).collect();
    let any = || &names[fastrand::usize(..names.len())];
    let bencher = bencher.with_inputs(any);
    bencher.bench_values(|name| judge(&trial, &hello).count(false, || client(name), NOW));
}

#[divan::bench(args = [CURL, OLD])]
fn fingerprint(bencher: Bencher<'_, '_>, sample: Sample) {
    let hello = hello(sample);
    bencher.bench(|| Ja4::of(black_box(&hello)));
}

const NOW: Duration = Duration::from_secs(1);
