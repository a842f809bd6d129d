//! The configuration as the program uses it: validated, immutable, shared by `Arc`.
//!
//! A [`Config`] is valid by construction: files are read, keys match their certificates, names
//! are resolved, every reference between sections is an index. It is made by [`crate::prepare`] from a [`File`], which mirrors
//! the text and computes nothing. A reload makes a second `Config` beside the first and swaps the `Arc`: nothing in here
//! changes after it was made.

mod backend;
mod cluster;
mod onward;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use becket_config::address::NamePattern;
use becket_config::choices::{AlpnMismatch, LogFormat, UnknownNames, UnknownStatus};
use becket_config::client_name::ClientName;
use becket_config::file::File;
use becket_config::listener::ListenMode;
use becket_config::process::{Limits, Process, Timeouts};
use becket_proto::admission::{Prefixes, Share};
use becket_proto::networks::Networks;
use becket_proto::proxy_header::Accept;
use rustls::RootCertStore;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::CertificateRevocationListDer;

pub use self::backend::{Backend, Server};
pub use self::cluster::{Cluster, Stud};
pub use self::onward::{ChainLimits, Onward};
use crate::pki::certificates::CertificateMap;

/// Everything a running terminator was told.
#[derive(Debug)]
pub struct Config {
    /// As it was written, with every default: what is shown.
    pub file: Arc<File>,
    /// Where clients arrive. Names are unique; addresses are unique over all listeners.
    pub listeners: Vec<Arc<Listener>>,
    /// Where connections go. [`Route::backend`] indexes this list.
    pub backends: Vec<Arc<Backend>>,
    /// Bounds on what peers can make grow.
    pub limits: Limits,
    /// Connections in all: those of the limits, or what descriptors allow.
    pub connections: usize,
    /// How long each phase of a connection may take.
    pub timeouts: Timeouts,
    /// Tickets and the table of TLS 1.2 sessions.
    pub sessions: Sessions,
    /// Who is let in when more want to than can be served.
    pub admission: Admission,
    /// What is shared with other hosts; absent when it is alone.
    pub cluster: Option<Cluster>,
    /// Where and how to log.
    pub log: Log,
    /// Where `/metrics` and `/status` are; nothing listens when absent.
    pub admin: Option<Admin>,
    /// What concerns the process as a whole; a reload does not change it.
    pub process: Process,
}

/// A listener: addresses, certificates, and routes behind it.
#[derive(Debug)]
pub struct Listener {
    /// Configuration name, unique; a label of metrics and logs.
    pub name: Arc<str>,
    /// What clients speak here.
    pub mode: ListenMode,
    /// Addresses to bind, at least one.
    pub bind: Vec<SocketAddr>,
    /// Options of the listening sockets; accepted ones inherit them.
    pub socket: SocketOptions,
    /// Chains and keys by name, with the default; empty where no TLS ends.
    pub certificates: Arc<CertificateMap>,
    /// What to do with a name that no certificate covers.
    pub(crate) unknown_names: UnknownNames,
    /// Who may come in; `None` is everybody who is not denied.
    pub allow: Option<Networks>,
    /// Who may not, even if allowed.
    pub deny: Networks,
    /// Whether every connection begins with a PROXY header.
    pub accept_proxy: Option<AcceptProxy>,
    /// Whether cancels of PostgreSQL clients in clear are passed on to the servers.
    pub(crate) cancel_requests: bool,
    /// Tried in order; the last one matches every hello.
    pub routes: Vec<Route>,
}

impl Listener {
    /// Whether a client may come in from this address. Costs a binary search where there is a list.
    pub fn lets_in(&self, client: IpAddr) -> bool {
        let allowed = self.allow.as_ref();
        allowed.is_none_or(|networks| networks.contains(client)) && !self.deny.contains(client)
    }
}

/// The PROXY header that a listener expects of everybody.
#[derive(Clone, Debug)]
pub struct AcceptProxy {
    /// Versions that are understood.
    pub versions: Accept,
    /// Who is believed; others are reset.
    pub trusted: Networks,
}

/// Where a hello goes: the first route whose names and protocols match.
#[derive(Debug)]
pub struct Route {
    /// Server names this route is for; empty means any, also none.
    pub names: Vec<NamePattern>,
    /// Protocols offered by ALPN, most preferred first; empty means that ALPN is not negotiated.
    pub alpn: Vec<Vec<u8>>,
    /// Only hellos that offer one of `alpn` match. Not so where the list is the listener's.
    pub alpn_only: bool,
    /// What to do when the client offers ALPN and none of it is ours.
    pub alpn_mismatch: AlpnMismatch,
    /// TLS parameters and the border that sessions never cross; absent where no TLS ends, since there is none or it passes.
    pub policy: Option<Arc<Policy>>,
    /// Index into [`Config::backends`].
    pub backend: usize,
}

