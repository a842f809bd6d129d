//! Sessions in memory, in tables that all workers share. rustls accesses a table through the
//! [`Store`] of one policy.
//!
//! The table is [`becket_proto::session_table`]: sharded, bounded, with expiry. A [`Store`] adds
//! the policy to every key, so that another policy never finds the session, and the handshake's
//! origin to every entry. There are two kinds of sessions, each in a separate table.
//!
//! TLS 1.2 sessions by ID can be resumed any number of times until they expire
//! ([`StoresServerSessions::get`]). In a cluster, each new session is sent to the peers.
//!
//! TLS 1.3 sessions that allow early data (0-RTT) can be resumed only once, because an attacker can
//! record early data and replay it (RFC 8446, section 8.1, "single-use tickets").
//! [`StoresServerSessions::take`] removes the session under its shard's lock, so only one of
//! several clients that offer it can resume it. These sessions are not sent to peers. They end with
//! the process, or move to the next process in an upgrade. rustls accepts early data only without a
//! ticketer, and only if the age that the client reports is plausible (section 8.3).

use std::sync::Arc;
use std::time::Duration;

use becket_cluster::{Outbox, SessionEvent};
use becket_proto::client_hello::ClientHello;
use becket_proto::session::{PolicyTag, Session, SessionName};
use becket_proto::session_table::{Lives, Lookup, SessionTable};
use rustls::server::StoresServerSessions;
use zeroize::Zeroizing;

use super::context::{self, OpenedSession};
use super::stored::ReturningClients;
use crate::resumption::Resumption;

/// The sessions of one policy in a table that all workers share.
#[derive(Clone, Debug)]
pub struct Store {
    /// Each call locks one shard of the table, which all workers share.
    pub table: Arc<SessionTable>,
    /// Policy that is part of every key, so that this store only finds sessions of this policy.
    pub policy: PolicyTag,
    /// Maximum age of a session, counted from its full handshake.
    pub max_age: Duration,
    pub clients: ReturningClients,
    pub kind: StoreKind,
}

#[derive(Clone, Debug)]
pub enum StoreKind {
    ById {
        lifetime: Duration,
        /// `true` to store new sessions; `false` for clients that get a ticket, because they never
        /// resume by ID.
        stores: bool,
        /// Outbox for new sessions, which are sent to the peers of the cluster; `None` without a
        /// cluster.
        outbox: Option<Outbox>,
    },
    Early,
}

impl Store {
    /// Returns `true` if the ClientHello offers a PSK whose session is in the table. The session
    /// stays in the table: rustls removes it later, and a client of another worker may use it
    /// first.
    pub fn recognises(&self, hello: &ClientHello<'_>) -> bool {
        // The time is zero, because the result is only a hint and may be `true` for an expired
        // session.
        let find = |id| self.table.get(self.policy, id, Duration::ZERO);
        let mut offered = hello.psk_identities();
        offered.any(|id| matches!(find(id), Lookup::Hit(_)))
    }

    /// Looks up a session with `get` or `take` of the table, and checks that it may be resumed.
    /// Records the result in the handshake context of this thread.
    fn open(
        &self,
        id: &[u8],
        look_up: impl FnOnce(&SessionTable, PolicyTag, &[u8], Duration) -> Lookup,
    ) -> Option<Vec<u8>> {
        let now = context::with(|handshake| (handshake.clock.mono, handshake.clock.unix));
        let (mono, unix) = now?;
        let found = match look_up(&self.table, self.policy, id, mono) {
            Lookup::Hit(session) if session.origin.is_too_old(unix, self.max_age) => {
                Err(Resumption::TooOld)
            }
            Lookup::Hit(session) => self.clients.admits(&session.state).map(|()| session),
            Lookup::Miss => Err(Resumption::Unknown),
            Lookup::Expired => Err(Resumption::Expired),
            Lookup::OtherPolicy => Err(Resumption::OtherPolicy),
        };
        let by_id = matches!(self.kind, StoreKind::ById { .. });
        context::with(|handshake| {
            handshake.resumption.note(&found, |session| OpenedSession {
                origin: session.origin,
                by_id,
            });
            let session = found.ok()?;
            if by_id {
                handshake.resumption.session = SessionName::new(self.policy, id);
            }
            Some(session.into_state())
        })?
    }
}

