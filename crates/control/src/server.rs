//! The control loop: signals, reloads, ticks, and the end.
//!
//! | signal | what it does |
//! |---|---|
//! | SIGHUP | reload: prepare, then commit or discard |
//! | SIGUSR1 | reopen log files |
//! | SIGUSR2 | upgrade, by the supervisor ([`upgrade`]) |
//! | SIGTERM | drain: take no new clients, finish, exit 0, or 3 at `timeouts.drain` |
//! | SIGINT | stop now, exit 0 |
//!
//! It runs on the main thread. Nothing on the data path ever waits for it.

mod changes;
mod commands;
pub mod edits;
pub mod limits;
pub mod outcomes;
pub mod renewal;
pub mod upgrade;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use becket_sys::clock::{Clock, Now};
use becket_sys::memory;
use becket_sys::priority;
use becket_sys::socket;
use becket_sys::socket_file::SocketFile;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, channel};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use self::edits::Edits;
use self::outcomes::Waiting;
use self::renewal::Watching;
use self::upgrade::Handover;
use crate::admin::{self, AdminSockets, Pages};
use crate::api::ChangeRequest;
use crate::cluster;
use crate::commands::Commands;
use crate::ebb::Ebb;
use crate::reload::{self, ReloadRequest, Reloading};
use crate::rotation::Rotation;
use crate::sandbox::Sandbox;
use crate::snapshot::Reload;
use crate::sockets;
use crate::state::State;
use crate::temporary::log_ended;
use becket_cluster::Membership;
use becket_cluster::stud::Reception;
use becket_keys::signing::token::Tokens;
use becket_log::access_log::AccessThread;
use becket_log::{Logging, Timestamp};
use becket_prepare::Prepared;
use becket_prepare::descriptors;
use becket_prepare::resolver::Resolver;
use becket_prepare::source::Source;
use becket_process::link::given::{BoundSockets, Given};
use becket_process::protocol::{Command, Event};
use becket_proxy::backend::health::prober::Prober;
use becket_proxy::backend::registry::Adopted;
use becket_proxy::memory::{MemoryWatch, Relief};
use becket_proxy::worker::bound::BoundListener;
use becket_proxy::worker::workers::{WorkerEnded, Workers};
use becket_tls::config::Config;
use becket_tls::secret::ratchet::Ratchet;

/// How a server ended; the number is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// It was told to, and every connection ended or was to be cut off.
    Done = 0,
    /// A worker failed.
    Failed = 1,
    /// Connections were left when `timeouts.drain` was over, and were cut off.
    DrainDeadline = 3,
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Done => "as told",
            Self::Failed => "a worker failed",
            Self::DrainDeadline => "timeouts.drain was over",
        }
    }
}

/// A running server.
#[derive(Debug)]
pub struct Terminator {
    /// What the control loop runs on.
    pub runtime: Runtime,
    /// The control loop.
    pub control: Control,
}

impl Terminator {
    /// Serves until a signal ends it.
    pub fn run(self) -> Outcome {
        let outcome = self.runtime.block_on(self.control.run());
        // A reload may read files from a disk that does not answer; nobody waits for it any more.
        self.runtime.shutdown_background();
        outcome
    }
}

