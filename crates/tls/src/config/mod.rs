//! The prepared configuration: validated, immutable, shared by `Arc`.
//!
//! A [`Config`] contains the parsed [`File`] and the objects built from it: loaded certificates,
//! resolved names, and references between sections as indices. Values that need no preparation are
//! read from the file or from the `keys` of a section. `becket_prepare` builds a `Config`. A reload
//! builds a second `Config` and replaces the `Arc`.

mod admin;
mod backend;
mod cluster;
mod onward;
pub mod overrides;
mod server_address;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use becket_config::acme::OnDemand;
use becket_config::address::NamePattern;
use becket_config::file::File;
use becket_config::process::{Log, Process};
use becket_config::{listener, policy};
use becket_multibuffer::Multibuffer;
use becket_proto::networks::Networks;
use becket_sys::kernel_tls::{self, Support};
use rustls::SupportedCipherSuite;
use rustls::server::danger::ClientCertVerifier;

pub use self::admin::{Admin, AdminSocket};
pub use self::backend::{Backend, Server};
pub use self::cluster::{Cluster, StoreFiles};
pub use self::onward::Onward;
pub use self::server_address::{MOST_ADDRESSES, ServerAddress};
use crate::trial::TrialPolicy;
use becket_keys::certificates::{CertificateMap, KeySet};
use becket_keys::signing::token::Tokens;

#[derive(Clone, Debug, Default)]
pub struct Config {
    pub file: Arc<File>,
    /// Listeners. Their names and addresses are unique.
    pub listeners: Vec<Arc<Listener>>,
    /// Backends. [`Route::backend`] is an index into this list.
    pub backends: Vec<Arc<Backend>>,
    /// Maximum number of connections: `limits.connections`, or a default that the descriptor limit
    /// may lower.
    pub connections: usize,
    pub cluster: Option<Cluster>,
    /// The `[log]` section, with absolute paths.
    pub log: Log,
    /// Signer for batches of RSA signatures, if they are configured and the processor supports
    /// them.
    pub batches: Option<Multibuffer>,
    pub admin: Admin,
    pub tokens: Tokens,
}

impl Config {
    /// Returns the kernel's TLS support; `None` if kernel TLS is not configured.
    pub fn kernel_tls(&self) -> Option<&'static Support> {
        let asks = self.file.asks_for_kernel_tls().next();
        asks.map(|_| kernel_tls::support())
    }
}

#[derive(Clone, Debug)]
pub struct Listener {
    pub keys: listener::ListenerSection,
    pub bind: Vec<SocketAddr>,
    /// Certificate chains with keys by server name, and the default chain. Empty if this listener
    /// does not terminate TLS.
    pub certificates: Arc<CertificateMap>,
    pub allow: Option<Networks>,
    /// Networks that may not connect, even if `allow` contains them.
    pub deny: Networks,
    /// Networks whose PROXY headers are accepted. If a PROXY header is expected, connections from
    /// other networks are reset.
    pub trusted: Networks,
    /// Names for which certificates are ordered on demand.
    pub on_demand: Option<OnDemand>,
    /// Routes in the order of matching. The last one matches every ClientHello.
    pub routes: Vec<Route>,
}

impl Listener {
    pub fn lets_in(&self, client: IpAddr) -> bool {
        let allowed = self.allow.as_ref();
        allowed.is_none_or(|networks| networks.contains(client)) && !self.deny.contains(client)
    }

    /// Returns the name under which clients that request `name` are counted: the name of a
    /// certificate or route that matches it. An exact name has precedence over a wildcard. Empty if
    /// no name matches.
    pub fn configured_name(&self, name: Option<&str>) -> Arc<str> {
        let Some(name) = name else {
            return Arc::default();
        };
        let of_routes = self.routes.iter().flat_map(|route| &route.keys.names);
        let of_routes = of_routes.filter(|pattern| pattern.matches(name)).cloned();
        let of_certificates = self.certificates.covering(name).into_iter();
        let names = of_certificates.chain(of_routes);
        let name = names.min_by_key(|pattern| matches!(pattern, NamePattern::Wildcard(_)));
        name.map_or_else(Arc::default, |name| name.to_string().into())
    }

