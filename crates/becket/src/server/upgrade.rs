//! An upgrade, from either side: this process is replaced, or replaces another.
//!
//! The one that is replaced goes on serving until it is told to yield. From then on it accepts nobody, until it is told that
//! the other one serves, and leaves, or that there is no other one, and goes on. The one that replaces it begins to serve when the
//! other says that it has yielded, or says nothing any more. Which of them does what when is the parent's business (`parent/upgrade`).

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use becket_proto::succession::Record;
use becket_sys::socket_file::SocketFile;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use super::Control;
use super::leases::Leases;
use crate::backend::health::prober::Prober;
use crate::control::snapshot::Reload;
use crate::control::supervisor::Progress;
use crate::log::{Escaped, Timestamp};
use crate::succession::predecessor::{Heard, TakenOver};
use crate::succession::successor::{Cut, Successor};

/// What happens before this process serves.
pub(super) enum Step {
    /// The workers could accept clients.
    Prepared,
    /// The process before this one has done something, or is gone.
    Heard(Option<Heard>),
}

/// What control knows of the processes before and after this one.
#[derive(Debug, Default)]
pub(crate) struct Succession {
    /// Tells how far the process is that this one replaces, as long as there is one.
    before: Option<UnboundedReceiver<Heard>>,
    /// The workers are getting ready.
    prepares: Option<JoinHandle<()>>,
    /// This process serves, or did.
    serves: bool,
    /// It takes part in the cluster, or did.
    joined: bool,
    after: Option<Successor>,
    /// Another process has the secrets, or is about to have them.
    yields: bool,
    /// What of common limits is this process'.
    leases: Arc<Mutex<Leases>>,
}

impl Succession {
    /// With somebody to replace, or nobody.
    pub(crate) fn of(before: Option<UnboundedReceiver<Heard>>, leases: Leases) -> Self {
        Self {
            before,
            leases: Arc::new(Mutex::new(leases)),
            ..Self::default()
        }
    }

    /// Whether ticket keys are this process' to change, and states of secrets its to write.
    pub(super) fn keeps_secrets(&self) -> bool {
        !self.yields && self.serves
    }

    /// What of common limits is this process'.
    pub(super) fn leases(&self) -> MutexGuard<'_, Leases> {
        // No exchange leaves it half done.
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process serves, or did.
    pub(super) fn serves(&self) -> bool {
        self.serves
    }

    /// Whether a successor serves, or is about to.
    pub(super) fn is_followed(&self) -> bool {
        self.yields
    }

    /// Waits for the next step on the way to serving, for ever where there is none.
    pub(super) async fn next(&mut self) -> Step {
        let Self {
            before, prepares, ..
        } = self;
        tokio::select! {
            Some(heard) = async { Some(before.as_mut()?.recv().await) } => Step::Heard(heard),
            // It ends in any case: each worker says a word, or has ended.
            Some(_) = async { Some(prepares.as_mut()?.await) } => {
                *prepares = None;
                Step::Prepared
            }
            else => std::future::pending().await,
        }
    }
}

impl Control {
    /// Serves at once, or waits for the process that this one replaces.
    pub(super) fn begin(&mut self) {
        if self.succession.before.is_some() {
            // They build what they need first.
            let parked = self.workers.park();
            let prepares = spawn_blocking(move || while parked.recv().is_ok() {});
            self.succession.prepares = Some(prepares);
        } else {
            self.serve();
            self.join_cluster();
        }
    }

    /// Goes on towards serving.
    pub(super) fn advance(&mut self, step: Step, prober: &mut Prober) {
        match step {
            Step::Prepared => {
                self.supervisor.tell(Progress::Prepared);
                tracing::info!("could serve, waits for the process before to make way");
            }
            Step::Heard(Some(Heard::Cut(taken))) => {
                self.take_over(taken, prober);
                self.serve();
            }
            Step::Heard(Some(Heard::Left)) => self.join_cluster(),
            Step::Heard(None) => {
                self.succession.before = None;
                self.serve();
                self.join_cluster();
            }
        }
    }

    /// Goes on with what the process before had, made and knew.
    fn take_over(&mut self, taken: TakenOver, prober: &mut Prober) {
        let now = self.state.shared().clock.now();
        let secrets = taken.secrets;
        if secrets.is_some_and(|secrets| self.rotation.take_over(secrets, now)) {
            self.workers.rotate(self.rotation.secrets());
            self.state.set_rotation(self.rotation.standing());
        }
        self.change_again(&taken.changes, prober);
        // Servers that were added are watched from here on.
        prober.tick(&self.state.config(), &self.state.shared().backends, now);
        prober.take_over(&taken.servers, now);
    }

