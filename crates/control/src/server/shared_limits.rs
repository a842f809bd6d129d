//! Limits that the old and the new process share during an upgrade: connections per server, and in
//! total. [`Counts`] are the connections that a process may use; [`becket_proto::limits`]
//! determines which counts move between processes.
//!
//! With a single process, a worker claims a connection by one atomic operation, and control has no
//! timer. With several processes, control exchanges counts every [`BETWEEN`], so another process
//! can use a freed connection after at most two intervals.

use std::collections::BTreeMap;
use std::time::Duration;

use becket_proto::limits::{Borrower, Counts, Lender, SharedCount};

use becket_process::protocol::Event;
use becket_proxy::shared::SharedState;

#[derive(Debug, Default)]
pub enum SharedLimits {
    /// The process does not accept clients yet, or has no supervisor.
    #[default]
    Alone,
    /// The process owns the limits, except for the counts that leaving processes hold.
    Serving(Lender),
    Leaving(Leaving),
}

#[derive(Debug, Default)]
pub struct Leaving {
    borrower: Borrower,
    wanted: Counts,
    /// Connections reserved for clients that already wait in the accept queues of addresses that
    /// the next process does not serve. Reset to 0 after [`RETIRING`] exchanges.
    spare: u32,
    settlements: usize,
}

impl SharedLimits {
    /// Sets the limits of this process to 0 until [`Self::serve`].
    pub fn wait(shared: &SharedState) {
        shared.connections.set_share(0);
        for server in shared.backends.known_servers() {
            server.slots().set_share(0);
        }
    }

    /// Takes over the limits, except for the counts that leaving processes hold.
    pub fn serve(&mut self, held: Counts, shared: &SharedState, connections: usize) {
        *self = Self::Serving(Lender::new(held));
        self.settle(shared, connections);
    }

    /// Passes the limits to the new process, except for open connections. With `keeps_queues`, also
    /// reserves half of the unused connections until the accept queues of the old sockets are
    /// empty. Returns the counts that this process still holds.
    pub fn leave(
        &mut self,
        shared: &SharedState,
        connections: usize,
        keeps_queues: bool,
    ) -> Counts {
        let most = u32::try_from(connections).unwrap_or(u32::MAX);
        let count = &shared.connections;
        let mut leaving = Leaving::default();
        if keeps_queues {
            leaving.spare = most.saturating_sub(count.count()) / 2;
        }
        let borrower = &mut leaving.borrower;
        let all = borrower.hold(CONNECTIONS, most, count, leaving.spare);
        let mut held = Counts::from([(CONNECTIONS, all)]);
        for server in shared.backends.known_servers() {
            if let Some(most) = server.maxconn() {
                let key = key(server.tag().0);
                held.insert(key, borrower.hold(key, most, server.slots(), 0));
            }
        }
        held.retain(|_, count| *count > 0);
        *self = Self::Leaving(leaving);
        held
    }

    pub fn released(&mut self, counts: &Counts) {
        if let Self::Serving(lender) = self {
            lender.release(counts);
        }
    }

    pub fn wanted(&mut self, process: u32, counts: Counts) {
        if let Self::Serving(lender) = self {
            lender.set_wanted(process, counts);
        }
    }

    pub fn granted(&mut self, counts: &Counts, shared: &SharedState) {
        let Self::Leaving(Leaving { borrower, .. }) = self else {
            return;
        };
        if let Some(granted) = counts.get(&CONNECTIONS) {
            borrower.granted(CONNECTIONS, *granted, &shared.connections);
        }
        for server in shared.backends.known_servers() {
            let key = key(server.tag().0);
            if let Some(granted) = counts.get(&key) {
                borrower.granted(key, *granted, server.slots());
                server.backend().settle();
            }
        }
    }

    /// Returns `true` if [`Self::settle`] must be called again after [`BETWEEN`].
    pub fn is_shared(&self) -> bool {
        match self {
            Self::Serving(lender) => lender.is_active(),
            Self::Leaving(_) => true,
            Self::Alone => false,
        }
    }

    /// Computes the counts to grant, release or request. Returns the events that report them.
    pub fn settle(&mut self, shared: &SharedState, connections: usize) -> Vec<Event> {
        match self {
            Self::Serving(lender) => lend(lender, shared, u32::try_from(connections).ok()),
            Self::Leaving(leaving) => leaving.settle(shared),
            Self::Alone => Vec::new(),
        }
    }
}

fn lend(lender: &mut Lender, shared: &SharedState, most: Option<u32>) -> Vec<Event> {
    let mut granted: BTreeMap<u32, Counts> = BTreeMap::new();
    let mut settle = |key: u64, most: Option<u32>, count: &SharedCount| {
        let grants = lender.settle(key, most, count);
        for (process, count) in grants.granted {
            granted.entry(process).or_default().insert(key, count);
        }
        grants.has_grown
    };
    settle(CONNECTIONS, most, &shared.connections);
    for server in shared.backends.known_servers() {
        if settle(key(server.tag().0), server.maxconn(), server.slots()) {
            server.backend().settle();
        }
    }
    let granted = granted.into_iter();
    granted
        .map(|(process, counts)| Event::Granted(process, counts))
        .collect()
}

