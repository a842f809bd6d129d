//! Cost of finding the certificate for a server name among 100 000, and for an unknown name.
//!
//! Run with `cargo bench -p becket-keys --bench lookup`. As a test it has 1000 names.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use becket_config::choices::DefaultCertificate;
use becket_keys::certificates::{CertificateMap, Listed};
use becket_keys::facts;
use becket_keys::issuers::IssuerTable;
use becket_keys::loaded::{Extras, HeldKey, Loaded, LoadedParts};
use becket_keys::signing::Offload;
use becket_keys::stored_key::{StoredKey, StoredKind};
use divan::Bencher;
use rcgen::{CertificateParams, KeyPair};
use rustls_pki_types::PrivateKeyDer;

fn main() {
    divan::main();
}

const COUNT: usize = if cfg!(debug_assertions) {
    1000
} else {
    100_000
};

fn name(number: usize) -> String {
    format!("site-{number:06}.example.org")
}

static MAP: LazyLock<CertificateMap> = LazyLock::new(|| {
    let issuers = IssuerTable::default();
    let none = issuers.find(&[], b"").unwrap();
    let pair = KeyPair::generate().unwrap();
    let key = PrivateKeyDer::Pkcs8(pair.serialize_der().into());
    let loaded = |number| {
        let params = CertificateParams::new([name(number)]).unwrap();
        let signed = params.self_signed(&pair).unwrap();
        let parsed = facts::certificate(signed.der()).unwrap();
        let file = format!("/certificates/{}.pem", name(number));
        let parts = LoadedParts {
            leaf: signed.der(),
            parsed: &parsed,
            shared: issuers.in_folder(Path::new(&file), &none),
            key: HeldKey::Stored(StoredKey::new(StoredKind::P256, &key)),
            offload: Offload::Pointless,
            file: Path::new(&file),
        };
        Arc::new(Loaded::new(parts, None, Extras::default()))
    };
    let listed = (0..COUNT).map(|number| Listed {
        entry: 0,
        loaded: loaded(number),
    });
    let listed = listed.map(|listed| (listed, None)).collect();
    CertificateMap::of(listed, DefaultCertificate::Last).0
});

/// Looks for names in a random order, so that caches of the processor help as little as with real
/// clients.
fn look(bencher: Bencher<'_, '_>, suffix: &str) {
    let mut random = fastrand::Rng::with_seed(1);
    let names: Vec<String> = (0..COUNT)
        .map(|_| name(random.usize(0..COUNT)) + suffix)
        .collect();
    LazyLock::force(&MAP);
    let mut next = names.iter().cycle();
    bencher.bench_local(|| MAP.keys_for(next.next().map(|it| &**it)).chains().len());
}

#[divan::bench(sample_count = 1000, sample_size = 100)]
fn known(bencher: Bencher<'_, '_>) {
    look(bencher, "");
}

#[divan::bench(sample_count = 1000, sample_size = 100)]
fn unknown(bencher: Bencher<'_, '_>) {
    look(bencher, "x");
}
