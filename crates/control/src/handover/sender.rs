//! Sends the state of the old process in a thread of that process.
//!
//! Sessions in the table and stick entries are copied once. Changes during the copy are sent as
//! well: sessions immediately, stick entries before the cut. Sessions that allow early data are not
//! sent, because each may be used only once, by the process that created it.
//!
//! If the new process does not read, writes block until the upgrade ends. At most [`MOST_WAITING`]
//! sessions are queued; further sessions are dropped.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, channel};
use std::thread;
use std::time::Duration;

use becket_proto::bounded_table::Cursor;
use becket_proto::handover::{HEAD, LONGEST, Record, StickEntry};
use becket_proto::session::{Session, SessionName};
use zeroize::{Zeroize, Zeroizing};

use super::receiver::Milestone;
use becket_proxy::shared::SharedState;

#[derive(Debug)]
pub struct Sender {
    stream: UnixStream,
    items: mpsc::Sender<Item>,
    shared: Arc<SharedState>,
}

#[derive(Debug)]
enum Item {
    /// A session was created or removed.
    Session(SessionName),
    Reached(Milestone),
}

impl Sender {
    /// Starts the sending thread.
    ///
    /// # Errors
    /// Fails if no thread or no descriptor is available.
    pub fn start(stream: UnixStream, shared: &Arc<SharedState>) -> io::Result<Self> {
        let (items, received) = channel();
        let waiting = Arc::<AtomicUsize>::default();
        let (sender, count) = (items.clone(), Arc::clone(&waiting));
        shared.table.observe(Some(Arc::new(move |name| {
            if count.fetch_add(1, Relaxed) >= MOST_WAITING
                || sender.send(Item::Session(name)).is_err()
            {
                count.fetch_sub(1, Relaxed);
            }
        })));
        let mut writer = Writer {
            stream: stream.try_clone()?,
            shared: Arc::clone(shared),
            frames: Zeroizing::new(Vec::with_capacity(2 * LONGEST)),
        };
        let thread = thread::Builder::new().name("becket-handover".into());
        thread.spawn(move || {
            if let Err(error) = writer.send_all(&received, &waiting) {
                tracing::warn!(name: "state-send-failed", %error, "cannot send state to the new process");
            }
            writer.shared.table.observe(None);
        })?;
        Ok(Self {
            stream,
            items,
            shared: Arc::clone(shared),
        })
    }

    /// Reports a milestone to the new process. Sends the final state of this process before
    /// [`Milestone::Cut`].
    pub fn reach(&self, milestone: Milestone) {
        // Sending fails only if the thread has exited after logging an error.
        let _ended = self.items.send(Item::Reached(milestone));
    }

    /// Stops sending because the upgrade failed.
    pub fn give_up(self) {
        self.shared.table.observe(None);
        // Unblock a pending write of the thread.
        let _closed_already = self.stream.shutdown(Shutdown::Both);
    }
}

struct Writer {
    stream: UnixStream,
    shared: Arc<SharedState>,
    frames: Zeroizing<Vec<u8>>,
}

impl Writer {
    fn send_all(&mut self, items: &Receiver<Item>, waiting: &AtomicUsize) -> io::Result<()> {
        self.frames.extend_from_slice(&HEAD);
        self.copy_table()?;
        let copied = self.shared.clock.mono();
        self.copy_sticks(None)?;
        for item in items {
            match item {
                Item::Session(name) => {
                    waiting.fetch_sub(1, Relaxed);
                    self.write_session(name);
                }
                Item::Reached(Milestone::Cut(secrets, servers)) => {
                    self.copy_sticks(Some(copied))?;
                    for server in servers {
                        Record::Server(server).write(&mut self.frames);
                        self.send()?;
                    }
                    if let Some(secrets) = secrets {
                        Record::Secrets(secrets).write(&mut self.frames);
                    }
                    Record::Cut.write(&mut self.frames);
                }
                Item::Reached(Milestone::Left) => Record::Left.write(&mut self.frames),
            }
            self.send()?;
        }
        Ok(())
    }

    /// Sends every TLS 1.2 session in the table.
    fn copy_table(&mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut next = Some(Cursor::default());
        while let Some(from) = next {
            let now = shared.clock.mono();
            next = shared.table.visit(from, now, AT_ONCE, |visited| {
                if let Some(name) = SessionName::new(visited.policy, visited.id) {
                    self.write(name, visited.session.clone(), visited.remaining);
                }
            });
            self.send()?;
        }
        Ok(())
    }

    /// Sends all stick entries, or only those used after `since`.
    fn copy_sticks(&mut self, since: Option<Duration>) -> io::Result<()> {
        for backend in self.shared.backends.all() {
            let life = backend.stick_life();
            let mut next = Some(Cursor::default());
            while let Some(from) = next {
                let now = self.shared.clock.mono();
                let mut sticks = Vec::with_capacity(AT_ONCE);
                next = backend.visit_sticks(from, now, AT_ONCE, |client, server, remaining| {
                    // Each use restarts the lifetime of an entry, so the time of its last use
                    // follows from the remaining lifetime.
                    if since.is_none_or(|since| now + remaining >= since + life) {
                        sticks.push(StickEntry {
                            client,
                            server,
                            remaining,
                        });
                    }
                });
                if !sticks.is_empty() {
                    let backend = backend.name().to_owned();
                    Record::Sticks { backend, sticks }.write(&mut self.frames);
                    self.send()?;
                }
            }
        }
        Ok(())
    }

    /// Encodes the current state of a session, or its removal.
    fn write_session(&mut self, name: SessionName) {
        match self.shared.table.copy(&name, self.shared.clock.mono()) {
            Some((session, remaining)) => self.write(name, session, remaining),
            None => Record::Forgotten(name).write(&mut self.frames),
        }
    }

    fn write(&mut self, name: SessionName, session: Session, remaining: Duration) {
        let record = Record::Session {
            name,
            session,
            remaining,
        };
        record.write(&mut self.frames);
    }

    fn send(&mut self) -> io::Result<()> {
        let sent = self.stream.write_all(&self.frames);
        // Erase only the used part of the buffer, because most of the thousands of steps encode
        // nothing.
        self.frames.as_mut_slice().zeroize();
        self.frames.clear();
        sent
    }
}

/// Maximum number of queued sessions, 48 bytes each. One core creates this number in about a
/// minute.
const MOST_WAITING: usize = 100_000;
/// Maximum number of table entries visited under one lock.
const AT_ONCE: usize = 64;
