//! What all workers know of one backend: who waits for a slot, and which server a client had.
//!
//! The queue is first in, first out, over all workers. Newcomers see that somebody waits for any server and go behind
//! them; a slot that becomes free is given to
//! whoever has waited for longest, whichever worker holds that connection, through the worker's [`Inbox`].
//!
//! No wake-up is lost: a slot is given back by "count one less, then look whether somebody waits", a
//! waiter arrives by "be counted, then look for a slot", all four sequentially consistent, and
//! [`BackendState::settle`] is what both do last. It is also called when a limit, a weight or the health
//! of a server changes. While nobody waits it is one load.
//!
//! Order of locks: this one is never held while another is taken.

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

/// One backend, seen by all threads.
#[derive(Debug)]
pub struct BackendState {
    name: String,
    /// How many wait: the length of the queue, readable without its lock.
    waiting: AtomicUsize,
    /// Whether one of them would take any server.
    wants_any: AtomicBool,
    /// Of the last who had to wait; see [`Arrival`].
    arrivals: AtomicU64,
    /// How many may.
    room: AtomicUsize,
    hand_overs: AtomicU64,
    idle_reclaim: IdleReclaimState,
    closes_on_failure: AtomicBool,
    line: Mutex<Line>,
    /// Which server a client had; empty where clients do not stick.
    stick: Stick,
    /// How long a client is remembered that does not come back, in milliseconds.
    stick_life: AtomicU64,
    inboxes: Arc<OnceLock<Vec<Arc<dyn Inbox>>>>,
}

/// Connections at rest that end for waiting clients.
#[derive(Debug, Default)]
struct IdleReclaimState {
    /// Rest of a connection that may be ended, in milliseconds; 0 is never.
    after: AtomicU64,
    /// Connections that are being ended.
    under_way: AtomicUsize,
    /// Connections that were ended, ever.
    ended: AtomicU64,
}

/// What is behind the lock.
#[derive(Debug)]
struct Line {
    queue: Queue<Waiter>,
    servers: Arc<[Arc<ServerState>]>,
    /// Those that are no longer configured and that connections may still hold.
    gone: Vec<Weak<ServerState>>,
}

impl Line {
    /// Replaces the servers; the list that it was is to be dropped when the lock is free again.
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

/// Somebody who waits for a slot.
#[derive(Debug)]
pub struct Waiter {
    /// Of the worker that holds the connection.
    pub inbox: Arc<dyn Inbox>,
    /// Where the connection lives in that worker.
    pub place: usize,
}

/// A place in the queue; dropping it leaves the queue.
#[derive(Debug)]
pub struct Wait {
    backend: Arc<BackendState>,
    stay: Option<Stay>,
}

/// The queue is full.
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

    /// Takes over what the configuration says, and gives slots to those who wait if there are more now.
    pub(super) fn configure(self: &Arc<Self>, config: &Backend, servers: Arc<[Arc<ServerState>]>) {
        self.room.store(config.keys.queue_length, SeqCst);
        let closes = config.keys.connections_on_failure == ConnectionsOnFailure::Close;
        self.closes_on_failure.store(closes, Relaxed);
        let after = config.keys.idle_reclaim.unwrap_or_default();
        self.idle_reclaim
            .after
            .store(after.as_millis() as u64, Relaxed);
        self.stick.set_limit(config.most_remembered());
        // At most some days, so it fits.
        let life = config.keys.stick_lifetime.as_millis() as u64;
        self.stick_life.store(life, Relaxed);
        let mut line = self.lock();
        let before = line.replace(servers);
        drop(line);
        drop(before);
        self.settle();
    }

    /// Forgets the servers: the backend is no longer configured. Who waits is refused.
    pub(super) fn close(self: &Arc<Self>) {
        let before = self.lock().replace(Arc::new([]));
        drop(before);
        self.settle();
    }

    /// The backend's configured name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its servers, as configured now. Takes the lock.
    pub fn servers(&self) -> Arc<[Arc<ServerState>]> {
        Arc::clone(&self.lock().servers)
    }

    /// Its servers, and those that were and are still held by connections. Takes the lock.
    pub fn known_servers(&self) -> Vec<Arc<ServerState>> {
        let line = self.lock();
        let gone = line.gone.iter().filter_map(Weak::upgrade);
        line.servers.iter().cloned().chain(gone).collect()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(SeqCst)
    }

