//! Temporary certificates, for names whose certificate an ACME authority has not issued yet.
//!
//! A listener with `acme` starts at once. Until the ACME companion has written a bundle, clients
//! get a self-signed certificate for the configured names. They reject it, but the authority can
//! already connect, and the handshake of a client fails with a clear reason.

use std::sync::Arc;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::facts;
use super::job::{Job, LoadOutcome};
use super::keys::Loader;
use super::loaded::{Extras, HeldKey, Loaded, LoadedParts};
use super::stored_key::{StoredKey, StoredKind};
use crate::signing::Offload;

impl Loader {
    /// Creates a temporary certificate for `names`, or returns the one in use. The job is the one
    /// for the bundle that will replace it.
    ///
    /// # Errors
    /// Fails if a name is not valid in a certificate.
    pub fn temporary(&self, job: &Job, names: &Arc<[Box<str>]>) -> Result<LoadOutcome, String> {
        let is_for_them =
            |before: &&Arc<Loaded>| before.is_temporary() && before.managed() == Some(names);
        let before = job.before.as_ref().filter(is_for_them);
        if before.is_some() {
            return Ok(LoadOutcome {
                loaded: before.cloned(),
                ..LoadOutcome::default()
            });
        }
        let failed = |error: rcgen::Error| error.to_string();
        let texts: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let pair = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::new(texts).map_err(failed)?;
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, ISSUER.to_owned());
        let signed = params.self_signed(&pair).map_err(failed)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(pair.serialize_der()));
        let parsed = facts::certificate(signed.der()).ok_or("not a certificate")?;
        let parts = LoadedParts {
            leaf: signed.der(),
            parsed: &parsed,
            shared: self
                .issuers
                .in_folder(job.file(), &self.issuers.find(&[], b"")?),
            key: HeldKey::Stored(StoredKey::new(StoredKind::P256, &key)),
            offload: Offload::Pointless,
            file: job.file(),
        };
        let extras = Extras {
            managed: Some(Arc::clone(names)),
            is_temporary: true,
            ..Extras::default()
        };
        Ok(LoadOutcome {
            loaded: Some(Arc::new(Loaded::new(parts, None, extras))),
            names: Some(names.to_vec().into()),
            ..LoadOutcome::default()
        })
    }
}

/// Issuer of temporary certificates.
const ISSUER: &str = "becket temporary certificate";
