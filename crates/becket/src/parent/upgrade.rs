//! The program is replaced while it serves.
//!
//! ```text
//!  parent                      child                         successor
//!    │ executes the program as it is now, with the same sockets ──► │ loads, binds, starts its workers
//!    │ ── upgrade ───────────────► │ ───── sessions ──────────────► │
//!    │ ◄──────────────────────────────────────────────── prepared ──│
//!    │ ── yield ─────────────────► │ accepts nobody                 │
//!    │                             │ ───── the rest, "cut" ───────► │ serves
//!    │ ◄─────────────────────────────────────────────────── ready ──│
//!    │ ── leave ─────────────────► │ lets go of the sockets, drains │
//!    │ becomes that program, too: execve(2) keeps number, children and sockets
//! ```
//!
//! Whatever goes wrong before "ready", the successor is killed and the child told to go on, with the reason. No socket is closed on
//! which clients may wait: both children have all of them, and so has the parent. Under root the program, and the way to it, must be root's alone.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::iter;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use becket_sys::fd_passing::InheritedListener;
use becket_sys::identity::Identity;
use becket_sys::notify::Notice;
use becket_sys::process::{become_program, hold_signals, receive_signals};
use becket_sys::socket_file::SocketFile;
use becket_sys::{fd_messages, root_only};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until, timeout};

use super::child::{Serving, VERSION};
use super::holding::Held;
use super::renewal::Renewable;
use super::rows::RowKeeper;
use super::{Current, Event, GRACE, LOOK, Parent, Signal, chroot};
use crate::control::signals::Signals;
use crate::handover::rows::Rows;
use crate::handover::{Order, Past, Reply, RunAs, SocketKind};

/// A child that is to replace the one that runs.
#[derive(Debug)]
pub(super) struct Upgrade {
    pub(super) serving: Serving,
    /// The file system of it, where it is not the host's.
    chroot: Option<PathBuf>,
    held: Held,
    renewable: Renewable,
    drain: Duration,
    /// `timeouts.upgrade`, once to load and once more to serve.
    patience: Duration,
    workers: usize,
    /// It could serve, and the other was told to yield.
    is_prepared: bool,
    /// When it is given up.
    pub(super) late_at: Instant,
}

/// A child that was replaced.
#[derive(Debug)]
pub(super) struct Leaving {
    serving: Serving,
    /// When it is killed.
    ends_by: Instant,
}

impl Parent {
    /// Starts the program as it is now, beside the child.
    pub(super) fn begin_upgrade(&mut self, child: &Current) -> io::Result<()> {
        self.notify(&[Notice::Reloading]);
        match self.start_successor() {
            Ok((upgrade, channel)) => {
                tracing::info!(pid = upgrade.serving.pid(), program = %self.program.display(), "upgrading");
                self.upgrade = Some(upgrade);
                child.serving.send(&Order::Upgrade, &[channel.into()])
            }
            Err(error) => self.refuse(format!("{}: {error}", self.program.display()), child),
        }
    }

