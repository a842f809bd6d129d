//! What can be seen of a connection from outside, without a copy: for lists of those that are open.

use std::sync::Arc;

use super::facts::Facts;
use super::{Connection, Net, Phase};
use crate::backend::server_state::ServerState;
use crate::socket::Traffic;

/// A connection as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Glance<'a> {
    pub facts: &'a Facts,
    /// Its phase, in a word.
    pub phase: &'static str,
    /// The server that is connected, or being connected.
    pub server: Option<&'a Arc<ServerState>>,
    /// From and to the client.
    pub traffic: Traffic,
}

impl<N: Net> Connection<N> {
    /// Looks at the connection.
    pub fn glance(&self) -> Glance<'_> {
        let phase = self.phase.as_ref();
        Glance {
            facts: &self.core.facts,
            phase: phase.map_or("closing", Phase::label),
            server: phase.and_then(Phase::slot).map(|slot| slot.server()),
            traffic: self.core.client.traffic,
        }
    }
}

impl<N: Net> Phase<N> {
    fn label(&self) -> &'static str {
        match self {
            Self::Entering(_) => "entering",
            Self::Greeting(_) => "greeting",
            Self::Conversing(_) => "conversing",
            Self::Cancelling(_) => "cancelling",
            Self::Handshaking(_) => "handshake",
            Self::Queued(_) => "queued",
            Self::Connecting(_) => "connecting",
            Self::Securing(_) => "securing",
            Self::Relaying(_) => "relaying",
            Self::Serving(_) => "serving",
            Self::Closing(_) => "closing",
        }
    }
}

/// The words for phases.
pub const PHASES: [&str; 11] = [
    "entering",
    "greeting",
    "conversing",
    "cancelling",
    "handshake",
    "queued",
    "connecting",
    "securing",
    "relaying",
    "serving",
    "closing",
];
