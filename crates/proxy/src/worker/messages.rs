//! Applies messages that a worker receives, and builds the state of each listener of a new
//! configuration.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use mio::{Interest, Token};

use super::event_loop::{FIRST_ACCEPTOR, Shutdown, Worker};
use super::sweep::SweepCause;
use crate::backend::inbox::{BackendEvent, Grant, Inbox};
use crate::backend::pool::Pool;
use crate::backend::registry::Adopted;
use crate::connection::Connection;
use crate::connection::listener::ListenerState;
use crate::worker::acceptor::Acceptor;
use crate::worker::bound::BoundListener;
use crate::worker::mailbox::WorkerMessage;
use becket_keys::key_cache::WorkerKeys;
use becket_keys::signing::queue::Signed;
use becket_prepare::descriptors;
use becket_tls::admission::WorkerAdmission;
use becket_tls::config::{Config, Listener};
use becket_tls::hello_router::HelloRouter;
use becket_tls::route_configs::RouteParts;

impl Worker {
    /// Applies pending messages. The worker calls this between two connections, so that a granted
    /// slot does not wait for the end of a turn, which may take milliseconds.
    pub(super) fn look_for_mail(&mut self) {
        if self.mailbox.is_loaded() {
            self.read_mail();
        }
    }

    pub(super) fn read_mail(&mut self) {
        for message in self.mailbox.take() {
            match message {
                WorkerMessage::Config {
                    adopted,
                    added,
                    outbox,
                } => {
                    self.served.outbox = outbox;
                    if let Err(error) = self.take_over(&adopted, added) {
                        tracing::error!(name: "worker-reload-failed", %error, worker = self.number, "cannot apply the new configuration in a worker");
                    }
                }
                WorkerMessage::Secrets(secrets) => {
                    self.served.secrets = secrets;
                    let (config, pools) = (
                        Arc::clone(&self.served.config),
                        Rc::clone(&self.served.pools),
                    );
                    if let Err(error) = self.serve_by(config, pools, Vec::new(), &[]) {
                        tracing::error!(name: "worker-ticket-keys-failed", %error, worker = self.number, "cannot change the ticket keys of a worker; keeping the previous keys");
                    }
                }
                WorkerMessage::Event(BackendEvent::Granted(grant)) => self.pass_on(grant),
                WorkerMessage::Event(BackendEvent::Failed(server)) => {
                    self.sweep(SweepCause::ServerFailed(server));
                }
                WorkerMessage::Event(BackendEvent::Look(index)) => {
                    let entry = self.connections.get(index);
                    if entry.is_some_and(|entry| entry.handshaking) {
                        self.enqueue(index);
                    } else {
                        self.advance(index, Connection::advance);
                    }
                }
                // This message only wakes the worker: `reclaim` runs later in this turn.
                WorkerMessage::Event(BackendEvent::Awaited) => {}
                WorkerMessage::Signed(all) => {
                    for signed in all {
                        self.take_signed(signed);
                    }
                }
                WorkerMessage::List(listing) => self.list(listing),
                WorkerMessage::Kill(killing) => self.sweep(SweepCause::Killed(killing)),
                WorkerMessage::EndIdle(idle) => self.end_idle(idle),
                WorkerMessage::Park(parked) => {
                    self.acceptors.is_parked = true;
                    // Fails if the upgrade was aborted meanwhile, which dropped the receiver.
                    let _given_up = parked.send(());
                }
                WorkerMessage::Accept => self.serve_clients(),
                WorkerMessage::Drain(passed_on) => self.drain(&passed_on),
                WorkerMessage::Stop => self.shutdown = Shutdown::Now,
            }
        }
    }

    /// Starts to accept clients. Sets the backlog of all sockets with listen(2), which also starts
    /// to listen on sockets that were only bound.
    fn serve_clients(&mut self) {
        self.unpark();
        for (_, acceptor) in &mut self.acceptors.sockets {
            acceptor.bound_queue(None);
            acceptor.ready = true;
        }
    }

    /// Resumes accepting. The time that clients have waited in the kernel until now does not count
    /// as overload of this worker.
    fn unpark(&mut self) {
        let now = self.time();
        self.acceptors.is_parked = false;
        self.acceptors.accepts_since = Some(now);
        self.acceptors.backlog.handle_look(now, 0, true);
    }

    /// Stops accepting. Closes the sockets on which another process also listens (`passed_on`), or
    /// all sockets if this process never accepted. Other sockets are closed after their queued
    /// clients have been accepted.
    fn drain(&mut self, passed_on: &[SocketAddr]) {
        self.shutdown = Shutdown::Draining;
        let now = self.time();
        for (_, acceptor) in &mut self.acceptors.sockets {
            if self.acceptors.accepts_since.is_none() || passed_on.contains(&acceptor.address()) {
                acceptor.let_go();
            } else {
                acceptor.retire(now);
            }
        }
        if self.acceptors.is_parked {
            self.unpark();
        }
        self.sweep(SweepCause::Drain);
    }

    /// Passes a granted slot to the waiting connection, which connects at once. If that connection
    /// is closed, dropping the grant passes the slot to the next waiter.
    fn pass_on(&mut self, grant: Grant) {
        let index = grant.place;
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        if entry.connection.handle_grant(grant) {
            self.advance(index, Connection::advance);
        }
    }

