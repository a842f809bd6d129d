//! TLS to the servers of one backend, for one worker.
//!
//! Each server has a separate `ClientConfig`, because each server has a name to verify and sessions
//! to resume. Workers do not share sessions, so they do not contend for the lock of rustls' store.
//! A resumed handshake presents no certificate, so the sessions must not outlive the verified
//! chain: when its first certificate expires, a new `ClientConfig` without sessions replaces the
//! old one. A reload replaces all `ClientConfig`s.
//!
//! rustls uses one name for SNI and for verification, but becket allows two names. The name for SNI
//! is passed to rustls, and [`ServerRule::Named`] verifies the configured name. rustls sends no SNI
//! for an IP address (RFC 6066, section 3), so an IP address is passed if no SNI must be sent.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use becket_config::choices::{KernelTls, Verify};
use becket_config::policy::{ServerAlpn, Sni};
use becket_proto::starttls::Protocol;
use becket_proto::ticket::UnixSeconds;
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, Error};

use super::chain;
use super::engine::Engine;
use super::server_rules::{RuleVerifier, ServerRule};
use crate::config::{Backend, Onward};

/// A client configuration with its stored sessions, which all expire at the same time.
#[derive(Debug)]
struct Generation {
    config: Arc<ClientConfig>,
    /// Earliest expiry of the certificates that were verified for these sessions, in seconds since
    /// 1970.
    until: Arc<AtomicU64>,
}

#[derive(Debug)]
pub struct ServerTls {
    backend: Arc<Backend>,
    servers: Vec<ServerTlsConfig>,
    /// Maximum size of an unfinished record or message that an engine holds, in bytes.
    most_held: usize,
}

#[derive(Debug)]
struct ServerTlsConfig {
    server: Arc<str>,
    sessions: RefCell<Generation>,
    /// Name for SNI if neither the client nor the configuration sets one.
    own: ServerName<'static>,
}

impl ServerTls {
    /// Creates the configurations for all servers of a backend. Returns `None` for a backend
    /// without TLS.
    pub fn new(backend: &Arc<Backend>) -> Option<Self> {
        let onward = backend.tls.as_ref()?;
        let servers = backend.servers.iter();
        Some(Self {
            backend: Arc::clone(backend),
            servers: servers
                .map(|server| ServerTlsConfig::new(onward, &server.name))
                .collect(),
            most_held: chain::most_held(onward.most_chain.certificate_chain),
        })
    }

    /// Returns `true` if the SNI or ALPN sent to servers comes from the client. If a server rejects
    /// such a handshake, the client may have caused this.
    pub fn speaks_for_client(&self) -> bool {
        let keys = self.backend.tls.as_ref().map(|onward| &onward.keys);
        keys.is_some_and(|keys| keys.sni == Some(Sni::Client) || keys.alpn == ServerAlpn::Client)
    }

    /// Returns the STARTTLS protocol of the servers, or `None` if their connections start with TLS.
    pub fn starttls(&self) -> Option<Protocol> {
        starttls(&self.backend)
    }

    /// Starts TLS to a server, for a client with this server name and ALPN protocol.
    ///
    /// # Errors
    ///
    /// Fails if rustls cannot start a connection.
    pub fn open(
        &self,
        server: &str,
        client_name: Option<&str>,
        client_alpn: Option<&[u8]>,
        now: UnixSeconds,
    ) -> Result<Engine<UnbufferedClientConnection>, Error> {
        let known = self
            .servers
            .iter()
            .find(|server_tls| *server_tls.server == *server);
        let onward = self.backend.tls.as_ref();
        let onward = onward.ok_or_else(|| Error::General("a backend without TLS".into()))?;
        // A reload added this server while the client was waiting, so it has no stored
        // configuration and no sessions.
        let fresh;
        let server_tls = match known {
            Some(server_tls) => server_tls,
            None => {
                fresh = ServerTlsConfig::new(onward, &Arc::from(server));
                &fresh
            }
        };
        let sent = match &onward.keys.sni {
            None => server_tls.own.clone(),
            Some(Sni::Fixed(name)) => name.clone(),
            Some(Sni::Client) => client_name
                .and_then(|name| ServerName::try_from(name.to_owned()).ok())
                .unwrap_or_else(no_name),
            Some(Sni::Off) => no_name(),
        };
        let alpn = match &onward.keys.alpn {
            ServerAlpn::Fixed(protocols) => protocols.clone(),
            ServerAlpn::Client => client_alpn.map(<[u8]>::to_vec).into_iter().collect(),
        };
        let config = server_tls.config(onward, now);
        let movable = onward.keys.kernel_tls == KernelTls::Bulk;
        let connection = UnbufferedClientConnection::new_with_alpn(config, sent, alpn)?;
        Ok(Engine::of(connection, self.most_held, movable))
    }
}

