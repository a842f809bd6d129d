//! Interface of the control thread to the workers: starts them, and sends messages to all of them.

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

#[derive(Debug)]
pub struct Workers {
    mailboxes: Vec<Arc<Mailbox>>,
    held: Vec<SocketAddr>,
    /// Addresses that the latest reload removed. Their sockets may still be open.
    retiring: Vec<SocketAddr>,
    signatures: Arc<SigningQueue>,
    /// Crypto threads; `None` until a configuration contains an expensive key.
    crypto: Option<CryptoThreads>,
}

#[derive(Debug)]
pub struct WorkerEnded {
    pub number: usize,
    pub result: io::Result<()>,
}

impl Workers {
    /// Starts one worker thread for each element of the list of sockets, pinned to a separate core
    /// if configured. Each thread calls `ended` when it ends.
    ///
    /// # Errors
    ///
    /// Fails if a worker cannot be created, for example if no descriptor is left or a thread cannot
    /// be started.
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

    /// Starts the crypto threads if the configuration has an expensive key and they do not run yet.
    ///
    /// # Errors
    ///
    /// Fails if no thread can be started.
    pub fn prepare_for(&mut self, config: &Config) -> io::Result<()> {
        if self.crypto.is_none() && config.has_expensive_keys() {
            self.crypto = Some(CryptoThreads::start(&self.signatures)?);
        }
        Ok(())
    }

    pub fn mailboxes(&self) -> &[Arc<Mailbox>] {
        &self.mailboxes
    }

    pub fn count(&self) -> usize {
        self.mailboxes.len()
    }

    /// Returns the configured addresses, and the addresses whose sockets the latest reload retired.
    pub fn addresses(&self) -> (&[SocketAddr], &[SocketAddr]) {
        (&self.held, &self.retiring)
    }

    /// Sends the configuration to every worker, with its outbox and its new sockets.
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

    pub fn rotate(&self, secrets: &Arc<TicketSecrets>) {
        self.send_all(|| WorkerMessage::Secrets(Arc::clone(secrets)));
    }

    pub fn end_idle(&self, idle: IdleReclaim) {
        self.send_all(|| WorkerMessage::EndIdle(idle));
    }

    /// Sends every worker a request to stop accepting. Each worker confirms on the returned
    /// channel.
    pub fn park(&self) -> Receiver<()> {
        let (parked, said) = channel();
        self.send_all(|| WorkerMessage::Park(parked.clone()));
        said
    }

    pub fn accept(&self) {
        self.send_all(|| WorkerMessage::Accept);
    }

    /// Sends every worker a request to stop accepting, and to end after its last connection.
    /// Another process also listens on the `passed_on` addresses.
    pub fn drain(&self, passed_on: &[SocketAddr]) {
        let passed_on: Arc<[SocketAddr]> = passed_on.into();
        self.send_all(|| WorkerMessage::Drain(Arc::clone(&passed_on)));
    }

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
        tracing::warn!(name: "worker-pin-failed", %error, cpu, worker = start.number, "cannot pin a worker to its core");
    }
    Worker::new(start)?.run()
}

fn addresses(config: &Config) -> Vec<SocketAddr> {
    let listeners = config.listeners.iter();
    listeners
        .flat_map(|listener| listener.bind.iter().copied())
        .collect()
}
