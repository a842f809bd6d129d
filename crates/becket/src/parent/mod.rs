//! The parent: the process that keeps root's rights, and sees no byte of a peer.
//!
//! Where becket is started as root with a user to become, or with `process.parent`, it stays as a small parent, the main process,
//! and executes its own binary once more as a child, which becomes that user before it has a thread and then is the whole
//! terminator. The parent opens files and binds addresses for it ([`holding`]), passes signals on as orders, starts it again when
//! it dies, replaces it by another program's ([`upgrade`]), and tells the service manager. Everywhere else there is one process.
//!
//! The child is taken for hostile: it has met every peer. It has one way to the parent, on which it may say ten things, a
//! byte each ([`Reply`]); anything else, and a child that does not take its orders, is killed and another started. What it says is
//! read at a bounded rate; one that does not end when it should is killed. It may ask for a reload, a drain and an upgrade, as a
//! signal does. Paths, addresses and the user come from the configuration alone.
//! See `docs/decisions/0022-parent-and-child.md`.

mod child;
mod enter;
mod holding;
mod needs;
mod renewal;
mod rows;
mod upgrade;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use becket_sys::fd_passing::InheritedListener;
use becket_sys::identity::Identity;
use becket_sys::notify::{Notice, Notifier};
use becket_sys::root_only;
use becket_sys::socket_file::SocketFile;
use tokio::time::{Instant, sleep_until};

use self::child::Serving;
pub use self::enter::{Role, Task, enter, goes_on};
use self::holding::{Held, Parcel, Seen};
use self::needs::Needs;
use self::renewal::Renewable;
use self::rows::RowKeeper;
use self::upgrade::{Leaving, Upgrade};
use crate::control::signals::{Signals, Wanted as Signal};
use crate::handover::{Begin, Order, Past, Reply, RunAs, SocketKind};
use crate::pid_file::PidFile;
use crate::prepare::source::Source;
use crate::watch::Watch;

struct Parent {
    source: Source,
    /// Whom the child becomes; nothing where there are no rights to give up.
    identity: Option<Identity>,
    /// Where the program is that an upgrade starts.
    program: PathBuf,
    /// By the service manager.
    passed: Vec<InheritedListener>,
    /// Of the child that runs.
    workers: usize,
    logs: Vec<PathBuf>,
    /// The file system of the child that runs, where it is not the host's.
    chroot: Option<PathBuf>,
    /// Sockets of the configuration that is in use.
    held: Held,
    /// `timeouts.drain` of it.
    drain: Duration,
    /// The one that the child was told to load.
    offered: Option<Offer>,
    /// Another reload was asked for meanwhile.
    again: bool,
    /// Files that the child may be handed once more.
    renewable: Renewable,
    watch: Watch,
    /// The child was told to look at files, and has not said that it did.
    is_looking: bool,
    /// Files have changed meanwhile.
    looks_next: bool,
    /// A child that is to replace the one that runs.
    upgrade: Option<Upgrade>,
    /// An upgrade was asked for while the child could not be replaced.
    upgrades_next: bool,
    /// The child is of another program than this process.
    is_outdated: bool,
    /// Children that were replaced, and drain.
    leaving: Vec<Leaving>,
    /// When they are looked after next.
    look_at: Instant,
    /// A child has served.
    is_ready: bool,
    /// When a child that was told to end is killed.
    ends_by: Option<Instant>,
    /// When another child is started, where there is none.
    restart_at: Option<Instant>,
    past: Past,
    /// Children that died early, in a row.
    failures: u32,
    pid_file: Option<PidFile>,
    /// For the admin pages, from the first start to the end.
    admin_socket: Option<SocketFile>,
    /// What children share of limits; nothing where there is no memory for it.
    rows: Option<RowKeeper>,
    notifier: Option<Notifier>,
}

/// The child that serves, or begins to.
struct Current {
    serving: Serving,
    began: Instant,
    /// It has said that it serves.
    is_ready: bool,
    /// Reloads that it has asked for.
    asked: u64,
}

/// A configuration that the child was told to load.
struct Offer {
    held: Held,
    renewable: Renewable,
    drain: Duration,
    /// When it is said that there is no answer; nothing once it was.
    late_at: Option<Instant>,
}