    fn start_successor(&mut self) -> io::Result<(Upgrade, UnixStream)> {
        if self.identity.is_some() && !root_only::is_program(&self.program)? {
            let text = "others than root can change this program, or the way to it";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let (seen, needs) = self.look();
        let (drain, patience) = (seen.file.timeouts.drain, seen.file.timeouts.upgrade);
        let workers = needs.workers;
        let chroot = chroot(&seen, &self.source);
        let renewable = Renewable::of(&seen, &needs);
        let (parcel, held) = self.pack(seen, &needs, chroot.is_some());
        let (channel, there) = UnixStream::pair()?;
        let row = self.rows.as_ref().and_then(RowKeeper::give);
        let serving = Serving::start(&self.program, row)?;
        let user = self.user(chroot.clone(), &needs.logs);
        let begin = self.begin(&serving, parcel, user, Some(there));
        if let Err(error) = begin.and_then(|(begin, fds)| serving.send(&begin, &fds)) {
            let status = serving.end()?;
            return Err(io::Error::other(format!("{error}, {status}")));
        }
        let upgrade = Upgrade {
            serving,
            chroot,
            held,
            renewable,
            drain,
            patience,
            workers,
            is_prepared: false,
            late_at: Instant::now() + patience,
        };
        Ok((upgrade, channel))
    }

    /// The successor has said something, or has ended.
    pub(super) fn hear_successor(
        &mut self,
        said: Option<&[u8]>,
        child: &mut Option<Current>,
    ) -> io::Result<()> {
        let Some(bytes) = said else {
            return self.give_up("the new process ended before it served", child);
        };
        let mut yields = Ok(());
        for (at, byte) in bytes.iter().enumerate() {
            let Some(upgrade) = &mut self.upgrade else {
                // It serves by now, and says on.
                return match (child, bytes.get(at..)) {
                    (Some(current), Some(rest)) => self.hear(rest, current),
                    _ => Ok(()),
                };
            };
            match Reply::of(*byte) {
                Some(Reply::Alive) => {}
                Some(Reply::Prepared) if !upgrade.is_prepared => {
                    upgrade.is_prepared = true;
                    upgrade.late_at = Instant::now() + upgrade.patience;
                    if let Some(current) = child {
                        yields = current.serving.send(&Order::Yield, &[]);
                    }
                }
                Some(Reply::Ready) if upgrade.is_prepared => {
                    self.succeed(child)?;
                    // One that died serves no more, and its successor has said so in the same breath.
                    yields = Ok(());
                }
                _ => {
                    return self.give_up("the new process does not know how to replace one", child);
                }
            }
        }
        yields
    }

    /// The successor serves: it is the child from now on.
    fn succeed(&mut self, child: &mut Option<Current>) -> io::Result<()> {
        let Some(upgrade) = self.upgrade.take() else {
            return Ok(());
        };
        let successor = Current {
            serving: upgrade.serving,
            began: Instant::now(),
            is_ready: true,
            asked: 0,
        };
        self.chroot = upgrade.chroot;
        self.held = upgrade.held;
        self.renewable = upgrade.renewable;
        self.is_looking = false;
        self.expect_changes();
        self.workers = upgrade.workers;
        let drain = std::mem::replace(&mut self.drain, upgrade.drain);
        (self.failures, self.restart_at) = (0, None);
        self.past.upgrades += 1;
        self.is_outdated = true;
        tracing::info!(pid = successor.serving.pid(), "upgraded");
        let Some(before) = child.replace(successor) else {
            return Ok(());
        };
        match before.serving.send(&Order::Leave(self.addresses()), &[]) {
            Ok(()) => self.leaving.push(Leaving {
                serving: before.serving,
                ends_by: Instant::now() + drain + GRACE,
            }),
            Err(error) => {
                tracing::error!(%error, "the process that was replaced does not leave and is killed");
                before.serving.end()?;
            }
        }
        Ok(())
    }

    /// Where clients arrive.
    fn addresses(&self) -> Vec<SocketAddr> {
        let held = self.held.keys();
        let held = held.filter(|(kind, _)| *kind == SocketKind::Clients);
        let passed = self.passed.iter();
        let passed = passed.filter_map(|passed| passed.listener.local_addr().ok());
        held.map(|(_, address)| *address).chain(passed).collect()
    }

    /// There will be no successor: the child goes on, or another of this program is started.
    pub(super) fn give_up(&mut self, reason: &str, child: &mut Option<Current>) -> io::Result<()> {
        let Some(upgrade) = self.upgrade.take() else {
            return Ok(());
        };
        let reason = match upgrade.serving.end() {
            Ok(status) => format!("{reason} ({status})"),
            Err(error) => format!("{reason} ({error})"),
        };
        match child {
            Some(current) => self.refuse(reason, current),
            None => {
                tracing::error!("not upgraded: {reason}");
                self.restart_at = Some(Instant::now());
                Ok(())
            }
        }
    }

    fn refuse(&mut self, reason: String, child: &Current) -> io::Result<()> {
        tracing::error!("not upgraded, nothing changed: {reason}");
        child.serving.send(&Order::NotUpgraded(reason), &[])?;
        let status = "serving; the last upgrade was refused, the log says why";
        self.notify(&[Notice::Ready, Notice::Status(status)]);
        self.do_next(child)
    }

    /// Ends a successor that is not wanted any more: this becket ends. Returns whether there was one.
    pub(super) fn drop_upgrade(&mut self) -> bool {
        let Some(upgrade) = self.upgrade.take() else {
            return false;
        };
        if let Err(error) = upgrade.serving.end() {
            tracing::error!(%error, "a new process is left over");
        }
        true
    }

    /// Gives an order to all that were replaced.
    pub(super) fn order_all(&self, order: &Order) {
        for leaving in &self.leaving {
            // One that does not take it is killed when its time is over.
            if let Err(error) = leaving.serving.send(order, &[]) {
                tracing::debug!(%error, "a process that drains takes no order");
            }
        }
    }

    /// Lets those go that have ended, and kills those whose time is over.
    pub(super) fn look_after_leaving(&mut self) {
        let now = Instant::now();
        self.look_at = now + LOOK;
        let mut late = Vec::new();
        for leaving in std::mem::take(&mut self.leaving) {
            if leaving.serving.has_ended() {
                tracing::info!(
                    pid = leaving.serving.pid(),
                    "the process that was replaced has ended"
                );
            } else if leaving.ends_by <= now {
                late.push(leaving);
            } else {
                self.leaving.push(leaving);
            }
        }
        for leaving in late {
            let pid = leaving.serving.pid();
            match leaving.serving.end() {
                Ok(_) => tracing::error!(
                    pid,
                    "a process that was replaced has not ended in time and is killed"
                ),
                Err(error) => {
                    tracing::error!(pid, %error, "a process that was replaced is left over")
                }
            }
        }
    }

    /// Waits for those that were replaced.
    pub(super) async fn end(mut self, code: ExitCode) -> io::Result<ExitCode> {
        self.drop_upgrade();
        while !self.leaving.is_empty() {
            sleep_until(Instant::now() + LOOK).await;
            self.look_after_leaving();
        }
        Ok(code)
    }

    /// Becomes the program that the child is of. Returns what came in between, or where that fails: then this process goes on.
    pub(super) async fn become_program(
        &mut self,
        child: &Current,
        signals: &mut Signals,
    ) -> io::Result<Option<Event>> {
        hold_signals()?;
        // One that came just now is in this process, and would be lost with it.
        while let Ok(signal) = timeout(MOMENT, signals.next()).await {
            if signal == Signal::Reload {
                self.again = true;
            } else {
                receive_signals()?;
                return Ok(Some(Event::Signal(signal)));
            }
        }
        self.is_outdated = false;
        let error = match self.bequeath(child) {
            Ok(stream) => become_program(&self.program, (IS_CONTINUED, VERSION), stream),
            Err(error) => error,
        };
        receive_signals()?;
        tracing::error!(%error, "the child is upgraded, its parent process is not: a child that dies is followed by one of the old program");
        self.notify(&[Notice::Ready, Notice::Status("serving")]);
        // A child that does not take it has ended, which is heard next.
        if let Err(error) = self.do_next(child) {
            tracing::debug!(%error, "the serving process takes no order");
        }
        Ok(None)
    }

    /// Leaves what this process has in a socket, for the program that reads it.
    fn bequeath(&self, child: &Current) -> io::Result<UnixStream> {
        let now = Instant::now();
        let leaving = self.leaving.iter().map(|leaving| {
            let left = leaving.ends_by.saturating_duration_since(now);
            (leaving.serving.pid(), left)
        });
        let admin_socket = self.admin_socket.as_ref();
        let will = Will {
            user: self.user(None, &[]),
            past: self.past,
            workers: self.workers,
            drain: self.drain,
            again: self.again,
            upgrades_next: self.upgrades_next,
            child: child.serving.pid(),
            asked: child.asked,
            leaving: leaving.collect(),
            held: self
                .held
                .iter()
                .map(|((kind, address), sockets)| (*kind, *address, sockets.len()))
                .collect(),
            passed: self
                .passed
                .iter()
                .map(|passed| passed.name.clone())
                .collect(),
            admin_socket: admin_socket.and_then(SocketFile::path).map(Path::to_owned),
            rows: self.rows.as_ref().map(|_| {
                let leaving = self.leaving.iter().map(|leaving| &leaving.serving);
                let all = iter::once(&child.serving).chain(leaving);
                all.map(Serving::row).collect()
            }),
        };
        let mut streams = vec![child.serving.stream()?];
        for leaving in &self.leaving {
            streams.push(leaving.serving.stream()?);
        }
        let streams = streams.iter().map(OwnedFd::as_fd);
        let held = self.held.values().flatten().map(OwnedFd::as_fd);
        let passed = self.passed.iter().map(|passed| passed.listener.as_fd());
        let admin = admin_socket.map(|socket| socket.listener().as_fd());
        let rows = self.rows.as_ref().map(RowKeeper::file).transpose()?;
        let rows = rows.as_ref().map(OwnedFd::as_fd);
        let fds: Vec<_> = streams
            .chain(held)
            .chain(passed)
            .chain(admin)
            .chain(rows)
            .collect();
        let (here, there) = UnixStream::pair()?;
        fd_messages::send(&here, &serde_json::to_vec(&will)?, &fds, TO_WRITE)?;
        Ok(there)
    }

    /// Goes on where the program before this one was.
    pub(super) fn inherit(&mut self, inheritance: Inheritance) -> io::Result<Current> {
        let Inheritance { will, mut fds } = inheritance;
        let mut given = VecDeque::new();
        if let Some(rows) = will.rows {
            given = rows.into();
            // Where this program's are of another version, the children that are there share nothing with those to come.
            let rows = Rows::open(fds.pop().ok_or(io::ErrorKind::InvalidData)?);
            self.rows = match rows {
                Ok(rows) => Some(RowKeeper::new(rows)),
                Err(_) => {
                    given.clear();
                    RowKeeper::create()
                }
            };
        }
        let rows = self.rows.clone();
        let mut row = || {
            let index = given.pop_front().flatten()?;
            rows.as_ref()?.give_this(index)
        };
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or(io::ErrorKind::InvalidData);
        let child = Current {
            serving: Serving::adopt(will.child, next()?, row())?,
            began: Instant::now(),
            is_ready: true,
            asked: will.asked,
        };
        for (pid, left) in will.leaving {
            self.leaving.push(Leaving {
                serving: Serving::adopt(pid, next()?, row())?,
                ends_by: Instant::now() + left,
            });
        }
        for (kind, address, count) in will.held {
            let sockets = (0..count).map(|_| next()).collect::<Result<_, _>>()?;
            self.held.insert((kind, address), sockets);
        }
        for name in will.passed {
            let listener = TcpListener::from(next()?);
            self.passed.push(InheritedListener { name, listener });
        }
        if let Some(path) = will.admin_socket {
            self.admin_socket = Some(SocketFile::adopt(next()?, path)?);
        }
        (self.past, self.workers, self.drain) = (will.past, will.workers, will.drain);
        self.is_ready = true;
        let (seen, needs) = self.look();
        self.chroot = chroot(&seen, &self.source);
        self.renewable = Renewable::of(&seen, &needs);
        self.expect_changes();
        if seen.is_roots {
            self.logs = needs.logs;
        }
        self.write_pid();
        self.notify(&[Notice::Ready, Notice::Status("serving")]);
        (self.again, self.upgrades_next) = (will.again, will.upgrades_next);
        self.do_next(&child)?;
        Ok(child)
    }
}

/// What a parent leaves to the program that it becomes; descriptors of the child, of those that drain, held and passed ones,
/// the admin socket, and the memory of rows follow in this order.
#[derive(Debug, Serialize, Deserialize)]
struct Will {
    /// Whom children become. The configuration may be half written when the next program reads it.
    #[serde(default)]
    user: Option<RunAs>,
    past: Past,
    workers: usize,
    drain: Duration,
    again: bool,
    #[serde(default)]
    upgrades_next: bool,
    child: u32,
    /// Reloads that it has asked for.
    #[serde(default)]
    asked: u64,
    /// Numbers, and how long each may take.
    leaving: Vec<(u32, Duration)>,
    held: Vec<(SocketKind, SocketAddr, usize)>,
    /// Names that the service manager gave.
    passed: Vec<Option<String>>,
    /// Where the file of the admin socket is.
    admin_socket: Option<PathBuf>,
    /// The rows of the child and of those that drain.
    #[serde(default)]
    rows: Option<Vec<Option<usize>>>,
}

/// What the program before this one left.
#[derive(Debug)]
pub(super) struct Inheritance {
    will: Will,
    fds: Vec<OwnedFd>,
}

impl Inheritance {
    /// Reads it from standard input.
    pub(super) fn receive() -> io::Result<Self> {
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let received = fd_messages::receive(&stream, MOST_TEXT, MOST_FDS)?;
        let (text, fds) = received.ok_or(io::ErrorKind::UnexpectedEof)?;
        let will = serde_json::from_slice(&text)?;
        Ok(Self { will, fds })
    }

    /// Whom children become.
    pub(super) fn identity(&self) -> Option<Identity> {
        self.will.user.as_ref().map(RunAs::identity)
    }
}

/// Where this program is: as it was called, where that is a whole path, since a link may lead to another program by the time of an
/// upgrade; otherwise where it lay when it was started.
pub(super) fn program() -> io::Result<PathBuf> {
    let called = std::env::args_os().next().unwrap_or_default();
    let called = Path::new(&called);
    if called.is_absolute() && fs::exists(called)? {
        return Ok(called.to_owned());
    }
    std::env::current_exe()
}

/// Tells a process that it was a parent before, of another program.
pub(super) const IS_CONTINUED: &str = "BECKET_CONTINUED";
/// Beyond which a signal that was received would have been seen.
const MOMENT: Duration = Duration::from_millis(1);
/// Nobody reads before this process is another program: what the socket does not hold cannot be left.
const TO_WRITE: Duration = Duration::from_secs(1);
const MOST_TEXT: usize = 16 * 1024 * 1024;
const MOST_FDS: usize = 1024 * 1024;