/// TLS parameters of a group of clients. A session made under one policy never opens another.
#[derive(Debug)]
pub struct Policy {
    /// Configuration name; part of the digest.
    pub name: String,
    /// SHA-256 over what makes sessions exchangeable; see [`crate::tls::policy`].
    pub digest: [u8; 32],
    /// Versions allowed; at least one.
    pub versions: Versions,
    /// Suites, most preferred first: the server's order decides.
    pub suites: Vec<rustls::SupportedCipherSuite>,
    /// Key exchange groups that are accepted; the client's order decides.
    pub groups: Vec<&'static dyn rustls::crypto::SupportedKxGroup>,
    /// Whether and how clients authenticate.
    pub client_auth: ClientAuth,
    /// Names of which a client's certificate must have one; any where there is none.
    pub client_names: Vec<ClientName>,
    /// What is known to be revoked.
    pub revocation: Revocation,
    /// Verifies client certificates; `None` when none is asked for. Built once for all workers:
    /// revocation lists may be large.
    pub verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// Refuse TLS 1.2 clients without extended master secret (RFC 7627).
    pub require_ems: bool,
    /// Hand out tickets to TLS 1.2 clients; without, they resume by session ID. In a cluster only
    /// where that allows it, too.
    pub tls12_tickets: bool,
    /// Bytes of early data (0-RTT) to take from a client; 0 is none.
    pub early_data: u32,
}

/// TLS versions of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// RFC 5246.
    pub tls12: bool,
    /// RFC 8446.
    pub tls13: bool,
}

/// Authentication of clients by certificate.
#[derive(Clone, Debug, Default)]
pub enum ClientAuth {
    /// No certificate is asked for.
    #[default]
    Off,
    /// One is asked for; a client without one is served.
    Optional(Arc<RootCertStore>),
    /// One is asked for; a client without one is refused.
    Required(Arc<RootCertStore>),
}

impl ClientAuth {
    /// The CAs of clients.
    pub(crate) fn authorities(&self) -> Option<&Arc<RootCertStore>> {
        match self {
            Self::Off => None,
            Self::Optional(roots) | Self::Required(roots) => Some(roots),
        }
    }
}

/// Revocation of the certificates of clients, or of servers.
#[derive(Clone, Debug, Default)]
pub struct Revocation {
    /// Lists, newest first. Without any, nothing is asked.
    pub lists: Vec<CertificateRevocationListDer<'static>>,
    /// What to do with a certificate of which no list knows.
    pub unknown: UnknownStatus,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// TCP over IPv4 or IPv6.
    Tcp(SocketAddr),
    /// A unix stream socket.
    Unix(PathBuf),
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Options of listening sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// Queue of connections that the kernel completed and we have not accepted.
    pub(crate) backlog: u32,
    /// TCP_DEFER_ACCEPT: wake up when the ClientHello is there; `None` is off.
    pub defer_accept: Option<Duration>,
    /// TCP_FASTOPEN queue length; `None` is off.
    pub(crate) fast_open: Option<u32>,
    /// SO_KEEPALIVE: idle time before the first probe; `None` is off.
    pub(crate) keepalive: Option<Duration>,
    /// SO_RCVBUF in bytes; `None` leaves it to the kernel.
    pub(crate) receive_buffer: Option<usize>,
    /// SO_SNDBUF in bytes; `None` leaves it to the kernel.
    pub(crate) send_buffer: Option<usize>,
}

/// Resumption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// Sessions kept in memory for TLS 1.2 clients that resume by ID; 0 is off.
    pub table_entries: usize,
    /// Bytes of what is kept for them.
    pub(crate) table_bytes: usize,
    /// Bytes of a ticket; a client that brings a longer one would have no room for the rest of its
    /// hello.
    pub(crate) longest_ticket: usize,
    /// How long a session ID is good for.
    pub(crate) id_lifetime: Duration,
    /// How often the ticket key changes; a ticket is good for at least one rotation, at most two.
    /// In a cluster its rotation.
    pub ticket_rotation: Duration,
    /// Age after the full handshake at which no session resumes.
    pub max_age: Duration,
}

/// Who is let in when more want to than can be served. The default limits nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Full handshakes of all clients together.
    pub all: Share,
    /// Full handshakes of one source.
    pub source: Share,
    /// Connections of one source.
    pub connections_per_source: Option<u32>,
    /// Connections without keys of one source, over all workers.
    pub half_open_per_source: Option<u32>,
    /// How much of an address makes a source.
    pub prefixes: Prefixes,
    /// Sources that are tracked at most.
    pub sources: usize,
}

/// Where and how to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// `tracing` filter, such as `info` or `becket=debug`.
    pub level: String,
    /// Text for people or JSON for machines.
    pub format: LogFormat,
    /// `None` is stderr.
    pub file: Option<PathBuf>,
    /// One line per connection; off by default.
    pub access: Option<AccessLog>,
}

/// Where the access log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Beside the other lines.
    Stderr,
    /// To a file of its own, reopened on SIGUSR1.
    File(PathBuf),
}

/// Addresses of a server that are used: some more than a client would be led to, and a DNS server may say thousands.
pub const MOST_ADDRESSES: usize = 64;

/// How many worker threads there are to be.
pub(crate) fn worker_count(process: &Process) -> usize {
    let workers = process.workers;
    workers.unwrap_or_else(|| becket_sys::affinity::worker_count().get())
}

impl Admission {
    /// Whether a full handshake needs anything.
    pub fn limits_handshakes(&self) -> bool {
        self.all != Share::default() || self.limits_source()
    }

    /// Whether a full handshake needs anything of its source.
    pub(crate) fn limits_source(&self) -> bool {
        self.source != Share::default()
    }
}

/// Where the pages are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// What is bound.
    pub address: SocketAddr,
    /// Names that a request may give as its host, in lower case, beside addresses and `localhost`.
    pub(crate) hosts: Vec<String>,
}