/// What control keeps.
#[derive(Debug)]
pub struct Control {
    /// Where the configuration comes from, also the next one.
    pub source: Source,
    /// What the admin pages see.
    pub state: Arc<State>,
    /// The workers.
    pub workers: Workers,
    /// Ticket secrets.
    pub rotation: Rotation,
    /// Replication of sessions; absent without it.
    pub cluster: Option<Membership>,
    /// Sessions of stud and hitch; absent where they are not received.
    pub stud: Option<Reception>,
    /// A reload that is being prepared.
    pub reloading: Reloading,
    /// Files that change.
    pub watching: Watching,
    /// The log, to be reopened.
    pub logging: Logging,
    /// The access log; absent where there is none.
    pub access: Option<AccessThread>,
    /// The sockets of the admin pages.
    pub admin: AdminSockets,
    /// Where those who serve them leave changes, before they do.
    pub changes: Option<Sender<ChangeRequest>>,
    /// Those who serve them.
    pub pages: Option<Pages>,
    /// What an operator has added to the configuration and taken from it.
    pub edits: Edits,
    /// Clients of them that wait for the outcome of a reload, a drain or an upgrade.
    pub waiting: Waiting,
    /// The processes before and after this one, and what is shared with them.
    pub handover: Handover,
    /// Whether memory is short, and what is done about it.
    pub memory: MemoryWatch,
    /// When memory is given back.
    pub ebb: Ebb,
    /// Tells of workers that have ended.
    pub ended: UnboundedReceiver<WorkerEnded>,
    /// Sockets for the configuration that is being prepared.
    pub sockets: BoundSockets,
    /// Where commands come from.
    pub commands: Commands,
    /// What this process is confined to.
    pub sandbox: Sandbox,
}

impl Control {
    async fn run(mut self) -> Outcome {
        // Behind the workers, which are there by now and keep what they had.
        if let Err(error) = priority::give_way(STEPS_BEHIND) {
            tracing::debug!(%error, "control does not give way");
        }
        let (control, mut asked) = channel(WAITING_CHANGES);
        self.changes = Some(control);
        let cancels = Arc::clone(&self.state.shared().cancels);
        tokio::spawn(cancels.run());
        self.begin();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut prober = Prober::new(Resolver::system());
        let mut left = self.workers.len();
        let mut outcome = Outcome::Done;
        let mut drain_until: Option<Instant> = None;
        let mut settled = Instant::now();
        while left > 0 {
            let settle_at = self.handover.limits.is_shared();
            let settle_at = settle_at.then(|| settled + limits::BETWEEN);
            tokio::select! {
                _ = tick.tick() => self.tick(&mut prober),
                ended = prober.ended() => prober.take(ended, self.state.shared().clock.now()),
                received = self.commands.next() => match received.0 {
                    Command::Leave => drain_until = Some(self.leave().await),
                    Command::Drain if drain_until.is_none() => drain_until = Some(self.drain(&[]).await),
                    Command::Drain | Command::Stop => self.workers.stop(),
                    _ => self.obey(received, drain_until.is_some()),
                },
                Some(asked) = asked.recv() => if self.change(asked, &mut prober) {
                    drain_until = Some(self.drain(&[]).await);
                },
                step = self.handover.next() => self.advance(step, &mut prober),
                () = at(settle_at) => {
                    settled = Instant::now();
                    self.settle_limits();
                }
                prepared = self.reloading.prepared() => self.finish_reload(prepared),
                seen = self.watching.next() => self.handle_seen(seen),
                ended = self.ended.recv() => {
                    left -= 1;
                    if let Err(error) = ended.map_or_else(gone, |ended| ended.result) {
                        tracing::error!(%error, "a worker failed");
                        outcome = Outcome::Failed;
                        self.workers.stop();
                    }
                }
                () = at(drain_until), if outcome == Outcome::Done => {
                    tracing::warn!("timeouts.drain is over: connections are cut off");
                    outcome = Outcome::DrainDeadline;
                    self.workers.stop();
                }
            }
        }
        drop(asked);
        self.end(outcome).await
    }

    /// What is to be done when no worker is left.
    async fn end(mut self, outcome: Outcome) -> Outcome {
        if let Some(cluster) = self.cluster.take() {
            cluster.leave().await;
        }
        // Who waits for an outcome hears that there is none, as does who asks for something now.
        drop(std::mem::take(&mut self.waiting));
        if let Some(pages) = self.pages.take() {
            pages.finish(admin::LAST_MOMENT).await;
        }
        drop(self.access.take());
        self.sandbox.tell();
        tracing::info!(exit = outcome as u8, "ended: {}", outcome.label());
        outcome
    }

