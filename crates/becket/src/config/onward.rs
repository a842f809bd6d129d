//! The part of `prepare` that makes TLS towards servers: `[backend.tls]`.
//!
//! A server's certificate is verified unless the file says, in so many words, that it is not: the
//! chain against the given CAs or the system's, the time, and a name. The name is the host of the
//! server's address or one for the whole backend; a unix socket has none, so there it must be
//! given.

use std::path::PathBuf;
use std::sync::Arc;

use becket_config::address::{Address, ServerAddress as Written};
use becket_config::choices::Verify;
use becket_config::key;
use becket_config::notation::Text;
use becket_config::policy::ServerTls;
pub use becket_config::policy::{ServerAlpn, Sni};
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, version};

use super::Versions;
use super::crl::Asked;
use super::error::Problem;
use super::prepare::Draft;
use crate::pki::keys;
use crate::pki::pem::Pem;
use crate::tls::chain::ChainLimits;
use crate::tls::key_log::LateKeyLog;
use crate::tls::to_servers::Unverified;
use crate::tls::verifier;

/// TLS towards the servers of a backend.
#[derive(Debug)]
pub struct Onward {
    /// What all servers have in common: versions, and the certificate that we show.
    pub client: ClientConfig,
    /// Verifies chains and times, or nothing.
    pub verifier: Arc<dyn ServerCertVerifier>,
    /// Whether the name is verified too; without, nothing is.
    pub verify: bool,
    /// Lists that are asked whether a server's certificate is revoked.
    pub lists: usize,
    /// What a server's chain may have.
    pub(crate) most_chain: ChainLimits,
    /// The name to verify, instead of each server's own.
    pub name: Option<ServerName<'static>>,
    /// The name to send.
    pub sni: Sni,
    /// The protocols to offer.
    pub alpn: ServerAlpn,
}

impl Onward {
    /// The name that a server's certificate must have; `server` is its address as configured.
    pub fn name_of(&self, server: &str) -> Option<ServerName<'static>> {
        self.name.clone().or_else(|| host_of(server))
    }
}

impl Draft<'_> {
    /// TLS towards servers, as `[backend.tls]` says.
    pub(super) fn onward(&mut self, path: &str, tls: Option<&ServerTls>) -> Option<Onward> {
        let tls = tls?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let shown = tls.client_certificate.as_ref().map(|entry| {
            let path = key!(path, tls.client_certificate);
            self.credential(&path, entry)
        });
        let (verifier, lists) = self.verifier(path, tls, &provider)?;
        let versions = Versions::of(&tls.versions);
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&protocol_versions(versions))
            .ok()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier));
        let mut client = match shown {
            None => builder.with_no_client_auth(),
            Some(shown) => {
                let key = shown?.key;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key)))
            }
        };
        if self.file.process.key_log {
            client.key_log = Arc::new(LateKeyLog::default());
        }
        Some(Onward {
            client,
            verifier,
            lists,
            most_chain: (&self.file.limits).into(),
            verify: tls.verify == Verify::Full,
            name: tls.name.clone().map(|name| name.0),
            sni: tls.sni.clone().unwrap_or_default(),
            alpn: tls.alpn.clone(),
        })
    }

    fn verifier(
        &mut self,
        path: &str,
        tls: &ServerTls,
        provider: &Arc<CryptoProvider>,
    ) -> Option<(Arc<dyn ServerCertVerifier>, usize)> {
        let at = key!(path, tls.ca);
        if tls.verify == Verify::None {
            return Some((Arc::new(Unverified(Arc::clone(provider))), 0));
        }
        let roots = match &tls.ca {
            Some(text) => {
                let file = self.world.base.join(text);
                self.files.push(file.clone());
                keys::authorities(&self.world.files, &at, &file, &mut self.report)?
            }
            None => self.system_authorities(&at)?,
        };
        let roots = Arc::new(roots);
        let asked = Asked {
            files: &tls.crl,
            unknown: tls.crl_unknown,
            authorities: &roots,
            key: "ca",
        };
        let revocation = self.revocation(path, &asked);
        let lists = revocation.lists.len();
        match verifier::of_servers(roots, revocation, provider) {
            Ok(verifier) => Some((verifier, lists)),
            Err(error) => {
                self.report.error(Problem::new(at, error.to_string()));
                None
            }
        }
    }

    /// The CAs that this system trusts. Those that rustls cannot use are passed over: nobody here
    /// chose them.
    fn system_authorities(&mut self, path: &str) -> Option<RootCertStore> {
        let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
        let places = named.into_iter().chain(BUNDLES.iter().map(PathBuf::from));
        for file in places.filter(|file| file.is_file()) {
            let mut roots = RootCertStore::empty();
            if let Ok(pem) = Pem::read(&self.world.files, &file) {
                roots.add_parsable_certificates(pem.certificates);
            }
            if !roots.is_empty() {
                self.files.push(file);
                return Some(roots);
            }
        }
        let problem = Problem::new(path, "missing, and this system has no CAs where we look");
        self.report
            .error(problem.accepted("a PEM file of CA certificates, or verify = \"none\""));
        None
    }
}

/// The name that a server's address has by itself.
fn host_of(server: &str) -> Option<ServerName<'static>> {
    match Written::parse(server).ok()?.address {
        Address::Ip(ip, _) => Some(ServerName::from(ip)),
        Address::Name(name, _) => ServerName::try_from(name).ok(),
        Address::Unix(_) | Address::Any(_) => None,
    }
}

fn protocol_versions(versions: Versions) -> Vec<&'static SupportedProtocolVersion> {
    let tls13 = versions.tls13.then_some(&version::TLS13);
    let tls12 = versions.tls12.then_some(&version::TLS12);
    tls13.into_iter().chain(tls12).collect()
}

/// Where Debian, Fedora, openSUSE and Alpine keep their CAs.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
