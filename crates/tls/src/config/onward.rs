//! `[backend.tls]` as it is used.

use std::sync::Arc;

use becket_config::address::{Address, ServerAddress as Written};
use becket_config::notation::Text;
use becket_config::policy::ServerTls;
use becket_config::process::LimitsSection;
use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::ServerName;

/// TLS towards the servers of a backend.
#[derive(Clone, Debug)]
pub struct Onward {
    /// As the file has it.
    pub keys: ServerTls,
    /// What all servers have in common: versions, and the certificate that we show.
    pub client: ClientConfig,
    /// Verifies chains and times, or nothing.
    pub verifier: Arc<dyn ServerCertVerifier>,
    /// What a server's chain may have.
    pub most_chain: LimitsSection,
    /// SHA-256 over what its files hold: CAs, certificates of servers, revocation lists, the certificate that we show.
    pub contents: [u8; 32],
}

impl Onward {
    /// The name that a server's certificate must have; `server` is its address as configured.
    pub fn name_of(&self, server: &str) -> Option<ServerName<'static>> {
        let written = self.keys.name.as_ref();
        written
            .map(|name| name.0.clone())
            .or_else(|| host_of(server))
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
