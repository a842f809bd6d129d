//! Facts about a connection, for the access log, the metrics and the PROXY header.
//!
//! The connection fills its [`Facts`]. When it ends, they become part of its
//! [`AccessRecord`](crate::access::AccessRecord).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use becket_keys::identity::Identity;
use becket_keys::presented::Presented;
use becket_proto::labelled;
use becket_sys::clock::Now;
use becket_tls::ja4::Ja4;
use rustls::{CipherSuite, NamedGroup, ProtocolVersion};

use super::Timestamp;

/// Properties of a connection. Each phase sets the properties that it determines.
#[derive(Clone, Debug)]
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
    pub presented: Option<Presented>,
    /// Time from accept to traffic keys, without queueing.
    pub took: Duration,
}

/// Bytes of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteCounts {
    pub received: u64,
    pub sent: u64,
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

    /// Returns the unique ID in the PROXY header received from the client or sent to the server.
    pub fn unique_id(&self) -> Option<&[u8]> {
        self.introduced.as_ref()?.unique_id.as_deref()
    }
}

impl Agreed {
    /// Returns the kind of resumption, or of early data; `None` for a full handshake.
    pub fn resumed_by(&self) -> Option<ResumedBy> {
        match self.early_data {
            Some(_) => Some(ResumedBy::Early),
            None => self.resumed,
        }
    }
}

labelled! {
pub enum ResumedBy {
    /// TLS 1.2 session ID (RFC 5246, section 7.4.1.2).
    Id = "id",
    /// TLS 1.2 ticket (RFC 5077).
    Ticket = "ticket",
    /// TLS 1.3 pre-shared key (RFC 8446, section 2.2).
    Psk = "psk",
    /// TLS 1.3 pre-shared key with early data (section 2.3).
    Early = "early",
}
}
