//! PEM files: certificates and keys are parsed, or rejected with a reason.

use becket_keys::facts::{certificate, names_of, not_after};
use becket_keys::pem::Pem;
use becket_keys::presented::Presented;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;

/// Checks one input. Returns how many certificates and keys in it are usable.
///
/// # Panics
///
/// If a rejection has no reason.
pub fn run(data: &[u8]) -> usize {
    let pem = match Pem::parse(data) {
        Ok(pem) => pem,
        Err(reason) => {
            assert!(!reason.to_string().is_empty(), "a rejection has a reason");
            return 0;
        }
    };
    for der in &pem.certificates {
        // `becket survey` parses certificates of servers in this way.
        let key = certificate(der).and_then(|certificate| Presented::of(&certificate).key());
        drop((key, not_after(der)));
    }
    let certificates = pem.certificates.iter().filter_map(|der| certificate(der));
    let names = certificates.map(|certificate| names_of(&certificate));
    let keys = pem.keys.iter().map(|key| any_supported_type(key));
    names.count() + keys.filter(Result::is_ok).count()
}
