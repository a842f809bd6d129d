//! One connection with the resources that a worker lends it, advanced as in a worker.
//!
//! A [`Stage`] does for one connection what the event loop of a worker does for many: it passes
//! readiness on as edges, advances the connection only on request, and expires it at its deadline.
//! The clock of the stage moves only on request.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use becket_config::process::{LimitsSection, Timeouts};
use becket_sys::clock::Now;

use super::link::{End, Watch, pair};
use super::net::{Plan, ScriptedNet};
use becket_keys::signing::queue::{Answers, Signed, SigningQueue, answer};
use becket_keys::signing::worker::WorkerSigning;
use becket_keys::signing::{Offload, SignatureRequest};
use becket_log::access::AccessRecord;
use becket_log::facts::Facts;
use becket_log::facts::ResumedBy;
use becket_proto::close_reason::CloseReason;
use becket_proxy::backend::cancel::Cancels;
use becket_proxy::backend::inbox::{BackendEvent, TestInbox};
use becket_proxy::connection::failure_log::FailureLog;
use becket_proxy::connection::listener::ListenerState;
use becket_proxy::connection::{Advanced, Connection, Side, Turn};
use becket_proxy::metrics::Counters;
use becket_proxy::pipes::{BULK, Pipes};
use becket_tls::admission::{SharedAdmission, WorkerAdmission};
use becket_tls::challenges::Challenges;
use becket_tls::scratch::Scratch;

/// A scripted connection.
#[derive(Debug)]
pub(crate) struct Stage {
    /// Servers of the connection.
    pub(crate) net: ScriptedNet,
    /// Clocks of the connection.
    pub(crate) now: Now,
    /// Limits of the configuration.
    pub(crate) limits: LimitsSection,
    /// Timeouts of the configuration.
    pub(crate) timeouts: Timeouts,
    /// Counters of the worker.
    pub(crate) counters: Arc<Counters>,
    /// Pipes for bulk data: none by default.
    pub(crate) pipes: Rc<Pipes>,
    /// Admission, if enabled.
    pub(crate) admission: Rc<WorkerAdmission>,
    /// Inbox for slots; the pools must use the same one.
    pub(crate) inbox: Arc<TestInbox>,
    /// Queue of PostgreSQL cancels.
    pub(crate) cancels: Arc<Cancels>,
    pub(crate) challenges: Challenges,
    /// Queue of signatures for a crypto thread; the script acts as that thread.
    pub(crate) signatures: Arc<SigningQueue>,
    signing: Option<WorkerSigning>,
    answers: Arc<Answered>,
    scratch: Scratch,
    failures: FailureLog,
    connection: Option<Connection<ScriptedNet>>,
    client: Option<Watch>,
    queued: bool,
    /// The connection's server went out of service.
    leaves: bool,
    /// The process stops.
    stops: bool,
    /// The process drains.
    draining: bool,
    /// A drain has just begun.
    drains: bool,
    closed: Option<AccessRecord>,
}

impl Stage {
    /// Creates an empty stage; streams hold `capacity` bytes in each direction.
    pub(crate) fn new(
        limits: LimitsSection,
        timeouts: Timeouts,
        now: Now,
        capacity: usize,
    ) -> Self {
        let counters = Arc::<Counters>::default();
        Self {
            pipes: Pipes::new(BULK, Arc::clone(&counters)),
            net: ScriptedNet::new([], capacity),
            now,
            limits,
            timeouts,
            counters,
            admission: WorkerAdmission::new(
                &Arc::new(SharedAdmission::new(1)),
                &Default::default(),
                None,
            ),
            inbox: Arc::default(),
            cancels: Arc::default(),
            challenges: Challenges::default(),
            signatures: Arc::new(SigningQueue::new(1, None)),
            signing: None,
            answers: Arc::default(),
            scratch: Scratch::default(),
            failures: FailureLog::default(),
            connection: None,
            client: None,
            queued: false,
            leaves: false,
            stops: false,
            draining: false,
            drains: false,
            closed: None,
        }
    }

    /// Lends up to `most` pipes at a time, from the first byte on.
    pub(crate) fn splice(&mut self, most: usize) {
        self.pipes = Pipes::new(0, Arc::clone(&self.counters));
        self.pipes.allow(most, 1);
    }

