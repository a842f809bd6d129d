//! TLS configurations of coordinator and agents: TLS 1.3 only, with certificates of one CA on both sides.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, Error as TlsError, RootCertStore, ServerConfig};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::Error;
use crate::fleet_options::IdentityFiles;

struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
}

impl Identity {
    fn load(files: &IdentityFiles) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        for root in certificates("--ca", files.ca.as_deref())? {
            let added = roots.add(root);
            added.map_err(|e| fault("--ca", &e))?;
        }
        let path = given("--key", files.key.as_deref())?;
        let key = PrivateKeyDer::from_pem_file(path);
        Ok(Self {
            chain: certificates(CERTIFICATE, files.certificate.as_deref())?,
            key: key.map_err(|e| fault("--key", &e))?,
            roots,
            provider: Arc::new(default_provider()),
        })
    }
}

/// Returns the configuration of the coordinator.
///
/// # Errors
/// [`Error::Plan`] with the invalid file.
pub fn of_coordinator(files: &IdentityFiles) -> Result<Arc<ClientConfig>, Error> {
    let own = Identity::load(files)?;
    let wrong = |e: TlsError| fault(CERTIFICATE, &e);
    let mut config = ClientConfig::builder_with_provider(own.provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(wrong)?
        .with_root_certificates(own.roots)
        .with_client_auth_cert(own.chain, own.key)
        .map_err(wrong)?;
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Returns the configuration of an agent, which rejects coordinators without a certificate of the CA.
///
/// # Errors
/// [`Error::Plan`] with the invalid file.
pub fn of_agent(files: &IdentityFiles) -> Result<Arc<ServerConfig>, Error> {
    let own = Identity::load(files)?;
    let wrong = |e: TlsError| fault(CERTIFICATE, &e);
    let provider = Arc::clone(&own.provider);
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(own.roots), provider);
    let verifier = verifier.build().map_err(|e| fault("--ca", &e))?;
    let mut config = ServerConfig::builder_with_provider(own.provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(wrong)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(own.chain, own.key)
        .map_err(wrong)?;
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn certificates(option: &str, path: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found = CertificateDer::pem_file_iter(given(option, path)?).and_then(Iterator::collect);
    let found: Vec<_> = found.map_err(|e: pem::Error| fault(option, &e))?;
    if found.is_empty() {
        return Err(fault(option, &"no certificate in this file"));
    }
    Ok(found)
}

fn given<'a>(option: &str, path: Option<&'a Path>) -> Result<&'a Path, Error> {
    let why = "missing; agents and --agents require --certificate, --key and --ca";
    path.ok_or_else(|| fault(option, &why))
}

fn fault(option: &str, why: &dyn Display) -> Error {
    Error::Plan(format!("{option}: {why} (accepted: a PEM file)"))
}

const CERTIFICATE: &str = "--certificate";
