//! Slots of servers, and connections, that this process shares with others: those of an upgrade.
//!
//! Each process under a parent has a row of memory that all see ([`Rows`]), in which it publishes, for each limit, what it has of
//! it. How much that may be is [`becket_proto::lease`]'s. Control exchanges every [`BETWEEN`] while there is another process, and nothing is
//! done while there is none: then what a worker pays is the atomic operation that a slot costs anyway.
//!
//! ```text
//! row = number of the process | beat | entries: (key, leased << 32 | wanted) ...        a word each; a key of 0 is the end
//! ```
//!
//! The parent clears the row of a process that has ended. One that hangs keeps what it has, until the parent ends it; what it would like
//! to have counts only while its beat goes on.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use becket_proto::lease::{Cells, Lease, Published, Stance, UNLEASED};

use crate::handover::rows::Rows;
use crate::shared::Shared;

/// What this process has of each limit.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    board: Option<Board>,
    leases: HashMap<u64, Lease>,
    /// There is another process, or about to be.
    is_active: bool,
    /// One that is to take its place is about to be, or is there.
    is_followed: bool,
    /// It has taken it.
    yields: bool,
}

impl Leases {
    /// Of a process that has this row, or none.
    pub(crate) fn new(place: Option<(Rows, usize)>) -> Self {
        Self {
            board: place.and_then(|(rows, row)| Board::new(rows, row)),
            ..Self::default()
        }
    }

    /// Begins with nothing where another process is there: what that leaves is taken with the first exchange.
    pub(crate) fn begin(&mut self, shared: &Shared) {
        let Some(board) = &mut self.board else {
            return;
        };
        self.is_active = !board.is_alone();
        if self.is_active {
            shared.connections.set_lease(0);
            for server in shared.backends.known_servers() {
                server.slots().set_lease(0);
            }
        }
    }

    /// Whether they are shared with processes that come and go.
    pub(crate) fn are_shared(&self) -> bool {
        self.board.is_some()
    }

    /// Whether [`Self::exchange`] is to be called again in [`BETWEEN`].
    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }

    /// Another process is to take the place of this one.
    pub(crate) fn expect(&mut self) {
        (self.is_active, self.is_followed) = (self.board.is_some(), true);
    }

    /// It takes new clients from now on.
    pub(crate) fn make_way(&mut self) {
        self.yields = true;
    }

    /// It does not, and this one goes on.
    pub(crate) fn go_on(&mut self) {
        (self.is_followed, self.yields) = (false, false);
    }

    /// Publishes, takes and gives up. `connections` is how many there may be in all.
    pub(crate) fn exchange(&mut self, shared: &Shared, connections: usize) {
        let Some(board) = self.board.as_mut().filter(|_| self.is_active) else {
            return;
        };
        let servers = shared.backends.known_servers();
        if !self.is_followed && board.is_alone() {
            board.clear();
            self.leases.clear();
            self.is_active = false;
            shared.connections.set_lease(UNLEASED);
            for server in servers {
                server.slots().set_lease(UNLEASED);
                server.backend().settle();
            }
            return;
        }
        board.begin(shared.clock.mono());
        let stance = |waiting: usize| match self.yields {
            // The queue has a million places at most.
            true => Stance::Yields {
                waiting: waiting as u32,
            },
            false => Stance::Serves,
        };
        let most = u32::try_from(connections).ok();
        let (key, lease) = (CONNECTIONS, self.leases.entry(CONNECTIONS).or_default());
        let mut left: HashSet<u64> = board.entries.keys().copied().collect();
        left.remove(&key);
        let cell = &mut Cell { board, key };
        lease.exchange(&shared.connections, most, stance(0), cell);
        for server in servers {
            cell.key = server.tag().0.max(CONNECTIONS + 1);
            left.remove(&cell.key);
            let lease = self.leases.entry(cell.key).or_default();
            let stance = stance(server.backend().waiting());
            if lease.exchange(server.slots(), server.maxconn(), stance, cell) {
                server.backend().settle();
            }
        }
        // Servers that are no longer configured, and held by no connection.
        for key in left {
            self.leases.remove(&key);
            cell.key = key;
            cell.publish(Published::default());
        }
    }
}

/// What processes have published.
#[derive(Debug)]
struct Board {
    rows: Rows,
    /// This process'.
    row: usize,
    /// Where its entries are, by key.
    entries: HashMap<u64, usize>,
    others: Vec<Other>,
    now: Duration,
}

/// What is known of another process' row.
#[derive(Debug, Default)]
struct Other {
    process: u64,
    entries: HashMap<u64, usize>,
    beat: u64,
    beat_at: Duration,
}

impl Board {
    fn new(rows: Rows, row: usize) -> Option<Self> {
        rows.all()
            .nth(row)?
            .first()?
            .store(std::process::id().into(), SeqCst);
        Some(Self {
            others: rows.all().map(|_| Other::default()).collect(),
            rows,
            row,
            entries: HashMap::new(),
            now: Duration::ZERO,
        })
    }

    fn is_alone(&self) -> bool {
        let mut rows = self.rows.all().enumerate();
        rows.all(|(index, row)| index == self.row || load(row, PROCESS) == 0)
    }

    /// Shows that this process lives, and looks which others do.
    fn begin(&mut self, now: Duration) {
        self.now = now;
        for (index, (row, other)) in self.rows.all().zip(&mut self.others).enumerate() {
            let beat = load(row, BEAT);
            if index == self.row {
                row[BEAT].store(beat.wrapping_add(1), SeqCst);
            } else if beat != other.beat {
                (other.beat, other.beat_at) = (beat, now);
            }
        }
    }

