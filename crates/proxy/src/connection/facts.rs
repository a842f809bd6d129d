//! Facts of a connection for the access log, the metrics and the PROXY header.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::socket::ByteCounts;
use becket_keys::identity::Identity;
use becket_keys::presented::Presented;
use becket_log::Timestamp;
use becket_log::access::{AccessRecord, HandshakeRecord, RequestRecord, ResumedBy};
use becket_proto::close_reason::CloseReason;
use becket_sys::clock::Now;
use becket_tls::ja4::Ja4;
use becket_tls::names;
use rustls::{CipherSuite, NamedGroup, ProtocolVersion};

/// Filled in as the connection proceeds.
#[derive(Debug)]
pub struct Facts {
    /// The client's address; the one that a PROXY header claims, if that is accepted.
    pub client: SocketAddr,
    /// From a PROXY header, or for ours.
    pub introduced: Option<Box<ProxyDetails>>,
    /// The listener's configuration name.
    pub listener: Arc<str>,
    /// Monotonic time of the accept.
    pub accepted: Duration,
    /// The same by the wall clock.
    pub accepted_at: Timestamp,
    /// Time spent in queues, of waits that came to a good end.
    pub queued: Duration,
    /// The server name of the hello, lower case.
    pub server_name: Option<Box<str>>,
    /// The fingerprint of the hello, if the log or a server gets it.
    pub ja4: Option<Ja4>,
    /// `None` until the handshake is complete.
    pub tls: Option<Agreed>,
    /// The server that was connected.
    pub server: Option<Arc<str>>,
    /// Plaintext to and from the server.
    pub server_traffic: ByteCounts,
}

/// Facts that few connections have.
#[derive(Clone, Debug, Default)]
pub struct ProxyDetails {
    /// The address that the client connected to, as a PROXY header claims.
    pub arrived_at: Option<SocketAddr>,
    /// The header itself, where a server is to have it as it came.
    pub header: Option<Box<[u8]>>,
    /// A name of the connection, from such a header or for ours; at most 128 bytes.
    pub unique_id: Option<Box<[u8]>>,
}

/// The outcome of a handshake.
#[derive(Clone, Debug)]
pub struct Agreed {
    /// Negotiated version.
    pub version: Option<ProtocolVersion>,
    /// Negotiated suite.
    pub suite: Option<CipherSuite>,
    /// Key exchange group; a resumed TLS 1.2 handshake has none.
    pub group: Option<NamedGroup>,
    /// Negotiated protocol.
    pub alpn: Option<Box<[u8]>>,
    /// How the session was resumed, early data aside; `None` is a full handshake.
    pub resumed: Option<ResumedBy>,
    /// How much early data the policy takes, if some of what the client says came as such.
    pub early_data: Option<u32>,
    /// The client proved its identity by certificate, in this handshake or in the one
    /// that the session descends from.
    pub client_verified: bool,
    /// Whom that certificate names.
    pub identity: Option<Box<Identity>>,
    /// Why the trial of the policy would refuse the client.
    pub would_refuse: Option<&'static str>,
    /// Our own certificate, where the PROXY header speaks of it.
    pub presented: Option<Arc<Presented>>,
    /// From accept to traffic keys, without the time in a queue.
    pub took: Duration,
}

impl Facts {
    /// Nothing but the accept is known.
    pub fn new(client: SocketAddr, listener: Arc<str>, accepted: Now) -> Self {
        Self {
            client,
            introduced: None,
            listener,
            accepted: accepted.mono,
            accepted_at: Timestamp::from_unix(accepted.unix),
            queued: Duration::ZERO,
            server_name: None,
            ja4: None,
            tls: None,
            server: None,
            server_traffic: ByteCounts::default(),
        }
    }

    /// The line of a request, of which method and target are known where it is one.
    pub fn request(&self, asked: Option<(&str, &str)>, now: Now) -> RequestRecord {
        let (method, target) = asked.unzip();
        RequestRecord {
            at: Timestamp::from_unix(now.unix),
            client: self.client,
            listener: Arc::clone(&self.listener),
            sni: self.server_name.clone(),
            id: self
                .introduced
                .as_ref()
                .and_then(|known| known.unique_id.clone()),
            method: method.map(Box::from),
            target: target.map(Box::from),
            status: "",
            bytes: 0,
            began: now.mono,
            took: Duration::ZERO,
        }
    }

    /// The line of the access log.
    pub fn record(&self, client: ByteCounts, reason: CloseReason, now: Now) -> AccessRecord {
        AccessRecord {
            accepted: self.accepted_at,
            client: self.client,
            listener: Arc::clone(&self.listener),
            sni: self.server_name.clone(),
            ja4: self.ja4,
            tls: self.tls.as_ref().map(|tls| HandshakeRecord {
                version: tls.version.map(names::version),
                suite: tls.suite.map(names::suite),
                group: tls.group.map(names::group),
                alpn: tls.alpn.clone(),
                resumed: tls.resumed_by(),
                identity: tls.identity.clone(),
                would_refuse: tls.would_refuse,
                took: tls.took,
            }),
            id: self
                .introduced
                .as_ref()
                .and_then(|known| known.unique_id.clone()),
            server: self.server.clone(),
            client_bytes_in: client.received,
            client_bytes_out: client.sent,
            server_bytes_in: self.server_traffic.received,
            server_bytes_out: self.server_traffic.sent,
            total: now.mono.saturating_sub(self.accepted),
            reason,
        }
    }
}

impl Agreed {
    /// How the session was resumed, as the log says it.
    fn resumed_by(&self) -> Option<ResumedBy> {
        match self.early_data {
            Some(_) => Some(ResumedBy::Early),
            None => self.resumed,
        }
    }
}
