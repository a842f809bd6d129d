//! TLS 1.2 sessions by ID: one table for all workers, seen by rustls through one policy.
//!
//! The table is [`becket_proto::session_table`]'s: sharded, bounded, expiring. A [`Store`] adds
//! the policy to every key, so that an ID of one policy is never found under another, and the
//! handshake's origin to every entry. TLS 1.3 never comes here: its configurations have a ticketer. In a
//! cluster it also leaves a note of each new session for the peers.

use std::sync::Arc;
use std::time::Duration;

use becket_proto::session_name::SessionName;
use becket_proto::session_table::{Lives, Lookup, PolicyTag, Session, SessionTable};
use rustls::server::StoresServerSessions;
use zeroize::Zeroizing;

use super::context::{self, Opened};
use super::stored::Judge;
use crate::cluster::outbox::{Outbox, SessionEvent};
use crate::metrics::Resumption;

/// The view of one policy on the table that all workers share.
#[derive(Clone, Debug)]
pub struct Store {
    /// Shared by all workers; each call takes one shard's lock.
    pub table: Arc<SessionTable>,
    /// The border that no session crosses.
    pub policy: PolicyTag,
    /// How long an ID is good for.
    pub lifetime: Duration,
    /// Age since the full handshake at which nothing resumes.
    pub max_age: Duration,
    /// Whether new sessions are stored. Not for clients that get a ticket: they would never
    /// come back by ID.
    pub stores: bool,
    /// Of clients that come back.
    pub judge: Judge,
    /// Where new sessions are told to the peers; absent without a cluster.
    pub outbox: Option<Outbox>,
}

impl Store {
    fn find(&self, key: &[u8]) -> Result<Session, Resumption> {
        let now = context::with(|resuming| (resuming.mono_now, resuming.unix_now));
        let (mono, unix) = now.ok_or(Resumption::Unknown)?;
        match self.table.get(self.policy, key, mono) {
            Lookup::Hit(session) if session.origin.is_too_old(unix, self.max_age) => {
                Err(Resumption::TooOld)
            }
            Lookup::Hit(session) => self.judge.admits(&session.state).map(|()| session),
            Lookup::Miss => Err(Resumption::Unknown),
            Lookup::Expired => Err(Resumption::Expired),
            Lookup::OtherPolicy => Err(Resumption::OtherPolicy),
        }
    }
}

impl StoresServerSessions for Store {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let value = Zeroizing::new(value);
        context::with(|resuming| {
            let Some(state) = resuming.kept(&value) else {
                return false;
            };
            let origin = resuming.origin(self.max_age);
            let session = Session::new(state, origin);
            let lives = Lives {
                now: resuming.mono_now,
                ttl: self.lifetime,
            };
            let stored = self.table.insert(self.policy, &key, session, lives).stored;
            resuming.session = SessionName::new(self.policy, &key).filter(|_| stored);
            if let (Some(outbox), Some(name)) = (&self.outbox, resuming.session) {
                outbox.leave(SessionEvent::Made(name));
            }
            stored
        })
        .unwrap_or(false)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let result = self.find(key);
        context::with(|resuming| {
            resuming.note(&result, |session| Opened {
                origin: session.origin,
                by_id: true,
            });
            let session = result.ok()?;
            resuming.session = SessionName::new(self.policy, key);
            Some(session.into_state())
        })?
    }

    /// Unused: rustls takes only TLS 1.3 sessions, and those are tickets.
    fn take(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn can_cache(&self) -> bool {
        self.stores
    }
}