impl Leaving {
    fn settle(&mut self, shared: &SharedState) -> Vec<Event> {
        self.settlements += 1;
        if self.settlements >= RETIRING {
            self.spare = 0;
        }
        let (mut released, mut wanted) = (Counts::new(), Counts::new());
        let mut settle = |key: u64, count: &SharedCount, waiting: u32, spare: u32| {
            let settled = self.borrower.settle(key, count, waiting, spare);
            for (counts, count) in [
                (&mut released, settled.released),
                (&mut wanted, settled.wanted),
            ] {
                if count > 0 {
                    counts.insert(key, count);
                }
            }
        };
        settle(CONNECTIONS, &shared.connections, 0, self.spare);
        let waiting = waiting(shared, self.settlements);
        for server in shared.backends.known_servers() {
            if server.maxconn().is_some() {
                let key = key(server.tag().0);
                let waiting = waiting.get(&key).copied().unwrap_or(0);
                settle(key, server.slots(), waiting, 0);
            }
        }
        let mut events = Vec::new();
        if !released.is_empty() {
            events.push(Event::Released(released));
        }
        // Repeats the request while clients wait, because another process may have begun to serve.
        if !wanted.is_empty() || wanted != self.wanted {
            self.wanted.clone_from(&wanted);
            events.push(Event::Wanted(wanted));
        }
        events
    }
}

/// Returns the number of connections to request for each server. The waiting clients of a backend
/// are divided among its servers; `turn` rotates the remainder.
fn waiting(shared: &SharedState, turn: usize) -> Counts {
    let mut waiting = Counts::new();
    for backend in shared.backends.all() {
        let servers = backend.servers();
        let limited = servers.iter().filter(|server| server.maxconn().is_some());
        let (number, clients) = (limited.clone().count(), backend.waiting());
        for (at, server) in limited.enumerate() {
            let more = (at + turn) % number < clients % number;
            let count = clients / number + usize::from(more);
            waiting.insert(key(server.tag().0), count as u32);
        }
    }
    waiting
}

/// Interval between two exchanges of counts.
pub const BETWEEN: Duration = Duration::from_millis(20);
/// Number of exchanges, about 2 s, after which the accept queues of the old sockets are assumed to
/// be empty.
const RETIRING: usize = 100;
/// ID of `limits.connections` among the shared counts; server IDs are higher.
const CONNECTIONS: u64 = 1;

fn key(tag: u64) -> u64 {
    tag.max(CONNECTIONS + 1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use becket_proto::session_table::{Limits as TableLimits, SessionTable};
    use becket_sys::clock::Clock;

    use super::*;
    use crate::sample;
    use becket_proxy::backend::slot::ServerSlot;
    use becket_tls::config::{Backend, Config, Server, ServerAddress};

    /// Returns the state of a process with one server that has two slots.
    fn process() -> SharedState {
        let mut server = Server::plain("/a", vec![ServerAddress::Unix("/a".into())]);
        server.keys.maxconn = Some(2);
        let backends = vec![Arc::new(Backend::plain("app", vec![server]))];
        let config = Arc::new(Config {
            backends,
            ..sample::config()
        });
        let table = || {
            Arc::new(SessionTable::new(
                TableLimits::default(),
                Default::default(),
            ))
        };
        let shared = SharedState::new(1, Clock::start(), table(), table());
        shared.backends.adopt(&config);
        SharedLimits::wait(&shared);
        shared
    }

    fn claim(shared: &SharedState) -> Option<ServerSlot> {
        ServerSlot::claim(&shared.backends.known_servers()[0])
    }

    #[test]
    fn slots_pass_from_a_leaving_process_to_the_serving_one() {
        let old = process();
        assert!(claim(&old).is_none(), "it does not serve yet");
        let mut old_limits = SharedLimits::default();
        old_limits.serve(Counts::new(), &old, 10);
        assert!(!old_limits.is_shared());
        let held = claim(&old).unwrap();
        let reported = old_limits.leave(&old, 10, false);
        assert!(claim(&old).is_none());
        let new = process();
        let mut new_limits = SharedLimits::default();
        new_limits.serve(reported, &new, 10);
        assert!(new_limits.is_shared());
        let taken = claim(&new).unwrap();
        assert!(claim(&new).is_none());
        assert!(new.claim_connection(10));
        drop(held);
        let events = old_limits.settle(&old, 10);
        let [Event::Released(counts)] = &events[..] else {
            panic!("{events:?}");
        };
        new_limits.released(counts);
        assert!(new_limits.settle(&new, 10).is_empty());
        assert!(claim(&new).is_some() && !new_limits.is_shared());
        drop(taken);
    }
}