/// What the parent waits for.
enum Event {
    /// The child has said something, or has ended.
    Said(Option<Vec<u8>>),
    /// The one that is to replace it has.
    SuccessorSaid(Option<Vec<u8>>),
    /// That one takes too long.
    SuccessorLate,
    Signal(Signal),
    /// Another child is to be started.
    Restart,
    ReloadLate,
    /// Files have changed.
    FilesChanged,
    /// The child has not ended in time.
    NotEnded,
    /// Those that were replaced are to be looked after.
    Look,
}

impl Parent {
    async fn run(mut self, child: Current, mut signals: Signals) -> io::Result<ExitCode> {
        let mut child = Some(child);
        loop {
            let event = match &child {
                Some(current) if self.is_outdated && self.is_idle(current) => {
                    self.become_program(current, &mut signals).await?
                }
                _ => None,
            };
            let event = match event {
                Some(event) => event,
                None => self.next(&mut child, &mut signals).await,
            };
            if matches!(event, Event::Signal(Signal::Drain | Signal::Stop)) && child.is_none() {
                return self.end(ExitCode::SUCCESS).await;
            }
            let Err(error) = self.handle(event, &mut child) else {
                continue;
            };
            if error.kind() != io::ErrorKind::UnexpectedEof {
                tracing::error!(%error, "the serving process does not do as it should");
            }
            if let Some(current) = child.take()
                && let Some(code) = self.lose(current)?
            {
                return self.end(code).await;
            }
        }
    }

    /// What was said counts before what is late: this process may not have run for a while.
    async fn next(&mut self, child: &mut Option<Current>, signals: &mut Signals) -> Event {
        let late_at = self.offered.as_ref().and_then(|offer| offer.late_at);
        let successor_late_at = self.upgrade.as_ref().map(|upgrade| upgrade.late_at);
        let look_at = (!self.leaving.is_empty()).then_some(self.look_at);
        let (restart_at, ends_by) = (self.restart_at, self.ends_by);
        let child = child.as_mut().map(|current| &mut current.serving);
        let successor = self.upgrade.as_mut().map(|upgrade| &mut upgrade.serving);
        tokio::select! {
            biased;
            said = hear(child) => Event::Said(said),
            said = hear(successor) => Event::SuccessorSaid(said),
            signal = signals.next() => Event::Signal(signal),
            () = at(successor_late_at) => Event::SuccessorLate,
            () = at(late_at) => Event::ReloadLate,
            () = at(ends_by) => Event::NotEnded,
            () = at(restart_at) => Event::Restart,
            () = at(look_at) => Event::Look,
            () = self.watch.settled() => Event::FilesChanged,
        }
    }

    /// Does what an event asks for. An error is the child's fault, or its end.
    fn handle(&mut self, event: Event, child: &mut Option<Current>) -> io::Result<()> {
        match (event, &mut *child) {
            (Event::Said(Some(bytes)), Some(current)) => self.hear(&bytes, current),
            (Event::Said(_), _) => Err(io::ErrorKind::UnexpectedEof.into()),
            (Event::SuccessorSaid(said), _) => self.hear_successor(said.as_deref(), child),
            (Event::SuccessorLate, _) => self.give_up("the new process takes too long", child),
            (Event::Signal(signal), Some(current)) => self.pass_on(signal, current),
            (Event::Signal(signal), None) => {
                // A child that is started reads files as they are then; a successor may have read them.
                self.again |= signal == Signal::Reload && self.upgrade.is_some();
                self.upgrades_next |= signal == Signal::Upgrade;
                Ok(())
            }
            (Event::Restart, _) => {
                self.restart_at = None;
                *child = Some(self.start()?);
                Ok(())
            }
            (Event::ReloadLate, _) => {
                self.say_late();
                Ok(())
            }
            (Event::FilesChanged, Some(current)) => self.look_at_files(current),
            (Event::FilesChanged, None) => Ok(()),
            (Event::NotEnded, _) => {
                let text = "it has not ended in time and is killed";
                Err(io::Error::new(io::ErrorKind::TimedOut, text))
            }
            (Event::Look, _) => {
                self.look_after_leaving();
                Ok(())
            }
        }
    }

