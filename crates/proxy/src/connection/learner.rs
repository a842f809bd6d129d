//! The server that has the session of a client whose TLS ends there.
//!
//! A becket behind us is known by the node in the tickets that it made, which travels in clear and
//! is a hint that nobody has verified; a TLS 1.2 session ID by which server was seen to make it
//! ([`Learner`]). Neither gives a client more than a server that it could have had by chance.

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use becket_config::choices::StickBy;
use becket_proto::client_hello::ClientHello;
use becket_proto::server_hello::{self, ServerHelloPeek};
use becket_proto::ticket::{NodeId, OriginId, TicketHeader};

use crate::backend::pool::{PickHint, Pool};
use crate::backend::server_state::ServerState;

/// The server that has the session which a client wants to resume, as far as can be told.
pub(super) fn home(hello: &ClientHello<'_>, pool: &Pool, now: Duration) -> Option<u64> {
    let psks = hello.psk_identities().map(|psk| psk.identity);
    let mut tickets = psks.chain(hello.session_ticket());
    let by_node = tickets.find_map(|ticket| pool.at_node(node_of(ticket)?));
    by_node.or_else(|| {
        let id = hello.session_id();
        let learns = pool.backend().keys.stick == StickBy::TlsSession && !id.is_empty();
        learns.then(|| pool.recall(&known_by(id), now)).flatten()
    })
}

/// The node that says to have made a ticket, if it is one of becket's.
fn node_of(ticket: &[u8]) -> Option<NodeId> {
    let (header, sealed) = TicketHeader::decode(ticket)?;
    let ours = header.version == TicketHeader::VERSION && !sealed.is_empty();
    ours.then_some(header.node)
}

/// A client as the table of those who stick has it: by a session ID, in place of an origin that only
/// whoever ends TLS could know. The ID is the server's 32 random bytes: to fold them is to hash them.
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

/// Watches for the session ID that a server makes, so that its client finds back to it.
#[derive(Debug)]
pub(super) struct Learner {
    pool: Rc<Pool>,
    /// The ID that the client offered: to send that back is no news.
    offered: Box<[u8]>,
    /// From the server, until its hello is whole.
    begun: Vec<u8>,
}

impl Learner {
    /// Watches for a client that may have TLS 1.2, where clients stick to servers by session.
    pub(super) fn new(hello: &ClientHello<'_>, pool: &Rc<Pool>) -> Option<Self> {
        let learns = pool.backend().keys.stick == StickBy::TlsSession && hello.offers_tls12();
        learns.then(|| Self {
            pool: Rc::clone(pool),
            offered: hello.session_id().into(),
            begun: Vec::new(),
        })
    }

    /// Looks at what the server said. False when there is nothing more to see. Holds no more than
    /// a ServerHello.
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

/// A ServerHello in records of few bytes each.
const LONGEST_LOOK: usize = 2 * server_hello::MAX_HELLO_BYTES;
