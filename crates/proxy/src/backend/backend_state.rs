//! State of one backend, shared by all workers: the queue for slots, and the stick table, which
//! maps clients to servers.
//!
//! A slot is the right to one connection to a server. A connection without a slot waits in the
//! queue, which is first in, first out, over all workers. A new connection queues behind existing
//! waiters that accept any server. A free slot goes to the longest waiter in any worker, through
//! the worker's [`Inbox`].
//!
//! No wake-up is lost. A thread that returns a slot decrements the count and then checks for
//! waiters. A thread that queues a connection registers it and then checks for a slot. All four
//! operations are sequentially consistent, and both threads finally call [`BackendState::settle`],
//! which grants free slots to waiters. This function is also called when a limit, a weight or the
//! health of a server changes. It costs one load if there are no waiters.
//!
//! Lock order: no other lock is taken while the lock of the queue is held.

use std::hash::RandomState;
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::time::Duration;

use becket_config::choices::ConnectionsOnFailure;
use becket_proto::bounded_table::Cursor;
use becket_proto::queue::{Arrival, Queue, Stay};
use becket_proto::stick::Stick;

use super::inbox::{BackendEvent, Grant, Inbox};
use super::server_state::ServerState;
use super::slot::ServerSlot;
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use crate::sync::{Mutex, MutexGuard};
use becket_tls::config::Backend;

#[derive(Debug)]
pub struct BackendState {
    name: String,
    /// Length of the queue, readable without its lock.
    waiting: AtomicUsize,
    /// `true` if at least one waiter accepts any server.
    wants_any: AtomicBool,
    /// Sequence number of the newest waiter; see [`Arrival`].
    arrivals: AtomicU64,
    /// Maximum queue length.
    room: AtomicUsize,
    hand_overs: AtomicU64,
    idle_reclaim: IdleReclaimState,
    closes_on_failure: AtomicBool,
    line: Mutex<Line>,
    /// Stick table; empty if clients do not stick.
    stick: Stick,
    /// Lifetime of a stick entry in milliseconds.
    stick_life: AtomicU64,
    inboxes: Arc<OnceLock<Vec<Arc<dyn Inbox>>>>,
}

/// State for closing idle connections while clients wait for a slot.
#[derive(Debug, Default)]
struct IdleReclaimState {
    /// Idle time in milliseconds after which a connection may be closed; 0 disables `idle-reclaim`.
    after: AtomicU64,
    /// Number of connections that are being closed.
    under_way: AtomicUsize,
    /// Total number of connections closed for waiting clients.
    ended: AtomicU64,
}

#[derive(Debug)]
struct Line {
    queue: Queue<Waiter>,
    servers: Arc<[Arc<ServerState>]>,
    /// Servers that are not configured any more but may still have connections.
    gone: Vec<Weak<ServerState>>,
}

impl Line {
    /// Replaces the servers. The caller must drop the returned list after releasing the lock.
    fn replace(&mut self, servers: Arc<[Arc<ServerState>]>) -> Arc<[Arc<ServerState>]> {
        let before = std::mem::replace(&mut self.servers, servers);
        self.gone.extend(before.iter().map(Arc::downgrade));
        let stays = |server: &Weak<_>| {
            self.servers
                .iter()
                .any(|one| server.as_ptr() == Arc::as_ptr(one))
        };
        self.gone
            .retain(|server| server.strong_count() > 0 && !stays(server));
        before
    }
}

/// A connection that waits for a slot.
#[derive(Debug)]
pub struct Waiter {
    /// Inbox of the worker that holds the connection.
    pub inbox: Arc<dyn Inbox>,
    /// Index of the connection in that worker.
    pub place: usize,
}

