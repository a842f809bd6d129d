//! The process of the supervisor: waits for signals, files and processes, and carries out the
//! decisions of [`Supervisor`].
//!
//! The process has one thread, and one for its log. It blocks on disks only: unread commands are
//! queued, the log drops lines that cannot be written, and no name is resolved. It reads the
//! configuration, but no bytes of a peer.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::task::Poll;
use std::time::Duration;

use becket_sys::identity::UnixIdentity;
use becket_sys::notify::{self, Notifier};
use becket_sys::pid_file::PidFile;
use becket_sys::socket_file::SocketFile;
use becket_sys::{privileges, root_only};
use tokio::time::{Instant, sleep_until};

use super::child::{Child, ChildEvent};
use super::companion::{self, COMPANION, Companion};
use super::listing::{ListedFiles, PendingRenewal, open_listed, places_of};
use super::needs::Needs;
use super::resources::{
    Configurations, FoundConfig, Holdings, ResourceOffer, check_program, times,
};
use super::supervisor::{Action, Input, ServiceNotice, Supervisor};
use crate::protocol::{
    Command, Event, MOST_OPENED, OperatorRequest, ProcessStart, ProcessTimes, RunAs, SocketKind,
};
use crate::signals::Signals;
use becket_keys::signing::token::agents::Agents;
use becket_keys::watch::{Watch, WatchedPlaces};
use becket_log::Logging;
use becket_prepare::source::ConfigSource;

pub(super) struct Runner {
    pub(super) supervisor: Supervisor,
    pub(super) children: Vec<Child>,
    pub(super) setup: RunnerSettings,
    pub(super) logging: Logging,
    pub(super) held: Configurations,
    /// Socket of the admin pages, kept from the first start to the exit.
    pub(super) admin_socket: Option<SocketFile>,
    pub(super) pid_file: Option<PidFile>,
    pub(super) watches: Watches,
    pub(super) renewing: PendingRenewal,
    pub(super) companion: Companion,
    /// Number of reloads that the serving process has requested.
    pub(super) asked: u64,
    /// `true` if the supervisor must execute the program of the serving process.
    pub(super) is_replaced: bool,
    /// Signals that arrived while the exec was prepared.
    pub(super) queued: VecDeque<OperatorRequest>,
    /// Number of events read since a deadline expired.
    reported: u32,
    /// Start of the supervisor's clock, [`Self::now`].
    origin: Instant,
}

/// Watched files that the supervisor can read.
#[derive(Default)]
pub(super) struct Watches {
    /// Files whose changes are applied without a reload.
    pub(super) renewed: Watch,
    /// Files whose changes cause a reload: the configuration file and the cluster secrets.
    pub(super) reloaded: Watch,
}

/// Settings that stay constant while this program runs.
pub(super) struct RunnerSettings {
    pub(super) source: ConfigSource,
    /// User of the serving processes; `None` without privileges to drop.
    pub(super) identity: Option<UnixIdentity>,
    /// Program that an upgrade starts.
    pub(super) program: PathBuf,
    pub(super) notifier: Option<Notifier>,
}