    /// From now on, signatures with expensive keys wait for the script.
    pub(crate) fn defer(&mut self) {
        self.defer_among(4);
    }

    /// As [`Self::defer`], with `workers` workers per crypto thread.
    fn defer_among(&mut self, workers: usize) {
        let (queue, answers) = (Arc::clone(&self.signatures), Arc::clone(&self.answers));
        self.signing = Some(WorkerSigning::new(queue, workers, answers));
    }

    /// Requests a signature for which no connection waits.
    pub(crate) fn ask_in_vain(&self, request: SignatureRequest) {
        let signing = self.signing.as_ref().expect("deferred");
        drop(signing.ask(PLACE, request));
        self.counters.signatures_begun.add(1);
    }

    /// From now on, suitable keys sign in batches, as if `waiting` more clients waited.
    pub(crate) fn defer_to(&mut self, queue: &Arc<SigningQueue>, waiting: usize) {
        self.signatures = Arc::clone(queue);
        self.defer_among(1);
        self.signing
            .as_ref()
            .expect("deferred")
            .note_waiting(waiting);
    }

    /// Answers the oldest signature request, or the batch that it begins, with `sign`. Returns
    /// `false` if there is none.
    pub(crate) fn sign(
        &self,
        sign: impl Fn(&SignatureRequest) -> Result<Vec<u8>, rustls::Error>,
    ) -> bool {
        self.flush();
        let jobs = self.signatures.try_pop();
        let any = !jobs.is_empty();
        answer(jobs, |requests| {
            requests.iter().map(|request| sign(request)).collect()
        });
        any
    }

    /// Acts as a worker in which no client waits for a handshake that could begin.
    pub(crate) fn flush(&self) {
        self.signing.iter().for_each(WorkerSigning::flush);
    }

