//! The old process' end: a thread that tells what there is, and what comes.
//!
//! Sessions of TLS 1.2 are copied, and so are where clients stick and what trials remember: all that there is, and at the cut what came meanwhile. Sessions
//! that admit early data move: they leave the table at the cut, when no worker accepts any more, so that each opens once whichever
//! process is asked. The successor is not trusted to read: a write waits until the upgrade is given up, and news that nobody takes
//! are dropped beyond [`MOST_NEWS`].

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use becket_proto::bounded_table::Cursor;
use becket_proto::session_name::SessionName;
use becket_proto::session_table::{Listener, Session};
use becket_proto::succession::{FRAME, HEAD, LONGEST, Record, Secrets, StickEntry, frame};
use zeroize::{Zeroize, Zeroizing};

use crate::shared::Shared;
use crate::trial::Trial;

/// The way to the process that replaces this one.
#[derive(Debug)]
pub(crate) struct Successor {
    stream: UnixStream,
    news: Sender<News>,
    shared: Arc<Shared>,
}

/// What there is to tell.
#[derive(Debug)]
enum News {
    /// A session has come or gone; whether it admits early data.
    Session(bool, SessionName),
    Cut(Cut),
    Left,
}

/// How the old process stops accepting.
pub(crate) struct Cut {
    /// One word of each worker, when it does not accept any more.
    pub(crate) parked: Receiver<()>,
    /// Of a host that is alone.
    pub(crate) secrets: Option<Secrets>,
    /// What is known of servers, and what an operator changed.
    pub(crate) known: Vec<Record>,
    /// Gives up what of common limits is not used, once no worker accepts.
    pub(crate) yields: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for Cut {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Cut").finish_non_exhaustive()
    }
}

impl Successor {
    /// Begins to tell.
    ///
    /// # Errors
    /// No thread, or no descriptor.
    pub(crate) fn start(
        stream: UnixStream,
        shared: &Arc<Shared>,
        trials: BTreeMap<String, Arc<Trial>>,
    ) -> io::Result<Self> {
        let (news, told) = channel();
        let waiting = Arc::<AtomicUsize>::default();
        for (is_early, table) in [(false, &shared.table), (true, &shared.early)] {
            let (news, waiting) = (news.clone(), Arc::clone(&waiting));
            table.tell(Some(Listener::new(move |name| {
                if waiting.fetch_add(1, Relaxed) >= MOST_NEWS
                    || news.send(News::Session(is_early, name)).is_err()
                {
                    waiting.fetch_sub(1, Relaxed);
                }
            })));
        }
        let mut teller = Teller {
            stream: stream.try_clone()?,
            shared: Arc::clone(shared),
            trials,
            frames: Zeroizing::new(Vec::with_capacity(2 * LONGEST)),
            is_cut: false,
        };
        let thread = thread::Builder::new().name("becket-successor".into());
        thread.spawn(move || {
            if let Err(error) = teller.tell(&told, &waiting) {
                tracing::warn!(%error, "the successor does not hear of more sessions");
            }
            teller.shared.table.tell(None);
            teller.shared.early.tell(None);
        })?;
        Ok(Self {
            stream,
            news,
            shared: Arc::clone(shared),
        })
    }

    /// Tells the rest, and that this process accepts nobody any more, once that is so.
    pub(crate) fn cut(&self, cut: Cut) {
        self.leave(News::Cut(cut));
    }

    /// Tells that the addresses of the cluster are free.
    pub(crate) fn tell_left(&self) {
        self.leave(News::Left);
    }

    fn leave(&self, news: News) {
        // A teller that has ended has said why.
        let _ended = self.news.send(news);
    }

    /// Ends this: there will be no successor. Returns what it said of that.
    pub(crate) fn give_up(self) -> Option<String> {
        self.shared.table.tell(None);
        self.shared.early.tell(None);
        let reason = reason(&self.stream);
        // Whoever tells may wait for a reader.
        let _closed_already = self.stream.shutdown(Shutdown::Both);
        reason
    }
}

/// The reason that the successor left, if there is one. Waits for nothing: it has ended.
fn reason(mut stream: &UnixStream) -> Option<String> {
    stream.set_nonblocking(true).ok()?;
    let mut head = [0; FRAME];
    stream.read_exact(&mut head).ok()?;
    let (length, sum) = frame(head)?;
    let mut record = vec![0; length];
    stream.read_exact(&mut record).ok()?;
    match Record::read(&record, sum) {
        Ok(Record::Failed(reason)) => Some(reason),
        _ => None,
    }
}

/// What the thread has.
struct Teller {
    stream: UnixStream,
    shared: Arc<Shared>,
    /// By policy.
    trials: BTreeMap<String, Arc<Trial>>,
    /// To be sent.
    frames: Zeroizing<Vec<u8>>,
    is_cut: bool,
}