    fn serve(&mut self) {
        // One that is told to drain before that, since its parent has died, takes nobody.
        if self.state.is_draining() || std::mem::replace(&mut self.succession.serves, true) {
            return;
        }
        if self.succession.prepares.take().is_some() {
            // The process before died in the middle: clients wait for workers, not for it.
            self.supervisor.tell(Progress::Prepared);
        }
        self.exchange_leases();
        self.workers.accept();
        self.take_admin_socket();
        self.start_admin();
        self.supervisor.tell(Progress::Ready);
        let connections = self.state.config().connections;
        let (workers, origin) = (self.workers.len(), self.source.origin());
        tracing::info!(workers, connections, origin, "serving");
        self.look_first();
    }

    /// Makes the unix socket of the admin pages, where the process before this one had it until now.
    fn take_admin_socket(&mut self) {
        let config = self.state.config();
        let wanted = config.admin.socket.as_ref();
        let Some(wanted) = wanted.filter(|_| self.admin.unix.is_none()) else {
            return;
        };
        match SocketFile::bind(&wanted.path, &wanted.access) {
            Ok(socket) => self.admin.unix = Some(socket),
            Err(error) => tracing::error!(%error, "no socket for the admin pages"),
        }
    }

    /// Takes part in the cluster: the process before this one had the same addresses until now.
    fn join_cluster(&mut self) {
        if std::mem::replace(&mut self.succession.joined, true) {
            return;
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.start();
        }
        if let Some(stud) = &mut self.stud {
            stud.start();
        }
    }

    /// Another process is to replace this one: it is told what there is.
    pub(super) fn begin_upgrade(&mut self, stream: UnixStream) {
        tracing::info!("a successor is started");
        self.state.begin_upgrade();
        self.succession.leases().expect();
        self.exchange_leases();
        let trials = self.state.config().trials();
        match Successor::start(stream, self.state.shared(), trials) {
            Ok(successor) => self.succession.after = Some(successor),
            Err(error) => tracing::error!(%error, "the successor is told nothing"),
        }
    }

    /// Accepts nobody any more, and tells the successor what is left.
    pub(super) fn yield_to_successor(&mut self, prober: &Prober) {
        self.succession.yields = true;
        if let Some(Err(error)) = self.admin.unix.as_ref().map(SocketFile::give_way) {
            tracing::warn!(%error, "the admin socket is not the successor's");
        }
        // Only the successor's answers are true from then on.
        self.let_in_to_pages(false);
        let parked = self.workers.park();
        tracing::info!("new clients are the successor's");
        let now = self.state.shared().clock.now();
        if let Some(successor) = &self.succession.after {
            let secrets = self.rotation.hand_over(now);
            let servers = prober.known(now).into_iter().map(Record::Server);
            let changes = self.changes_made().into_iter().map(Record::Change);
            let known = changes.chain(servers).collect();
            let (leases, state) = (Arc::clone(&self.succession.leases), Arc::clone(&self.state));
            let yields = move || {
                let mut leases = leases.lock().unwrap_or_else(PoisonError::into_inner);
                leases.make_way();
                leases.exchange(state.shared(), state.config().connections);
            };
            successor.cut(Cut {
                parked,
                secrets,
                known,
                yields: Box::new(yields),
            });
        }
    }

    fn let_in_to_pages(&self, open: bool) {
        if let Some(pages) = &self.pages {
            pages.let_in(open);
        }
    }

    /// There is no successor: goes on.
    pub(super) fn go_on(&mut self, reason: &str) {
        let successor = self.succession.after.take();
        let said = successor.and_then(Successor::give_up).unwrap_or_default();
        let said = said.lines().map(|line| Escaped::new(line).to_string());
        let errors: Vec<String> = std::iter::once(reason.to_owned()).chain(said).collect();
        for error in &errors {
            tracing::error!("not upgraded, nothing changed: {error}");
        }
        let time = Timestamp::from_unix(self.state.shared().clock.now().unix);
        self.waiting.upgraded(&errors);
        self.state.refuse_upgrade(Reload { time, errors });
        if std::mem::take(&mut self.succession.yields) {
            self.workers.accept();
            self.let_in_to_pages(true);
        }
        self.succession.leases().go_on();
        self.exchange_leases();
    }

    /// The successor serves, and has the sockets of these addresses.
    pub(super) async fn leave(&mut self, passed_on: &[SocketAddr]) -> Instant {
        self.waiting.replaced();
        let until = self.drain(passed_on).await;
        if let Some(pages) = &mut self.pages {
            pages.close();
        }
        if let Some(successor) = &self.succession.after {
            successor.tell_left();
        }
        until
    }
}