    /// Serves the admin pages. Changes arrive at control.
    fn start_admin(&mut self) {
        let Some(control) = self.changes.take() else {
            return;
        };
        let workers = self.workers.mailboxes().to_vec();
        match admin::start(&self.admin, Arc::clone(&self.state), control, workers) {
            Ok(pages) => self.pages = Some(pages),
            Err(error) => tracing::error!(%error, "admin pages not served"),
        }
    }

    /// The regular work: ticket keys, expired sessions, signs of life.
    fn tick(&mut self, prober: &mut Prober) {
        let now = self.state.shared().clock.now();
        self.state.shared().table.sweep(now.mono, SWEEP);
        self.state.shared().early.sweep(now.mono, SWEEP);
        self.rotate(now);
        self.state.tick(now.mono);
        self.sandbox.tell();
        prober.tick(&self.state.config(), &self.state.shared().backends, now);
        self.watch_memory(now.mono);
        let connections = self.state.shared().connections();
        if self.ebb.has_come(connections, now.mono) {
            give_back(self.state.shared().clock);
        }
        for index in self.state.config().tokens.lost() {
            self.commands.report(&Event::Token(index));
        }
        self.commands.report(&Event::Alive);
    }

    /// Looks how much memory is in use, and makes room where it is too much.
    fn watch_memory(&mut self, now: Duration) {
        let shared = self.state.shared();
        let limit = self.state.config().file.limits.memory;
        match self
            .memory
            .look(limit, now, shared.connections(), &shared.memory)
        {
            None => {}
            Some(Relief::GiveBack) => give_back(shared.clock),
            Some(Relief::End(share)) => self.workers.end_rests(share),
        }
    }

    /// Ticket keys, when it is time for new ones; then the files of secrets that forget.
    fn rotate(&mut self, now: Now) {
        if !self.handover.keeps_secrets() {
            return;
        }
        let period = self.state.config().file.ticket_rotation();
        match self.rotation.tick(period, now) {
            Ok(false) => {}
            Ok(true) => {
                self.workers.rotate(self.rotation.secrets());
                self.state.set_rotation(self.rotation.standing());
                tracing::info!("ticket keys rotated");
            }
            Err(error) => tracing::error!(%error, "ticket keys not rotated"),
        }
        if let Err(error) = self.rotation.save(now) {
            tracing::error!(%error, "state of a secret not written: what it should have forgotten is still there");
        }
    }

    /// Starts to prepare, beside everything else: files may take their time.
    fn begin_reload(&mut self, given: Given, draining: bool) {
        if draining {
            tracing::warn!("not reloaded while draining");
            return;
        }
        self.state.begin_reload();
        self.sockets = given.sockets;
        let files = given.files.within(self.sandbox.reach());
        let tokens = Tokens::adopt(given.tokens, &self.state.config().tokens);
        self.reloading.begin(ReloadRequest {
            source: self.source.with(files, tokens),
            running: Arc::clone(self.edits.of_file()),
            secrets: Arc::clone(self.rotation.secrets()),
            unix: self.state.shared().clock.now().unix,
            asked: given.asked,
        });
    }

    fn finish_reload(&mut self, prepared: Result<Prepared, Vec<String>>) {
        let temporary = self.state.temporary();
        let errors = match prepared.and_then(|prepared| self.bind_and_commit(prepared)) {
            Ok(()) => Vec::new(),
            Err(errors) => errors,
        };
        if errors.is_empty() {
            log_ended(&temporary);
            tracing::info!(origin = self.source.origin(), "reloaded");
            self.look_first();
            tell_of_kernel_tls(&self.state.config());
        }
        for error in &errors {
            tracing::error!("reload refused, nothing changed: {error}");
        }
        let time = Timestamp::from_unix(self.state.shared().clock.now().unix);
        let event = if errors.is_empty() {
            Event::Reloaded
        } else {
            Event::Refused
        };
        let running = self.reloading.is_running();
        self.waiting
            .reloaded(self.reloading.answered(), &errors, &temporary);
        self.state.set_reload(Reload { time, errors }, running);
        self.sockets = BoundSockets::default();
        self.commands.report(&event);
    }

