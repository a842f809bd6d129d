//! The configuration as the program uses it: validated, immutable, shared by `Arc`.
//!
//! A [`Config`] is the [`File`] and what was built of it: certificates are read, names are resolved, every reference between
//! sections is an index. What needs no building is read where it is written, in the file, or in the `keys` of a section. It is
//! made by `becket_prepare`, and valid by construction. A reload makes a second `Config` beside the first and swaps the
//! `Arc`: nothing in here changes after it was made.

mod admin;
mod backend;
mod cluster;
mod onward;
pub mod overrides;
mod server_address;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

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
pub use self::cluster::{Cluster, Stud};
pub use self::onward::Onward;
pub use self::server_address::{MOST_ADDRESSES, ServerAddress};
use crate::trial::TrialPolicy;
use becket_keys::certificates::{CertificateMap, KeySet};
use becket_keys::keys::Loaded;
use becket_keys::signing::token::Tokens;

/// Everything that a running terminator was configured with.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// As it was written, with every default.
    pub file: Arc<File>,
    /// Where clients arrive. Names are unique; addresses are unique over all listeners.
    pub listeners: Vec<Arc<Listener>>,
    /// Where connections go. [`Route::backend`] indexes this list.
    pub backends: Vec<Arc<Backend>>,
    /// Connections in all: those of the limits, or what descriptors allow.
    pub connections: usize,
    /// What is shared with other hosts; absent when it is alone.
    pub cluster: Option<Cluster>,
    /// Sessions of stud and hitch; received only where this is set.
    pub stud: Option<Stud>,
    /// The section, with whole paths.
    pub log: Log,
    /// What signs in batches, where that is configured and the processor can do it.
    pub batches: Option<Multibuffer>,
    /// Where the admin pages are.
    pub admin: Admin,
    /// The tokens that have keys of it.
    pub tokens: Tokens,
}

impl Config {
    /// What the kernel can take over; `None` where it is not asked to.
    pub fn kernel_tls(&self) -> Option<&'static Support> {
        let asks = self.file.asks_for_kernel_tls().next();
        asks.map(|_| kernel_tls::support())
    }
}

/// A listener: addresses, certificates, and routes behind it.
#[derive(Clone, Debug)]
pub struct Listener {
    /// As the file has it.
    pub keys: listener::ListenerSection,
    /// Addresses to bind, at least one.
    pub bind: Vec<SocketAddr>,
    /// Chains and keys by name, with the default; empty where no TLS ends.
    pub certificates: Arc<CertificateMap>,
    /// The same, as they were loaded.
    pub credentials: Vec<Loaded>,
    /// Who may come in; `None` is everybody who is not denied.
    pub allow: Option<Networks>,
    /// Who may not, even if allowed.
    pub deny: Networks,
    /// Whose PROXY headers are believed; others are reset.
    pub trusted: Networks,
    /// Tried in order; the last one matches every hello.
    pub routes: Vec<Route>,
}

impl Listener {
    /// Whether a client may come in from this address. Costs a binary search where there is a list.
    pub fn lets_in(&self, client: IpAddr) -> bool {
        let allowed = self.allow.as_ref();
        allowed.is_none_or(|networks| networks.contains(client)) && !self.deny.contains(client)
    }

    /// The name by which clients that ask for `name` are counted: the one in a certificate or a route that covers it, an exact one before a
    /// wildcard. Empty if none does.
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

    /// The routes of clients that ask for this name, with their indices, in the order in which they are tried.
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

/// Where a hello goes: the first route whose names and protocols match.
#[derive(Clone, Debug)]
pub struct Route {
    /// As the file has it; with every default where it is the listener's own.
    pub keys: listener::Route,
    /// For clients whose certificate has this policy, and for no others.
    pub is_of_certificate: bool,
    /// Protocols offered by ALPN, most preferred first, perhaps the listener's; empty means that ALPN is not negotiated.
    pub alpn: Vec<Vec<u8>>,
    /// TLS parameters and the border that sessions never cross; absent where no TLS ends, since there is none or it passes.
    pub policy: Option<Arc<Policy>>,
    /// Index into [`Config::backends`].
    pub backend: usize,
}

/// TLS parameters of a group of clients. A session made under one policy never opens another.
#[derive(Debug)]
pub struct Policy {
    /// As the file has it; with every default, and the listener's name, where a listener has none.
    pub keys: policy::Policy,
    /// SHA-256 over what makes sessions exchangeable; see [`crate::policy`].
    pub digest: [u8; 32],
    /// SHA-256 over what its files hold: CAs, clients' certificates, revocation lists.
    pub contents: [u8; 32],
    /// Suites, most preferred first: the server's order decides.
    pub suites: Vec<SupportedCipherSuite>,
    /// Verifies client certificates; `None` when none is asked for. Built once for all workers:
    /// revocation lists may be large.
    pub verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// A policy that is tried on the clients of this one, and refuses none.
    pub trial: Option<Arc<TrialPolicy>>,
}

impl Policy {
    /// The digest as it is shown.
    pub fn digest_in_hex(&self) -> String {
        let bytes = self.digest.iter();
        bytes.map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Config {
    /// Handshakes by policy that has a trial, and by result.
    pub fn trials(&self) -> BTreeMap<String, BTreeMap<&'static str, u64>> {
        let routes = self.listeners.iter().flat_map(|it| &it.routes);
        let policies = routes.filter_map(|route| route.policy.as_deref());
        let counts = |it: &Policy| Some((it.keys.name.to_string(), it.trial.as_ref()?.counts()));
        policies.filter_map(counts).collect()
    }

    /// Where datagrams of peers arrive, if they do.
    pub fn peers_arrive_at(&self) -> Option<SocketAddr> {
        self.cluster.as_ref()?.listen
    }

    /// Terms on which sessions of stud and hitch are taken, if they are.
    pub fn stud(&self) -> Option<&Stud> {
        self.stud.as_ref()
    }

    /// Whether there is a key with which crypto threads sign.
    pub fn has_expensive_keys(&self) -> bool {
        let mut listeners = self.listeners.iter();
        listeners.any(|listener| listener.certificates.needs_crypto_threads())
    }
}

/// How many worker threads there are to be.
pub fn worker_count(process: &Process) -> usize {
    let workers = process.workers;
    workers.unwrap_or_else(|| becket_sys::affinity::worker_count().get())
}

/// How many threads sign for so many workers.
pub fn crypto_thread_count(process: &Process, workers: usize) -> usize {
    process.crypto_threads.unwrap_or(workers)
}