    /// Passes a signature to the connection that requested it, and queues that connection for its
    /// next step.
    fn take_signed(&mut self, signed: Signed) {
        self.newcomers.signing.note_answer(&signed);
        self.counters.count_signature(&signed);
        let index = signed.asker.place;
        let Some(entry) = self.connections.get_mut(index) else {
            return;
        };
        if entry.connection.handle_signed(signed) {
            self.enqueue(index);
        }
    }

    /// Applies another configuration. Unchanged pools and listener states are reused, because pools
    /// contain TLS sessions with servers and a router takes time to build.
    pub(super) fn take_over(
        &mut self,
        adopted: &Adopted,
        added: Vec<BoundListener>,
    ) -> io::Result<()> {
        let pool = |(backend, state): (&Arc<_>, &Arc<_>)| {
            let is_same = |it: &&Rc<Pool>| {
                Arc::ptr_eq(it.backend(), backend) && Arc::ptr_eq(it.state(), state)
            };
            if let Some(pool) = self.served.pools.iter().find(is_same) {
                return Rc::clone(pool);
            }
            let inbox = Arc::clone(&self.mailbox) as Arc<dyn Inbox>;
            let pool = Pool::new(Arc::clone(backend), Arc::clone(state), inbox, self.number);
            let pool = pool.telling(self.served.outbox.clone());
            Rc::new(pool.reading(&self.shared.readers))
        };
        let pools = adopted.backends().map(pool).collect();
        let config = Arc::clone(adopted.config());
        let mut before = Vec::new();
        if Arc::ptr_eq(&config.file, &self.served.config.file) {
            let acceptors = self.acceptors.sockets.iter();
            before.extend(acceptors.map(|(_, it)| Rc::clone(&it.listener)));
        }
        self.serve_by(config, pools, added, &before)
    }

    /// Builds listener states for a configuration and assigns them to existing and new sockets.
    /// Retires sockets whose address was removed. If a state cannot be built, nothing changes.
    fn serve_by(
        &mut self,
        config: Arc<Config>,
        pools: Rc<[Rc<Pool>]>,
        added: Vec<BoundListener>,
        before: &[Rc<ListenerState>],
    ) -> io::Result<()> {
        let states = self
            .listener_states(&config, &pools, before)
            .map_err(io::Error::other)?;
        let state_at = |address: SocketAddr| {
            let listener = config
                .listeners
                .iter()
                .position(|listener| listener.bind.contains(&address))?;
            states.get(listener).cloned()
        };
        // Reads the clock again, because building the states takes time.
        let now = self.time();
        for (_, acceptor) in &mut self.acceptors.sockets {
            match state_at(acceptor.address()) {
                Some(state) => acceptor.listener = state,
                None => acceptor.retire(now),
            }
        }
        for bound in added {
            let address = bound.address;
            let Some(state) = state_at(address) else {
                continue;
            };
            let mut socket = mio::net::TcpListener::from_std(bound.listener);
            let entry = self.acceptors.sockets.vacant_entry();
            let token = Token(FIRST_ACCEPTOR + entry.key());
            let registry = self.poll.registry();
            registry.register(&mut socket, token, Interest::READABLE)?;
            entry.insert(Acceptor::new(socket, address, bound.inherited, state));
        }
        let (shared, before) = (&self.shared.admission, Some(&*self.served.admission));
        self.served.admission = WorkerAdmission::new(shared, &config.file.admission, before);
        let workers = self.shared.counters.len();
        self.resources
            .pipes
            .allow(descriptors::pipes(&config, workers), workers);
        self.served.config = config;
        self.served.pools = pools;
        self.find_rests();
        Ok(())
    }

    fn listener_states(
        &self,
        config: &Config,
        pools: &Rc<[Rc<Pool>]>,
        before: &[Rc<ListenerState>],
    ) -> Result<Vec<Rc<ListenerState>>, rustls::Error> {
        let state = |listener: &Arc<Listener>| {
            let has_pool = |state: &ListenerState, backend: usize| {
                let both = state.pools.get(backend).zip(pools.get(backend));
                both.is_some_and(|(old, new)| Rc::ptr_eq(old, new))
            };
            let is_same = |state: &&Rc<ListenerState>| {
                let mut routes = listener.routes.iter();
                Arc::ptr_eq(state.config(), listener)
                    && routes.all(|it| has_pool(state, it.backend))
            };
            if let Some(state) = before.iter().find(is_same) {
                return Ok(Rc::clone(state));
            }
            let router = HelloRouter::new(Arc::clone(listener), &self.parts(config))?;
            Ok(Rc::new(ListenerState::new(router, Rc::clone(pools))))
        };
        config.listeners.iter().map(state).collect()
    }

    fn parts(&self, config: &Config) -> RouteParts {
        RouteParts {
            table: Arc::clone(&self.shared.table),
            early: Arc::clone(&self.shared.early),
            secrets: Arc::clone(&self.served.secrets),
            file: Arc::clone(&config.file),
            key_log: config.file.process.key_log,
            keys: Arc::new(WorkerKeys::new(&self.shared.keys)),
            outbox: self.served.outbox.clone(),
        }
    }
}
