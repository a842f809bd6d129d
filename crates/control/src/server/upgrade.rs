//! An upgrade from either side: this process is replaced, or replaces another.
//!
//! The old process serves until it is told to yield. From then on it does not accept, until the next process serves and it leaves, or there is no
//! next process and it resumes. The new process serves once it was told to, and has the old one's state or cannot get it. The order of
//! these steps is the supervisor's (`process/supervisor`).

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use becket_proto::handover::{Secrets, Server};
use becket_proto::limits::Counts;
use becket_sys::process::outlive_parent;
use becket_sys::socket_file::SocketFile;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use super::Control;
use super::limits::Limits;
use crate::handover::receiver::Milestone;
use crate::handover::sender::Sender;
use crate::snapshot::Reload;
use becket_log::{Escaped, Timestamp};
use becket_process::protocol::Event;
use becket_proxy::backend::health::prober::Prober;

/// What happens on the way to serving, or to leaving.
pub(super) enum Step {
    /// All workers are parked.
    Parked,
    /// The old process has reached this, or its stream has ended.
    Reached(Option<Milestone>),
}

/// What control knows of the processes before and after this one.
#[derive(Debug, Default)]
pub struct Handover {
    /// How far the old process is, as long as its stream lasts.
    before: Option<UnboundedReceiver<Milestone>>,
    /// Workers are being parked.
    parking: Option<JoinHandle<()>>,
    /// This process was told to serve.
    is_told: bool,
    /// The old process does not accept any more.
    is_cut: bool,
    stage: Stage,
    /// It takes part in the cluster, or did.
    joined: bool,
    after: Option<Sender>,
    /// Number of the next process.
    next: u32,
    /// Addresses whose sockets it has.
    kept: Vec<SocketAddr>,
    pub(super) limits: Limits,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Loading,
    Serving,
    /// The next process has the secrets, or is about to have them.
    Yielding,
}

impl Handover {
    /// With an old process to replace, or none.
    pub fn of(before: Option<UnboundedReceiver<Milestone>>) -> Self {
        Self {
            before,
            ..Self::default()
        }
    }

    /// Whether this process rotates ticket keys and writes states of secrets.
    pub(super) fn keeps_secrets(&self) -> bool {
        self.stage == Stage::Serving
    }

    /// Whether the next process serves, or is about to.
    pub(super) fn is_followed(&self) -> bool {
        self.stage == Stage::Yielding
    }

    /// Waits for the next step, for ever where there is none.
    pub(super) async fn next(&mut self) -> Step {
        let Self {
            before, parking, ..
        } = self;
        tokio::select! {
            Some(reached) = async { Some(before.as_mut()?.recv().await) } => Step::Reached(reached),
            // It ends in any case: each worker answers, or has ended.
            Some(_) = async { Some(parking.as_mut()?.await) } => {
                *parking = None;
                Step::Parked
            }
            else => std::future::pending().await,
        }
    }
}

impl Control {
    /// Serves at once without a supervisor; otherwise has the workers build what they need first.
    pub(super) fn begin(&mut self) {
        if self.commands.supervisor().is_some() {
            self.park();
        } else {
            self.serve();
            self.join_cluster();
        }
    }

    fn park(&mut self) {
        let parked = self.workers.park();
        let wait = spawn_blocking(move || while parked.recv().is_ok() {});
        self.handover.parking = Some(wait);
    }

    /// Continues towards serving, or towards leaving.
    pub(super) fn advance(&mut self, step: Step, prober: &mut Prober) {
        match step {
            Step::Parked if self.handover.stage == Stage::Yielding => self.yielded(prober),
            Step::Parked => {
                self.commands.report(&Event::Ready);
                if self.handover.before.is_some() {
                    tracing::info!("ready; waiting for the old process to stop accepting");
                }
            }
            Step::Reached(Some(Milestone::Cut(secrets, servers))) => {
                self.take_over(secrets, &servers, prober);
                self.handover.is_cut = true;
                self.serve_if_told();
            }
            Step::Reached(Some(Milestone::Left)) => self.join_cluster(),
            Step::Reached(None) => {
                self.handover.before = None;
                self.serve_if_told();
                if self.handover.stage == Stage::Serving {
                    self.join_cluster();
                }
            }
        }
    }

    /// Continues with what the old process had and knew.
    fn take_over(&mut self, secrets: Option<Secrets>, servers: &[Server], prober: &mut Prober) {
        let now = self.state.shared().clock.now();
        if secrets.is_some_and(|secrets| self.rotation.take_over(secrets, now)) {
            self.workers.rotate(self.rotation.secrets());
            self.state.set_rotation(self.rotation.standing());
        }
        // Servers are watched from here on.
        prober.tick(&self.state.config(), &self.state.shared().backends, now);
        prober.take_over(servers, now);
    }

    /// This process was told to serve. Others hold this much of the limits.
    pub(super) fn told_to_serve(&mut self, held: Counts) {
        self.handover.is_told = true;
        // At once: what others give back from here on counts.
        let (shared, connections) = (self.state.shared(), self.state.config().connections);
        self.handover.limits.serve(held, shared, connections);
        self.serve_if_told();
    }

