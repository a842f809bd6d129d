//! The workers, seen from control: started together, told things together.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use mio::{Poll, Token, Waker};

use crate::backend::inbox::Inbox;
use crate::backend::registry::Adopted;
use crate::memory::IdleReclaim;
use crate::worker::bound::BoundListener;
use crate::worker::event_loop::{MAILBOX, Worker};
use crate::worker::mailbox::{Mailbox, WorkerMessage};
use crate::worker::start::{Common, Start};
use becket_cluster::Outbox;
use becket_keys::signing::queue::SigningQueue;
use becket_keys::signing::threads::CryptoThreads;
use becket_log::access_log::AccessWriter;
use becket_tls::config::Config;
use becket_tls::sessions::tickets::TicketSecrets;

/// All workers.
#[derive(Debug)]
pub struct Workers {
    mailboxes: Vec<Arc<Mailbox>>,
    /// Addresses that the workers listen on.
    held: Vec<SocketAddr>,
    /// Addresses that the last reload took away: their sockets may not be closed yet.
    retiring: Vec<SocketAddr>,
    /// What they ask for signatures.
    signatures: Arc<SigningQueue>,
    /// Who signs for them, from the first expensive key on.
    crypto: Option<CryptoThreads>,
}

/// What a worker leaves when it has ended.
#[derive(Debug)]
pub struct WorkerEnded {
    /// Which worker.
    pub number: usize,
    /// How it ended.
    pub result: io::Result<()>,
}

impl Workers {
    /// Starts one thread per list of sockets, each pinned to a core of its own if so configured. Each calls `ended` when it ends.
    ///
    /// # Errors
    ///
    /// When a worker cannot be made: no descriptor, no thread, or an unusable configuration.
    pub fn start(
        common: &Common,
        sockets: Vec<Vec<BoundListener>>,
        mut access: Option<&mut AccessWriter>,
        ended: impl Fn(WorkerEnded) + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let cpus = becket_sys::affinity::allowed_cpus()?;
        let config = common.adopted.config();
        let held = addresses(config);
        let mut mailboxes = Vec::with_capacity(sockets.len());
        for (number, sockets) in sockets.into_iter().enumerate() {
            let poll = Poll::new()?;
            let waker = Waker::new(poll.registry(), Token(MAILBOX))?;
            let mailbox = Arc::new(Mailbox::new(waker));
            mailboxes.push(Arc::clone(&mailbox));
            let start = Start {
                number,
                common: common.clone(),
                poll,
                mailbox,
                access: access.as_mut().map(|access| access.attach()),
                sockets,
            };
            let cpu = cpus.get(number % cpus.len().max(1)).copied();
            let cpu = cpu.filter(|_| config.file.process.pin);
            let ended = ended.clone();
            thread::Builder::new()
                .name(format!("becket-{number}"))
                .spawn(move || {
                    let result = run(start, cpu);
                    ended(WorkerEnded { number, result });
                })?;
        }
        let inbox = |mailbox: &Arc<Mailbox>| Arc::clone(mailbox) as Arc<dyn Inbox>;
        let inboxes = mailboxes.iter().map(inbox).collect();
        common.shared.backends.set_inboxes(inboxes);
        let mut workers = Self {
            mailboxes,
            held,
            retiring: Vec::new(),
            signatures: Arc::clone(&common.shared.signatures),
            crypto: None,
        };
        workers.prepare_for(config)?;
        Ok(workers)
    }

    /// Starts what workers need to serve by a configuration and do not have yet: crypto threads, where it has an
    /// expensive key.
    ///
    /// # Errors
    ///
    /// When the system gives no more threads.
    pub fn prepare_for(&mut self, config: &Config) -> io::Result<()> {
        if self.crypto.is_none() && config.has_expensive_keys() {
            self.crypto = Some(CryptoThreads::start(&self.signatures)?);
        }
        Ok(())
    }

    /// Where each of them is told things.
    pub fn mailboxes(&self) -> &[Arc<Mailbox>] {
        &self.mailboxes
    }

    /// Number of workers.
    pub fn len(&self) -> usize {
        self.mailboxes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.mailboxes.is_empty()
    }

    /// Addresses that the workers listen on, and those that they are about to leave.
    pub fn addresses(&self) -> (&[SocketAddr], &[SocketAddr]) {
        (&self.held, &self.retiring)
    }

    /// Gives every worker the configuration, its outbox, and its new sockets, if there are any.
    pub fn reload(
        &mut self,
        adopted: &Adopted,
        added: Vec<Vec<BoundListener>>,
        outboxes: &[Outbox],
    ) {
        let mut added = added.into_iter();
        for (number, mailbox) in self.mailboxes.iter().enumerate() {
            mailbox.post(WorkerMessage::Config {
                adopted: adopted.clone(),
                added: added.next().unwrap_or_default(),
                outbox: outboxes.get(number).cloned(),
            });
        }
        let before = std::mem::replace(&mut self.held, addresses(adopted.config()));
        self.retiring = before;
        self.retiring.retain(|address| !self.held.contains(address));
    }

    /// Gives every worker new ticket secrets.
    pub fn rotate(&self, secrets: &Arc<TicketSecrets>) {
        self.send_all(|| WorkerMessage::Secrets(Arc::clone(secrets)));
    }

    /// Has every worker end connections at rest.
    pub fn end_idle(&self, idle: IdleReclaim) {
        self.send_all(|| WorkerMessage::EndIdle(idle));
    }

    /// Tells every worker to accept nobody. A word comes of each that has heard it.
    pub fn park(&self) -> Receiver<()> {
        let (parked, said) = channel();
        self.send_all(|| WorkerMessage::Park(parked.clone()));
        said
    }

    /// Tells every worker to accept clients.
    pub fn accept(&self) {
        self.send_all(|| WorkerMessage::Accept);
    }

    /// Tells every worker to take no new clients and to end when the last has left. Another process has the sockets of
    /// the addresses that were passed on.
    pub fn drain(&self, passed_on: &[SocketAddr]) {
        let passed_on: Arc<[SocketAddr]> = passed_on.into();
        self.send_all(|| WorkerMessage::Drain(Arc::clone(&passed_on)));
    }

    /// Tells every worker to end now.
    pub fn stop(&self) {
        self.send_all(|| WorkerMessage::Stop);
    }

    fn send_all(&self, message: impl Fn() -> WorkerMessage) {
        for mailbox in &self.mailboxes {
            mailbox.post(message());
        }
    }
}

fn run(start: Start, cpu: Option<usize>) -> io::Result<()> {
    if let Some(cpu) = cpu
        && let Err(error) = becket_sys::affinity::pin_current_thread(cpu)
    {
        tracing::warn!(%error, cpu, worker = start.number, "worker not pinned");
    }
    Worker::new(start)?.run()
}

fn addresses(config: &Config) -> Vec<SocketAddr> {
    let listeners = config.listeners.iter();
    listeners
        .flat_map(|listener| listener.bind.iter().copied())
        .collect()
}