    /// Returns whether a client waits that would take any server. What is free while others wait is a server that has failed them all.
    pub(super) fn wants_any(&self) -> bool {
        self.wants_any.load(Relaxed)
    }

    /// Slots that were handed to somebody who waited, ever.
    pub fn hand_overs(&self) -> u64 {
        self.hand_overs.load(Relaxed)
    }

    /// Rest of a connection that may be ended while others wait for a slot; `None` if none may be.
    pub fn idle_reclaim(&self) -> Option<Duration> {
        let after = self.idle_reclaim.after.load(Relaxed);
        (after > 0).then(|| Duration::from_millis(after))
    }

    /// Connections at rest that were ended for one that waited, ever.
    pub fn idle_reclaims(&self) -> u64 {
        self.idle_reclaim.ended.load(Relaxed)
    }

    /// Runs `end`, which ends a connection at rest and so gives its slot to one that waits. Returns whether it did: no more connections
    /// are being ended at a time, by all workers, than wait.
    pub fn reclaim(&self, end: impl FnOnce()) -> bool {
        let reclaim = &self.idle_reclaim;
        // Counted before the queue is looked at, and until it is one shorter: no two workers end a connection for the same waiter.
        let number = reclaim.under_way.fetch_add(1, SeqCst) + 1;
        let is_wanted = number <= self.waiting();
        if is_wanted {
            reclaim.ended.fetch_add(1, Relaxed);
            end();
        }
        reclaim.under_way.fetch_sub(1, SeqCst);
        is_wanted
    }

    /// How long a client is remembered that does not come back.
    pub fn stick_life(&self) -> Duration {
        Duration::from_millis(self.stick_life.load(Relaxed))
    }

    /// How many clients are remembered. Takes the locks of that memory.
    pub fn sticks(&self) -> usize {
        self.stick.len()
    }

    /// The server that a client had, by the numbers that stand for both.
    pub fn recall(&self, client: u64, now: Duration) -> Option<u64> {
        self.stick.recall(client, now, self.stick_life())
    }

    /// From now on a client has this server, for `life` or as long as is configured, whichever ends
    /// first. Returns whether that is news.
    pub fn learn(&self, client: u64, server: &ServerState, now: Duration, life: Duration) -> bool {
        self.learn_key(client, server.key(), now, life)
    }

    /// The same by [`ServerState::key`], of a server that may not be known here yet.
    pub fn learn_key(&self, client: u64, server: u64, now: Duration, life: Duration) -> bool {
        self.stick
            .learn(client, server, now, life.min(self.stick_life()))
    }

    /// The same for what another host learnt some time ago: a client that is known here keeps its server.
    pub fn learn_unless_known(
        &self,
        client: u64,
        server: &ServerState,
        now: Duration,
        life: Duration,
    ) -> bool {
        let life = life.min(self.stick_life());
        self.stick
            .learn_unless_known(client, server.key(), now, life)
    }

    /// Shows who is remembered: client, server, and how long still. See [`Stick::visit`].
    pub fn visit_sticks(
        &self,
        from: Cursor,
        now: Duration,
        at_most: usize,
        show: impl FnMut(u64, u64, Duration),
    ) -> Option<Cursor> {
        self.stick.visit(from, now, at_most, show)
    }

    /// When somebody comes who is served at once: behind all who had to wait so far.
    pub(super) fn arrival(&self) -> Arrival {
        Arrival(self.arrivals.load(Relaxed)).served_at_once()
    }

