//! The companion's connections: to the supervisor, which is standard input, and to the serving
//! process.
//!
//! The first command of the supervisor has the configuration. Each later one has a socket to the
//! serving process, which replaces the earlier one. The end of the stream means that the companion
//! must exit.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use becket_process::companion_link::{
    AcmeChallenge, BundleText, CompanionLink, FromCompanion, HeldBundles, ToCompanion,
};
use becket_process::protocol::{AcmeStart, Command, LONGEST_COMMAND};
use becket_proto::acme::BundleFacts;
use becket_sys::fd_messages;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::error::Error;

/// Reads the first command. Blocks; returns `None` if the supervisor has exited.
pub fn begin(stream: &UnixStream) -> io::Result<Option<AcmeStart>> {
    let Some((text, _)) = fd_messages::receive(stream, LONGEST_COMMAND, 0)? else {
        return Ok(None);
    };
    match serde_json::from_slice(&text)? {
        Command::Acme(start) => Ok(Some(*start)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Returns standard input as a socket.
pub fn stdin() -> io::Result<UnixStream> {
    Ok(io::stdin().as_fd().try_clone_to_owned()?.into())
}

/// The connection to the serving process. It sends the present state to each new serving process.
#[derive(Debug)]
pub struct Link {
    held: watch::Sender<HeldBundles>,
    /// Pending challenges, and the number of this set.
    pending: watch::Sender<(u32, Vec<AcmeChallenge>)>,
    bundles: UnboundedSender<(u32, BundleText)>,
    /// Number of the set that the serving process answers.
    served: watch::Receiver<Option<u32>>,
    ranks: watch::Receiver<Vec<u16>>,
    number: Cell<u32>,
}

/// The task that owns the socket.
struct Connection {
    sockets: UnboundedReceiver<OwnedFd>,
    held: watch::Receiver<HeldBundles>,
    pending: watch::Receiver<(u32, Vec<AcmeChallenge>)>,
    bundles: UnboundedReceiver<(u32, BundleText)>,
    served: watch::Sender<Option<u32>>,
    ranks: watch::Sender<Vec<u16>>,
    requests: mpsc::Sender<ToCompanion>,
    link: Option<CompanionLink>,
}

impl Link {
    /// Starts a thread that receives commands of the supervisor, and a local task that exchanges
    /// messages with the serving process. Returns the link and the requests of the serving process.
    pub fn start(
        stream: UnixStream,
        held: HeldBundles,
    ) -> io::Result<(Rc<Self>, mpsc::Receiver<ToCompanion>)> {
        let (sender, sockets) = unbounded_channel();
        thread::Builder::new()
            .name("becket-command".into())
            .spawn(move || receive_commands(&stream, &sender))?;
        let (held, changed) = watch::channel(held);
        // A late answer to a set of an earlier companion has another number.
        let number = fastrand::u32(..);
        let (pending, changed_set) = watch::channel((number, Vec::new()));
        let (bundles, sent) = unbounded_channel();
        let (answered, served) = watch::channel(None);
        let (ranked, ranks) = watch::channel(Vec::new());
        let (requests, received) = mpsc::channel(MOST_REQUESTS);
        let connection = Connection {
            sockets,
            held: changed,
            pending: changed_set,
            bundles: sent,
            served: answered,
            ranks: ranked,
            requests,
            link: None,
        };
        tokio::task::spawn_local(connection.run());
        let link = Self {
            held,
            pending,
            bundles,
            served,
            ranks,
            number: Cell::new(number),
        };
        Ok((Rc::new(link), received))
    }

    /// Waits until the supervisor closes its socket.
    pub async fn closed(&self) {
        let mut served = self.served.clone();
        while served.changed().await.is_ok() {}
    }

    /// Replaces the pending challenges, and waits until the serving process answers them.
    pub async fn serve(&self, challenges: Vec<AcmeChallenge>) -> Result<(), Error> {
        let fault = |text: &str| Error::Challenge(text.to_owned());
        let number = self.set_pending(challenges);
        let mut served = self.served.clone();
        let served = timeout(PATIENCE, served.wait_for(|it| *it == Some(number)));
        match served.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(fault("the supervisor exited")),
            Err(_) => Err(fault(
                "the serving process does not answer challenges; see its log",
            )),
        }
    }

    /// Returns the ranks of this node, one for each certificate, or none while they are unknown.
    pub fn ranks(&self) -> watch::Receiver<Vec<u16>> {
        self.ranks.clone()
    }

    /// Withdraws all challenges.
    pub fn withdraw(&self) {
        self.set_pending(Vec::new());
    }

    /// Announces a new bundle of a certificate.
    pub fn hold(&self, index: usize, facts: Option<BundleFacts>) {
        self.held.send_modify(|held| held.bundles[index] = facts);
    }

    /// Announces the names of the on-demand certificates.
    pub fn set_on_demand(&self, on_demand: Vec<Option<String>>, configured: usize) {
        self.held.send_modify(|held| {
            held.bundles.resize(configured + on_demand.len(), None);
            held.on_demand = on_demand;
        });
    }

    /// Sends a bundle that the serving process requested.
    pub fn send_bundle(&self, index: u32, bundle: BundleText) {
        // Fails only when the supervisor has exited.
        self.bundles.send((index, bundle)).ok();
    }

    fn set_pending(&self, challenges: Vec<AcmeChallenge>) -> u32 {
        let number = self.number.get().wrapping_add(1);
        self.number.set(number);
        self.pending.send_replace((number, challenges));
        number
    }
}

impl Connection {
    /// Runs until the supervisor exits, which closes `served`.
    async fn run(mut self) {
        loop {
            let next = async {
                match &mut self.link {
                    Some(link) => link.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                socket = self.sockets.recv() => match socket {
                    Some(socket) => self.connect(socket),
                    None => return,
                },
                message = next => self.handle(message),
                Ok(()) = self.held.changed() => self.send_held(),
                Ok(()) = self.pending.changed() => self.send_pending(),
                Some((index, bundle)) = self.bundles.recv() => {
                    self.send(&FromCompanion::Bundle(index, bundle));
                }
                else => return,
            }
        }
    }

    fn connect(&mut self, socket: OwnedFd) {
        match CompanionLink::new(socket) {
            Ok(link) => self.link = Some(link),
            Err(error) => tracing::debug!(%error, "cannot use the socket of the serving process"),
        }
        self.send_held();
        self.send_pending();
    }

    fn send_held(&mut self) {
        let held = self.held.borrow_and_update().clone();
        self.send(&FromCompanion::Held(held));
    }

    fn send_pending(&mut self) {
        let (number, challenges) = self.pending.borrow_and_update().clone();
        self.send(&FromCompanion::Challenges(number, challenges));
    }

    fn send(&mut self, message: &FromCompanion) {
        if let Some(link) = &mut self.link {
            link.send(message);
        }
    }

    fn handle(&mut self, message: Option<ToCompanion>) {
        match message {
            Some(ToCompanion::ChallengesServed(number)) => {
                self.served.send_replace(Some(number));
            }
            Some(ToCompanion::Ranks(ranks)) => drop(self.ranks.send_replace(ranks)),
            Some(request) => {
                if self.requests.try_send(request).is_err() {
                    tracing::debug!("dropped a request of the serving process");
                }
            }
            None => self.link = None,
        }
    }
}

/// Receives commands until the end of the stream.
fn receive_commands(stream: &UnixStream, sockets: &UnboundedSender<OwnedFd>) {
    while let Ok(Some((text, fds))) = fd_messages::receive(stream, LONGEST_COMMAND, 1) {
        match serde_json::from_slice(&text) {
            Ok(Command::Companion) => {
                let sent = fds.into_iter().try_for_each(|socket| sockets.send(socket));
                if sent.is_err() {
                    return;
                }
            }
            Ok(Command::Stop | Command::Drain | Command::Leave) => return,
            // Other commands are for serving processes.
            Ok(_) | Err(_) => tracing::debug!("ignored a command of the supervisor"),
        }
    }
}

/// Time limit for all workers, and the other nodes, to answer a set of challenges.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of requests that wait for the companion. The serving process repeats them.
const MOST_REQUESTS: usize = 16;

#[cfg(test)]
mod tests {
    use becket_proto::acme::ChallengeAnswer;
    use tokio::task::LocalSet;

    use super::*;

    fn challenge() -> AcmeChallenge {
        AcmeChallenge {
            certificate: 0,
            name: 1,
            answer: ChallengeAnswer::TlsAlpn([7; 32]),
            lifetime: 60,
        }
    }

    fn held_bundles() -> HeldBundles {
        HeldBundles {
            bundles: vec![None],
            ..HeldBundles::default()
        }
    }

    /// Connects a companion to a new serving process.
    fn connect(supervisor: &UnixStream) -> CompanionLink {
        let (one, two) = UnixStream::pair().unwrap();
        let text = serde_json::to_vec(&Command::Companion).unwrap();
        fd_messages::send(supervisor, &text, &[two.as_fd()], PATIENCE).unwrap();
        CompanionLink::new(one.into()).unwrap()
    }

    /// Returns the first messages to a serving process: the set of challenges.
    async fn begun(serving: &mut CompanionLink) -> (u32, Vec<AcmeChallenge>) {
        let held = serving.next().await;
        assert_eq!(held, Some(FromCompanion::Held(held_bundles())));
        match serving.next().await {
            Some(FromCompanion::Challenges(number, set)) => (number, set),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_set_is_served_when_its_number_comes_back() {
        let (supervisor, companion) = UnixStream::pair().unwrap();
        LocalSet::new()
            .run_until(async {
                let (link, mut requests) = Link::start(companion, held_bundles()).unwrap();
                let answers = async {
                    let mut serving = connect(&supervisor);
                    let (_, set) = begun(&mut serving).await;
                    assert_eq!(set, [challenge()]);
                    // The next serving process gets the same set.
                    let mut serving = connect(&supervisor);
                    let (number, set) = begun(&mut serving).await;
                    assert_eq!(set, [challenge()]);
                    serving.send(&ToCompanion::Ranks(vec![3]));
                    serving.send(&ToCompanion::Send(0));
                    serving.send(&ToCompanion::ChallengesServed(number.wrapping_sub(1)));
                    serving.send(&ToCompanion::ChallengesServed(number));
                    let next = serving.next().await;
                    let withdrawn = FromCompanion::Challenges(number.wrapping_add(1), Vec::new());
                    assert_eq!(next, Some(withdrawn));
                };
                let serve = async {
                    link.serve(vec![challenge()]).await.unwrap();
                    link.withdraw();
                };
                tokio::join!(answers, serve);
                assert_eq!(requests.recv().await, Some(ToCompanion::Send(0)));
                assert_eq!(*link.ranks().borrow(), [3]);
                drop(supervisor);
                link.closed().await;
                assert!(link.serve(Vec::new()).await.is_err());
            })
            .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_set_that_is_not_served_fails() {
        let (_supervisor, companion) = UnixStream::pair().unwrap();
        LocalSet::new()
            .run_until(async {
                let (link, _requests) = Link::start(companion, HeldBundles::default()).unwrap();
                let error = link.serve(vec![challenge()]).await.unwrap_err();
                assert!(error.to_string().contains("see its log"), "{error}");
            })
            .await;
    }
}