pub fn starttls(backend: &Backend) -> Option<Protocol> {
    backend.tls.as_ref()?.keys.starttls
}

/// Returns the TLS configuration and the SNI for a health check. `alpn` selects the configured
/// protocols that the check supports.
pub fn for_check(
    onward: &Onward,
    server: &Arc<str>,
    alpn: impl Fn(&[u8]) -> bool,
) -> (Arc<ClientConfig>, ServerName<'static>) {
    let server_tls = ServerTlsConfig::new(onward, server);
    let mut config = (*server_tls.sessions.into_inner().config).clone();
    // A health check makes a full handshake, so that the server must send its certificate.
    config.resumption = Resumption::disabled();
    if let ServerAlpn::Fixed(protocols) = &onward.keys.alpn {
        config.alpn_protocols = protocols.iter().filter(|one| alpn(one)).cloned().collect();
    }
    let name = match &onward.keys.sni {
        None | Some(Sni::Client) => server_tls.own,
        Some(Sni::Fixed(name)) => name.clone(),
        Some(Sni::Off) => no_name(),
    };
    (Arc::new(config), name)
}

impl ServerTlsConfig {
    fn new(onward: &Onward, server: &Arc<str>) -> Self {
        let name = onward.name_of(server);
        Self {
            server: Arc::clone(server),
            sessions: RefCell::new(Generation::new(onward, name.clone())),
            own: name.unwrap_or_else(no_name),
        }
    }

    /// Returns the current configuration. Open connections keep the previous configuration, and
    /// tickets that they receive later are not used.
    fn config(&self, onward: &Onward, now: UnixSeconds) -> Arc<ClientConfig> {
        let mut sessions = self.sessions.borrow_mut();
        if sessions.until.load(Relaxed) <= now.0 {
            *sessions = Generation::new(onward, onward.name_of(&self.server));
        }
        Arc::clone(&sessions.config)
    }
}

impl Generation {
    fn new(onward: &Onward, name: Option<ServerName<'static>>) -> Self {
        let until = Arc::new(AtomicU64::new(u64::MAX));
        let mut config = onward.client.clone();
        config.resumption = Resumption::in_memory_sessions(SESSIONS);
        let name = match onward.keys.verify {
            Verify::Full => name,
            // `ServerRule::Chain` ignores the name, so any name can be passed.
            Verify::Chain => Some(no_name()),
            Verify::Pinned | Verify::None => None,
        };
        if let Some(name) = name {
            let rule = ServerRule::Named {
                name,
                verifier: Arc::clone(&onward.verifier),
                most_chain: onward.most_chain,
                until: Arc::clone(&until),
            };
            let provider = Arc::clone(config.crypto_provider());
            let verifier = Arc::new(RuleVerifier { rule, provider });
            config.dangerous().set_certificate_verifier(verifier);
        }
        Self {
            config: Arc::new(config),
            until,
        }
    }
}

/// Returns an IP address, which rustls never sends as SNI.
fn no_name() -> ServerName<'static> {
    ServerName::from(Ipv4Addr::UNSPECIFIED)
}

/// Number of sessions kept per server and worker. It suffices for 32 server names with eight
/// tickets each.
const SESSIONS: usize = 256;