impl Teller {
    fn tell(&mut self, news: &Receiver<News>, waiting: &AtomicUsize) -> io::Result<()> {
        self.frames.extend_from_slice(&HEAD);
        self.copy_table()?;
        let copied = self.shared.clock.mono();
        self.copy_sticks(None)?;
        self.copy_trials(None)?;
        for told in news {
            match told {
                News::Session(is_early, name) => {
                    waiting.fetch_sub(1, Relaxed);
                    self.tell_session(is_early, name)?;
                }
                News::Cut(cut) => {
                    for _ in 0..self.shared.workers {
                        // One that has ended accepts nobody either.
                        let _ended = cut.parked.recv_timeout(PATIENCE);
                    }
                    // What was made before the last worker stopped.
                    while let Ok(News::Session(is_early, name)) = news.try_recv() {
                        waiting.fetch_sub(1, Relaxed);
                        self.tell_session(is_early, name)?;
                    }
                    self.is_cut = true;
                    (cut.yields)();
                    self.move_early()?;
                    self.copy_sticks(Some(copied))?;
                    self.copy_trials(Some(copied))?;
                    for record in cut.known {
                        record.write(&mut self.frames);
                        self.send()?;
                    }
                    if let Some(secrets) = cut.secrets {
                        Record::Secrets(secrets).write(&mut self.frames);
                    }
                    Record::Cut.write(&mut self.frames);
                }
                News::Left => Record::Left.write(&mut self.frames),
            }
            self.send()?;
        }
        Ok(())
    }

    /// Tells every session of TLS 1.2 that is in the table now.
    fn copy_table(&mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut next = Some(Cursor::default());
        while let Some(from) = next {
            let now = shared.clock.mono();
            next = shared.table.visit(from, now, AT_ONCE, |visited| {
                if let Some(name) = SessionName::new(visited.policy, visited.id) {
                    self.write(false, name, visited.session.clone(), visited.remaining);
                }
            });
            self.send()?;
        }
        Ok(())
    }

    /// Tells which clients stick where: all, or those that came since then.
    fn copy_sticks(&mut self, since: Option<Duration>) -> io::Result<()> {
        for backend in self.shared.backends.all() {
            let life = backend.stick_life();
            let mut next = Some(Cursor::default());
            while let Some(from) = next {
                let now = self.shared.clock.mono();
                let mut sticks = Vec::with_capacity(AT_ONCE);
                next = backend.visit_sticks(from, now, AT_ONCE, |client, server, remaining| {
                    // Each use gives it its whole life again.
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

    /// Tells what trials remember: of the last day, or of the hours that have changed since then.
    fn copy_trials(&mut self, since: Option<Duration>) -> io::Result<()> {
        let now = self.shared.clock.mono();
        for trial in self.trials.values() {
            let hours = trial.hours(since, now).map(Record::TrialHour);
            hours.for_each(|hour| hour.write(&mut self.frames));
        }
        self.send()
    }

    /// Takes every session that admits early data out of the table, and tells it.
    fn move_early(&mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut next = Some(Cursor::default());
        while let Some(from) = next {
            let now = shared.clock.mono();
            let mut names = Vec::with_capacity(AT_ONCE);
            next = shared.early.visit(from, now, AT_ONCE, |visited| {
                names.extend(SessionName::new(visited.policy, visited.id));
            });
            for name in names {
                self.tell_session(true, name)?;
            }
        }
        Ok(())
    }

    /// Tells how it stands with a session now.
    fn tell_session(&mut self, is_early: bool, name: SessionName) -> io::Result<()> {
        let now = self.shared.clock.mono();
        if !is_early {
            match self.shared.table.hand_over(&name, now, false) {
                Some((session, remaining)) => self.write(false, name, session, remaining),
                None => Record::Forgotten(name).write(&mut self.frames),
            }
        } else if self.is_cut
            && let Some((session, remaining)) = self.shared.early.hand_over(&name, now, true)
        {
            self.write(true, name, session, remaining);
        }
        self.send()
    }

    fn write(&mut self, is_early: bool, name: SessionName, session: Session, remaining: Duration) {
        let record = Record::Session {
            is_early,
            name,
            session,
            remaining,
        };
        record.write(&mut self.frames);
    }

    fn send(&mut self) -> io::Result<()> {
        let sent = self.stream.write_all(&self.frames);
        // What was in it, and not all of its room: a table is told in thousands of steps, most of them empty.
        self.frames.as_mut_slice().zeroize();
        self.frames.clear();
        sent
    }
}

/// How long the cut waits for a worker, which looks up several times a second.
const PATIENCE: Duration = Duration::from_secs(5);
/// News that may wait, 48 bytes each: a minute of what one core can make.
const MOST_NEWS: usize = 100_000;
/// Places of a table that are looked at under its lock.
const AT_ONCE: usize = 64;