/// A connection's entry in the queue. On drop, the connection leaves the queue.
#[derive(Debug)]
pub struct Wait {
    backend: Arc<BackendState>,
    stay: Option<Stay>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

impl BackendState {
    pub(super) fn new(name: String, inboxes: Arc<OnceLock<Vec<Arc<dyn Inbox>>>>) -> Self {
        Self {
            name,
            waiting: AtomicUsize::new(0),
            wants_any: AtomicBool::new(false),
            arrivals: AtomicU64::new(0),
            room: AtomicUsize::new(0),
            hand_overs: AtomicU64::new(0),
            idle_reclaim: IdleReclaimState::default(),
            closes_on_failure: AtomicBool::new(false),
            line: Mutex::new(Line {
                queue: Queue::default(),
                servers: Arc::new([]),
                gone: Vec::new(),
            }),
            stick: Stick::new(0, RandomState::new()),
            stick_life: AtomicU64::new(0),
            inboxes,
        }
    }

    /// Applies the configuration, and grants free slots to waiters.
    pub(super) fn configure(self: &Arc<Self>, config: &Backend, servers: Arc<[Arc<ServerState>]>) {
        self.room.store(config.keys.queue_length, SeqCst);
        let closes = config.keys.connections_on_failure == ConnectionsOnFailure::Close;
        self.closes_on_failure.store(closes, Relaxed);
        let after = config.keys.idle_reclaim.unwrap_or_default();
        self.idle_reclaim
            .after
            .store(after.as_millis() as u64, Relaxed);
        self.stick.set_limit(config.most_remembered());
        // The configured maximum is a few days, so the milliseconds fit.
        let life = config.keys.stick_lifetime.as_millis() as u64;
        self.stick_life.store(life, Relaxed);
        let mut line = self.lock();
        let before = line.replace(servers);
        drop(line);
        drop(before);
        self.settle();
    }