    fn bind_and_commit(&mut self, prepared: Prepared) -> Result<(), Vec<String>> {
        let config = Arc::new(prepared.config);
        let now = self.state.shared().clock.now();
        let rotation = self.next_rotation(&config, prepared.ratchets, now)?;
        let old = self.state.config();
        descriptors::raise(&config, self.workers.len()).map_err(|error| vec![error.to_string()])?;
        let added = sockets::bind(
            &config,
            self.workers.addresses(),
            self.workers.len(),
            &mut self.sockets,
        )
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        let threads = self.workers.prepare_for(&config);
        threads.map_err(|error| vec![format!("process.crypto-threads: {error}")])?;
        let membership = self.next_membership(&old, &config)?;
        let served = config.tokens.serve();
        served.map_err(|error| vec![format!("threads of tokens: {error}")])?;
        for warning in &prepared.warnings {
            tracing::warn!("{warning}");
        }
        for key in reload::waiting_for_restart(&old, &config) {
            tracing::warn!(key, "changed; takes effect at the next start");
        }
        self.edits = Edits::of(Arc::clone(&config));
        match membership {
            Some(membership) => self.join(membership),
            None => self.stay(&config),
        }
        self.commit(config, added);
        if let Some(rotation) = rotation {
            self.turn_to(rotation);
        }
        Ok(())
    }

    /// The part in a cluster that a configuration asks for, its socket bound; nothing where this one goes on.
    fn next_membership(
        &mut self,
        old: &Config,
        config: &Config,
    ) -> Result<Option<Option<Membership>>, Vec<String>> {
        if old.peers_arrive_at() == config.peers_arrive_at() {
            return Ok(None);
        }
        let given = config.peers_arrive_at();
        let given = given.and_then(|address| self.sockets.take_datagrams(address));
        let bound = cluster::bind(config, given).map_err(|problem| vec![problem.to_string()])?;
        let membership = cluster::membership(bound, config, self.state.shared());
        let membership = membership.map_err(|error| vec![format!("cluster.listen: {error}")])?;
        Ok(Some(membership))
    }

    /// Takes part in a cluster by another socket, or not any more. The former part says goodbye.
    fn join(&mut self, mut membership: Option<Membership>) {
        if let Some(cluster) = &mut membership {
            cluster.start();
        } else {
            tracing::info!("sessions are not replicated any more");
        }
        let node = membership.as_ref().map(Membership::node);
        self.state.set_node(node);
        self.cluster = membership;
    }

    /// Goes on with the same socket, if there is one.
    fn stay(&self, config: &Config) {
        if let (Some(membership), Some(settings)) = (&self.cluster, cluster::settings(config)) {
            membership.reload(settings);
        }
    }

    /// The rotation that a configuration asks for, its files written; none where this one goes on.
    fn next_rotation(
        &self,
        config: &Config,
        ratchets: Vec<Ratchet>,
        now: Now,
    ) -> Result<Option<Rotation>, Vec<String>> {
        let next = self.rotation.reloaded(config, ratchets, now);
        let mut next = next.map_err(|error| vec![format!("cluster.secret: {error}")])?;
        if let Some(next) = &mut next {
            let saved = next.save(now);
            saved.map_err(|error| vec![format!("cluster.secret-state: {error}")])?;
        }
        Ok(next)
    }

    fn turn_to(&mut self, rotation: Rotation) {
        let same = Arc::ptr_eq(rotation.secrets(), self.rotation.secrets());
        self.rotation = rotation;
        self.state.set_rotation(self.rotation.standing());
        if !same {
            self.workers.rotate(self.rotation.secrets());
        }
    }

