//! TLS to servers: `[backend.tls]`.
//!
//! A server's certificate is verified unless the file disables verification explicitly.
//! Verification covers the chain (against the configured CAs or the system's), the time, and a
//! name. The name is the host of the server's address, or one name for the whole backend. A unix
//! socket has no host, so it needs the backend's name.

use std::path::PathBuf;
use std::sync::Arc;

use becket_config::choices::Verify;
use becket_config::error::Problem;
use becket_config::file::File;
use becket_config::key;
use becket_config::policy::ServerTls;
use becket_proto::ticket::UnixSeconds;
use rustls::client::VerifierBuilderError;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore};

use super::ConfigBuilder;
use super::crl::RevocationLists;
use becket_keys::authorities;
use becket_keys::digest::digest;
use becket_keys::files::shown;
use becket_keys::pem::Pem;
use becket_tls::config::Onward;
use becket_tls::key_log::LateKeyLog;
use becket_tls::policy::{contents, versions};
use becket_tls::server_rules::{Pins, RuleVerifier, ServerRule};
use becket_tls::verifier;

impl ConfigBuilder<'_> {
    pub(super) fn onward(&mut self, path: &str, tls: Option<&ServerTls>) -> Option<Onward> {
        let tls = tls?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let shown = tls.client_certificate.as_ref().map(|entry| {
            let path = key!(path, tls.client_certificate);
            self.credential(&path, entry)
        });
        let (verifier, mut contents) = self.verifier(path, tls, &provider)?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions(&tls.versions))
            .ok()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier));
        let mut client = match shown {
            None => builder.with_no_client_auth(),
            Some(shown) => {
                let shown = shown?;
                contents = digest(&[&contents, &shown.digest()]);
                let now = UnixSeconds(self.environment.now.as_secs());
                let certified = shown.certified(shown.key().signing_key(), now);
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
            }
        };
        if self.file.process.key_log {
            client.key_log = Arc::new(LateKeyLog::default());
        }
        client.enable_secret_extraction = true;
        Some(Onward {
            keys: tls.clone(),
            client,
            verifier,
            most_chain: self.file.limits,
            contents,
        })
    }

    /// Returns the matching settings of the running configuration; `None` if the keys, limits, key
    /// log or file contents differ.
    pub(super) fn running_tls(&self, made: &Onward) -> Option<Onward> {
        let running = self.environment.running?;
        let mut all = running.backends.iter().filter_map(|it| it.tls.as_ref());
        let same = all.find(|it| (&it.keys, it.contents) == (&made.keys, made.contents));
        let settings = |file: &File| (file.limits, file.process.key_log);
        same.filter(|_| settings(&running.file) == settings(self.file))
            .cloned()
    }

    fn verifier(
        &mut self,
        path: &str,
        tls: &ServerTls,
        provider: &Arc<CryptoProvider>,
    ) -> Option<(Arc<dyn ServerCertVerifier>, [u8; 32])> {
        let at = key!(path, tls.ca);
        if tls.verify == Verify::None {
            let none = RuleVerifier::none(Arc::clone(provider));
            return Some((Arc::new(none), [0; 32]));
        }
        if tls.verify == Verify::Pinned {
            let file = self.environment.base.join(tls.ca.as_ref()?);
            let pins =
                authorities::certificates(&self.environment.files, &at, &file, &mut self.report)?;
            if pins.is_empty() {
                let problem = shown(&at, &file, "no certificate");
                self.report
                    .error(problem.accepted("certificates of the servers, PEM"));
            }
            let contents = contents(&RootCertStore::empty(), &pins, &[]);
            let name = tls.name.as_ref().map(|name| name.0.clone());
            let pins = Pins(pins);
            let pinned = RuleVerifier {
                rule: ServerRule::Pinned { pins, name },
                provider: Arc::clone(provider),
            };
            return Some((Arc::new(pinned), contents));
        }
        let roots = match &tls.ca {
            Some(text) => {
                let file = self.environment.base.join(text);
                authorities::authorities(&self.environment.files, &at, &file, &mut self.report)?
            }
            None => self.system_authorities(&at)?,
        };
        let roots = Arc::new(roots);
        let asked = RevocationLists {
            files: &tls.crl,
            authorities: &roots,
            key: "ca",
        };
        let lists = self.revocation(path, &asked);
        let contents = contents(&roots, &[], &lists);
        let asked = (lists, tls.crl_unknown);
        let verifier = match tls.verify {
            Verify::Chain => verifier::of_any_server(roots, asked, self.file.limits, provider),
            _ => verifier::of_servers(roots, asked, provider),
        };
        let refused = |error: VerifierBuilderError| Problem::new(at, error.to_string());
        let verifier = verifier.map_err(|error| self.report.error(refused(error)));
        Some((verifier.ok()?, contents))
    }

    /// Returns the CAs that this system trusts. Skips CAs that rustls cannot use, because the
    /// operator did not choose them.
    fn system_authorities(&mut self, path: &str) -> Option<RootCertStore> {
        let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
        let places = named.into_iter().chain(BUNDLES.iter().map(PathBuf::from));
        for file in places.filter(|file| file.is_file()) {
            let mut roots = RootCertStore::empty();
            if let Ok(pem) = Pem::read(&self.environment.files, &file) {
                roots.add_parsable_certificates(pem.certificates);
            }
            if !roots.is_empty() {
                return Some(roots);
            }
        }
        let problem = Problem::new(path, "missing, and no CA bundle of the system was found");
        self.report
            .error(problem.accepted("a PEM file of CA certificates, or verify = \"none\""));
        None
    }
}

/// CA bundles of Debian, Fedora, openSUSE and Alpine.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
