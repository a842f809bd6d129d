//! A borrowed view of a connection, for lists of open connections.

use std::sync::Arc;

use super::context::Net;
use super::{Connection, Phase};
use crate::backend::server_state::ServerState;
use becket_log::facts::ByteCounts;
use becket_log::facts::Facts;
use becket_tls::config::Config;

#[derive(Clone, Copy, Debug)]
pub struct Glance<'a> {
    pub facts: &'a Facts,
    pub phase: &'static str,
    /// The connected server, or the server to which becket is connecting.
    pub server: Option<&'a Arc<ServerState>>,
    pub traffic: ByteCounts,
}

impl<N: Net> Connection<N> {
    pub fn glance(&self) -> Glance<'_> {
        let phase = self.phase.as_ref();
        Glance {
            facts: &self.core.facts,
            phase: phase.map_or("closing", Phase::label),
            server: phase.and_then(Phase::slot).map(|slot| slot.server()),
            traffic: self.core.client.traffic,
        }
    }

    /// Returns `true` if the handshake is incomplete and the client requested a name for which the
    /// listener has a certificate. Such a client is probably not a scanner, because scanners do not
    /// know the name.
    pub fn asked_for_ours(&self, config: &Config) -> bool {
        let facts = &self.core.facts;
        let mut listeners = config.listeners.iter();
        let listener = listeners.find(|one| *one.keys.name == *facts.listener);
        let ours = |name: &str| listener.is_some_and(|one| one.certificates.named(name).is_some());
        facts.tls.is_none() && facts.server_name.as_deref().is_some_and(ours)
    }
}

impl<N: Net> Phase<N> {
    fn label(&self) -> &'static str {
        match self {
            Self::Entering(_) => "entering",
            Self::Greeting(_) => "greeting",
            Self::Conversing(_) => "conversing",
            Self::Cancelling(_) => "cancelling",
            Self::Hello(_) | Self::Negotiating(_) => "handshake",
            Self::Queued(_) => "queued",
            Self::Connecting(phase) if phase.is_securing() => "securing",
            Self::Connecting(_) => "connecting",
            Self::Relaying(_) => "relaying",
            Self::Serving(_) => "serving",
            Self::Closing(_) => "closing",
        }
    }
}

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
