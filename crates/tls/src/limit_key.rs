//! Keys by which clients are counted and limited, and the limits per key.
//! [`admission`](crate::admission) counts the clients.

use std::sync::Arc;

use becket_config::process::Admission;
use becket_proto::admission::{Share, Source};
use becket_proto::close_reason::CloseReason;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LimitKey {
    Source(Source),
    /// Server name from a certificate or a route; empty for all other names and for no name.
    Name(Arc<str>),
    Ja4(Arc<str>),
    /// Server name and backend in one string. Under this key, clients with this name in the queue
    /// of this backend are counted.
    Queue(Arc<str>),
}

impl Default for LimitKey {
    fn default() -> Self {
        Self::Source(Source::default())
    }
}

impl LimitKey {
    pub(crate) fn kind(&self) -> usize {
        match self {
            Self::Source(_) => SOURCE,
            Self::Name(_) => NAME,
            Self::Ja4(_) => JA4,
            Self::Queue(_) => QUEUE,
        }
    }

    /// Returns two close reasons: one for exceeding the limit of connections, one for exceeding the
    /// limit of full handshakes.
    pub(crate) fn refusals(&self) -> (CloseReason, CloseReason) {
        match self {
            Self::Source(_) => (CloseReason::SourceConnections, CloseReason::AdmissionSource),
            Self::Name(_) => (CloseReason::NameConnections, CloseReason::AdmissionName),
            Self::Ja4(_) => (CloseReason::Ja4Connections, CloseReason::AdmissionJa4),
            Self::Queue(_) => (CloseReason::NameQueue, CloseReason::NameQueue),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyRule {
    /// Maximum open connections; `None` if they are not counted.
    pub connections: Option<u32>,
    pub share: Share,
}

/// Limits, indexed by `LimitKey::kind`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRules(pub(crate) [KeyRule; KINDS]);

impl KeyRules {
    pub fn new(keys: &Admission) -> Self {
        let rule = |connections, share| KeyRule { connections, share };
        // `WorkerAdmission::wait` reads the server name from the permit of the connection. So
        // `queue-share` requires that connections are counted by name, even without a limit.
        let uncounted = keys.name.queue_share.map(|_| u32::MAX);
        Self([
            rule(keys.connections_per_source, keys.source()),
            rule(keys.name.connections.or(uncounted), keys.name()),
            rule(keys.ja4.connections, keys.ja4()),
            KeyRule::default(),
        ])
    }

    pub fn of(&self, key: &LimitKey) -> KeyRule {
        self.0[key.kind()]
    }

    pub fn is_empty(&self) -> bool {
        self.0 == [KeyRule::default(); KINDS]
    }
}

pub(crate) const KINDS: usize = 4;
pub(crate) const SOURCE: usize = 0;
pub(crate) const NAME: usize = 1;
pub(crate) const JA4: usize = 2;
pub(crate) const QUEUE: usize = 3;
