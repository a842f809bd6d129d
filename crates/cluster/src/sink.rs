//! Connects replication to the session table.
//!
//! The local configuration decides which sessions of a peer are accepted. A session is refused and
//! counted if no route of this host has its policy. Lifetimes are limited to `sessions.id-lifetime`
//! and `sessions.max-age`. A dump never replaces existing sessions. The state of a session is not
//! checked here: if rustls cannot decode it at a resumption, the session counts as missing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::bounded_table::Cursor;
use becket_proto::session::{PolicyTag, Session, SessionName};
use becket_proto::session_table::{Lives, Lookup, SessionTable};
use becket_proto::ticket::{NodeId, Origin, UnixSeconds};
use becket_sys::clock::Now;
use serde::Serialize;

use crate::outbox::SessionEvent;
use crate::replica::{
    DropCause, DumpSource, PeerName, PeerRecord, PeerStick, SessionRecord, Sink, StickCursor,
};
use crate::settings::Settings;
use crate::sharing::CertificateSharing;
use crate::sticks::StickMemory;

/// The session table, with the conditions for accepting sessions of peers.
#[derive(Debug)]
pub(crate) struct SessionSink {
    table: Arc<SessionTable>,
    sticks: Arc<dyn StickMemory>,
    settings: Arc<Settings>,
    pub(crate) now: Now,
    pub(crate) numbers: SinkCounts,
    /// Number of refused sessions by sending node and policy.
    pub(crate) unknown: BTreeMap<(NodeId, PolicyTag), u64>,
    pub(crate) sharing: CertificateSharing,
}

/// Counters of sessions and sticks sent to and received from peers.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct SinkCounts {
    /// New sessions of this host that were offered to peers.
    pub told: u64,
    /// Sessions, ends and sticks not offered to peers because a worker's queue was full.
    pub untold: u64,
    /// Sessions of this host that ended with a fatal alert and were reported to peers.
    pub ends_told: u64,
    /// Sessions of peers that were stored in the table.
    pub stored: u64,
    /// Sessions removed from the table because a peer reported their end.
    pub ended: u64,
    /// Assignments of clients to servers that were offered to peers.
    pub sticks_told: u64,
    /// Assignments of clients to servers that peers sent and this host stored.
    pub sticks: u64,
}

impl SessionSink {
    pub(crate) fn new(
        table: Arc<SessionTable>,
        sticks: Arc<dyn StickMemory>,
        settings: Arc<Settings>,
        sharing: CertificateSharing,
        now: Now,
    ) -> Self {
        Self {
            table,
            sticks,
            settings,
            now,
            numbers: SinkCounts::default(),
            unknown: BTreeMap::new(),
            sharing,
        }
    }

    /// Applies reloaded settings. Deletes the counters of policies that are now configured.
    pub(crate) fn reload(&mut self, settings: Arc<Settings>) {
        let known = &settings.policies;
        self.unknown
            .retain(|(_, policy), _| !known.contains(policy));
        self.sharing
            .reload(settings.certificates.clone(), settings.has_on_demand);
        self.settings = settings;
    }

