//! `[backend.tls]` as it is used.

use std::sync::Arc;

use becket_config::address::{Address, ServerAddress as Written};
use becket_config::notation::Text;
use becket_config::policy::{ServerAlpn, Sni};
use becket_config::process::Limits;
use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::ServerName;

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

/// The name that a server's address has by itself.
fn host_of(server: &str) -> Option<ServerName<'static>> {
    match Written::parse(server).ok()?.address {
        Address::Ip(ip, _) => Some(ServerName::from(ip)),
        Address::Name(name, _) => ServerName::try_from(name).ok(),
        Address::Unix(_) | Address::Any(_) => None,
    }
}

/// How much of a chain a peer may show.
#[derive(Clone, Copy, Debug)]
pub struct ChainLimits {
    /// `limits.certificate-chain`, the leaf included.
    pub bytes: usize,
    /// `limits.chain-intermediates`.
    pub intermediates: usize,
    /// `limits.chain-same-subject`.
    pub same_subject: usize,
}

impl From<&Limits> for ChainLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            bytes: limits.certificate_chain,
            intermediates: limits.chain_intermediates,
            same_subject: limits.chain_same_subject,
        }
    }
}