    /// Removes all servers of a backend that is no longer configured, and rejects its waiters.
    pub(super) fn close(self: &Arc<Self>) {
        let before = self.lock().replace(Arc::new([]));
        drop(before);
        self.settle();
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the configured servers. Takes the lock.
    pub fn servers(&self) -> Arc<[Arc<ServerState>]> {
        Arc::clone(&self.lock().servers)
    }

    /// Returns the configured servers, and removed servers that still have connections. Takes the
    /// lock.
    pub fn known_servers(&self) -> Vec<Arc<ServerState>> {
        let line = self.lock();
        let gone = line.gone.iter().filter_map(Weak::upgrade);
        line.servers.iter().cloned().chain(gone).collect()
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }

    /// Returns `true` if the queue contains a waiter that has not failed to connect to any server.
    /// A new connection must then queue behind that waiter. Other waiters do not count, because a
    /// slot that is free now is at a server to which they all failed to connect.
    pub(super) fn wants_any(&self) -> bool {
        self.wants_any.load(Relaxed)
    }

    pub fn hand_overs(&self) -> u64 {
        self.hand_overs.load(Relaxed)
    }

    /// Returns the idle time after which connections may be closed in favor of waiters; `None`
    /// without `idle-reclaim`.
    pub fn idle_reclaim(&self) -> Option<Duration> {
        let after = self.idle_reclaim.after.load(Relaxed);
        (after > 0).then(|| Duration::from_millis(after))
    }

    pub fn idle_reclaims(&self) -> u64 {
        self.idle_reclaim.ended.load(Relaxed)
    }

    /// Calls `end` to close an idle connection, unless enough connections are being closed for the
    /// current waiters. Returns `true` if `end` was called.
    pub fn reclaim(&self, end: impl FnOnce()) -> bool {
        let reclaim = &self.idle_reclaim;
        // The count stays incremented until `end` has shortened the queue, so that two workers do
        // not close connections for one waiter.
        let number = reclaim.under_way.fetch_add(1, SeqCst) + 1;
        let is_wanted = number <= self.waiting();
        if is_wanted {
            reclaim.ended.fetch_add(1, Relaxed);
            end();
        }
        reclaim.under_way.fetch_sub(1, SeqCst);
        is_wanted
    }

    pub fn stick_life(&self) -> Duration {
        Duration::from_millis(self.stick_life.load(Relaxed))
    }

    /// Returns the number of stick entries. Takes the locks of the stick table.
    pub fn sticks(&self) -> usize {
        self.stick.entries()
    }

    /// Looks up a client in the stick table. Returns the [`ServerState::key`] of its server.
    pub fn recall(&self, client: u64, now: Duration) -> Option<u64> {
        self.stick.recall(client, now, self.stick_life())
    }

    /// Stores the [`ServerState::key`] of a client's server in the stick table, for `life` or the configured lifetime,
    /// whichever is shorter. The configuration need not contain that server. Returns `true` if the entry is new or has
    /// changed.
    pub fn learn(&self, client: u64, server: u64, now: Duration, life: Duration) -> bool {
        self.stick
            .learn(client, server, now, life.min(self.stick_life()))
    }

    /// Stores a stick entry that another host learned earlier, unless the table already contains
    /// the client.
    pub fn learn_unless_known(
        &self,
        client: u64,
        server: u64,
        now: Duration,
        life: Duration,
    ) -> bool {
        let life = life.min(self.stick_life());
        self.stick.learn_unless_known(client, server, now, life)
    }

    /// Passes stick entries to `show`, as client, server and remaining time. See [`Stick::visit`].
    pub fn visit_sticks(
        &self,
        from: Cursor,
        now: Duration,
        at_most: usize,
        show: impl FnMut(u64, u64, Duration),
    ) -> Option<Cursor> {
        self.stick.visit(from, now, at_most, show)
    }

    /// Returns the [`Arrival`] of a connection that receives a slot without queueing, after all
    /// earlier waiters.
    pub(super) fn arrival(&self) -> Arrival {
        Arrival(self.arrivals.load(Relaxed)).served_at_once()
    }

    /// Adds a connection to the queue: a new connection at the end, a returning one at the position
    /// of its first arrival (`before`). `tried` contains the [`ServerState::key`]s of servers to
    /// which its connects failed. The waiter's inbox receives the slot, possibly at once.
    ///
    /// # Errors
    ///
    /// Fails if the queue is full and the connection is new.
    pub fn wait(
        self: &Arc<Self>,
        waiter: Waiter,
        tried: &[u64],
        before: Option<Arrival>,
    ) -> Result<Wait, QueueFull> {
        let mut line = self.lock();
        let stay = line.queue.join(waiter, tried, before);
        self.count(&line.queue);
        // Slots are granted before the length is checked: if this connection can use a free slot
        // that no other waiter can use, the queue is not full.
        let grants: Vec<_> = std::iter::from_fn(|| self.next_grant(&mut line)).collect();
        let room = self.room.load(Relaxed);
        let is_over = before.is_none() && line.queue.len() > room;
        let refused = is_over.then(|| line.queue.cancel(stay)).flatten();
        self.count(&line.queue);
        let is_first = line.queue.len() == 1;
        drop(line);
        for (waiter, grant) in grants {
            waiter.inbox.deliver(BackendEvent::Granted(grant));
        }
        if is_first && self.idle_reclaim().is_some() {
            self.tell_all(|| BackendEvent::Awaited);
        }
        match refused {
            Some(_) => Err(QueueFull),
            None => Ok(Wait {
                backend: Arc::clone(self),
                stay: Some(stay),
            }),
        }
    }

    /// Grants free slots in order of arrival, until slots or waiters run out.
    pub fn settle(self: &Arc<Self>) {
        while self.waiting.load(SeqCst) > 0 {
            let Some((waiter, grant)) = self.next_grant(&mut self.lock()) else {
                return;
            };
            waiter.inbox.deliver(BackendEvent::Granted(grant));
        }
    }

    /// Removes the first waiter that can receive a grant: a free slot, or the result that no server
    /// is left for it.
    fn next_grant(self: &Arc<Self>, line: &mut Line) -> Option<(Waiter, Grant)> {
        let Line { queue, servers, .. } = line;
        let taken = queue.take_first(|tried| match offer(servers, tried) {
            Pick::Slot(slot) => Some(Some(slot)),
            Pick::Nobody => Some(None),
            Pick::Full => None,
        })?;
        self.count(queue);
        let mut slot = taken.found;
        if let Some(slot) = &mut slot {
            slot.arrival = taken.arrival;
        }
        self.hand_overs.fetch_add(slot.is_some().into(), Relaxed);
        let grant = Grant {
            place: taken.item.place,
            stay: taken.stay,
            backend: Arc::clone(self),
            slot,
        };
        Some((taken.item, grant))
    }

    /// Stores the state of the queue in atomics, for readers that do not take the lock.
    fn count(&self, queue: &Queue<Waiter>) {
        self.wants_any.store(queue.holds_novices(), Relaxed);
        self.waiting.store(queue.len(), SeqCst);
        self.arrivals.store(queue.arrivals().0, Relaxed);
    }

    /// Reports a server's failure to all workers if `connections-on-failure` is `close`, so that
    /// they close its connections.
    pub(super) fn tell_of_failure(&self, server: &Arc<ServerState>) {
        if !self.closes_on_failure.load(Relaxed) {
            return;
        }
        self.tell_all(|| BackendEvent::Failed(Arc::clone(server)));
    }

    fn tell_all(&self, event: impl Fn() -> BackendEvent) {
        for inbox in self.inboxes.get().into_iter().flatten() {
            inbox.deliver(event());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        // The queue is valid even after a panic, because every change is complete.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wait {
    /// Returns `true` if `grant` is for this wait.
    pub fn is_over_by(&self, grant: &Grant) -> bool {
        self.stay == Some(grant.stay) && Arc::ptr_eq(&self.backend, &grant.backend)
    }

    /// Ends a wait that received its grant, so that dropping it does not cancel anything.
    pub fn end(mut self) {
        self.stay = None;
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let Some(stay) = self.stay else {
            return;
        };
        let mut line = self.backend.lock();
        // A slot may have been granted already. In that case, the worker drops the grant from its
        // inbox, which passes the slot to the next waiter.
        let left = line.queue.cancel(stay);
        self.backend.count(&line.queue);
        drop(line);
        // The removal frees no slot, so no other waiter can be served.
        drop(left);
    }
}

/// Claims a slot at the eligible server with the fewest connections relative to its weight.
fn offer(servers: &[Arc<ServerState>], tried: &[u64]) -> Pick {
    let eligible = Eligible::new(servers, tried);
    let cost = |server: &&Arc<ServerState>| {
        u64::from(server.in_use()) * u64::from(u16::MAX) / u64::from(server.weight().max(1))
    };
    let is_free = |server: &&Arc<ServerState>| eligible.contains(server) && server.has_room();
    // The claim fails if a new connection claims the last slot of the server first. The loop then
    // tries the next server.
    while let Some(server) = servers.iter().filter(is_free).min_by_key(cost) {
        if let Some(slot) = ServerSlot::claim(server) {
            return Pick::Slot(slot);
        }
    }
    eligible.shortage()
}

#[derive(Debug)]
pub enum Pick {
    /// The connection may connect to the server of this slot.
    Slot(ServerSlot),
    /// No slot is free yet, so the connection must wait.
    Full,
    /// No untried server is in service.
    Nobody,
}

/// Servers that are eligible for one client now: in service, with a weight above 0, and without a
/// failure for this client. Backup servers are eligible only if no other server is usable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Eligible<'a> {
    servers: &'a [Arc<ServerState>],
    /// [`ServerState::key`]s of servers to which the client's connection could not connect.
    tried: &'a [u64],
    backups: bool,
}

impl<'a> Eligible<'a> {
    pub(super) fn new(servers: &'a [Arc<ServerState>], tried: &'a [u64]) -> Self {
        let serves = |server: &Arc<ServerState>| server.is_usable() && !server.is_backup();
        Self {
            servers,
            tried,
            backups: !servers.iter().any(serves),
        }
    }

    pub(super) fn contains(&self, server: &ServerState) -> bool {
        server.is_usable()
            && server.is_backup() == self.backups
            && !self.tried.contains(&server.key())
    }

    /// Returns [`Pick::Full`] if an eligible server may have a free slot later, otherwise
    /// [`Pick::Nobody`].
    pub(super) fn shortage(&self) -> Pick {
        let comes = |server: &Arc<ServerState>| self.contains(server) || server.is_awaited();
        if self.servers.iter().any(comes) {
            Pick::Full
        } else {
            Pick::Nobody
        }
    }
}

#[cfg(all(test, feature = "models"))]
mod models {
    use shuttle::thread;

    use super::*;
    use crate::backend::inbox::TestInbox;
    use crate::backend::pool::{PickHint, Pool};
    use crate::backend::registry::lone_state;
    use becket_tls::config::{Server, ServerAddress};

    /// Claims the only slot, or queues for it. If `hasty`, the connection leaves the queue without
    /// waiting for a grant.
    fn connect(pool: &Pool, inbox: &TestInbox, hasty: bool) {
        let hint = PickHint {
            source: [192, 0, 2, 1].into(),
            name: None,
            origin: None,
        };
        if let Pick::Slot(slot) = pool.pick(&hint, None, &[]) {
            thread::yield_now();
            drop(slot);
            return;
        }
        let wait = pool.wait(0, &[], None).unwrap();
        while !hasty {
            for event in inbox.take() {
                // Dropping the grant of an abandoned wait passes its slot to the next waiter.
                if let BackendEvent::Granted(grant) = event
                    && wait.is_over_by(&grant)
                {
                    assert!(grant.slot.is_some());
                    wait.end();
                    return;
                }
            }
            thread::yield_now();
        }
    }

    #[test]
    fn no_slot_is_lost_if_a_release_races_with_a_new_waiter() {
        let connections = || {
            let mut server = Server::plain("/a", vec![ServerAddress::Unix("/a".into())]);
            server.keys.maxconn = Some(1);
            let backend = Arc::new(Backend::plain("app", vec![server]));
            let state = lone_state(&backend, Vec::new());
            let workers: Vec<_> = (0..3)
                .map(|n| {
                    let (backend, state) = (Arc::clone(&backend), Arc::clone(&state));
                    thread::spawn(move || {
                        let events = Arc::<TestInbox>::default();
                        let inbox = Arc::clone(&events) as Arc<dyn Inbox>;
                        let pool = Pool::new(backend, state, inbox, n);
                        connect(&pool, &events, n == 2);
                        connect(&pool, &events, false);
                    })
                })
                .collect();
            workers
                .into_iter()
                .for_each(|worker| worker.join().unwrap());
            assert_eq!((state.waiting(), state.servers()[0].in_use()), (0, 0));
        };
        shuttle::check_random(connections, 2000);
    }

    #[test]
    fn concurrent_reclaims_end_one_idle_connection_per_waiter() {
        let connections = || {
            let mut server = Server::plain("/a", vec![ServerAddress::Unix("/a".into())]);
            server.keys.maxconn = Some(3);
            let backend = Arc::new(Backend::plain("app", vec![server]));
            let state = lone_state(&backend, Vec::new());
            let server = Arc::clone(&state.servers()[0]);
            let at_rest = [(); 3].map(|()| ServerSlot::claim(&server).unwrap());
            let inbox = Arc::<TestInbox>::default();
            let wait = || {
                let inbox = Arc::clone(&inbox) as Arc<dyn Inbox>;
                state.wait(Waiter { inbox, place: 0 }, &[], None).unwrap()
            };
            let waits = [wait(), wait()];
            let workers = at_rest.map(|slot| {
                let state = Arc::clone(&state);
                thread::spawn(move || {
                    let mut slot = Some(slot);
                    while state.waiting() > 0 && slot.is_some() {
                        state.reclaim(|| drop(slot.take()));
                        thread::yield_now();
                    }
                    slot
                })
            });
            let kept = workers.map(|worker| worker.join().unwrap());
            assert_eq!(kept.iter().flatten().count(), 1);
            assert_eq!((state.waiting(), state.idle_reclaims()), (0, 2));
            waits.map(Wait::end);
        };
        shuttle::check_random(connections, 2000);
    }
}