    fn serve_if_told(&mut self) {
        if self.handover.before.is_some() && !self.handover.is_cut {
            return;
        }
        let is_loading = self.handover.stage == Stage::Loading;
        if self.handover.is_told && is_loading && !self.state.is_draining() {
            // From here on this process drains when the supervisor ends.
            if let Err(error) = outlive_parent() {
                tracing::error!(%error, "this process is killed when the supervisor ends");
            }
            self.serve();
            if self.handover.before.is_none() {
                self.join_cluster();
            }
        }
    }

    fn serve(&mut self) {
        self.handover.stage = Stage::Serving;
        self.workers.accept();
        self.take_admin_socket();
        self.start_admin();
        self.commands.report(&Event::Serving);
        let connections = self.state.config().connections;
        let (workers, origin) = (self.workers.len(), self.source.origin());
        tracing::info!(workers, connections, origin, "serving");
        self.look_first();
    }

    /// Creates the unix socket of the admin pages, where the old process had it until now.
    fn take_admin_socket(&mut self) {
        let config = self.state.config();
        let wanted = config.admin.socket.as_ref();
        let Some(wanted) = wanted.filter(|_| self.admin.unix.is_none()) else {
            return;
        };
        match SocketFile::bind(&wanted.path, &wanted.access) {
            Ok(socket) => self.admin.unix = Some(socket),
            Err(error) => tracing::error!(%error, "cannot listen on the admin socket"),
        }
    }

    /// Takes part in the cluster: the old process had the same addresses until now.
    fn join_cluster(&mut self) {
        if std::mem::replace(&mut self.handover.joined, true) {
            return;
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.start();
        }
        if let Some(stud) = &mut self.stud {
            stud.start();
        }
    }

    /// Another process is to replace this one: sends it the state there is.
    pub(super) fn begin_upgrade(&mut self, mut fds: Vec<OwnedFd>) {
        tracing::info!("upgrade: the new process is loading");
        self.state.begin_upgrade();
        let Some(stream) = fds.pop() else {
            return;
        };
        match Sender::start(stream.into(), self.state.shared()) {
            Ok(sender) => self.handover.after = Some(sender),
            Err(error) => tracing::error!(%error, "cannot send state to the new process"),
        }
    }

    /// Stops accepting. The next process has this number, and the sockets of these addresses.
    pub(super) fn begin_yield(&mut self, next: u32, kept: Vec<SocketAddr>) {
        self.handover.next = next;
        self.handover.stage = Stage::Yielding;
        self.handover.kept = kept;
        if let Some(Err(error)) = self.admin.unix.as_ref().map(SocketFile::give_way) {
            tracing::warn!(%error, "cannot pass the admin socket on");
        }
        // From then on only the next process's answers are true.
        self.open_pages(false);
        self.park();
    }

    /// No worker accepts any more.
    fn yielded(&mut self, prober: &Prober) {
        let now = self.state.shared().clock.now();
        let config = self.state.config();
        let held = config.listeners.iter().flat_map(|listener| &listener.bind);
        let keeps_queues = held
            .into_iter()
            .any(|address| !self.handover.kept.contains(address));
        let shared = self.state.shared();
        let held = self
            .handover
            .limits
            .leave(shared, config.connections, keeps_queues);
        if let Some(sender) = &self.handover.after {
            sender.cut(self.rotation.hand_over(now), prober.known(now));
        }
        self.commands
            .report(&Event::Yielded(self.handover.next, held));
        tracing::info!("stopped accepting; the new process accepts clients");
    }

    fn open_pages(&self, open: bool) {
        if let Some(pages) = &self.pages {
            pages.let_in(open);
        }
    }

    /// There is no next process: continues. Others hold this much of the limits.
    pub(super) fn resume(&mut self, reason: &str, held: Counts) {
        if let Some(sender) = self.handover.after.take() {
            sender.give_up();
        }
        let errors: Vec<String> = reason
            .lines()
            .map(|line| Escaped::new(line).to_string())
            .collect();
        for error in &errors {
            tracing::error!("upgrade failed, nothing changed: {error}");
        }
        let time = Timestamp::from_unix(self.state.shared().clock.now().unix);
        self.waiting.upgraded(&errors, &[]);
        self.state.refuse_upgrade(Reload { time, errors });
        if self.handover.stage == Stage::Yielding {
            self.handover.stage = Stage::Serving;
            self.handover.parking = None;
            let (shared, connections) = (self.state.shared(), self.state.config().connections);
            self.handover.limits.serve(held, shared, connections);
            self.workers.accept();
            self.open_pages(true);
        }
    }

    /// The next process serves, or the supervisor has ended: finishes and ends. Another process needs the addresses.
    pub(super) async fn leave(&mut self) -> Instant {
        if self.handover.is_followed() {
            self.waiting.replaced(&self.state.temporary());
        }
        let kept = std::mem::take(&mut self.handover.kept);
        let until = self.drain(&kept).await;
        if let Some(pages) = &mut self.pages {
            pages.close();
        }
        drop(self.admin.unix.take());
        if let Some(sender) = &self.handover.after {
            sender.left();
        }
        until
    }
}