    /// Returns `true` if the connection waits for room in the signing queue.
    pub(crate) fn is_postponed(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| connection.wants_signature().is_some())
    }

    /// Accepts a client through `listener`, replacing an earlier one, and returns its end. Servers
    /// answer by `plans`.
    pub(crate) fn admit(
        &mut self,
        listener: Rc<ListenerState>,
        plans: impl IntoIterator<Item = Plan>,
    ) -> End {
        self.net.plans = plans.into_iter().collect();
        self.net.dialled.clear();
        let (near, far) = pair(self.net.capacity);
        let listening = listener.config().bind.first().copied();
        let near = near.at(listening.unwrap_or(CLIENT));
        self.client = Some(near.watch());
        let name = listener.config().keys.name.clone();
        let facts = Facts::new(CLIENT, name.0, self.now);
        let connection = Connection::new(
            near,
            listener,
            facts,
            self.now,
            &self.timeouts,
            &self.counters,
        );
        self.connection = Some(connection);
        self.queued = true;
        self.closed = None;
        far
    }

    /// Makes one turn of a worker's loop. Returns `false` if the connection had nothing to do.
    pub(crate) fn turn(&mut self) -> bool {
        self.note_readiness();
        self.read_mail();
        let Some(connection) = &mut self.connection else {
            return false;
        };
        let overdue = connection.deadline() <= self.now.running;
        let has_room = self.signing.as_ref().is_none_or(|it| it.room().threads);
        let signs = match connection.wants_signature() {
            Some(Offload::Batches | Offload::Always) => has_room,
            offload => offload.is_some(),
        };
        if !overdue && !self.queued && !signs {
            return false;
        }
        self.queued = false;
        let mut turn = Turn {
            net: &mut self.net,
            place: PLACE,
            now: self.now,
            counters: &self.counters,
            limits: &self.limits,
            timeouts: &self.timeouts,
            failures: &mut self.failures,
            admission: &self.admission,
            cancels: &self.cancels,
            challenges: &self.challenges,
            pipes: &self.pipes,
            signing: self.signing.as_ref(),
            access: None,
            is_alone: false,
            draining: self.draining,
        };
        let advanced = if std::mem::take(&mut self.stops) {
            Advanced::Ended(connection.stop(&turn))
        } else if std::mem::take(&mut self.drains) {
            connection.drain(&mut turn, &mut self.scratch)
        } else if std::mem::take(&mut self.leaves) {
            connection.leave_server(&mut turn, &mut self.scratch)
        } else if overdue {
            connection.expire(&mut turn, &mut self.scratch)
        } else if signs {
            connection.sign(&mut turn, &mut self.scratch)
        } else {
            connection.advance(&mut turn, &mut self.scratch)
        };
        match advanced {
            Advanced::Waiting => {}
            Advanced::Unfinished => self.queued = true,
            Advanced::Ended(reason) => {
                let ended = self.connection.take();
                self.closed = ended.map(|it| it.into_record(reason, self.now));
                self.counters.closed.of(reason).add(1);
            }
        }
        true
    }

    /// Makes turns until there is nothing to do. Returns `false` if that takes too many turns.
    pub(crate) fn settle(&mut self) -> bool {
        (0..MOST_TURNS).any(|_| !self.turn())
    }

    /// Stops the process, which cuts the connection off.
    pub(crate) fn stop(&mut self) {
        self.stops = true;
        self.queued = true;
        self.turn();
    }

    /// Begins the drain of the process.
    pub(crate) fn drain(&mut self) {
        (self.draining, self.drains, self.queued) = (true, true, true);
        self.turn();
    }

    /// Advances the clocks. If the deadline is not reached, an alarm expires before it, as in a
    /// worker.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.now.mono += time;
        self.now.running += time;
        self.now.instant += time;
        self.now.unix += time;
        if let Some(connection) = &mut self.connection
            && connection.deadline() > self.now.running
        {
            assert!(connection.leave_rustls().is_ok(), "AWS-LC rejects a key");
        }
    }

    /// Returns `true` during the handshake.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(Connection::is_handshaking)
    }

    /// Returns `true` if a budget was spent and there is more to do before the next event.
    pub(crate) fn is_unfinished(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|it| self.queued || it.wants_signature().is_some())
    }

    /// Returns the reason of the close, if the connection is closed.
    pub(crate) fn closed(&self) -> Option<CloseReason> {
        self.closed.as_ref().map(|record| record.reason)
    }

    /// Returns how the connection's handshake resumed; `None` for a full handshake.
    pub(crate) fn resumed_by(&self) -> Option<ResumedBy> {
        let record = self.record().expect("a connection");
        record.facts.tls?.resumed_by()
    }

    /// Returns the connection's record, as the access log would show it now.
    pub(crate) fn record(&self) -> Option<AccessRecord> {
        match &self.connection {
            Some(connection) => {
                let seen = connection.glance();
                let (facts, reason) = (seen.facts.clone(), CloseReason::Stopped);
                Some(AccessRecord::new(facts, seen.traffic, reason, self.now))
            }
            None => self.closed.clone(),
        }
    }

    fn read_mail(&mut self) {
        for event in self.inbox.take() {
            let Some(connection) = &mut self.connection else {
                continue;
            };
            match event {
                BackendEvent::Granted(grant) => self.queued |= connection.handle_grant(grant),
                BackendEvent::Failed(server) => self.leaves |= connection.is_at(&server),
                BackendEvent::Awaited => {}
                BackendEvent::Look(_) => self.queued = true,
            }
        }
        self.queued |= self.leaves;
        for signed in self.answers.take() {
            if let Some(signing) = &self.signing {
                signing.note_answer(&signed);
            }
            self.counters.count_signature(&signed);
            if let Some(connection) = &mut self.connection {
                self.queued |= connection.handle_signed(signed);
            }
        }
    }

    fn note_readiness(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        let client = self.client.as_ref().map(|watch| (Side::Client, watch));
        let server = self.net.near().map(|watch| (Side::Server, watch));
        for (side, watch) in [client, server].into_iter().flatten() {
            let edges = watch.take_edges();
            if edges != Default::default() && connection.handle_ready(side, edges) {
                self.queued = true;
            }
        }
    }
}

/// Answers that the stage fetches by hand.
#[derive(Debug, Default)]
struct Answered(Mutex<Vec<Signed>>);

impl Answered {
    fn take(&self) -> Vec<Signed> {
        std::mem::take(&mut self.0.lock().expect("whole"))
    }
}

impl Answers for Answered {
    fn answer(&self, signed: Vec<Signed>) {
        self.0.lock().expect("whole").extend(signed);
    }
}

/// Address of the client, from the range for documentation (RFC 5737).
const CLIENT: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
    50_000,
);
/// Place of the only connection.
const PLACE: usize = 0;
/// More turns than any script needs.
const MOST_TURNS: usize = 100_000;
