//! Both sides of an upgrade: this process replaces an old process, or a new process replaces it.
//!
//! The old process accepts clients until
//! [`Command::Yield`](becket_process::protocol::Command::Yield). It drains as soon as the new
//! process accepts clients; if the upgrade fails, it resumes accepting. The new process waits for
//! the old process's state, or for a failed transfer, and starts to accept clients on command. The
//! supervisor determines the order of these steps (`crates/process/src/supervisor.rs`).

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use becket_proto::handover::{Secrets, Server};
use becket_proto::limits::Counts;
use becket_sys::process::outlive_parent;
use becket_sys::socket_file::SocketFile;
use tokio::task::spawn_blocking;

use super::upgrade_state::{UpgradeStage, UpgradeStep};
use super::{Control, log_kernel_tls};
use crate::handover::receiver::Milestone;
use crate::handover::sender::Sender;
use crate::status::ReloadOutcome;
use becket_log::Timestamp;
use becket_process::protocol::Event;

impl Control {
    /// Accepts clients at once if there is no supervisor. Otherwise pauses the workers until the
    /// supervisor sends the serve command.
    pub(super) fn begin(&mut self) {
        if self.supervision.link.is_some() {
            self.park();
        } else {
            self.serve();
        }
    }

    fn park(&mut self) {
        let parked = self.workers.park();
        let wait = spawn_blocking(move || while parked.recv().is_ok() {});
        self.handover.parking = Some(wait);
    }

    pub(super) fn advance(&mut self, step: UpgradeStep) {
        match step {
            UpgradeStep::Parked if self.handover.is_followed() => self.yielded(),
            UpgradeStep::Parked => {
                self.report(&Event::Ready);
                if self.handover.before.is_some() {
                    tracing::info!(name: "upgrade-ready", "ready; waiting for the old process to stop accepting");
                }
            }
            UpgradeStep::Reached(Some(Milestone::Cut(secrets, servers))) => {
                self.take_over(secrets, &servers);
                self.old_process_stopped();
            }
            UpgradeStep::Reached(Some(Milestone::Left) | None) => {
                self.handover.before = None;
                match self.handover.stage {
                    UpgradeStage::Loading { .. } => self.old_process_stopped(),
                    UpgradeStage::Serving | UpgradeStage::Yielding { .. } => self.join_cluster(),
                }
            }
        }
    }

    fn take_over(&mut self, secrets: Option<Secrets>, servers: &[Server]) {
        let shared = self.state.shared();
        let now = shared.clock.now();
        // The prober must know the servers before it adopts their health.
        self.prober
            .tick(&self.state.config(), &shared.backends, now);
        self.prober.take_over(servers, now);
        if secrets.is_some_and(|secrets| self.rotation.take_over(secrets, now)) {
            self.use_secrets();
        }
    }

    /// Takes over the limits, except for the counts in `held`. Accepts clients as soon as the old
    /// process has stopped accepting.
    pub(super) fn serve_on_command(&mut self, held: Counts) {
        // Takes over the limits first. Connections that other processes release later are then
        // added to these limits.
        let (shared, connections) = (self.state.shared(), self.state.config().connections);
        self.handover.limits.serve(held, shared, connections);
        if let UpgradeStage::Loading { is_commanded, .. } = &mut self.handover.stage {
            *is_commanded = true;
        }
        self.serve_if_ready();
    }

    fn old_process_stopped(&mut self) {
        if let UpgradeStage::Loading { is_preceded, .. } = &mut self.handover.stage {
            *is_preceded = false;
        }
        self.serve_if_ready();
    }

    fn serve_if_ready(&mut self) {
        let ready = UpgradeStage::Loading {
            is_commanded: true,
            is_preceded: false,
        };
        if self.handover.stage == ready && !self.state.is_draining() {
            // Clears the parent-death signal: from now on, this process drains when the supervisor
            // exits.
            if let Err(error) = outlive_parent() {
                tracing::error!(name: "supervisor-not-outlived", %error, "cannot clear the parent-death signal; the kernel kills this process when the supervisor exits");
            }
            self.serve();
        }
    }

    fn serve(&mut self) {
        self.handover.stage = UpgradeStage::Serving;
        self.workers.accept();
        self.take_admin_socket();
        self.start_admin();
        self.report(&Event::Serving);
        let connections = self.state.config().connections;
        let (workers, origin) = (self.workers.count(), self.config.source.origin());
        tracing::info!(name: "serving", workers, connections, origin, "serving");
        log_kernel_tls(&self.state.config());
        self.look_first();
        if self.handover.before.is_none() {
            self.join_cluster();
        }
    }

