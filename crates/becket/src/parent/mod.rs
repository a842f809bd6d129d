//! The parent: the process that keeps root's rights, and sees no byte of a peer.
//!
//! Where becket is started as root with a user to become, it stays as a small parent, the main process, and executes its own
//! binary once more as a child, which becomes that user before it has a thread and then is the whole terminator. The parent
//! opens files and binds addresses for it ([`holding`]), passes signals on as orders, starts it again when it dies, and tells the
//! service manager. Everywhere else there is one process.
//!
//! The child is taken for hostile: it has met every peer. It has one way to the parent, on which it may say four things, a
//! byte each ([`Reply`]); anything else, and a child that does not take its orders, is killed and another started. What it says is
//! read at a bounded rate; one that does not end when it should is killed. Paths, addresses and the user come from the configuration
//! alone.
//! See `docs/decisions/0022-parent-and-child.md`.

mod holding;
mod needs;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use becket_config::process::Log;
use becket_sys::fd_passing::{InheritedListener, inherited_listeners};
use becket_sys::identity::Identity;
use becket_sys::notify::{Notice, Notifier};
use becket_sys::socket_file::SocketFile;
use becket_sys::{fd_messages, privileges, rlimit, root_only};
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, sleep, sleep_until};

use self::holding::{Held, Parcel, Seen};
use self::needs::Needs;
use crate::control::signals::{Signals, Wanted as Signal};
use crate::handover::link::{self, Link};
use crate::handover::{Begin, Handed, Order, Reply};
use crate::log;
use crate::pid_file::PidFile;
use crate::prepare::source::Source;

/// What this process is.
#[derive(Debug)]
pub enum Role {
    /// The one that serves, or checks: with what it was handed, and the way to a parent if it has one.
    Serves(Handed, Option<Link>),
    /// The parent of one that has ended.
    Ended(ExitCode),
}

/// What the child is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// To serve.
    Run,
    /// To check the configuration.
    Check,
}

/// Becomes what this process is to be: a parent until the end, or the process that does the work. Call it before threads are
/// started.
///
/// # Errors
/// What the system refuses.
pub fn enter(source: &Source, task: Task) -> io::Result<Role> {
    if is_child() {
        let (link, handed) = link::begin()?;
        return Ok(Role::Serves(handed, Some(link)));
    }
    let passed = inherited_listeners()?;
    if privileges::is_root() {
        let seen = Seen::by(source);
        let process = &seen.file.process;
        let user = process.user.as_deref();
        let found = user.map(|user| Identity::find(user, process.group.as_deref()));
        // A user that is not there is refused with all that is wrong.
        if let Some(Ok(identity)) = found
            && identity.uid != 0
        {
            // For the files that are handed over; the child needs it, too.
            if let Err(error) = rlimit::raise_open_files(rlimit::most_open_files()) {
                eprintln!("becket: {error}");
            }
            return match task {
                Task::Run => run(source, seen, identity, passed).map(Role::Ended),
                Task::Check => check(source, seen, &identity).map(Role::Ended),
            };
        }
    }
    Ok(Role::Serves(Handed::passed(passed), None))
}

/// Whether a parent started this process.
pub fn is_child() -> bool {
    std::env::var_os(IS_CHILD).is_some()
}

/// Has a child check the configuration as one that runs would find it.
fn check(source: &Source, seen: Seen, identity: &Identity) -> io::Result<ExitCode> {
    let needs = Needs::by(&seen.file, &source.folder());
    let gives = |path: &&PathBuf| seen.is_roots && root_only::gives(path).unwrap_or(false);
    let logs = needs.logs.iter().filter(gives).cloned().collect();
    let chroot = chroot(&seen, source);
    let mut parcel = Parcel::of_files(source, seen, &needs);
    parcel.list.logs = logs;
    parcel.list.is_all = chroot.is_some();
    parcel.probe(&needs);
    let (mut child, stream) = spawn()?;
    send(
        &stream,
        Order::Begin(begin(identity, 0, chroot, parcel.list)),
        &parcel.fds,
    )?;
    Ok(exit_code(child.wait()?))
}

