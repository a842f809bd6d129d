//! TLS towards the servers of one backend, as one worker has it.
//!
//! Each server has a `ClientConfig` of its own, because each has a name of its own to verify and
//! sessions of its own to resume: a ticket of one server is wasted on another. The sessions stay
//! with the worker, so the lock inside of rustls' store is never fought over. A resumption shows no
//! certificate, so sessions end with the first certificate of a chain that was verified: the
//! `ClientConfig` is then made anew, with nothing to resume. A reload makes all of them anew.
//!
//! rustls takes one name for what is sent as SNI and for what is verified. Here these are two: the
//! name that rustls is given is the one to send, and [`ServerRule::Named`] verifies the other. An IP address
//! is never sent (RFC 6066, section 3), so it stands for "send none".

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use becket_config::choices::Verify;
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

/// Sessions that end together, in the configuration that offers them.
#[derive(Debug)]
struct Generation {
    config: Arc<ClientConfig>,
    /// When the first certificate is over on which they rest, in seconds since 1970.
    until: Arc<AtomicU64>,
}

/// Servers of a backend with what it takes to open TLS to each.
#[derive(Debug)]
pub struct ServerTls {
    /// Where its TLS is configured.
    backend: Arc<Backend>,
    servers: Vec<ServerTlsConfig>,
    /// What an engine holds of an unfinished record or message, in bytes.
    most_held: usize,
}

/// One server's.
#[derive(Debug)]
struct ServerTlsConfig {
    server: Arc<str>,
    sessions: RefCell<Generation>,
    /// The name that is sent when neither the client nor the configuration says another.
    own: ServerName<'static>,
}

impl ServerTls {
    /// Prepares every server of a backend; `None` when its servers speak plain TCP.
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

    /// Whether clients have a say in what servers are asked for: then a server that refuses need not
    /// be broken.
    pub fn speaks_for_client(&self) -> bool {
        let keys = self.backend.tls.as_ref().map(|onward| &onward.keys);
        keys.is_some_and(|keys| keys.sni == Some(Sni::Client) || keys.alpn == ServerAlpn::Client)
    }

    /// The protocol in which the servers are asked for TLS, where it does not begin at once.
    pub fn starttls(&self) -> Option<Protocol> {
        starttls(&self.backend)
    }

    /// Begins TLS to a server at this time, for a client that sent this name and has agreed on this protocol.
    ///
    /// # Errors
    ///
    /// When rustls cannot begin.
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
        // A reload brought it, and this client has waited since before. It resumes nothing.
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
        let movable = config.enable_secret_extraction;
        let connection = UnbufferedClientConnection::new_with_alpn(config, sent, alpn)?;
        Ok(Engine::of(connection, self.most_held, movable))
    }
}

/// The protocol in which the servers of a backend are asked for TLS.
pub fn starttls(backend: &Backend) -> Option<Protocol> {
    backend.tls.as_ref()?.keys.starttls
}

/// What a health check opens TLS to a server with, and the name to send. There is no client whose
/// name or protocol could be passed on. `alpn` keeps those of the configured protocols that the check
/// speaks.
pub fn for_check(
    onward: &Onward,
    server: &Arc<str>,
    alpn: impl Fn(&[u8]) -> bool,
) -> (Arc<ClientConfig>, ServerName<'static>) {
    let server_tls = ServerTlsConfig::new(onward, server);
    let mut config = (*server_tls.sessions.into_inner().config).clone();
    // A check sees what a new client would, the certificate among it.
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

    /// What is offered now. Connections that are open keep the configuration of theirs, and what
    /// tickets they still get are offered to nobody.
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
            // `ServerRule::Chain` ignores it.
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

/// An address, which is never sent as a name.
fn no_name() -> ServerName<'static> {
    ServerName::from(Ipv4Addr::UNSPECIFIED)
}

/// Sessions kept per server and worker: 32 names that clients ask for, eight tickets each.
const SESSIONS: usize = 256;
