//! The `[backend.tls]` section, prepared for use.

use std::sync::Arc;

use becket_config::address::{Address, ServerAddress as Written};
use becket_config::notation::Text;
use becket_config::policy::ServerTls;
use becket_config::process::LimitsSection;
use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::ServerName;

#[derive(Clone, Debug)]
pub struct Onward {
    pub keys: ServerTls,
    /// rustls configuration for all servers, with versions and client certificate.
    pub client: ClientConfig,
    /// Verifier of server certificates. `ServerRule::Named` passes the required name to it.
    pub verifier: Arc<dyn ServerCertVerifier>,
    pub most_chain: LimitsSection,
    /// SHA-256 of the contents of this section's files: CAs, server certificates, revocation lists,
    /// the client certificate.
    pub contents: [u8; 32],
}

impl Onward {
    /// Returns the name that a server's certificate must contain: the configured name, or otherwise
    /// the host in the server's configured address.
    pub fn name_of(&self, server: &str) -> Option<ServerName<'static>> {
        let written = self.keys.name.as_ref();
        written
            .map(|name| name.0.clone())
            .or_else(|| host_of(server))
    }
}

fn host_of(server: &str) -> Option<ServerName<'static>> {
    match Written::parse(server).ok()?.address {
        Address::Ip(ip, _) => Some(ServerName::from(ip)),
        Address::Name(name, _) => ServerName::try_from(name).ok(),
        Address::Unix(_) | Address::Any(_) => None,
    }
}
