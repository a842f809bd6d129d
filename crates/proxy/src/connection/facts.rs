//! Facts about a connection, for the access log, the metrics and the PROXY header.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::socket::ByteCounts;
use becket_keys::identity::Identity;
use becket_keys::presented::Presented;
use becket_log::Timestamp;
use becket_log::access::{
    AccessRecord, ConnectionTimes, HandshakeRecord, RequestRecord, ResumedBy,
};
use becket_proto::close_reason::CloseReason;
use becket_sys::clock::Now;
use becket_tls::ja4::Ja4;
use becket_tls::names;
use rustls::{CipherSuite, NamedGroup, ProtocolVersion};

/// Properties of a connection. Each phase sets the properties that it determines.
#[derive(Debug)]
pub struct Facts {
    /// Address of the client, from an accepted PROXY header or the socket.
    pub client: SocketAddr,
    /// Details for PROXY headers; `None` if no header was received and none must be sent.
    pub introduced: Option<Box<ProxyDetails>>,
    pub listener: Arc<str>,
    pub accepted: Duration,
    pub accepted_at: Timestamp,
    /// Total time in the queue for a slot.
    pub queued: Duration,
    /// Duration of the successful connect to the server.
    pub connect: Option<Duration>,
    /// Server name in the ClientHello, in lower case.
    pub server_name: Option<Box<str>>,
    /// JA4 fingerprint of the ClientHello, if the access log, a PROXY header or a limit needs it.
    pub ja4: Option<Ja4>,
    /// `None` until the handshake is complete.
    pub tls: Option<Agreed>,
    /// Name of the server to which becket last tried to connect.
    pub server: Option<Arc<str>>,
    /// Bytes received from and sent to the server.
    pub server_traffic: ByteCounts,
}

/// Details for PROXY headers. Few connections have them, so they are boxed to save memory.
#[derive(Clone, Debug, Default)]
pub struct ProxyDetails {
    /// The destination address of the client's connection, from a PROXY header.
    pub arrived_at: Option<SocketAddr>,
    /// The received header, if it is forwarded unchanged.
    pub header: Option<Box<[u8]>>,
    /// Unique ID of the connection, received in a PROXY header or generated for one; at most 128
    /// bytes.
    pub unique_id: Option<Box<[u8]>>,
}

#[derive(Clone, Debug)]
pub struct Agreed {
    pub version: Option<ProtocolVersion>,
    pub suite: Option<CipherSuite>,
    /// Key exchange group; `None` for a resumed TLS 1.2 handshake.
    pub group: Option<NamedGroup>,
    pub alpn: Option<Box<[u8]>>,
    /// Kind of resumption; `None` for a full handshake. Early data does not change this value.
    pub resumed: Option<ResumedBy>,
    /// Maximum number of early data bytes under the policy; `None` if no early data of this client
    /// was accepted.
    pub early_data: Option<u32>,
    /// `true` if the client's certificate was verified, in this handshake or in the full handshake
    /// of the resumed session.
    pub client_verified: bool,
    pub identity: Option<Box<Identity>>,
    /// Reason why a policy that is only being tested would reject the client.
    pub would_refuse: Option<&'static str>,
    /// Algorithms of becket's own certificate, if the PROXY header contains them.
    pub presented: Option<Arc<Presented>>,
    /// Time from accept to traffic keys, without queueing.
    pub took: Duration,
}

impl Facts {
    pub fn new(client: SocketAddr, listener: Arc<str>, accepted: Now) -> Self {
        Self {
            client,
            introduced: None,
            listener,
            accepted: accepted.mono,
            accepted_at: Timestamp::from_unix(accepted.unix),
            queued: Duration::ZERO,
            connect: None,
            server_name: None,
            ja4: None,
            tls: None,
            server: None,
            server_traffic: ByteCounts::default(),
        }
    }

    /// Returns the access log record of a request. `asked` is its method and target, or `None` if
    /// its head is invalid.
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
            times: ConnectionTimes {
                queued: self.queued,
                connect: self.connect,
                total: now.mono.saturating_sub(self.accepted),
            },
            reason,
        }
    }
}

impl Agreed {
    fn resumed_by(&self) -> Option<ResumedBy> {
        match self.early_data {
            Some(_) => Some(ResumedBy::Early),
            None => self.resumed,
        }
    }
}
