//! The child's end of the way to its parent: orders arrive, replies go.
//!
//! The socket is the child's standard input. A thread waits for orders, since descriptors come with them that the runtime
//! would not take. That the parent is gone ends the child as an order to drain does: nobody else could tell it anything any more.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use becket_sys::log_file::append;
use becket_sys::{affinity, fd_messages, privileges};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::rows::Rows;
use super::{Handed, Order, Past, Reply};
use crate::files::Files;
use crate::signing::token::starter::StarterProcess;

/// The way to the parent.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    pub(crate) past: Past,
    /// Where a process that this one replaces tells what there is to know.
    pub(crate) predecessor: Option<UnixStream>,
    /// What is shared with other processes, and the row of this one.
    pub(crate) row: Option<(Rows, usize)>,
}

/// What the parent wants.
#[derive(Debug)]
pub(crate) enum Wish {
    /// Reload with these.
    Load(Handed),
    /// Look at files of certificates, those of these that were handed over.
    Renew(Files),
    /// Open the log files anew.
    Reopen,
    /// Tell a successor what it is to know.
    Upgrade(UnixStream),
    /// Accept nobody any more.
    Yield,
    /// The successor serves, and has the sockets of these addresses: finish, end.
    Leave(Vec<SocketAddr>),
    /// There is no successor, for this reason.
    NotUpgraded(String),
    /// Take no new clients, finish, end.
    Drain,
    /// End now.
    Stop,
}

/// Waits for what this process is to start with, and becomes the user that it is to be, without any right of root's. Where keys are on
/// tokens, what starts the processes that speak with them is started before. Call it before threads are started.
///
/// # Errors
/// When the parent is gone, or a right could not be given up.
pub(crate) fn begin() -> io::Result<(Link, Handed, Option<StarterProcess>)> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (order, mut fds) = receive(&stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let Order::Begin(begin) = order else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    call_by_name();
    // What speaks with tokens sees the host.
    let identity = begin.user.as_ref().map(|user| user.identity());
    let starter = match begin.list.has_tokens {
        true => Some(StarterProcess::spawn(identity.as_ref())?),
        false => None,
    };
    let mut logs = BTreeMap::new();
    if let Some(user) = &begin.user
        && let Some(folder) = &user.chroot
    {
        let open = || user.logs.iter().map(|log| (log.clone(), append(log)));
        logs = privileges::with_rights_of(&user.identity(), || open().collect())?;
        // While there is a /proc that tells of quotas.
        let _count = affinity::worker_count();
        privileges::enter_root(folder).map_err(|error| {
            let text = format!("process.chroot = {:?}: {error}", folder.display());
            io::Error::new(error.kind(), text)
        })?;
    }
    privileges::forbid_new_privileges()?;
    if let Some(user) = begin.user {
        privileges::drop_to(&user.identity())?;
    }
    let predecessor = match begin.replaces {
        true => Some(fds.pop().ok_or(io::ErrorKind::InvalidData)?.into()),
        false => None,
    };
    let row = match begin.row {
        Some(row) => Some((fds.pop().ok_or(io::ErrorKind::InvalidData)?, row)),
        None => None,
    };
    let mut handed = Handed::new(begin.list, fds)?;
    handed.files = handed.files.with_logs(logs);
    handed.sockets.listen_later = begin.replaces;
    let link = Link {
        stream,
        past: begin.past,
        predecessor,
        // Of another version there is none.
        row: row.and_then(|(file, row)| Some((Rows::open(file).ok()?, row))),
    };
    Ok((link, handed, starter))
}

/// Takes the name of the program for that of this process, which the kernel took from the link that was executed: `pgrep`
/// looks for it.
fn call_by_name() {
    let program = std::env::args_os().next().unwrap_or_default();
    if let Some(name) = Path::new(&program).file_name()
        && let Err(error) = std::fs::write("/proc/self/comm", name.as_encoded_bytes())
    {
        tracing::debug!(%error, "process not named");
    }
}

impl Link {
    /// Says something to the parent. That it is gone is noticed where orders arrive.
    pub(crate) fn say(&self, reply: Reply) {
        if let Err(error) = (&self.stream).write_all(&[reply as u8]) {
            tracing::debug!(%error, "parent not told");
        }
    }

    /// Starts the thread that waits for orders.
    ///
    /// # Errors
    /// When there can be no more threads or descriptors.
    pub(crate) fn listen(&self) -> io::Result<UnboundedReceiver<Wish>> {
        let (sender, receiver) = unbounded_channel();
        let stream = self.stream.try_clone()?;
        let thread = thread::Builder::new().name("becket-parent".into());
        thread.spawn(move || hear(&stream, &sender))?;
        Ok(receiver)
    }
}

fn hear(stream: &UnixStream, wishes: &UnboundedSender<Wish>) {
    let mut drains = false;
    loop {
        let wish = match receive(stream) {
            Ok(Some((Order::Load(list), fds))) => Handed::new(list, fds).map(Wish::Load),
            Ok(Some((Order::Renew(list), fds))) => {
                Handed::new(list, fds).map(|handed| Wish::Renew(handed.files))
            }
            Ok(Some((Order::Reopen, _))) => Ok(Wish::Reopen),
            Ok(Some((Order::Upgrade, mut fds))) => {
                let stream = fds.pop().ok_or(io::ErrorKind::InvalidData.into());
                stream.map(|stream| Wish::Upgrade(stream.into()))
            }
            Ok(Some((Order::Yield, _))) => Ok(Wish::Yield),
            Ok(Some((Order::Leave(addresses), _))) => Ok(Wish::Leave(addresses)),
            Ok(Some((Order::NotUpgraded(reason), _))) => Ok(Wish::NotUpgraded(reason)),
            Ok(Some((Order::Drain, _))) => Ok(Wish::Drain),
            Ok(Some((Order::Stop, _))) => Ok(Wish::Stop),
            Ok(Some((Order::Begin(_), _))) => Err(io::ErrorKind::InvalidData.into()),
            Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(error),
        };
        let last = wish.is_err();
        let wish = wish.unwrap_or_else(|error| {
            tracing::error!(%error, "the parent process is gone");
            Wish::Drain
        });
        // A second order to drain would cut connections off; without a parent it goes on as it was told.
        if last && drains {
            return;
        }
        drains |= matches!(wish, Wish::Drain | Wish::Leave(_));
        // Nobody takes wishes any more when this process is on its way out.
        if wishes.send(wish).is_err() || last {
            return;
        }
    }
}

fn receive(stream: &UnixStream) -> io::Result<Option<(Order, Vec<OwnedFd>)>> {
    let Some((text, fds)) = fd_messages::receive(stream, MOST_TEXT, MOST_FDS)? else {
        return Ok(None);
    };
    Ok(Some((serde_json::from_slice(&text)?, fds)))
}

/// Paths of a hundred thousand certificates.
const MOST_TEXT: usize = 64 * 1024 * 1024;
const MOST_FDS: usize = 1024 * 1024;
