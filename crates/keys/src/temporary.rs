//! Temporary certificates, for names whose certificate an ACME authority has not issued yet.
//!
//! A listener with `acme` starts at once. Until the ACME companion has written a bundle, clients
//! get a self-signed certificate for the configured names. They reject it, but the authority can
//! already connect, and the handshake of a client fails with a clear reason.

use std::path::Path;
use std::sync::Arc;

use becket_config::address::NamePattern;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::prelude::X509Certificate;

use super::digest::digest;
use super::keys::{Loaded, Loader};
use crate::signing::Offload;

impl Loader {
    /// Creates a temporary certificate for `names`, or returns the one in use. `file` is the bundle
    /// that will replace it.
    ///
    /// # Errors
    /// Fails if a name is not valid in a certificate.
    pub fn temporary(&self, file: &Path, names: &[NamePattern]) -> Result<Loaded, String> {
        let texts: Vec<String> = names.iter().map(NamePattern::to_string).collect();
        let parts = texts.iter().map(String::as_bytes);
        let parts: Vec<&[u8]> = [ISSUER.as_bytes()].into_iter().chain(parts).collect();
        let digest = digest(&parts);
        if let Some(known) = self.known.get(&digest) {
            return Ok(known.clone());
        }
        let failed = |error: rcgen::Error| error.to_string();
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::new(texts).map_err(failed)?;
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, ISSUER.to_owned());
        let certificate = params.self_signed(&key).map_err(failed)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = self.provider.key_provider.load_private_key(key);
        let key = key.map_err(|error| error.to_string())?;
        Ok(Loaded {
            offload: Offload::of(&*key, false),
            key: Arc::new(CertifiedKey::new(vec![certificate.der().clone()], key)),
            batch_key: None,
            names: names.into(),
            file: file.into(),
            token: None,
            digest,
            ocsp: None,
            policy: None,
            is_managed: true,
        })
    }
}

/// Returns `true` if a certificate was made by [`Loader::temporary`].
pub fn is_temporary(certificate: &X509Certificate<'_>) -> bool {
    let mut names = certificate.issuer().iter_common_name();
    names.any(|name| name.as_str().ok() == Some(ISSUER))
}

/// Issuer of temporary certificates.
const ISSUER: &str = "becket temporary certificate";