    /// Creates the unix socket of the admin pages; the old process has already released the path.
    fn take_admin_socket(&mut self) {
        let config = self.state.config();
        let wanted = config.admin.socket.as_ref();
        let Some(wanted) = wanted.filter(|_| self.admin.sockets.unix.is_none()) else {
            return;
        };
        match SocketFile::bind(&wanted.path, &wanted.access) {
            Ok(socket) => self.admin.sockets.unix = Some(socket),
            Err(error) => {
                tracing::error!(name: "admin-socket-failed", %error, "cannot listen on the admin socket")
            }
        }
    }

    /// Joins the cluster. Called once, after the old process has released the cluster's addresses.
    fn join_cluster(&mut self) {
        if let Some(cluster) = &mut self.cluster.peers {
            cluster.start();
        }
    }

    pub(super) fn begin_upgrade(&mut self, mut fds: Vec<OwnedFd>) {
        tracing::info!(name: "upgrade-loading", "upgrade: the new process is loading");
        self.state.change(|it| it.changes.upgrades.running = true);
        let Some(stream) = fds.pop() else {
            return;
        };
        match Sender::start(stream.into(), self.state.shared()) {
            Ok(sender) => self.handover.after = Some(sender),
            Err(error) => {
                tracing::error!(name: "state-send-failed", %error, "cannot send state to the new process")
            }
        }
    }

    /// Stops accepting. Process number `next` owns the listening sockets of the addresses in
    /// `kept`.
    pub(super) fn begin_yield(&mut self, next: u32, kept: Vec<SocketAddr>) {
        self.handover.stage = UpgradeStage::Yielding { next, kept };
        if let Some(Err(error)) = self.admin.sockets.unix.as_ref().map(SocketFile::give_way) {
            tracing::warn!(name: "admin-socket-not-passed", %error, "cannot pass the admin socket to the new process");
        }
        // Stops serving the admin pages, because only the next process has the current state.
        self.open_pages(false);
        self.park();
    }

    /// Sends the remaining state to the new process after all workers have stopped accepting.
    fn yielded(&mut self) {
        let UpgradeStage::Yielding { next, kept } = &self.handover.stage else {
            return;
        };
        let (shared, config) = (self.state.shared(), self.state.config());
        let mut bound = config.listeners.iter().flat_map(|listener| &listener.bind);
        let keeps_queues = bound.any(|address| !kept.contains(address));
        let limits = &mut self.handover.limits;
        let held = limits.leave(shared, config.connections, keeps_queues);
        if let Some(sender) = &self.handover.after {
            let now = shared.clock.now();
            let (secrets, servers) = (self.rotation.hand_over(now), self.prober.known(now));
            sender.reach(Milestone::Cut(secrets, servers));
        }
        self.report(&Event::Yielded(*next, held));
        tracing::info!(name: "accepting-stopped", "stopped accepting; the new process accepts clients");
    }

    fn open_pages(&self, open: bool) {
        if let Some(pages) = &self.admin.pages {
            pages.let_in(open);
        }
    }

    /// Resumes accepting after a failed upgrade. Takes the limits back, except for the counts in
    /// `held`.
    pub(super) fn resume(&mut self, reason: &str, held: Counts) {
        if let Some(sender) = self.handover.after.take() {
            sender.give_up();
        }
        let lines = reason.lines();
        let errors: Vec<String> = lines
            .map(|line| line.replace(char::is_control, "?"))
            .collect();
        let time = Timestamp::from_unix(self.state.shared().clock.now().unix);
        let outcome = ReloadOutcome {
            time,
            errors: errors.clone(),
        };
        self.state.refuse_upgrade(outcome);
        self.config.waiting.upgraded(&errors, &[]);
        if self.handover.is_followed() {
            self.handover.stage = UpgradeStage::Serving;
            self.handover.parking = None;
            let (shared, connections) = (self.state.shared(), self.state.config().connections);
            self.handover.limits.serve(held, shared, connections);
            self.workers.accept();
            self.open_pages(true);
        }
    }

    /// Drains, because the next process serves or the supervisor has exited. Releases the addresses
    /// for other processes.
    pub(super) async fn leave(&mut self) {
        let mut passed_on = Vec::new();
        if let UpgradeStage::Yielding { kept, .. } = &self.handover.stage {
            passed_on.clone_from(kept);
            self.config.waiting.upgraded(&[], &self.state.temporary());
            self.config.waiting.refuse_all();
        }
        self.drain(&passed_on).await;
        if let Some(pages) = &mut self.admin.pages {
            pages.close();
        }
        drop(self.admin.sockets.unix.take());
        if let Some(sender) = &self.handover.after {
            sender.reach(Milestone::Left);
        }
    }
}
