//! Keys and self-signed certificates of the servers, created once per run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rcgen::{CertificateParams, KeyPair, RsaKeySize};

use crate::Error;

fn generate(key: &str) -> Result<KeyPair, rcgen::Error> {
    let rsa = |size| KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size);
    match key {
        "rsa2048" => rsa(RsaKeySize::_2048),
        "rsa3072" => rsa(RsaKeySize::_3072),
        "rsa4096" => rsa(RsaKeySize::_4096),
        "p384" => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
        "ed25519" => KeyPair::generate_for(&rcgen::PKCS_ED25519),
        _ => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
    }
}

/// Certificate files of a run, which all peers share. Each file contains a certificate chain and its private key.
#[derive(Debug)]
pub struct Keyring {
    directory: PathBuf,
}

impl Keyring {
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Returns the file with a certificate and its key. Creates it on first use, which takes seconds for RSA-4096.
    pub fn file(&self, key: &str) -> Result<PathBuf, Error> {
        let path = self.directory.join(format!("{key}.pem"));
        if path.exists() {
            return Ok(path);
        }
        if key == "rsa1024" {
            small(&path)?;
            return Ok(path);
        }
        let failed =
            |e: rcgen::Error| Error::Asked(format!("cannot create a {key} certificate: {e}"));
        let pair = generate(key).map_err(failed)?;
        let names = vec!["localhost".to_owned(), NAME.to_owned()];
        let params = CertificateParams::new(names).map_err(failed)?;
        let certificate = params.self_signed(&pair).map_err(failed)?;
        let text = certificate.pem() + &private_key(key, &pair);
        fs::write(&path, text)
            // All users can read the file, because some peers read it after they have switched to the user `nobody`.
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o644)))
            .map_err(|e| Error::os(format!("cannot write {}", path.display()), e))?;
        Ok(path)
    }
}

/// Creates an RSA-1024 certificate with OpenSSL, because the key is too small for AWS-LC.
fn small(path: &Path) -> Result<(), Error> {
    let (file, subject) = (path.display().to_string(), format!("/CN={NAME}"));
    let names = format!("subjectAltName=DNS:{NAME},DNS:localhost");
    let key = path.with_extension("key");
    let key_file = key.display().to_string();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:1024", "-nodes", "-sha256"])
        .args([
            "-subj", &subject, "-addext", &names, "-out", &file, "-keyout", &key_file,
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let failed = |e| Error::os("cannot create an RSA-1024 certificate with openssl", e);
    if !made.map_err(failed)?.success() {
        return Err(Error::Peer(
            "openssl cannot create an RSA-1024 certificate".to_owned(),
        ));
    }
    let text = [path, &key].map(fs::read_to_string);
    let [certificate, key] = text.map(|text| text.map_err(failed));
    fs::write(path, certificate? + &key?)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o644)))
        .map_err(failed)
}

/// Returns the private key as PEM. Converts an Ed25519 key from PKCS#8 version 2, which rcgen writes, to version 1,
/// because OpenSSL 3.0 cannot read version 2.
fn private_key(key: &str, pair: &KeyPair) -> String {
    let seed = pair
        .serialized_der()
        .get(ED25519_SEED)
        .filter(|_| key == "ed25519");
    match seed {
        None => pair.serialize_pem(),
        Some(seed) => {
            let der = [ED25519_HEAD, seed].concat();
            pem::encode(&pem::Pem::new("PRIVATE KEY", der))
        }
    }
}

/// Byte range of the seed in the DER form of an Ed25519 key, in PKCS#8 versions 1 and 2.
const ED25519_SEED: std::ops::Range<usize> = 16..48;
/// PKCS#8 version 1 header of an Ed25519 key.
const ED25519_HEAD: &[u8] = &[
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// Server name that clients send.
pub const NAME: &str = "bench.example.org";