    /// Publishes nothing any more.
    fn clear(&self) {
        let row = self.rows.all().nth(self.row);
        for at in self.entries.values() {
            let value = row.and_then(|row| row.get(at + 1));
            value.into_iter().for_each(|value| value.store(0, SeqCst));
        }
    }
}

/// What is published of one limit.
struct Cell<'a> {
    board: &'a mut Board,
    key: u64,
}

impl Cells for Cell<'_> {
    fn publish(&mut self, published: Published) {
        let Board {
            rows, row, entries, ..
        } = &mut *self.board;
        let next = FIRST + 2 * entries.len();
        let at = *entries.entry(self.key).or_insert(next);
        let row = rows.all().nth(*row).unwrap_or_default();
        // A server too many for the row is shared with nobody.
        if let Some([key, value]) = row.get(at..at + 2) {
            let Published { leased, wanted } = published;
            value.store(u64::from(leased) << 32 | u64::from(wanted), SeqCst);
            key.store(self.key, SeqCst);
        }
    }

    fn others(&mut self) -> Published {
        let Board {
            rows,
            row,
            others,
            now,
            ..
        } = &mut *self.board;
        let mut sum = Published::default();
        for (index, (there, other)) in rows.all().zip(others).enumerate() {
            if index != *row {
                let found = other.read(there, self.key, *now);
                sum.leased = sum.leased.saturating_add(found.leased);
                sum.wanted = sum.wanted.saturating_add(found.wanted);
            }
        }
        sum
    }
}

impl Other {
    /// What is published there now.
    fn read(&mut self, row: &[AtomicU64], key: u64, now: Duration) -> Published {
        let process = load(row, PROCESS);
        if process != self.process {
            *self = Self {
                process,
                beat_at: now,
                ..Self::default()
            };
        }
        if process == 0 {
            return Published::default();
        }
        // What has come to it.
        loop {
            let at = FIRST + 2 * self.entries.len();
            let key = load(row, at);
            // One key twice is a fault of that process, which then has told all that it tells.
            if key == 0 || self.entries.insert(key, at).is_some() {
                break;
            }
        }
        let found = self.entries.get(&key).map_or(0, |at| load(row, at + 1));
        // The process may have ended meanwhile, and the row be another one's: then this one has nothing.
        if load(row, PROCESS) != process {
            return Published::default();
        }
        let is_silent = now.saturating_sub(self.beat_at) > SILENT;
        Published {
            leased: (found >> 32) as u32,
            wanted: if is_silent { 0 } else { found as u32 },
        }
    }
}

/// 0 behind the end.
fn load(row: &[AtomicU64], at: usize) -> u64 {
    row.get(at).map_or(0, |word| word.load(SeqCst))
}

/// Between two exchanges: a slot that one process gives back is another one's after two at most.
pub(crate) const BETWEEN: Duration = Duration::from_millis(20);
/// Without a beat for so long, a process hangs.
const SILENT: Duration = Duration::from_secs(1);
const PROCESS: usize = 0;
const BEAT: usize = 1;
const FIRST: usize = 2;
/// The key of `limits.connections`; those of servers are above.
const CONNECTIONS: u64 = 1;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use becket_proto::session_table::{Limits, SessionTable};
    use becket_sys::clock::Clock;

    use super::*;
    use crate::backend::slot::Slot;
    use crate::config::{Backend, Config, Server, ServerAddress};
    use crate::control::sample;

    /// One server with two slots, and a process that has this row.
    fn process(rows: &Rows, row: usize) -> (Shared, Leases) {
        let mut server = Server::plain("/a", vec![ServerAddress::Unix("/a".into())]);
        server.keys.maxconn = Some(2);
        let backends = vec![Arc::new(Backend::plain("app", vec![server]))];
        let config = Arc::new(Config {
            backends,
            ..sample::config()
        });
        let table = || Arc::new(SessionTable::new(Limits::default(), Default::default()));
        let shared = Shared::new(1, Clock::start(), table(), table());
        shared.backends.adopt(&config);
        let file = std::os::fd::AsFd::as_fd(rows).try_clone_to_owned().unwrap();
        let leases = Leases::new(Some((Rows::open(file).unwrap(), row)));
        (shared, leases)
    }

    fn claim(shared: &Shared) -> Option<Slot> {
        Slot::claim(&shared.backends.known_servers()[0])
    }

    #[test]
    fn slots_pass_from_one_process_to_the_next_and_those_of_the_dead_are_free() {
        let rows = Rows::create().unwrap();
        let (old, mut old_leases) = process(&rows, 3);
        old_leases.begin(&old);
        assert!(!old_leases.is_active(), "it is alone");
        let mut held = vec![claim(&old).unwrap()];
        let (new, mut new_leases) = process(&rows, 5);
        new_leases.begin(&new);
        assert!(new_leases.is_active());
        assert!(claim(&new).is_none());
        old_leases.expect();
        old_leases.exchange(&old, 10);
        held.push(claim(&old).unwrap());
        held.pop();
        old_leases.make_way();
        old_leases.exchange(&old, 10);
        new_leases.exchange(&new, 10);
        let taken = claim(&new).unwrap();
        assert!(claim(&new).is_none() && claim(&old).is_none());
        assert!(new.claim_connection(10));
        drop(held);
        old_leases.exchange(&old, 10);
        new_leases.exchange(&new, 10);
        let other = claim(&new).unwrap();
        // It ends, and the old one goes on.
        drop((taken, other));
        rows.clear(5);
        old_leases.go_on();
        old_leases.exchange(&old, 10);
        assert!(!old_leases.is_active());
        let both = [claim(&old), claim(&old)];
        assert!(both.iter().all(Option::is_some) && claim(&old).is_none());
    }
}
