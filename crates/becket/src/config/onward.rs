//! The part of `prepare` that makes TLS towards servers: `[backend.tls]`.
//!
//! A server's certificate is verified unless the file says, in so many words, that it is not: the
//! chain against the given CAs or the system's, the time, and a name. The name is the host of the
//! server's address or one for the whole backend; a unix socket has none, so there it must be
//! given.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{DnsName, ServerName};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, version};

use super::crl::Asked;
use super::error::Problem;
use super::file::{FileOnward, FileServerAlpn, FileVerify};
use super::prepare::Draft;
use super::values::{self, Address};
use super::{Server, Versions};
use crate::pki::keys;
use crate::pki::pem::Pem;
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
    /// Bytes of a server's chain of certificates.
    pub most_chain: usize,
    /// The name to verify, instead of each server's own.
    pub name: Option<ServerName<'static>>,
    /// The name to send.
    pub sni: Sni,
    /// The protocols to offer.
    pub alpn: ServerAlpn,
}

/// The server name that is sent to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sni {
    /// The one that is verified; none where that is an address.
    Own,
    /// Always this one.
    Fixed(ServerName<'static>),
    /// The one that the client sent, or none.
    Client,
    /// None.
    Off,
}

/// What is offered to a server by ALPN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAlpn {
    /// These protocols; none means that ALPN is not offered.
    Fixed(Vec<Vec<u8>>),
    /// The protocol that was negotiated with the client, if one was.
    Client,
}

impl Onward {
    /// The name that a server's certificate must have; `server` is its address as configured.
    pub fn name_of(&self, server: &str) -> Option<ServerName<'static>> {
        self.name.clone().or_else(|| host_of(server))
    }
}

impl Draft<'_> {
    /// TLS towards servers, as `[backend.tls]` says.
    pub(super) fn onward(
        &mut self,
        path: &str,
        file: Option<&FileOnward>,
        servers: &[Server],
    ) -> Option<Onward> {
        let (file, path) = (file?, format!("{path}.tls"));
        let provider = Arc::new(aws_lc_rs::default_provider());
        let name = self.name(&path, file, servers);
        let sni = self.sni(&path, file);
        let alpn = self.server_alpn(&path, file);
        let versions = self.versions(&path, &file.versions);
        let shown = file.client_certificate.as_ref().map(|entry| {
            let path = format!("{path}.client-certificate");
            self.credential(&path, entry)
        });
        let verifier = self.verifier(&path, file, &provider);
        let (verifier, lists) = verifier?;
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
            most_chain: self.most_chain,
            verify: file.verify == FileVerify::Full,
            name,
            sni: sni?,
            alpn: alpn?,
        })
    }

    /// The name to verify; every server must have one.
    fn name(
        &mut self,
        path: &str,
        file: &FileOnward,
        servers: &[Server],
    ) -> Option<ServerName<'static>> {
        let path = format!("{path}.name");
        if let Some(text) = &file.name {
            if file.verify == FileVerify::None {
                self.given_in_vain(&path, text);
            }
            let name = ServerName::try_from(text.clone()).ok();
            if name.is_none() {
                let problem = Problem::new(path, "not a name").text(text);
                self.report.error(problem.accepted(NAMES));
            }
            return name;
        }
        let nameless = servers
            .iter()
            .find(|server| host_of(&server.name).is_none());
        if let Some(server) = nameless
            && file.verify == FileVerify::Full
        {
            let fault = format!("missing: {} has no name to verify", server.name);
            self.report.error(Problem::new(path, fault).accepted(NAMES));
        }
        None
    }

    fn sni(&mut self, path: &str, file: &FileOnward) -> Option<Sni> {
        match file.sni.as_deref() {
            None => Some(Sni::Own),
            Some("off") => Some(Sni::Off),
            Some("client") => Some(Sni::Client),
            Some(text) => {
                let name = DnsName::try_from(text.to_owned()).ok();
                if name.is_none() {
                    let problem = Problem::new(format!("{path}.sni"), "not a name").text(text);
                    let accepted = "a DNS name, \"client\" or \"off\"";
                    self.report.error(problem.accepted(accepted));
                }
                name.map(|name| Sni::Fixed(ServerName::DnsName(name)))
            }
        }
    }

    fn server_alpn(&mut self, path: &str, file: &FileOnward) -> Option<ServerAlpn> {
        match &file.alpn {
            FileServerAlpn::List(list) => Some(ServerAlpn::Fixed(self.alpn(path, list))),
            FileServerAlpn::Word(word) if word == "client" => Some(ServerAlpn::Client),
            FileServerAlpn::Word(word) => {
                let problem = Problem::new(format!("{path}.alpn"), "not one of the choices");
                let problem = problem.text(word);
                self.report
                    .error(problem.accepted("a list of protocols or \"client\""));
                None
            }
        }
    }

    fn verifier(
        &mut self,
        path: &str,
        file: &FileOnward,
        provider: &Arc<CryptoProvider>,
    ) -> Option<(Arc<dyn ServerCertVerifier>, usize)> {
        let at = format!("{path}.ca");
        if file.verify == FileVerify::None {
            if let Some(text) = &file.ca {
                self.given_in_vain(&at, text);
            }
            if let Some(text) = file.crl.first() {
                self.given_in_vain(&format!("{path}.crl"), text);
            }
            let fault = "whoever answers at the servers' addresses is taken for the server";
            let problem = Problem::new(format!("{path}.verify"), fault);
            self.report.warn(problem.text("none"));
            return Some((Arc::new(Unverified(Arc::clone(provider))), 0));
        }
        let roots = match &file.ca {
            Some(text) => {
                let file = self.world.base.join(text);
                self.files.push(file.clone());
                keys::authorities(&self.world.files, &at, &file, &mut self.report)?
            }
            None => self.system_authorities(&at)?,
        };
        let roots = Arc::new(roots);
        let asked = Asked {
            files: &file.crl,
            unknown: file.crl_unknown,
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

    /// Somebody meant to verify.
    fn given_in_vain(&mut self, path: &str, text: &str) {
        let problem = Problem::new(path, "given, but nothing is verified").text(text);
        self.report
            .error(problem.accepted("verify = \"full\", the default, with it"));
    }
}

/// The name that a server's address has by itself.
fn host_of(server: &str) -> Option<ServerName<'static>> {
    match values::server_address(server).ok()? {
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

const NAMES: &str = "a DNS name or an IP address";

/// Where Debian, Fedora, openSUSE and Alpine keep their CAs.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
