//! The session table as peers fill and read it.
//!
//! What a peer sends is trusted as far as our own configuration goes: a session of a policy that
//! no route here has is refused and counted, none lives longer than `sessions.id-lifetime` or is
//! older than `sessions.max-age`. A dump never replaces what is held already. That a state says
//! what rustls can read is seen when somebody resumes; one that does not is as good as none.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use becket_proto::replica::{
    PeerName, Record, SessionRecord, Sink, Source, StickCursor, StickKey, StickRecord, Taken,
};
use becket_proto::session_name::SessionName;
use becket_proto::session_table::{Cursor, Lives, Lookup, PolicyTag, Session, SessionTable};
use becket_proto::ticket::{NodeId, Origin, UnixSeconds};

use super::outbox::SessionEvent;
use crate::backend::registry::{Backends, PeerStick};
use crate::clock::Now;
use crate::config::{Config, Sessions};

/// The table, and what may stand in it.
#[derive(Debug)]
pub struct Shelf {
    table: Arc<SessionTable>,
    policies: HashSet<PolicyTag>,
    sessions: Sessions,
    /// Where it is remembered which server a client had.
    pub backends: Option<Arc<Backends>>,
    /// The time of this turn.
    pub now: Now,
    /// What was done so far.
    pub numbers: Numbers,
    /// Sessions that were refused, by the node that sent them and their policy.
    pub unknown: BTreeMap<(NodeId, PolicyTag), u64>,
}

/// What was done with sessions, beside what the state machine counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// New sessions of this host, offered to the peers.
    pub told: u64,
    /// Ends of sessions of this host, offered to the peers.
    pub ends_told: u64,
    /// Sessions of peers that were put into the table.
    pub stored: u64,
    /// Sessions that a peer said had ended, and that were in the table.
    pub ended: u64,
    /// Clients of this host that stick to a server, offered to the peers.
    pub sticks_told: u64,
    /// Clients of peers whose server is remembered here.
    pub sticks: u64,
}

impl Shelf {
    /// Takes the table that workers use.
    pub fn new(table: Arc<SessionTable>, config: &Config, now: Now) -> Self {
        Self {
            table,
            policies: policies(config),
            sessions: config.sessions.clone(),
            backends: None,
            now,
            numbers: Numbers::default(),
            unknown: BTreeMap::new(),
        }
    }

    /// Takes over a reloaded configuration; policies that are known now are unknown no more.
    pub fn reload(&mut self, config: &Config) {
        self.policies = policies(config);
        self.sessions = config.sessions.clone();
        let known = &self.policies;
        self.unknown
            .retain(|(_, policy), _| !known.contains(policy));
    }