    /// The child has ended, or is ended because it does not do as it is told. Returns the exit code where that is the end.
    fn lose(&mut self, child: Current) -> io::Result<Option<ExitCode>> {
        let lived = child.began.elapsed();
        let status = child.serving.end()?;
        self.failures = if lived < LONG { self.failures + 1 } else { 1 };
        if self.ends_by.is_some() || !self.is_ready || self.failures > MOST_FAILURES {
            return Ok(Some(exit_code(status)));
        }
        self.past.restarts += 1;
        let restarts = self.past.restarts;
        self.offered = None;
        self.is_looking = false;
        if self.upgrade.is_some() {
            tracing::error!(%status, restarts, "the serving process died, its successor is waited for");
            return Ok(None);
        }
        tracing::error!(%status, restarts, "the serving process died, another is started");
        self.restart_at = Some(Instant::now() + Duration::from_secs((1 << self.failures) - 2));
        Ok(None)
    }

    /// Starts a child with what the configuration needs now.
    fn start(&mut self) -> io::Result<Current> {
        let (seen, needs) = self.look();
        self.workers = needs.workers;
        self.renewable = Renewable::of(&seen, &needs);
        self.drain = seen.file.timeouts.drain;
        self.chroot = chroot(&seen, &self.source);
        // Another socket each time: what a child has asked of its own, such as a group to hear, stays with it.
        self.held
            .retain(|(kind, _), _| *kind != SocketKind::Datagrams);
        let (parcel, held) = self.pack(seen, &needs, self.chroot.is_some());
        self.held = held;
        let row = self.rows.as_ref().and_then(RowKeeper::give);
        let serving = Serving::start("/proc/self/exe".as_ref(), row)?;
        let user = self.user(self.chroot.clone(), &needs.logs);
        let (begin, fds) = self.begin(&serving, parcel, user, None)?;
        // One that does not take it has died, which is noticed where it is waited for.
        if let Err(error) = serving.send(&begin, &fds) {
            tracing::warn!(%error, "the serving process does not start");
        }
        Ok(Current {
            serving,
            began: Instant::now(),
            is_ready: false,
            asked: 0,
        })
    }

    /// The configuration as it is now, and what it needs.
    fn look(&self) -> (Seen, Needs) {
        let seen = Seen::by(&self.source, self.identity.is_some());
        let needs = Needs::by(&seen.file, &self.source.folder());
        (seen, needs)
    }

    /// Opens what is needed; for one that is confined, all that it reads.
    fn pack(&mut self, seen: Seen, needs: &Needs, is_confined: bool) -> (Parcel, Held) {
        self.logs.clear();
        if seen.is_roots {
            self.logs.clone_from(&needs.logs);
            self.give_logs(|_| true);
        }
        let mut parcel = Parcel::of_files(&self.source, seen, needs);
        parcel.list.is_all = is_confined;
        let held = parcel.bind(needs, &self.held, &self.passed);
        if self.identity.is_some() {
            parcel.add_admin_socket(needs, &mut self.admin_socket);
        }
        (parcel, held)
    }

    /// Whom a child becomes, with the folder that is its file system.
    fn user(&self, chroot: Option<PathBuf>, logs: &[PathBuf]) -> Option<RunAs> {
        let identity = self.identity.as_ref();
        identity.map(|identity| run_as(identity, chroot, logs))
    }

    /// The first order of a child, with its descriptors. One that `replaces` another hears from it on that socket.
    fn begin(
        &self,
        serving: &Serving,
        parcel: Parcel,
        user: Option<RunAs>,
        replaces: Option<UnixStream>,
    ) -> io::Result<(Order, Vec<OwnedFd>)> {
        let mut past = self.past;
        past.upgrades += u64::from(replaces.is_some());
        let begin = Begin {
            user,
            past,
            row: serving.row(),
            replaces: replaces.is_some(),
            list: parcel.list,
        };
        let mut fds = parcel.fds;
        if let (Some(rows), Some(_)) = (&self.rows, begin.row) {
            fds.push(rows.file()?);
        }
        fds.extend(replaces.map(OwnedFd::from));
        Ok((Order::Begin(begin), fds))
    }

    /// Makes log files for the user where only root can.
    fn give_logs(&self, which: impl Fn(&&PathBuf) -> bool) {
        let Some(identity) = &self.identity else {
            return;
        };
        for path in self.logs.iter().filter(which) {
            if let Err(error) = root_only::give(path, identity) {
                tracing::warn!(path = %path.display(), %error, "log file not made");
            }
        }
    }

    /// Hears what was said since the last time. Each answer is to an order; a sign of life counts once, and so does that files
    /// have changed.
    fn hear(&mut self, bytes: &[u8], child: &mut Current) -> io::Result<()> {
        let mut lives = false;
        for byte in bytes {
            match Reply::of(*byte).ok_or(io::ErrorKind::InvalidData)? {
                Reply::Alive => lives = true,
                Reply::Changed => self.expect_changes(),
                reply => self.hear_answer(reply, child)?,
            }
        }
        if lives {
            self.notify(&[Notice::Watchdog]);
        }
        Ok(())
    }