fn run(
    source: &Source,
    seen: Seen,
    identity: Identity,
    passed: Vec<InheritedListener>,
) -> io::Result<ExitCode> {
    let (file, level) = (&seen.file.log, &seen.file.log.level);
    let log = Log {
        level: log::check_level(level).map_or_else(|_| "info".to_owned(), |()| level.clone()),
        format: file.format,
        syslog: file.syslog.clone(),
        syslog_facility: file.syslog_facility,
        syslog_tag: file.syslog_tag.clone(),
        ..Log::default()
    };
    let _logging = log::install(&log).map_err(io::Error::other)?;
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    runtime.block_on(async {
        let signals = Signals::listen()?;
        let parent = Parent {
            source: source.clone(),
            identity,
            passed,
            workers: 0,
            logs: Vec::new(),
            chroot: None,
            held: Held::new(),
            drain: Duration::ZERO,
            offered: None,
            again: false,
            is_ready: false,
            serves: false,
            ends_by: None,
            restarts: 0,
            pid_file: None,
            admin_socket: None,
            notifier: Notifier::from_env()?,
        };
        parent.run(signals).await
    })
}

struct Parent {
    source: Source,
    identity: Identity,
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
    /// A child has served.
    is_ready: bool,
    /// The child that runs does.
    serves: bool,
    /// When a child that was told to end is killed.
    ends_by: Option<Instant>,
    restarts: u64,
    pid_file: Option<PidFile>,
    /// For the admin pages, from the first start to the end.
    admin_socket: Option<SocketFile>,
    notifier: Option<Notifier>,
}

/// A configuration that the child was told to load.
struct Offer {
    held: Held,
    drain: Duration,
    /// When it is said that there is no answer; nothing once it was.
    late_at: Option<Instant>,
}

