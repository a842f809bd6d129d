//! TLS configurations of coordinator and agents: TLS 1.3 only, with certificates of one CA on both sides.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::Error;
use crate::fleet_options::IdentityFiles;

struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: RootCertStore,
}

impl Identity {
    fn load(files: &IdentityFiles) -> Result<Self, Error> {
        let [Some(certificate), Some(key), Some(ca)] = [&files.certificate, &files.key, &files.ca]
        else {
            let why = "agents and --agents require --certificate, --key and --ca (PEM files)";
            return Err(Error::Plan(why.to_owned()));
        };
        let mut roots = RootCertStore::empty();
        for root in certificates(ca)? {
            roots.add(root).map_err(|e| fault(ca, &e))?;
        }
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|e| fault(key, &e))?;
        Ok(Self { chain, key, roots })
    }
}

/// Returns the configuration of the coordinator.
///
/// # Errors
/// [`Error::Plan`] with the invalid file.
pub fn of_coordinator(files: &IdentityFiles) -> Result<Arc<ClientConfig>, Error> {
    let own = Identity::load(files)?;
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .map(|builder| builder.with_root_certificates(own.roots))
        .and_then(|builder| builder.with_client_auth_cert(own.chain, own.key));
    let mut config = config.map_err(|e| unusable(&e))?;
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Returns the configuration of an agent, which rejects coordinators without a certificate of the CA.
///
/// # Errors
/// [`Error::Plan`] with the invalid file.
pub fn of_agent(files: &IdentityFiles) -> Result<Arc<ServerConfig>, Error> {
    let own = Identity::load(files)?;
    let provider = Arc::new(default_provider());
    let roots = Arc::new(own.roots);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let verifier = verifier.build().map_err(|e| unusable(&e))?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map(|builder| builder.with_client_cert_verifier(verifier))
        .and_then(|builder| builder.with_single_cert(own.chain, own.key));
    let mut config = config.map_err(|e| unusable(&e))?;
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    found.map_err(|e: pem::Error| fault(path, &e))
}

fn fault(path: &Path, why: &dyn Display) -> Error {
    Error::Plan(format!("{}: {why}", path.display()))
}

fn unusable(why: &dyn Display) -> Error {
    Error::Plan(format!("--certificate, --key or --ca: {why}"))
}
