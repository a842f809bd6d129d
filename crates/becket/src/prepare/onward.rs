//! TLS towards servers: `[backend.tls]`.
//!
//! A server's certificate is verified unless the file says, in so many words, that it is not: the
//! chain against the given CAs or the system's, the time, and a name. The name is the host of the
//! server's address or one for the whole backend; a unix socket has none, so there it must be
//! given.

use std::path::PathBuf;
use std::sync::Arc;

use becket_config::choices::Verify;
use becket_config::error::Problem;
use becket_config::key;
use becket_config::policy::ServerTls;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, version};

use super::Draft;
use super::crl::Asked;
use crate::config::{Onward, Versions};
use crate::pki::keys;
use crate::pki::pem::Pem;
use crate::tls::key_log::LateKeyLog;
use crate::tls::to_servers::Unverified;
use crate::tls::verifier;

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
                return Some(roots);
            }
        }
        let problem = Problem::new(path, "missing, and this system has no CAs where we look");
        self.report
            .error(problem.accepted("a PEM file of CA certificates, or verify = \"none\""));
        None
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