impl Parent {
    async fn run(mut self, mut signals: Signals) -> io::Result<ExitCode> {
        let mut failures = 0;
        loop {
            let began = Instant::now();
            let (mut child, stream) = self.start()?;
            self.attend(stream, &mut signals).await?;
            // It has ended, or does not do as it is told.
            child.kill()?;
            let status = child.wait()?;
            failures = if began.elapsed() < LONG {
                failures + 1
            } else {
                1
            };
            if self.ends_by.is_some() || !self.is_ready || failures > MOST_FAILURES {
                return Ok(exit_code(status));
            }
            self.restarts += 1;
            tracing::error!(%status, restarts = self.restarts, "the serving process died, another is started");
            self.offered = None;
            let pause = sleep(Duration::from_secs((1 << failures) - 2));
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    signal = signals.next() => {
                        if matches!(signal, Signal::Drain | Signal::Stop) {
                            return Ok(ExitCode::SUCCESS);
                        }
                    }
                }
            }
        }
    }

    /// Starts a child with what the configuration needs now.
    fn start(&mut self) -> io::Result<(Child, UnixStream)> {
        let seen = Seen::by(&self.source);
        let needs = Needs::by(&seen.file, &self.source.folder());
        self.workers = needs.workers;
        self.drain = seen.file.timeouts.drain;
        self.serves = false;
        self.chroot = chroot(&seen, &self.source);
        let (parcel, held) = self.pack(seen, &needs);
        self.held = held;
        let (child, stream) = spawn()?;
        let chroot = self.chroot.clone();
        let begin = begin(&self.identity, self.restarts, chroot, parcel.list);
        // One that does not take it has died, which is noticed where it is waited for.
        if let Err(error) = send(&stream, Order::Begin(begin), &parcel.fds) {
            tracing::warn!(%error, "the serving process does not start");
        }
        Ok((child, stream))
    }

    fn pack(&mut self, seen: Seen, needs: &Needs) -> (Parcel, Held) {
        self.logs.clear();
        if seen.is_roots {
            self.logs.clone_from(&needs.logs);
            self.give_logs();
        }
        let mut parcel = Parcel::of_files(&self.source, seen, needs);
        parcel.list.is_all = self.chroot.is_some();
        let held = parcel.bind(needs, &self.held, &self.passed);
        parcel.add_admin_socket(needs, &mut self.admin_socket);
        (parcel, held)
    }

    /// Makes log files for the user where only root can.
    fn give_logs(&self) {
        for path in &self.logs {
            if let Err(error) = root_only::give(path, &self.identity) {
                tracing::warn!(path = %path.display(), %error, "log file not made");
            }
        }
    }

    /// Passes orders on and hears replies, until the child has ended or is to end.
    async fn attend(&mut self, stream: UnixStream, signals: &mut Signals) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let mut replies = tokio::net::UnixStream::from_std(stream.try_clone()?)?;
        let mut bytes = [0; 4096];
        let mut reads_at = Instant::now();
        loop {
            let late_at = self.offered.as_ref().and_then(|offer| offer.late_at);
            let reads = async {
                sleep_until(reads_at).await;
                replies.read(&mut bytes).await
            };
            let done = tokio::select! {
                read = reads => match read {
                    Ok(0) | Err(_) => return Ok(()),
                    Ok(count) => {
                        reads_at = Instant::now() + BETWEEN_READS;
                        self.hear(bytes.get(..count).unwrap_or_default(), &stream)
                    }
                },
                signal = signals.next() => self.pass_on(signal, &stream),
                () = at(late_at) => {
                    self.say_late();
                    Ok(())
                }
                () = at(self.ends_by) => {
                    tracing::error!("the serving process has not ended in time and is killed");
                    return Ok(());
                }
            };
            if let Err(error) = done {
                tracing::error!(%error, "the serving process does not do as it should");
                return Ok(());
            }
        }
    }

    /// Hears what was said since the last time. Each answer is to an order, and a sign of life counts once.
    fn hear(&mut self, bytes: &[u8], stream: &UnixStream) -> io::Result<()> {
        let mut lives = false;
        for byte in bytes {
            match Reply::of(*byte).ok_or(io::ErrorKind::InvalidData)? {
                Reply::Alive => lives = true,
                reply => self.hear_answer(reply, stream)?,
            }
        }
        if lives {
            self.notify(&[Notice::Watchdog]);
        }
        Ok(())
    }

    fn hear_answer(&mut self, reply: Reply, stream: &UnixStream) -> io::Result<()> {
        match reply {
            Reply::Alive => {}
            Reply::Ready if self.serves => return Err(io::ErrorKind::InvalidData.into()),
            Reply::Ready => {
                self.serves = true;
                if !self.is_ready {
                    self.write_pid();
                }
                self.is_ready = true;
                self.notify(&[Notice::Ready, Notice::Status("serving")]);
                return self.offer_again(stream);
            }
            Reply::Loaded | Reply::Refused => {
                let offered = self.offered.take().ok_or(io::ErrorKind::InvalidData)?;
                let status = if reply == Reply::Loaded {
                    self.held = offered.held;
                    self.drain = offered.drain;
                    "serving"
                } else {
                    "serving; the last reload was refused, the log says why"
                };
                self.notify(&[Notice::Ready, Notice::Status(status)]);
                return self.offer_again(stream);
            }
        }
        Ok(())
    }

    /// Tells where the process is that takes signals, once it serves. Only where nobody but root chose the path: the file there is
    /// replaced.
    fn write_pid(&mut self) {
        let seen = Seen::by(&self.source);
        if !seen.is_roots {
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

    /// Reloads once more if that was asked for meanwhile.
    fn offer_again(&mut self, stream: &UnixStream) -> io::Result<()> {
        if std::mem::take(&mut self.again) {
            self.offer(stream)?;
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

    fn pass_on(&mut self, signal: Signal, stream: &UnixStream) -> io::Result<()> {
        match signal {
            Signal::Reload if self.ends_by.is_some() => Ok(()),
            Signal::Reload if self.offered.is_some() || !self.is_ready => {
                if self
                    .offered
                    .as_ref()
                    .is_some_and(|offer| offer.late_at.is_none())
                {
                    tracing::warn!("not reloaded: the reload before this one is not answered yet");
                }
                self.again = true;
                Ok(())
            }
            Signal::Reload => self.offer(stream),
            Signal::Reopen => {
                self.give_logs();
                send(stream, Order::Reopen, &[])
            }
            // The second one cuts connections off.
            Signal::Drain => {
                let within = self.ends_by.map_or(self.drain, |_| Duration::ZERO);
                self.stop(within);
                send(stream, Order::Drain, &[])
            }
            Signal::Stop => {
                self.stop(Duration::ZERO);
                send(stream, Order::Stop, &[])
            }
        }
    }

    /// Lets go of the sockets, so that they close when the child closes them. It has so long, and some more, to end.
    fn stop(&mut self, within: Duration) {
        let by = Instant::now() + within + GRACE;
        self.ends_by = Some(self.ends_by.map_or(by, |before| before.min(by)));
        self.held.clear();
        self.offered = None;
        if let Some(Err(error)) = self.admin_socket.as_ref().map(SocketFile::give_way) {
            tracing::warn!(%error, "the admin socket is kept until the end");
        }
        self.notify(&[Notice::Stopping]);
    }

    /// Has the child load the configuration as it is now.
    fn offer(&mut self, stream: &UnixStream) -> io::Result<()> {
        self.notify(&[Notice::Reloading]);
        let seen = Seen::by(&self.source);
        let mut needs = Needs::by(&seen.file, &self.source.folder());
        needs.workers = self.workers;
        let drain = seen.file.timeouts.drain;
        let (parcel, held) = self.pack(seen, &needs);
        self.offered = Some(Offer {
            held,
            drain,
            late_at: Some(Instant::now() + LATE),
        });
        send(stream, Order::Load(parcel.list), &parcel.fds)
    }

    fn notify(&self, notices: &[Notice<'_>]) {
        if let Some(notifier) = &self.notifier
            && let Err(error) = notifier.send(notices)
        {
            tracing::debug!(%error, "service manager not told");
        }
    }
}

/// Sleeps until then, or for ever.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

/// Starts this program once more, under the name by which it was called, with a socket for its standard input.
fn spawn() -> io::Result<(Child, UnixStream)> {
    let (here, there) = UnixStream::pair()?;
    let mut words = std::env::args_os();
    let child = Command::new("/proc/self/exe")
        .arg0(words.next().unwrap_or_else(|| NAME.into()))
        .args(words)
        .env(IS_CHILD, "1")
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::from(OwnedFd::from(there)))
        .spawn()?;
    Ok((child, here))
}

/// The folder that is to be the child's file system.
fn chroot(seen: &Seen, source: &Source) -> Option<PathBuf> {
    let folder = seen.file.process.chroot.as_ref()?;
    Some(source.folder().join(folder))
}

fn begin(
    identity: &Identity,
    restarts: u64,
    chroot: Option<PathBuf>,
    list: crate::handover::List,
) -> Begin {
    Begin {
        chroot,
        uid: identity.uid,
        gid: identity.gid,
        groups: identity.groups.clone(),
        restarts,
        list,
    }
}

fn send(stream: &UnixStream, order: Order, fds: &[OwnedFd]) -> io::Result<()> {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    fd_messages::send(stream, &serde_json::to_vec(&order)?, &fds, PATIENCE)
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Tells a process that it is the child.
const IS_CHILD: &str = "BECKET_CHILD";
/// Where the program was called by no name.
const NAME: &str = "becket";
/// Between two looks at what the child has said, so that one that floods costs next to nothing. An honest one says ten bytes a
/// second.
const BETWEEN_READS: Duration = Duration::from_millis(25);
/// When it is said that a reload has no answer. Files of a usual size take less than a second.
const LATE: Duration = Duration::from_secs(20);
/// What a child that is to end may take for it, beyond the time that its connections have.
const GRACE: Duration = Duration::from_secs(10);
/// How long the child may take to read what it is sent.
const PATIENCE: Duration = Duration::from_secs(30);
/// A child that has served for so long did not die of its configuration.
const LONG: Duration = Duration::from_secs(60);
/// Children in a row that may die early: the first is followed at once, later ones after 2, 6, 14 and 30 s.
const MOST_FAILURES: u32 = 5;