    /// Converts a worker's event to a record and passes it to `offer`. Ignores a new session that the table no longer
    /// contains.
    pub(crate) fn tell(&mut self, event: &SessionEvent, offer: impl FnOnce(&PeerRecord<'_>)) {
        match event {
            SessionEvent::Made(name) => {
                let found = self.table.get(name.policy(), name.id(), self.now.mono);
                if let Lookup::Hit(session) = found
                    && let Some(record) = self.record(name, &session)
                {
                    self.numbers.told += 1;
                    offer(&PeerRecord::New(record));
                }
            }
            SessionEvent::Stuck(stick) => {
                self.numbers.sticks_told += 1;
                offer(&PeerRecord::Stick(*stick));
            }
            SessionEvent::Ended(name) => {
                self.numbers.ends_told += 1;
                offer(&PeerRecord::Del {
                    policy: name.policy(),
                    id: name.id(),
                });
            }
        }
    }

    fn record<'a>(&self, name: &'a SessionName, session: &'a Session) -> Option<SessionRecord<'a>> {
        let age = self.age(session.origin.at);
        Some(SessionRecord {
            policy: name.policy(),
            id: name.id(),
            ttl: self.ttl(self.settings.id_lifetime, age)?,
            age,
            origin: session.origin.id,
            state: &session.state,
        })
    }

    fn age(&self, at: UnixSeconds) -> Duration {
        Duration::from_secs(self.now.unix.as_secs().saturating_sub(at.0))
    }

    /// Limits a lifetime to the settings of this host. Returns `None` if the session has expired.
    fn ttl(&self, ttl: Duration, age: Duration) -> Option<Duration> {
        let left = self.settings.max_age.checked_sub(age)?;
        Some(ttl.min(self.settings.id_lifetime).min(left)).filter(|ttl| !ttl.is_zero())
    }

    fn store(
        &mut self,
        from: PeerName,
        record: &SessionRecord<'_>,
        replaces: bool,
    ) -> Result<(), DropCause> {
        if !self.settings.policies.contains(&record.policy) {
            self.refuse(from.node, record.policy);
            return Err(DropCause::UnknownPolicy);
        }
        let Some(ttl) = self.ttl(record.ttl, record.age) else {
            return Err(DropCause::Unwanted);
        };
        let now = self.now.mono;
        let found = || self.table.get(record.policy, record.id, now);
        if !replaces && matches!(found(), Lookup::Hit(_)) {
            return Err(DropCause::Unwanted);
        }
        let state = record.state.to_vec();
        let origin = Origin {
            id: record.origin,
            at: self.now.unix.saturating_sub(record.age).into(),
        };
        let session = Session::new(state, origin);
        let lives = Lives { now, ttl };
        let table = &self.table;
        if !table.insert(record.policy, record.id, session, lives) {
            return Err(DropCause::Unwanted);
        }
        self.numbers.stored += 1;
        Ok(())
    }

    fn refuse(&mut self, node: NodeId, policy: PolicyTag) {
        let known = self.unknown.len();
        if let Some(count) = self.unknown.get_mut(&(node, policy)) {
            *count += 1;
        } else if known < MOST_UNKNOWN {
            self.unknown.insert((node, policy), 1);
            tracing::warn!(
                name: "peer-policy-unknown",
                node = node.0,
                policy = format!("{:016x}", policy.0),
                "sessions of a peer dropped: no listener has their TLS policy"
            );
        }
    }

    /// Stores a peer's assignment of a client to a server. A `late` assignment comes from a dump
    /// and never replaces an existing one.
    fn remember(&mut self, stick: PeerStick, late: bool) -> Result<(), DropCause> {
        let stick = PeerStick {
            life: stick.life.min(self.settings.stick_lifetime),
            ..stick
        };
        if stick.life.is_zero() || !self.sticks.learn_from_peer(&stick, late, self.now.mono) {
            return Err(DropCause::Unwanted);
        }
        self.numbers.sticks += 1;
        Ok(())
    }
}

impl Sink for SessionSink {
    fn take(&mut self, from: PeerName, record: PeerRecord<'_>) -> Result<(), DropCause> {
        match record {
            PeerRecord::New(session) => self.store(from, &session, true),
            PeerRecord::Sync(session) => self.store(from, &session, false),
            PeerRecord::Del { policy, id } => {
                if !self.table.remove(policy, id) {
                    return Err(DropCause::Unwanted);
                }
                self.numbers.ended += 1;
                Ok(())
            }
            PeerRecord::Stick(stick) => self.remember(stick, false),
            PeerRecord::Stuck(stick) => self.remember(stick, true),
            PeerRecord::Acme(record) => self.sharing.take(from, record, self.now.mono),
        }
    }
}

impl DumpSource for SessionSink {
    fn visit(
        &mut self,
        from: Cursor,
        youngest: Duration,
        at_most: usize,
        show: &mut dyn FnMut(SessionRecord<'_>),
    ) -> Option<Cursor> {
        self.table.visit(from, self.now.mono, at_most, |visited| {
            let age = self.age(visited.session.origin.at);
            let ttl = self.ttl(visited.remaining, age).filter(|_| age <= youngest);
            if let Some(ttl) = ttl {
                show(SessionRecord {
                    policy: visited.policy,
                    id: visited.id,
                    ttl,
                    age,
                    origin: visited.session.origin.id,
                    state: &visited.session.state,
                });
            }
        })
    }

    fn visit_sticks(
        &mut self,
        from: StickCursor,
        youngest: Duration,
        at_most: usize,
        show: &mut dyn FnMut(PeerStick),
    ) -> Option<StickCursor> {
        let now = self.now.mono;
        self.sticks
            .visit_sticks(from, now, at_most, &mut |stick, age| {
                if age <= youngest {
                    show(*stick);
                }
            })
    }

    fn held(&self) -> u32 {
        u32::try_from(self.table.entries()).unwrap_or(u32::MAX)
    }
}

/// Maximum number of entries in `unknown`, enough for any plausible misconfiguration.
const MOST_UNKNOWN: usize = 64;
