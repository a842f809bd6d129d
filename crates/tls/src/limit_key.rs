//! The keys by which clients are limited, and the limits of each key. [`admission`](crate::admission) counts.

use std::sync::Arc;

use becket_config::process::Admission;
use becket_proto::admission::{Share, Source};
use becket_proto::close_reason::CloseReason;

/// A key that has limits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LimitKey {
    /// The network of a client.
    Source(Source),
    /// A server name as a certificate or a route has it; empty for all other names, and none.
    Name(Arc<str>),
    /// A fingerprint.
    Ja4(Arc<str>),
    /// A server name and the backend in whose queue its clients wait.
    Queue(Arc<str>),
}

impl Default for LimitKey {
    fn default() -> Self {
        Self::Source(Source::default())
    }
}

impl LimitKey {
    /// The place of its kind among all kinds.
    pub(crate) fn kind(&self) -> usize {
        match self {
            Self::Source(_) => SOURCE,
            Self::Name(_) => NAME,
            Self::Ja4(_) => JA4,
            Self::Queue(_) => QUEUE,
        }
    }

    /// Close reasons of a client that gets no connection and of one that gets no full handshake.
    pub(crate) fn refusals(&self) -> (CloseReason, CloseReason) {
        match self {
            Self::Source(_) => (CloseReason::SourceConnections, CloseReason::AdmissionSource),
            Self::Name(_) => (CloseReason::NameConnections, CloseReason::AdmissionName),
            Self::Ja4(_) => (CloseReason::Ja4Connections, CloseReason::AdmissionJa4),
            Self::Queue(_) => (CloseReason::NameQueue, CloseReason::NameQueue),
        }
    }
}

/// Limits of each key of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyRule {
    /// Open connections; `None` where they are not counted.
    pub connections: Option<u32>,
    /// Full handshakes.
    pub share: Share,
}

/// Limits by the kind of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRules(pub(crate) [KeyRule; KINDS]);

impl KeyRules {
    pub fn new(keys: &Admission) -> Self {
        let rule = |connections, share| KeyRule { connections, share };
        // A connection is counted for the name whose share of a queue it may need.
        let uncounted = keys.name.queue_share.map(|_| u32::MAX);
        Self([
            rule(keys.connections_per_source, keys.source()),
            rule(keys.name.connections.or(uncounted), keys.name()),
            rule(keys.ja4.connections, keys.ja4()),
            KeyRule::default(),
        ])
    }

    /// The rule of a key.
    pub fn of(&self, key: &LimitKey) -> KeyRule {
        self.0[key.kind()]
    }

    /// Returns whether no key has a limit.
    pub fn is_empty(&self) -> bool {
        self.0 == [KeyRule::default(); KINDS]
    }
}

/// Kinds of a [`LimitKey`].
pub(crate) const KINDS: usize = 4;
pub(crate) const SOURCE: usize = 0;
pub(crate) const NAME: usize = 1;
pub(crate) const JA4: usize = 2;
pub(crate) const QUEUE: usize = 3;
