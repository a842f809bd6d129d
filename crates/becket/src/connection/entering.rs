//! The first turn of a client that has nothing to say before there is a server: on to one, without
//! a word. It speaks no TLS, or not yet.
//!
//! There is nothing to wait for: in some protocols the server speaks first, and what the client
//! has said already is read when the relay begins.

use std::rc::Rc;

use super::connect::{Connecting, Errand, Established};
use super::{Core, Net, Next, Turn};
use crate::close_reason::CloseReason;
use crate::config::Face;
use crate::connection::listener::ListenerState;

/// A client that was accepted by a listener without TLS, or with STARTTLS.
#[derive(Debug)]
pub struct Entering {
    listener: Rc<ListenerState>,
}

impl Entering {
    /// Starts for a client that came through `listener`.
    pub fn new(listener: Rc<ListenerState>) -> Self {
        Self { listener }
    }

    /// Goes on to a server.
    pub fn advance<N: Net>(self, core: &mut Core<N>, turn: &mut Turn<'_, N>) -> Next<N> {
        // A listener without TLS has no hello to choose by, and so only its own route.
        let Some(pool) = self.listener.pool(0).cloned() else {
            return Next::End(CloseReason::Internal);
        };
        turn.scratch.clear();
        let established = Established {
            client_tls: None,
            pool,
            client_ended: false,
            origin: None,
            slot: None,
            home: None,
            errand: match self.listener.face {
                Face::StartTls(protocol) => Errand::Converse(self.listener, protocol),
                _ => Errand::Relay,
            },
        };
        Connecting::begin(established, core, turn)
    }
}