    /// Nothing in here can fail in a way that leaves half of a configuration behind.
    fn commit(&mut self, config: Arc<Config>, added: Vec<Vec<BoundListener>>) {
        let adopted = self.state.shared().backends.adopt(&config);
        self.exchange(Arc::clone(&config), &adopted, added);
        self.state.shared().backends.restore(&adopted);
        let (shared, sessions) = (self.state.shared(), &config.file.sessions);
        for table in [&shared.table, &shared.early] {
            table.set_limits(sessions.table_entries, sessions.table_size);
        }
        self.state.reset_log_level();
        if let Err(error) = self.logging.set_level(&config.log.level) {
            tracing::error!(%error, "log level not changed");
        }
        if let Some(stud) = &self.stud {
            stud.reload(cluster::terms(&config));
        }
    }

    /// Has everything use another configuration, and each worker its new sockets, if there are any.
    fn exchange(&mut self, config: Arc<Config>, adopted: &Adopted, added: Vec<Vec<BoundListener>>) {
        self.ebb.replace(&self.state.config());
        self.state.set_config(config);
        // By the new limits, and before anybody has slots of servers that are new here.
        self.settle_limits();
        let cluster = self.cluster.as_ref();
        let outboxes = cluster.map_or_else(Vec::new, Membership::outboxes);
        self.workers.reload(adopted, added, &outboxes);
    }

    /// For each worker, where no socket is new.
    fn no_sockets(&self) -> Vec<Vec<BoundListener>> {
        (0..self.workers.len()).map(|_| Vec::new()).collect()
    }

    fn reopen(&self) {
        self.logging.reopen();
        if let Some(access) = &self.access {
            access.reopen();
        }
        tracing::info!("log files reopened");
    }

    /// Takes no new clients. Another process has the sockets of the addresses that were passed on.
    async fn drain(&mut self, passed_on: &[SocketAddr]) -> Instant {
        tracing::info!("draining");
        if self.reloading.give_up() {
            tracing::warn!("not reloaded while draining");
        }
        let temporary = self.state.temporary();
        log_ended(&temporary);
        self.state.set_draining();
        self.waiting.drains(&temporary);
        self.workers.drain(passed_on);
        // The next becket binds the addresses of the cluster; hardly a session is made here any more.
        drop(self.stud.take());
        self.state.set_node(None);
        if let Some(cluster) = self.cluster.take() {
            cluster.leave().await;
        }
        // The next becket has the pages from its start on; until then they show how the drain goes.
        let alone = self.admin.tcp.as_ref();
        let alone = alone.filter(|_| !self.handover.is_followed());
        if let Some(Err(error)) = alone.map(socket::give_way) {
            tracing::warn!(%error, "the admin address is kept until the end");
        }
        if let Some(Err(error)) = self.admin.unix.as_ref().map(SocketFile::give_way) {
            tracing::warn!(%error, "the admin socket is kept until the end");
        }
        Instant::now() + self.state.config().file.timeouts.drain
    }
}

/// Gives memory back, on a thread made for it: that may take some milliseconds.
fn give_back(clock: Clock) {
    let thread = std::thread::Builder::new().name("becket-ebb".into());
    let began = thread.spawn(move || {
        let before = clock.mono();
        memory::give_back();
        let took = clock.mono().saturating_sub(before);
        tracing::debug!(ms = took.as_millis() as u64, "memory given back");
    });
    if let Err(error) = began {
        tracing::debug!(%error, "memory not given back");
    }
}

/// Says what the kernel can take over, where it is asked to.
pub fn tell_of_kernel_tls(config: &Config) {
    if let Some(support) = config.kernel_tls() {
        tracing::info!("kernel TLS: {support}");
    }
}

/// Workers that leave without a word have not ended as they should.
fn gone() -> io::Result<()> {
    Err(io::Error::other("left without a word"))
}

/// Sleeps until then, or for ever.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Of nice: on a core that a worker wants as well, control gets a quarter. Enough for checks and rotation, some
/// milliseconds later; and whoever floods control with datagrams takes no more than that from clients.
const STEPS_BEHIND: i32 = 5;
/// How often the regular work is done.
const TICK: Duration = Duration::from_millis(100);
/// Changes that wait for control: each takes microseconds.
const WAITING_CHANGES: usize = 16;
/// Expired sessions reclaimed per shard and tick.
const SWEEP: usize = 64;