impl Runner {
    pub(super) fn new(setup: RunnerSettings, logging: Logging) -> Self {
        Self {
            supervisor: Supervisor::default(),
            children: Vec::new(),
            setup,
            logging,
            held: Configurations::default(),
            admin_socket: None,
            pid_file: None,
            watches: Watches::default(),
            renewing: PendingRenewal::default(),
            companion: Companion::default(),
            asked: 0,
            is_replaced: false,
            queued: VecDeque::new(),
            reported: 0,
            origin: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Runs the supervisor until its end. `first` contains the actions of a start or of a resumed
    /// supervisor.
    pub(super) async fn run(mut self, first: Vec<Action>, mut signals: Signals) -> ExitCode {
        let mut outputs = first;
        loop {
            if let Some(code) = self.carry_out(outputs) {
                self.kill_companion();
                self.held.current.agents.kill();
                self.held.unused_agents.iter_mut().for_each(Agents::kill);
                return ExitCode::from(code);
            }
            self.keep_companion();
            let input = match self.become_program(&mut signals).await {
                Some(input) => input,
                None => self.next(&mut signals).await,
            };
            self.held.unused_agents.retain_mut(|it| !it.have_ended());
            outputs = self.handle(input);
        }
    }

    /// Waits for the next input. Signals come first. After a deadline has expired, up to
    /// [`MOST_REPORTED`] events are read before [`Input::Tick`]: if this process was suspended, the
    /// awaited event may be among them. Events are read from the processes in turn.
    async fn next(&mut self, signals: &mut Signals) -> Input {
        if let Some(request) = self.queued.pop_front() {
            return Input::Requested(request);
        }
        let deadline = self.supervisor.deadline();
        let deadline = deadline.map(|deadline| self.origin + deadline);
        let is_wanted = self.held.current.acme.is_some();
        let companion_at = self.companion.restarts_at().filter(|_| is_wanted);
        loop {
            let is_overdue = deadline.is_some_and(|deadline| deadline <= Instant::now());
            self.reported = if is_overdue { self.reported } else { 0 };
            let children = &mut self.children;
            let happened = poll_fn(|cx| {
                for at in 0..children.len() {
                    if let Poll::Ready(happened) = children[at].poll(cx) {
                        let process = children[at].id;
                        children.rotate_left(at + 1);
                        return Poll::Ready((process, happened));
                    }
                }
                Poll::Pending
            });
            let (process, happened) = tokio::select! {
                biased;
                request = signals.next() => return Input::Requested(request),
                () = std::future::ready(()), if self.reported >= MOST_REPORTED => {
                    self.reported = 0;
                    return Input::Tick;
                }
                happened = happened => happened,
                () = sleep_until(deadline.unwrap_or(self.origin)), if deadline.is_some() => {
                    return Input::Tick;
                }
                () = sleep_until(companion_at.unwrap_or(self.origin)), if companion_at.is_some() => {
                    return Input::Tick;
                }
                changes = self.watches.renewed.settled() => {
                    self.renewing.add(changes);
                    return Input::FilesChanged;
                }
                _ = self.watches.reloaded.settled() => {
                    tracing::info!(name: "configuration-changed", "the configuration has changed; reloading");
                    return Input::Requested(OperatorRequest::Reload);
                }
            };
            self.reported += 1;
            match happened {
                ChildEvent::Event(_) if process == COMPANION => {
                    self.companion_fault("unexpected event");
                }
                ChildEvent::Broken(fault) if process == COMPANION => self.companion_fault(fault),
                ChildEvent::Exited(ended) if process == COMPANION => {
                    self.children.retain(|child| child.id != process);
                    self.companion_exited(&ended);
                    return Input::Tick;
                }
                ChildEvent::Event(Event::Open {
                    listing,
                    first,
                    count,
                }) => return self.open(process, listing, (first, count)),
                ChildEvent::Event(Event::Token(index)) => self.replace_agent(process, index),
                ChildEvent::Event(event) => return Input::Event(process, event),
                ChildEvent::Broken(fault) => return Input::Broken(process, fault.to_owned()),
                ChildEvent::Exited(ended) => {
                    self.children.retain(|child| child.id != process);
                    return Input::Exited(process, ended);
                }
                ChildEvent::Flushed if self.is_replaced => return Input::Tick,
                ChildEvent::Flushed => {}
            }
        }
    }

    fn open(&mut self, process: u32, listing: u32, files: (u32, u32)) -> Input {
        let Some(child) = self.child(process) else {
            return Input::Tick;
        };
        let (first, count) = files;
        if count > MOST_OPENED || child.has_too_many_commands() {
            return Input::Broken(process, "too many files at a time".to_owned());
        }
        let mut listings = child.listings.iter();
        // The supervisor keeps only the paths of the latest listings. A request for a file of an
        // earlier listing returns an error.
        let listed = listings.find(|listed| listed.number == listing);
        let unknown = ListedFiles::default();
        let opened = open_listed(listed.unwrap_or(&unknown), files);
        child.charge(opened.results.len() * FILE + opened.walks * WALK);
        child.send(&Command::Opened(listing, first, opened.results), opened.fds);
        Input::Event(process, Event::Loading)
    }

    fn replace_agent(&mut self, process: u32, index: usize) {
        if self.supervisor.serving() != Some(process) {
            return;
        }
        let socket = self.held.current.agents.again(index);
        if let (Some(socket), Some(child)) = (socket, self.child(process)) {
            child.send(&Command::Token(index), vec![socket]);
        }
    }

    fn handle(&mut self, input: Input) -> Vec<Action> {
        let is_serving = |process: &u32| self.supervisor.serving() == Some(*process);
        match &input {
            // The process has loaded, so it requests no further file of the listing.
            Input::Event(process, Event::Ready | Event::Reloaded | Event::Refused) => {
                if let Some(child) = self.child(*process) {
                    child.listings[0] = ListedFiles::default();
                }
            }
            Input::Event(process, Event::Renewed(is_rejected)) if is_serving(process) => {
                if !is_rejected {
                    self.renewing.finish();
                }
                if let Some(child) = self.child(*process) {
                    child.listings[1] = ListedFiles::default();
                }
            }
            Input::Event(process, Event::Asked(OperatorRequest::Reload)) if is_serving(process) => {
                self.asked += 1
            }
            Input::Requested(OperatorRequest::Reopen) => self.give_logs(),
            _ => {}
        }
        let now = self.now();
        self.supervisor.handle(now, input)
    }

    /// Carries out actions and their follow-up actions. Returns the exit code when the service
    /// ends.
    fn carry_out(&mut self, actions: Vec<Action>) -> Option<u8> {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            if let Action::Exit(code) = action {
                return Some(code);
            }
            if let Some(input) = self.carry_out_one(action) {
                // Follow-up actions come first: a later command may go to a process that was just
                // started.
                for action in self.handle(input).into_iter().rev() {
                    actions.push_front(action);
                }
            }
        }
        None
    }

    fn carry_out_one(&mut self, action: Action) -> Option<Input> {
        match action {
            Action::Start {
                process,
                is_new,
                replaces,
            } => {
                let started = self.start(process, is_new, replaces);
                return Some(Input::Started(process, started));
            }
            Action::Reload(process) => return Some(Input::Offered(process, self.reload(process))),
            Action::Commit(process) => self.commit(process),
            Action::Send(process, command) => {
                self.send(process, &command);
                if let Command::Serve(_) | Command::Resume(..) = command {
                    self.connect_companion(process);
                }
                if let Command::Serve(_) = command {
                    tracing::info!(name: "serve-command-sent", process, "sent the command to accept clients");
                }
            }
            Action::Yield(process, next) => {
                let command = Command::Yield(next, self.held.addresses(next));
                self.send(process, &command);
            }
            Action::Renew(process) => self.renew(process),
            Action::Watch if self.held.current.keys.watch => self.watches.renewed.note(),
            Action::Watch => self.watches.renewed.stop(),
            Action::Discard(process) => self.held.discard(process),
            Action::Release => self.release(),
            Action::Kill(process) => {
                if let Some(child) = self.child(process) {
                    child.kill();
                }
            }
            Action::Notify(notice) => self.notify(notice),
            Action::Replace => self.is_replaced = true,
            // Never reached, because `carry_out` returns at this action.
            Action::Exit(_) => {}
        }
        None
    }

    fn child(&mut self, process: u32) -> Option<&mut Child> {
        self.children.iter_mut().find(|child| child.id == process)
    }

    pub(super) fn send(&mut self, process: u32, command: &Command) {
        self.send_with(process, command, Vec::new());
    }

    pub(super) fn send_with(&mut self, process: u32, command: &Command, fds: Vec<OwnedFd>) {
        if let Some(child) = self.child(process) {
            child.send(command, fds);
        }
    }

    fn start(
        &mut self,
        process: u32,
        is_new: bool,
        replaces: Option<u32>,
    ) -> io::Result<ProcessTimes> {
        let program = self.program(is_new)?;
        if replaces.is_none() {
            // Binds datagram sockets again, because settings such as a multicast group stay with a
            // socket.
            let sockets = &mut self.held.current.sockets;
            sockets.retain(|(kind, _), _| *kind != SocketKind::Datagrams);
        }
        let (seen, needs, reloaded) = self.look_and_watch();
        let times = times(&seen);
        let (mut offer, mut holdings) = self.offer(&seen, &needs);
        if !self.held.has_committed {
            // Retries, because a process that lost its supervisor is about to release addresses.
            for _ in 0..TRIES {
                if !offer.finds_addresses_taken() {
                    break;
                }
                // Closes the sockets of this attempt, so that the next attempt can bind them again.
                drop((offer, holdings));
                std::thread::sleep(PAUSE);
                (offer, holdings) = self.offer(&seen, &needs);
            }
        }
        holdings.reloaded = reloaded;
        offer.log_holders();
        let pair = replaces.map(|_| UnixStream::pair()).transpose()?;
        let mut child = Child::start(process, &program).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", program.display()))
        })?;
        tracing::info!(name: "process-started", process, pid = child.pid(), program = %program.display(), "process started");
        let user = self.setup.identity.as_ref();
        let of_agents = is_new.then_some(program.as_path());
        holdings.agents = offer.start_agents(&seen, &needs, user, of_agents);
        let mut restarts = self.supervisor.restarts();
        let pair = pair.map(|(here, there)| {
            offer.fds.push(there.into());
            restarts.upgrades += 1;
            here
        });
        let user = self.setup.identity.as_ref();
        let start = ProcessStart {
            supervisor: std::process::id(),
            user: user.map(|identity| RunAs {
                identity: identity.clone(),
                logs: needs.logs.clone(),
            }),
            restarts,
            replaces: replaces.is_some(),
            listing: offer.listing,
        };
        child.listings[0] = ListedFiles::of(&start.listing);
        child.send(&Command::Start(start), offer.fds);
        if let (Some(old), Some(here)) = (replaces.and_then(|old| self.child(old)), pair) {
            old.send(&Command::Upgrade, vec![here.into()]);
        }
        self.children.push(child);
        self.held.offer(process, holdings);
        if replaces.is_none() {
            self.asked = 0;
        }
        Ok(times)
    }

    /// Returns the program for a new process: the running program, or for an upgrade the program on
    /// disk.
    fn program(&self, is_new: bool) -> io::Result<PathBuf> {
        if !is_new {
            return Ok(PathBuf::from("/proc/self/exe"));
        }
        let program = self.setup.program.clone();
        let named = |error: io::Error| {
            let text = format!("cannot start {}: {error}", program.display());
            io::Error::new(error.kind(), text)
        };
        if privileges::is_root() && !root_only::is_program(&program).map_err(named)? {
            let text = format!(
                "{}: a user other than root can change this program or its path",
                program.display()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        check_program(&program).map_err(named)?;
        Ok(program)
    }

    /// Sends the command to load the current configuration. Returns the timeouts of that
    /// configuration.
    fn reload(&mut self, process: u32) -> ProcessTimes {
        let (seen, mut needs, reloaded) = self.look_and_watch();
        needs.workers = self.held.current.workers;
        let (mut offer, mut holdings) = self.offer(&seen, &needs);
        holdings.reloaded = reloaded;
        let user = self.setup.identity.as_ref();
        holdings.agents = offer.start_agents(&seen, &needs, user, None);
        offer.listing.asked = self.asked;
        let listed = ListedFiles::of(&offer.listing);
        self.held.offer(process, holdings);
        if let Some(child) = self.child(process) {
            child.charge(RELOAD);
            child.listings[0] = listed;
            child.send(&Command::Reload(offer.listing), offer.fds);
        }
        times(&seen)
    }

    /// Sends the command to check files for changes.
    fn renew(&mut self, process: u32) {
        let watched = (self.watches.renewed.places(), &*self.held.current.watched);
        let mut listing = self.renewing.listing(watched);
        listing.number = self.held.listing_number();
        if let Some(child) = self.child(process) {
            child.listings[1] = ListedFiles::of(&listing);
            child.send(&Command::Renew(listing), Vec::new());
        }
    }

    fn offer(&mut self, seen: &FoundConfig, needs: &Needs) -> (ResourceOffer, Holdings) {
        let logs = if seen.is_roots {
            needs.logs.clone()
        } else {
            Vec::new()
        };
        self.held.current.logs.clone_from(&logs);
        self.give_logs();
        let watched = needs.watched.iter().filter(|_| seen.is_roots);
        let watched: Vec<Vec<PathBuf>> = watched.cloned().collect();
        // Before the process reads the files, so that no later change is missed.
        let places = places_of(&watched);
        let mut offer = ResourceOffer::of_files(&self.setup.source, (seen, needs), &places);
        offer.listing.number = self.held.listing_number();
        let sockets = offer.bind(needs, &self.held.current.sockets);
        if self.setup.identity.is_some() {
            offer.add_admin_socket(needs, &mut self.admin_socket);
        }
        if let Some(acme) = &seen.file.acme {
            let base = self.setup.source.folder();
            let created = companion::create_folder(acme, &base, self.setup.identity.as_ref());
            if let Err(error) = created {
                let folder = acme.folder(&base);
                tracing::error!(name: "acme-folder-failed", folder = %folder.display(), %error, "cannot create acme.folder");
            }
        }
        let holdings = Holdings {
            sockets,
            workers: needs.workers,
            logs,
            watched,
            places,
            reloaded: WatchedPlaces::default(),
            keys: seen.file.process.clone(),
            acme: seen.file.acme.clone(),
            agents: Agents::default(),
        };
        (offer, holdings)
    }

    /// Creates log files for the user in folders that only root can write.
    fn give_logs(&self) {
        let Some(identity) = &self.setup.identity else {
            return;
        };
        for path in &self.held.current.logs {
            if let Err(error) = root_only::give(path, identity) {
                tracing::warn!(name: "log-create-failed", path = %path.display(), %error, "cannot create a log file");
            }
        }
    }

    /// Drops the supervisor's copies of the sockets, so that each socket closes as soon as the
    /// serving process closes its copy.
    fn release(&mut self) {
        self.held.release();
        self.held.current.acme = None;
        if let Some(Err(error)) = self.admin_socket.as_ref().map(SocketFile::give_way) {
            tracing::warn!(name: "admin-socket-not-released", %error, "cannot close the admin socket; it stays in use until this process exits");
        }
    }

    fn notify(&self, notice: ServiceNotice) {
        let reloading;
        let lines = match notice {
            ServiceNotice::Ready => "READY=1\nSTATUS=serving\n",
            ServiceNotice::ReloadRefused => {
                "READY=1\nSTATUS=serving; the last reload was rejected, see the log\n"
            }
            ServiceNotice::ReloadLate => {
                "READY=1\nSTATUS=serving; a reload was not answered, see the log\n"
            }
            ServiceNotice::UpgradeRefused => {
                "READY=1\nSTATUS=serving; the last upgrade failed, see the log\n"
            }
            ServiceNotice::Reloading => {
                reloading = notify::reloading();
                &reloading
            }
            ServiceNotice::Stopping => "STOPPING=1\n",
            ServiceNotice::Alive => "WATCHDOG=1\n",
        };
        if let Some(notifier) = &self.setup.notifier
            && let Err(error) = notifier.send(lines)
        {
            tracing::debug!(%error, "cannot notify the service manager");
        }
    }
}

/// Maximum number of events read after a deadline expired and before it takes effect.
const MOST_REPORTED: u32 = 64;
/// Event credit in bytes that each opened file costs.
const FILE: usize = 4;
/// Event credit in bytes that each walked path costs.
const WALK: usize = 16;
/// Event credit in bytes that a reload costs.
const RELOAD: usize = 8 * 1024;
/// Number of attempts to bind an address that is in use. A draining process closes its sockets
/// within half the time of all attempts.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);