    /// Makes a record of an event of a worker, and gives it to `offer`. A session that is gone from
    /// the table by now is not worth telling.
    pub fn tell(&mut self, event: &SessionEvent, offer: impl FnOnce(&Record<'_>)) {
        match event {
            SessionEvent::Made(name) => {
                let found = self.table.get(name.policy(), name.id(), self.now.mono);
                if let Lookup::Hit(session) = found
                    && let Some(record) = self.record(name, &session)
                {
                    self.numbers.told += 1;
                    offer(&Record::New(record));
                }
            }
            SessionEvent::Stuck(stick) => {
                self.numbers.sticks_told += 1;
                offer(&Record::Stick(StickRecord {
                    by: StickKey::Origin(stick.origin),
                    server: stick.server,
                    ttl: stick.life,
                }));
            }
            SessionEvent::Ended(name) => {
                self.numbers.ends_told += 1;
                offer(&Record::Del {
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
            ttl: self.ttl(self.sessions.id_lifetime, age)?,
            age,
            origin: session.origin.id,
            state: &session.state,
        })
    }

    fn age(&self, at: UnixSeconds) -> Duration {
        Duration::from_secs(self.now.unix.as_secs().saturating_sub(at.0))
    }

    /// How long a session of this age may live here when somebody says `ttl`; nothing when its
    /// time is over.
    fn ttl(&self, ttl: Duration, age: Duration) -> Option<Duration> {
        let left = self.sessions.max_age.checked_sub(age)?;
        Some(ttl.min(self.sessions.id_lifetime).min(left)).filter(|ttl| !ttl.is_zero())
    }

    fn store(&mut self, from: PeerName, record: &SessionRecord<'_>, replaces: bool) -> Taken {
        if !self.policies.contains(&record.policy) {
            self.refuse(from.node, record.policy);
            return Taken::UnknownPolicy;
        }
        let Some(ttl) = self.ttl(record.ttl, record.age) else {
            return Taken::Unwanted;
        };
        let now = self.now.mono;
        if !replaces && self.holds(record, now) {
            return Taken::Unwanted;
        }
        let at = self.now.unix.saturating_sub(record.age).as_secs();
        let state = record.state.to_vec();
        let session = Session::new(
            state,
            Origin {
                id: record.origin,
                at: UnixSeconds(at),
            },
        );
        let lives = Lives { now, ttl };
        if !self
            .table
            .insert(record.policy, record.id, session, lives)
            .stored
        {
            return Taken::Unwanted;
        }
        self.numbers.stored += 1;
        Taken::Taken
    }

    fn holds(&self, record: &SessionRecord<'_>, now: Duration) -> bool {
        let found = self.table.get(record.policy, record.id, now);
        matches!(found, Lookup::Hit(_))
    }

    fn refuse(&mut self, node: NodeId, policy: PolicyTag) {
        let known = self.unknown.len();
        if let Some(count) = self.unknown.get_mut(&(node, policy)) {
            *count += 1;
        } else if known < MOST_UNKNOWN {
            self.unknown.insert((node, policy), 1);
            tracing::warn!(
                node = node.0,
                policy = format!("{:016x}", policy.0),
                "a peer sends sessions of a policy that no route here has"
            );
        }
    }
}

impl Shelf {
    /// Keeps where a peer has sent a client that is known by its session.
    fn remember(&mut self, stick: &StickRecord<'_>, late: bool) -> Taken {
        let (StickKey::Origin(origin), Some(backends)) = (stick.by, &self.backends) else {
            return Taken::Unwanted;
        };
        let stick = PeerStick {
            origin,
            server: stick.server,
            life: stick.ttl,
        };
        if !backends.learn_from_peer(&stick, late, self.now.mono) {
            return Taken::Unwanted;
        }
        self.numbers.sticks += 1;
        Taken::Taken
    }
}

impl Sink for Shelf {
    fn take(&mut self, from: PeerName, record: Record<'_>) -> Taken {
        match record {
            Record::New(session) => self.store(from, &session, true),
            Record::Sync(session) => self.store(from, &session, false),
            Record::Del { policy, id } => {
                if !self.table.remove(policy, id) {
                    return Taken::Unwanted;
                }
                self.numbers.ended += 1;
                Taken::Taken
            }
            Record::Stick(stick) => self.remember(&stick, false),
            Record::Stuck(stick) => self.remember(&stick, true),
        }
    }
}

impl Source for Shelf {
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
        show: &mut dyn FnMut(StickRecord<'_>),
    ) -> Option<StickCursor> {
        let backends = self.backends.as_ref()?;
        backends.visit_sticks(from, self.now.mono, at_most, |stick, age| {
            if age <= youngest {
                show(StickRecord {
                    by: StickKey::Origin(stick.origin),
                    server: stick.server,
                    ttl: stick.life,
                });
            }
        })
    }

    fn held(&self) -> u32 {
        u32::try_from(self.table.len()).unwrap_or(u32::MAX)
    }
}

/// The policies of all routes.
fn policies(config: &Config) -> HashSet<PolicyTag> {
    let routes = config
        .listeners
        .iter()
        .flat_map(|listener| &listener.routes);
    routes
        .map(|route| PolicyTag::from_digest(&route.policy.digest))
        .collect()
}

/// Pairs of node and policy that are counted apart: more than a mistake in a configuration makes.
const MOST_UNKNOWN: usize = 64;
