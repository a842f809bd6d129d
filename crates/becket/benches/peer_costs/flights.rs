//! Measures what becket sends to a client in its first flight, and the CPU time for it, with each
//! kind of key and with compressed certificates.

use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

use rcgen::{CertificateParams, Issuer, KeyPair, SignatureAlgorithm};
use rustls::CertificateCompressionAlgorithm;
use rustls::compress::{CertDecompressor, DecompressionFailed};
use rustls::crypto::aws_lc_rs::kx_group::X25519;

use crate::cases::Cases;
use crate::clients::{self, answer};
use crate::files::params;
use crate::meter::{Who, figure};

/// Listeners, each with the algorithm of its leaf and of the intermediate certificate.
pub(crate) const KINDS: [(&str, &SignatureAlgorithm); 5] = [
    ("P-256", &rcgen::PKCS_ECDSA_P256_SHA256),
    ("RSA-2048", &rcgen::PKCS_RSA_SHA256),
    ("ML-DSA-44", &rcgen::PKCS_ML_DSA_44),
    ("ML-DSA-65", &rcgen::PKCS_ML_DSA_65),
    ("ML-DSA-87", &rcgen::PKCS_ML_DSA_87),
];

/// Writes a file for each kind: a leaf, an intermediate certificate and the key.
pub(crate) fn write(folder: &Path) -> io::Result<()> {
    for (kind, algorithm) in KINDS {
        let key = || KeyPair::generate_for(algorithm).expect("a key");
        let root = Issuer::new(params("root", true), key());
        let (middle, own) = (key(), key());
        let above = params("intermediate", true);
        let above_pem = above
            .signed_by(&middle, &root)
            .expect("a certificate")
            .pem();
        let leaf: CertificateParams = params("a.test", false);
        let leaf = leaf.signed_by(&own, &Issuer::new(above, middle));
        let leaf = leaf.expect("a certificate").pem();
        let text = leaf + &above_pem + &own.serialize_pem();
        fs::write(folder.join(format!("{kind}.pem")), text)?;
    }
    Ok(())
}

/// Tells becket that the client accepts an encoding. The client is never asked to decode, because it
/// only sends a hello.
#[derive(Debug)]
struct Accepted(CertificateCompressionAlgorithm);

impl CertDecompressor for Accepted {
    fn decompress(&self, _: &[u8], _: &mut [u8]) -> Result<(), DecompressionFailed> {
        Err(DecompressionFailed)
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        self.0
    }
}

static ZLIB: Accepted = Accepted(CertificateCompressionAlgorithm::Zlib);
static BROTLI: Accepted = Accepted(CertificateCompressionAlgorithm::Brotli);

impl Cases {
    /// Returns a table in Markdown.
    pub(crate) fn flights(&self) -> String {
        let encodings: [(&str, &[&'static dyn CertDecompressor]); 3] =
            [("plain", &[]), ("zlib", &[&ZLIB]), ("brotli", &[&BROTLI])];
        let mut asked = Vec::new();
        for (kind, _) in KINDS {
            // Becket does not compress chains above 8 KiB.
            let most = if kind.starts_with("ML-DSA") {
                1
            } else {
                encodings.len()
            };
            for (encoding, accepted) in &encodings[..most] {
                let client = clients::Kind::new(&self.identities.roots, X25519, None);
                let hello = client.accepting(accepted).first_flight(0, 0);
                asked.push((kind, encoding, self.places.of(kind), hello));
            }
        }
        let found = self.meter.in_turns(Who::Signers, asked.len(), |index| {
            let (_, _, to, hello) = &asked[index];
            answer(*to, hello)
        });
        let mut table =
            "| key | certificates | flight, bytes | CPU, us |\n|---|---|---|---|\n".to_owned();
        for ((kind, encoding, ..), (bytes, nanos)) in asked.iter().zip(found) {
            let micros = figure(nanos / 1e3);
            // Writing to a string does not fail.
            let _ok = writeln!(table, "| {kind} | {encoding} | {bytes:.0} | {micros} |");
        }
        table
    }
}