    /// Joins the queue: a newcomer its end, one who had a slot `before` the place of its first arrival.
    /// `tried` are servers that have failed it, by [`ServerState::key`]. The slot comes through the waiter's
    /// inbox, perhaps at once.
    ///
    /// # Errors
    ///
    /// When the queue is full; for newcomers only, the others were let in.
    pub fn wait(
        self: &Arc<Self>,
        waiter: Waiter,
        tried: &[u64],
        before: Option<Arrival>,
    ) -> Result<Wait, QueueFull> {
        let mut line = self.lock();
        let stay = line.queue.join(waiter, tried, before);
        self.count(&line.queue);
        // There may be room for it that nobody in front can use: the queue is full when it still is after that.
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

    /// Gives free slots to those who wait, the longest waiter first, until there are no more of either.
    pub fn settle(self: &Arc<Self>) {
        while self.waiting.load(SeqCst) > 0 {
            let Some((waiter, grant)) = self.next_grant(&mut self.lock()) else {
                return;
            };
            waiter.inbox.deliver(BackendEvent::Granted(grant));
        }
    }

    /// The longest waiter for whom there is a slot, or no server at all; it is no longer in the queue.
    fn next_grant(self: &Arc<Self>, line: &mut Line) -> Option<(Waiter, Grant)> {
        let Line { queue, servers, .. } = line;
        let taken = queue.take_first(|tried| match offer(servers, tried) {
            Pick::Slot(slot) => Some(Some(slot)),
            Pick::Nobody => Some(None),
            Pick::Full => None,
        })?;
        self.count(queue);
        let slot = taken.found.map(|slot| slot.had_since(taken.arrival));
        self.hand_overs.fetch_add(slot.is_some().into(), Relaxed);
        let grant = Grant {
            place: taken.item.place,
            stay: taken.stay,
            backend: Arc::clone(self),
            slot,
        };
        Some((taken.item, grant))
    }

    /// Says how many wait, to those who have not the lock.
    fn count(&self, queue: &Queue<Waiter>) {
        self.wants_any.store(queue.holds_novices(), Relaxed);
        self.waiting.store(queue.len(), SeqCst);
        self.arrivals.store(queue.arrivals().0, Relaxed);
    }

    /// Tells the workers to end a server's connections, where that is wanted.
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
        // No call leaves a queue half changed.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wait {
    /// Whether this grant ends this wait.
    pub fn is_over_by(&self, grant: &Grant) -> bool {
        self.stay == Some(grant.stay) && Arc::ptr_eq(&self.backend, &grant.backend)
    }

    /// It is over: there is nothing to leave.
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
        // One who was granted a slot and left has it in its worker's inbox, and drops it there.
        let left = line.queue.cancel(stay);
        self.backend.count(&line.queue);
        drop(line);
        // Whatever was free when it left, those who stay cannot use.
        drop(left);
    }
}

/// Claims a slot at the least busy of the servers that a client may be given.
fn offer(servers: &[Arc<ServerState>], tried: &[u64]) -> Pick {
    let eligible = Eligible::new(servers, tried);
    let cost = |server: &&Arc<ServerState>| {
        u64::from(server.in_use()) * u64::from(u16::MAX) / u64::from(server.weight().max(1))
    };
    let is_free = |server: &&Arc<ServerState>| eligible.contains(server) && server.has_room();
    // A slot may be lost to somebody who came before anyone waited; then the next is looked for.
    while let Some(server) = servers.iter().filter(is_free).min_by_key(cost) {
        if let Some(slot) = ServerSlot::claim(server) {
            return Pick::Slot(slot);
        }
    }
    eligible.shortage()
}

/// The answer to a connection that asks for a server.
#[derive(Debug)]
pub enum Pick {
    /// The connection may connect.
    Slot(ServerSlot),
    /// The connection has to wait.
    Full,
    /// No server is in service that was not tried.
    Nobody,
}

/// The servers that one client may be given now: those in service that have a weight and have not failed it. Backups serve while no other
/// server can.
#[derive(Clone, Copy, Debug)]
pub(super) struct Eligible<'a> {
    servers: &'a [Arc<ServerState>],
    /// Servers that have failed the client, by [`ServerState::key`].
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

    /// Returns whether a server is eligible.
    pub(super) fn contains(&self, server: &ServerState) -> bool {
        server.is_usable()
            && server.is_backup() == self.backups
            && !self.tried.contains(&server.key())
    }

    /// Returns whether to wait, if no eligible server has a slot.
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

    /// Claims the one slot, or waits for it; a connection that is `hasty` leaves the queue again.
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
                // A grant for a wait that was left is dropped, which passes the slot on.
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
    fn no_slot_is_lost_between_a_connection_that_ends_and_one_that_begins_to_wait() {
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
    fn workers_that_reclaim_at_once_end_one_connection_for_each_that_waits() {
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
