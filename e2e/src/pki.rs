//! Test certificates: an authority and the certificates that it issues, as PEM text and as files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::Ed25519KeyPair;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationList,
    CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ML_DSA_65, PKCS_RSA_SHA256,
    RevokedCertParams, RsaKeySize, SerialNumber, date_time_ymd,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// ECDSA on P-256.
    Ecdsa,
    /// RSA of 2048 bits.
    Rsa,
    /// RSA of 4096 bits.
    LongRsa,
    /// ECDSA on P-384.
    LongEcdsa,
    /// Ed25519.
    Ed25519,
    /// ML-DSA-65.
    MlDsa,
}

#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// Certificate with its private key.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// Certificate as PEM. A test may append intermediate certificates.
    pub certificate: String,
    /// Private key as PKCS#8 PEM.
    pub key: String,
}

impl Authority {
    /// Creates a root authority with this name.
    pub fn new(name: &str) -> Self {
        let (params, key) = authority(name);
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Creates an intermediate authority with this name, signed by this authority.
    pub fn intermediate(&self, name: &str) -> Self {
        let (params, key) = authority(name);
        let certificate = params.signed_by(&key, &self.issuer);
        let pem = certificate.expect("a certificate").pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Returns the authority's own certificate as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Issues a certificate for these names. The first one is also the common name.
    pub fn issue(&self, names: &[&str], key: Key) -> Bundle {
        self.issue_with(names, key, |_| {})
    }

    /// Issues a certificate that expired long ago.
    pub fn issue_expired(&self, names: &[&str]) -> Bundle {
        self.issue_with(names, Key::Ecdsa, |params| {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        })
    }

    /// Issues a certificate that expires at `unix`, in seconds since 1970.
    pub fn issue_until(&self, names: &[&str], unix: u64) -> Bundle {
        self.issue_with(names, Key::Ecdsa, |params| {
            params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(unix);
        })
    }

    /// Issues a certificate with this serial number.
    pub fn issue_numbered(&self, names: &[&str], serial: u64) -> Bundle {
        self.issue_with(names, Key::Ecdsa, |params| {
            params.serial_number = Some(SerialNumber::from(serial));
        })
    }

    /// Returns the authority's revocation list with these serial numbers.
    pub fn revocation_list(&self, revoked: &[u64]) -> CertificateRevocationList {
        let revoked = revoked.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).expect("a list")
    }

    fn issue_with(
        &self,
        names: &[&str],
        key: Key,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Bundle {
        let key = match key {
            Key::Ecdsa => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
            Key::Rsa => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
            Key::LongEcdsa => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384),
            Key::Ed25519 => {
                // OpenSSL 3.0 cannot read PKCS#8 version 2, which contains the public key.
                let der = Ed25519KeyPair::generate_pkcs8v1(&SystemRandom::new());
                KeyPair::try_from(der.expect("random numbers").as_ref())
            }
            Key::MlDsa => KeyPair::generate_for(&PKCS_ML_DSA_65),
            Key::LongRsa => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_4096),
        }
        .expect("a key");
        let list: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(list).expect("names");
        let common_name = names.first().copied().unwrap_or("nobody");
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.use_authority_key_identifier_extension = true;
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Bundle {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

/// Returns the parameters and a new key of an authority.
fn authority(name: &str) -> (CertificateParams, KeyPair) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, name);
    (params, key)
}

impl Bundle {
    /// Returns certificate and key as PEM in one text.
    pub fn pem(&self) -> String {
        format!("{}{}", self.certificate, self.key)
    }

    /// Writes certificate and key to one file with mode 0600, and replaces an existing file.
    pub fn write(&self, path: &Path) -> PathBuf {
        write_secret(path, &self.pem())
    }

    /// Writes certificate and key to `NAME.crt` and `NAME.key`.
    pub fn write_pair(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let certificate = folder.join(format!("{name}.crt"));
        fs::write(&certificate, &self.certificate).expect("a file");
        let key = write_secret(&folder.join(format!("{name}.key")), &self.key);
        (certificate, key)
    }
}

fn write_secret(path: &Path, text: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    // A rename ensures that no process reads a partial file.
    let fresh = path.with_extension("new");
    fs::write(&fresh, text).expect("a file");
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600)).expect("its mode");
    fs::rename(&fresh, path).expect("a file in place");
    path.to_owned()
}