impl StoresServerSessions for Store {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let value = Zeroizing::new(value);
        context::with(|handshake| {
            let mut room = Zeroizing::default();
            let Some(state) = handshake.client.kept(&value, &mut room) else {
                return false;
            };
            let session = Session::new(state.to_vec(), handshake.origin(self.max_age));
            let lives = Lives {
                now: handshake.clock.mono,
                ttl: match self.kind {
                    StoreKind::ById { lifetime, .. } => lifetime,
                    StoreKind::Early => self.max_age.min(ADVERTISED),
                },
            };
            let stored = self.table.insert(self.policy, &key, session, lives);
            if let StoreKind::ById { outbox, .. } = &self.kind {
                handshake.resumption.session =
                    SessionName::new(self.policy, &key).filter(|_| stored);
                if let (Some(outbox), Some(name)) = (outbox, handshake.resumption.session) {
                    outbox.leave(SessionEvent::Made(name));
                }
            }
            stored
        })
        .unwrap_or(false)
    }

    /// rustls calls this only for TLS 1.2.
    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        match self.kind {
            StoreKind::ById { .. } => self.open(key, SessionTable::get),
            StoreKind::Early => None,
        }
    }

    /// rustls calls this only for TLS 1.3.
    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        match self.kind {
            StoreKind::ById { .. } => None,
            StoreKind::Early => self.open(key, SessionTable::take),
        }
    }

    fn can_cache(&self) -> bool {
        match self.kind {
            StoreKind::ById { stores, .. } => stores,
            StoreKind::Early => true,
        }
    }
}

/// Lifetime that rustls advertises to clients for TLS 1.3 sessions if there is no ticketer.
const ADVERTISED: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use becket_proto::ticket::UnixSeconds;

    use super::context::HandshakeContext;
    use super::*;

    fn store(policy: u64) -> Store {
        Store {
            table: Arc::new(SessionTable::new(Default::default(), Default::default())),
            policy: PolicyTag(policy),
            max_age: Duration::from_secs(3600),
            clients: ReturningClients::default(),
            kind: StoreKind::Early,
        }
    }

    fn at(unix: u64) -> Option<HandshakeContext> {
        let mut handshake = HandshakeContext::new(None);
        handshake.clock.unix = UnixSeconds(1_000_000 + unix);
        handshake.clock.mono = Duration::from_secs(unix);
        Some(handshake)
    }

    fn take(from: &Store, now: u64) -> (Option<Vec<u8>>, Option<Resumption>) {
        let mut handshake = at(now);
        let state = context::lend(&mut handshake, || from.take(b"id"));
        (
            state,
            handshake.and_then(|handshake| handshake.resumption.outcome),
        )
    }

    fn put(into: &Store) -> bool {
        context::lend(&mut at(0), || into.put(b"id".to_vec(), b"state".to_vec()))
    }

    #[test]
    fn a_session_opens_once() {
        let store = store(1);
        assert!(put(&store));
        let state = Some(b"state".to_vec());
        assert_eq!(take(&store, 1), (state, Some(Resumption::Opened)));
        assert_eq!(take(&store, 1), (None, Some(Resumption::Unknown)));
    }

    #[test]
    fn only_one_of_many_workers_opens_a_session() {
        let store = store(1);
        for _ in 0..200 {
            assert!(put(&store));
            let opened: usize = std::thread::scope(|scope| {
                let workers = [(); 4].map(|()| scope.spawn(|| take(&store, 1).0.is_some()));
                workers
                    .map(|worker| usize::from(worker.join().unwrap()))
                    .iter()
                    .sum()
            });
            assert_eq!(opened, 1);
        }
    }

    #[test]
    fn a_session_of_another_policy_is_declined_and_kept() {
        let one = store(1);
        let two = Store {
            policy: PolicyTag(2),
            ..one.clone()
        };
        assert!(put(&one));
        assert_eq!(take(&two, 1), (None, Some(Resumption::OtherPolicy)));
        assert!(take(&one, 1).0.is_some());
    }

    #[test]
    fn a_session_expires_at_the_maximum_age() {
        let store = store(1);
        assert!(put(&store));
        assert_eq!(take(&store, 3600).0, None);
    }

    #[test]
    fn sessions_are_not_stored_outside_a_handshake() {
        assert!(!store(1).put(b"id".to_vec(), b"state".to_vec()));
    }
}
