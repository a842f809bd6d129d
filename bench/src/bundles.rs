//! A folder with many certificates, each with its own P-256 key, one name and the same issuer.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
};

use crate::Error;
use crate::keys::NAME;

#[derive(Debug)]
pub struct Bundles {
    pub folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    /// Certificate of the issuer, PEM.
    issuer_text: String,
    /// Size in bytes of a server's certificate.
    pub der_bytes: usize,
}

impl Bundles {
    /// Writes the certificates into a new folder.
    pub fn create(folder: PathBuf, count: usize) -> Result<Self, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, "Issuer of the bench");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().map_err(failed)?;
        let issuer_text = params.self_signed(&key).map_err(failed)?.pem();
        fs::create_dir_all(&folder).map_err(|e| Error::os("cannot create certificates", e))?;
        let mut bundles = Self {
            folder,
            issuer: Issuer::new(params, key),
            issuer_text,
            der_bytes: 0,
        };
        for number in 0..count {
            bundles.der_bytes = bundles.write(number)?;
        }
        Ok(bundles)
    }

    /// Replaces a certificate in one step. Returns the size of the server's certificate in bytes.
    pub fn write(&self, number: usize) -> Result<usize, Error> {
        let mut params = CertificateParams::new([name(number)]).map_err(failed)?;
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(failed)?;
        let signed = params.signed_by(&key, &self.issuer).map_err(failed)?;
        let text = signed.pem() + &self.issuer_text + &key.serialize_pem();
        let (path, new) = (file(&self.folder, number), self.folder.join(".new"));
        fs::write(&new, text)
            .and_then(|()| fs::set_permissions(&new, Permissions::from_mode(0o600)))
            .and_then(|()| fs::rename(&new, path))
            .map_err(|e| Error::os("cannot write a certificate", e))?;
        Ok(signed.der().len())
    }
}

pub fn file(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("site-{number:06}.pem"))
}

/// Returns the name of a certificate. The bench's clients ask for the first one.
pub fn name(number: usize) -> String {
    match number {
        0 => NAME.to_owned(),
        number => format!("site-{number:06}.example.org"),
    }
}

/// Returns the names of certificates with their files, for configurations that list them.
pub fn listed(folder: &Path, count: usize) -> impl Iterator<Item = (String, PathBuf)> {
    (0..count).map(|number| (name(number), file(folder, number)))
}

/// File in which becket remembers checked certificates.
pub const CACHE: &str = "checked-certificates";

#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature is that of `map_err`"
)]
fn failed(error: rcgen::Error) -> Error {
    Error::Asked(format!("cannot create a certificate: {error}"))
}