    /// Returns the routes for a requested name with their indices, in the order of matching.
    pub fn routes_for(&self, name: Option<&str>) -> impl Iterator<Item = (usize, &Route)> {
        let by_certificate = self.routes.iter().any(|route| route.is_of_certificate);
        let keys = by_certificate.then(|| self.certificates.keys_for(name));
        let policy = keys.and_then(KeySet::policy);
        let is_for = move |route: &Route| match policy {
            Some(policy) => route.is_of_certificate && route.keys.policy.as_deref() == Some(policy),
            None => !route.is_of_certificate && route.is_for(name),
        };
        let routes = self.routes.iter().enumerate();
        routes.filter(move |(_, route)| is_for(route))
    }
}

/// A route of a listener. The first route with matching server name and ALPN protocol is used.
#[derive(Clone, Debug)]
pub struct Route {
    /// Configuration keys of the route, or defaults if this is the listener's own route.
    pub keys: listener::Route,
    /// `true` if the route applies only to clients for which a certificate with this policy is
    /// selected.
    pub is_of_certificate: bool,
    /// Accepted ALPN protocols of the route or its listener, most preferred first. An empty list
    /// disables ALPN.
    pub alpn: Vec<Vec<u8>>,
    /// TLS parameters; `None` if the route does not terminate TLS.
    pub policy: Option<Arc<Policy>>,
    /// Index into [`Config::backends`].
    pub backend: usize,
}

/// TLS parameters for a group of clients. A session is valid only under the policy that created it.
#[derive(Debug)]
pub struct Policy {
    /// Configuration keys of the policy, or defaults with the listener's name if none are
    /// configured.
    pub keys: policy::Policy,
    /// SHA-256 of the properties that separate sessions: a session is valid only under a policy
    /// with an equal digest. See [`crate::policy`].
    pub digest: [u8; 32],
    /// SHA-256 of the contents of the policy's files: CAs, client certificates, revocation lists.
    pub contents: [u8; 32],
    /// Cipher suites, most preferred first. This order has precedence over the client's order.
    pub suites: Vec<SupportedCipherSuite>,
    /// Verifier of client certificates; `None` if none are requested. All workers share the
    /// verifier, because revocation lists may be large.
    pub verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// A policy on trial: it is evaluated for the clients of this policy but never rejects them.
    pub trial: Option<Arc<TrialPolicy>>,
}

impl Policy {
    pub fn digest_in_hex(&self) -> String {
        let bytes = self.digest.iter();
        bytes.map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Config {
    /// Returns the number of handshakes for each policy with a trial, by result of the trial.
    pub fn trials(&self) -> BTreeMap<String, BTreeMap<&'static str, u64>> {
        let routes = self.listeners.iter().flat_map(|it| &it.routes);
        let policies = routes.filter_map(|route| route.policy.as_deref());
        let counts = |it: &Policy| Some((it.keys.name.to_string(), it.trial.as_ref()?.counts()));
        policies.filter_map(counts).collect()
    }

    pub fn peers_arrive_at(&self) -> Option<SocketAddr> {
        self.cluster.as_ref()?.listen
    }

    /// Returns `true` if crypto threads make the signatures of at least one key.
    pub fn has_expensive_keys(&self) -> bool {
        let mut listeners = self.listeners.iter();
        listeners.any(|listener| listener.certificates.needs_crypto_threads())
    }
}

/// Returns the configured number of worker threads, or the default for this host.
pub fn worker_count(process: &Process) -> usize {
    let workers = process.workers;
    workers.unwrap_or_else(|| becket_sys::affinity::worker_count().get())
}

/// Returns the configured number of crypto threads, by default `workers`.
pub fn crypto_thread_count(process: &Process, workers: usize) -> usize {
    process.crypto_threads.unwrap_or(workers)
}
