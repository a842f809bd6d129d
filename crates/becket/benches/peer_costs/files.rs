//! Generates the bench's certificates and keys, and writes the files that becket loads.

use std::fs;
use std::path::Path;

use becket_tls::secret::{base64, file};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rcgen::{PKCS_RSA_SHA256, RsaKeySize};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{RootCertStore, ServerConfig};

use crate::clients::Identity;
use crate::flights;
use crate::tangle::{WORST, tangle};

pub(crate) struct Identities {
    pub(crate) roots: RootCertStore,
    /// Configuration of a TLS server whose certificate becket trusts.
    pub(crate) server: ServerConfig,
    /// Chain of a leaf and two intermediate certificates.
    pub(crate) usual: Identity,
    /// Chain that costs webpki the most CPU time.
    pub(crate) worst: Identity,
}

pub(crate) fn write(folder: &Path) -> Identities {
    let mut roots = RootCertStore::empty();
    let rsa = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048);
    let p256 = KeyPair::generate().expect("a key");
    for (name, key) in [("rsa.pem", &rsa.expect("a key")), ("p256.pem", &p256)] {
        let made = params("a.test", false)
            .self_signed(key)
            .expect("a certificate");
        roots.add(made.der().clone()).expect("a certificate");
        let pem = made.pem() + &key.serialize_pem();
        fs::write(folder.join(name), pem).expect("a file");
    }
    flights::write(folder).expect("files");
    fs::create_dir(folder.join("www")).expect("a folder");
    fs::write(folder.join("www/present"), [7; 1024]).expect("a file");
    file::create(&folder.join("secret"), &base64::encode(&[7; 32])).expect("a file");
    let (usual, authority) = usual();
    let strays = ["A", "B", "C"].map(|name| tangle(&[(name, name)], 0).chain.remove(1));
    let pem = strays
        .iter()
        .fold(authority, |pem, stray| pem + &pem_of(stray));
    fs::write(folder.join("ca.pem"), pem).expect("a file");
    let own = roots_of(folder, "p256.pem");
    let server = ServerConfig::builder().with_no_client_auth();
    let server = server.with_single_cert(own, private(&p256));
    let worst = tangle(&WORST, FILLER);
    Identities {
        roots,
        server: server.expect("a key that fits"),
        usual,
        worst: (worst.chain, worst.key),
    }
}

fn roots_of(folder: &Path, name: &str) -> Vec<CertificateDer<'static>> {
    use rustls::pki_types::pem::PemObject;
    let certificate = CertificateDer::from_pem_file(folder.join(name));
    vec![certificate.expect("a certificate")]
}

/// Returns a chain of a leaf and two intermediates, and the root certificate in PEM.
fn usual() -> (Identity, String) {
    let root = KeyPair::generate().expect("a key");
    let top = params("root", true);
    let pem = top.self_signed(&root).expect("a certificate").pem();
    let mut issuer = Issuer::new(top, root);
    let mut chain = Vec::new();
    for name in ["upper", "lower"] {
        let (key, params) = (KeyPair::generate().expect("a key"), params(name, true));
        let made = params.signed_by(&key, &issuer).expect("a certificate");
        chain.insert(0, made.der().clone());
        issuer = Issuer::new(params, key);
    }
    let key = KeyPair::generate().expect("a key");
    let leaf = params("leaf", false).signed_by(&key, &issuer);
    chain.insert(0, leaf.expect("a certificate").der().clone());
    ((chain, private(&key)), pem)
}

pub(crate) fn params(name: &str, is_authority: bool) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    if is_authority {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    params
}

fn private(key: &KeyPair) -> PrivateKeyDer<'static> {
    PrivateKeyDer::try_from(key.serialize_der()).expect("PKCS#8")
}

/// Encodes a certificate in PEM (RFC 7468), with base64 of RFC 4648, section 4.
fn pem_of(certificate: &CertificateDer<'_>) -> String {
    let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for three in certificate.chunks(3) {
        let mut group = [0; 4];
        group[1..=three.len()].copy_from_slice(three);
        let bits = u32::from_be_bytes(group);
        for place in 0..4 {
            let digit = bits >> (18 - 6 * place) & 63;
            pem.push(if place <= three.len() {
                char::from(DIGITS[digit as usize])
            } else {
                '='
            });
        }
    }
    pem + "\n-----END CERTIFICATE-----\n"
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Number of extensions per certificate with which the worst chain reaches the default of
/// `limits.certificate-chain`.
const FILLER: usize = 140;