    fn hear_answer(&mut self, reply: Reply, child: &mut Current) -> io::Result<()> {
        match reply {
            Reply::Alive | Reply::Changed => return Ok(()),
            Reply::Renewed if self.is_looking => self.is_looking = false,
            Reply::Ready if !child.is_ready => {
                child.is_ready = true;
                if !self.is_ready {
                    self.write_pid();
                }
                self.is_ready = true;
                self.expect_changes();
                self.notify(&[Notice::Ready, Notice::Status("serving")]);
            }
            // An answer that was on its way when the child was told to end.
            Reply::Loaded | Reply::Refused if self.ends_by.is_some() => return Ok(()),
            Reply::Loaded | Reply::Refused => {
                let offered = self.offered.take().ok_or(io::ErrorKind::InvalidData)?;
                let status = if reply == Reply::Loaded {
                    self.held = offered.held;
                    self.drain = offered.drain;
                    self.renewable = offered.renewable;
                    self.expect_changes();
                    "serving"
                } else {
                    Notice::REFUSED
                };
                self.notify(&[Notice::Ready, Notice::Status(status)]);
            }
            Reply::AskReload => {
                child.asked += 1;
                return self.pass_on(Signal::Reload, child);
            }
            Reply::AskUpgrade => return self.pass_on(Signal::Upgrade, child),
            // A second order would cut connections off.
            Reply::AskDrain if self.ends_by.is_some() => return Ok(()),
            Reply::AskDrain => return self.pass_on(Signal::Drain, child),
            Reply::Ready | Reply::Prepared | Reply::Renewed => {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        self.do_next(child)
    }

    /// Tells where the process is that takes signals, once it serves. As root only where nobody else chose the path: the file there
    /// is replaced.
    fn write_pid(&mut self) {
        let (seen, _) = self.look();
        if self.identity.is_some() && !seen.is_roots {
            if seen.file.process.pid_file.is_some() {
                tracing::warn!("pid file not written: others than root can change its path");
            }
            return;
        }
        match PidFile::of(&seen.file.process, &self.source.folder()) {
            Ok(file) => self.pid_file = file,
            Err(error) => tracing::error!(%error, "pid file not written"),
        }
    }

    /// Does what was asked for while the child was busy: an upgrade first, however often reloads are asked for.
    fn do_next(&mut self, child: &Current) -> io::Result<()> {
        if std::mem::take(&mut self.upgrades_next) {
            return self.begin_upgrade(child);
        }
        // The program that this process becomes now does the rest.
        if self.is_outdated {
            return Ok(());
        }
        if std::mem::take(&mut self.again) {
            return self.offer(child);
        }
        if std::mem::take(&mut self.looks_next) {
            return self.look_at_files(child);
        }
        Ok(())
    }

    /// A reload has no answer. The child may be busy with files that a disk does not give: it goes on serving.
    fn say_late(&mut self) {
        tracing::error!("a reload is not answered; the serving process goes on with what it has");
        let status = Notice::Status("serving; a reload is not answered, the log says more");
        self.notify(&[Notice::Ready, status]);
        if let Some(offer) = &mut self.offered {
            offer.late_at = None;
        }
    }

    /// Whether nothing is under way that another program would not know how to go on with.
    fn is_idle(&self, child: &Current) -> bool {
        self.ends_by.is_none() && !self.is_busy(child) && !self.is_looking
    }

    /// Whether the child cannot be told to load anything now.
    fn is_busy(&self, child: &Current) -> bool {
        self.offered.is_some() || self.upgrade.is_some() || !child.is_ready
    }

    fn pass_on(&mut self, signal: Signal, child: &Current) -> io::Result<()> {
        let is_busy = self.is_busy(child);
        match signal {
            Signal::Reload | Signal::Upgrade if self.ends_by.is_some() => Ok(()),
            Signal::Reload if is_busy => {
                let mut offered = self.offered.iter();
                if offered.any(|offer| offer.late_at.is_none()) {
                    tracing::warn!("not reloaded: the reload before this one is not answered yet");
                }
                self.again = true;
                Ok(())
            }
            Signal::Reload => self.offer(child),
            // Also while one is under way: it may have begun with an older program.
            Signal::Upgrade if is_busy => {
                self.upgrades_next = true;
                Ok(())
            }
            Signal::Upgrade => self.begin_upgrade(child),
            Signal::Reopen => {
                // One outside of its chroot stays the file that the child has.
                let chroot = self.chroot.as_ref();
                self.give_logs(|log| chroot.is_none_or(|at| log.starts_with(at)));
                self.order_all(&Order::Reopen);
                child.serving.send(&Order::Reopen, &[])
            }
            // The second one cuts connections off.
            Signal::Drain => {
                if self.ends_by.is_some() {
                    self.order_all(&Order::Stop);
                }
                let within = self.ends_by.map_or(self.drain, |_| Duration::ZERO);
                self.stop(within, child)?;
                child.serving.send(&Order::Drain, &[])
            }
            Signal::Stop => {
                self.order_all(&Order::Stop);
                self.stop(Duration::ZERO, child)?;
                child.serving.send(&Order::Stop, &[])
            }
        }
    }

    /// Lets go of the sockets, so that they close when the child closes them. It has so long, and some more, to end.
    fn stop(&mut self, within: Duration, child: &Current) -> io::Result<()> {
        let by = Instant::now() + within + GRACE;
        self.ends_by = Some(self.ends_by.map_or(by, |before| before.min(by)));
        self.held.clear();
        self.offered = None;
        (self.again, self.upgrades_next) = (false, false);
        if let Some(Err(error)) = self.admin_socket.as_ref().map(SocketFile::give_way) {
            tracing::warn!(%error, "the admin socket is kept until the end");
        }
        self.notify(&[Notice::Stopping]);
        if !self.drop_upgrade() {
            return Ok(());
        }
        // It may have made way, and goes on with those who wait, before it ends.
        let reason = "becket is told to end".to_owned();
        child.serving.send(&Order::NotUpgraded(reason), &[])
    }

    /// Has the child load the configuration as it is now.
    fn offer(&mut self, child: &Current) -> io::Result<()> {
        self.notify(&[Notice::Reloading]);
        let (seen, mut needs) = self.look();
        needs.workers = self.workers;
        let renewable = Renewable::of(&seen, &needs);
        let drain = seen.file.timeouts.drain;
        let (mut parcel, held) = self.pack(seen, &needs, self.chroot.is_some());
        parcel.list.asked = child.asked;
        self.offered = Some(Offer {
            held,
            renewable,
            drain,
            late_at: Some(Instant::now() + LATE),
        });
        child.serving.send(&Order::Load(parcel.list), &parcel.fds)
    }

    fn notify(&self, notices: &[Notice<'_>]) {
        if let Some(notifier) = &self.notifier
            && let Err(error) = notifier.send(notices)
        {
            tracing::debug!(%error, "service manager not told");
        }
    }
}

/// Waits for what a child says, for ever where there is none.
async fn hear(child: Option<&mut Serving>) -> Option<Vec<u8>> {
    match child {
        Some(child) => child.hear().await,
        None => std::future::pending().await,
    }
}

/// Sleeps until then, or for ever.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// The folder that is to be the child's file system.
fn chroot(seen: &Seen, source: &Source) -> Option<PathBuf> {
    let folder = seen.file.process.chroot.as_ref()?;
    Some(source.folder().join(folder))
}

/// The user that a child becomes, with those of its logs that it does not find in its chroot.
fn run_as(identity: &Identity, chroot: Option<PathBuf>, logs: &[PathBuf]) -> RunAs {
    let is_outside = |log: &&PathBuf| chroot.as_ref().is_some_and(|at| !log.starts_with(at));
    RunAs {
        logs: logs.iter().filter(is_outside).cloned().collect(),
        chroot,
        uid: identity.uid,
        gid: identity.gid,
        groups: identity.groups.clone(),
    }
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// When it is said that a reload has no answer. Files of a usual size take less than a second.
const LATE: Duration = Duration::from_secs(20);
/// What a child that is to end may take for it, beyond the time that its connections have.
const GRACE: Duration = Duration::from_secs(10);
/// Between two looks at children that were replaced.
const LOOK: Duration = Duration::from_millis(250);
/// A child that has served for so long did not die of its configuration.
const LONG: Duration = Duration::from_secs(60);
/// Children in a row that may die early: the first is followed at once, later ones after 2, 6, 14 and 30 s.
const MOST_FAILURES: u32 = 5;
