//! Finds the server that probably has the TLS session of a client, if TLS is passed through.
//!
//! A ticket that becket issued contains the number of the node that issued it, in plaintext and
//! unverified. For a TLS 1.2 session ID, the server is the one whose ServerHello contained the ID
//! ([`Learner`]). A client that forges a ticket or an ID only reaches a server that balancing could
//! choose as well.

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use becket_config::choices::StickBy;
use becket_proto::client_hello::ClientHello;
use becket_proto::server_hello::{self, ServerHelloPeek};
use becket_proto::ticket::{NodeId, OriginId, TicketHeader};

use crate::backend::pool::{PickHint, Pool};
use crate::backend::server_state::ServerState;

/// Returns the [`ServerState::key`] of the server that probably has the session of a client.
pub(super) fn home(hello: &ClientHello<'_>, pool: &Pool, now: Duration) -> Option<u64> {
    let mut tickets = hello.psk_identities().chain(hello.session_ticket());
    let by_node = tickets.find_map(|ticket| pool.at_node(node_of(ticket)?));
    by_node.or_else(|| {
        let id = hello.session_id();
        let learns = pool.backend().keys.stick == StickBy::TlsSession && !id.is_empty();
        learns.then(|| pool.recall(&known_by(id), now)).flatten()
    })
}

/// Returns the node number in a ticket, if the ticket is from becket.
fn node_of(ticket: &[u8]) -> Option<NodeId> {
    let (header, sealed) = TicketHeader::decode(ticket)?;
    let ours = header.version == TicketHeader::VERSION && !sealed.is_empty();
    ours.then_some(header.node)
}

/// Returns a hint that identifies the client by its session ID. The hash of the ID takes the place
/// of the session's origin, which only the TLS server knows. An ID has 32 random bytes, so XOR and
/// rotation are a sufficient hash.
fn known_by(id: &[u8]) -> PickHint<'static> {
    let key = id.chunks(8).fold(id.len() as u64, |key, part| {
        let mut word = [0; 8];
        word.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
        key.rotate_left(5) ^ u64::from_le_bytes(word)
    });
    PickHint {
        source: Ipv4Addr::UNSPECIFIED.into(),
        name: None,
        origin: Some(OriginId(key)),
    }
}

/// Reads the session ID that a server creates, so that the client can return to that server.
#[derive(Debug)]
pub(super) struct Learner {
    pool: Rc<Pool>,
    /// Session ID that the client offered. A server that returns the same ID resumes that session
    /// and creates none.
    offered: Box<[u8]>,
    /// Bytes from the server until its ServerHello is complete.
    begun: Vec<u8>,
}

impl Learner {
    /// Creates a learner if clients stick to servers by session and this client may use TLS 1.2.
    pub(super) fn new(hello: &ClientHello<'_>, pool: &Rc<Pool>) -> Option<Self> {
        let learns = pool.backend().keys.stick == StickBy::TlsSession && hello.offers_tls12();
        learns.then(|| Self {
            pool: Rc::clone(pool),
            offered: hello.session_id().into(),
            begun: Vec::new(),
        })
    }

    /// Inspects data from the server. Returns `false` when no more data is needed. Stores at most
    /// [`LONGEST_LOOK`] bytes.
    pub(super) fn look(&mut self, bytes: &[u8], server: &ServerState, now: Duration) -> bool {
        let room = LONGEST_LOOK.saturating_sub(self.begun.len());
        self.begun
            .extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        match server_hello::peek(&self.begun) {
            ServerHelloPeek::Incomplete => self.begun.len() < LONGEST_LOOK,
            ServerHelloPeek::Other => false,
            ServerHelloPeek::Hello(hello) => {
                if let Some(id) = hello.session_to_learn(&self.offered) {
                    self.pool.learn(&known_by(id), server, now);
                }
                false
            }
        }
    }
}

/// Maximum number of stored bytes: enough for a ServerHello in small records.
const LONGEST_LOOK: usize = 2 * server_hello::MAX_HELLO_BYTES;
