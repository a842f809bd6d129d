//! The companion's end of the socket pair to the supervisor, which is standard input.
//!
//! The first command has the configuration. Afterwards the companion sends sets of challenges, and
//! the supervisor reports which set the serving process answers. The end of the stream means that
//! the companion must exit.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use becket_process::protocol::{
    AcmeChallenge, AcmeStart, Command, Event, LONGEST_COMMAND, MOST_CHALLENGES,
};
use becket_sys::fd_messages::{self, Incoming, Outgoing};
use tokio::io::Interest;
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

/// The socket, for one sender.
#[derive(Debug)]
pub struct Link {
    raw: UnixStream,
    ready: Rc<tokio::net::UnixStream>,
    /// Number of the last set.
    number: Cell<u32>,
    /// Number of the set that the serving process answers.
    served: watch::Receiver<Option<u32>>,
}

impl Link {
    /// Starts a local task that receives commands.
    pub fn start(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let raw = stream.try_clone()?;
        let ready = Rc::new(tokio::net::UnixStream::from_std(stream)?);
        let (sender, served) = watch::channel(None);
        tokio::task::spawn_local(receive(raw.try_clone()?, Rc::clone(&ready), sender));
        Ok(Self {
            raw,
            ready,
            // A late answer to a set of an earlier companion has another number.
            number: Cell::new(fastrand::u32(..)),
            served,
        })
    }

    /// Waits until the supervisor closes the socket.
    pub async fn closed(&self) {
        let mut served = self.served.clone();
        while served.changed().await.is_ok() {}
    }

    /// Replaces the pending challenges, and waits until the serving process answers them.
    pub async fn serve(&self, challenges: Vec<AcmeChallenge>) -> Result<(), Error> {
        let fault = |text: &str| Error::Challenge(text.to_owned());
        if challenges.len() > MOST_CHALLENGES {
            return Err(fault("too many challenges"));
        }
        let number = self.send(challenges).await;
        let number = number.map_err(|error| Error::os("send challenges", error))?;
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

    /// Withdraws all challenges.
    pub async fn withdraw(&self) {
        if let Err(error) = self.send(Vec::new()).await {
            tracing::debug!(%error, "cannot withdraw challenges");
        }
    }

    async fn send(&self, challenges: Vec<AcmeChallenge>) -> io::Result<u32> {
        let number = self.number.get().wrapping_add(1);
        self.number.set(number);
        let text = serde_json::to_vec(&Event::Challenges(number, challenges))?;
        let mut outgoing = Outgoing::<OwnedFd>::default();
        outgoing.push(&text, Vec::new())?;
        loop {
            self.ready.writable().await?;
            let flushed = self.ready.try_io(Interest::WRITABLE, || {
                let is_sent = outgoing.flush(&self.raw)?;
                is_sent
                    .then_some(())
                    .ok_or(io::ErrorKind::WouldBlock.into())
            });
            match flushed {
                Ok(()) => return Ok(number),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Receives commands until the end of the stream, which closes `served`.
async fn receive(
    raw: UnixStream,
    ready: Rc<tokio::net::UnixStream>,
    served: watch::Sender<Option<u32>>,
) {
    let mut incoming = Incoming::default();
    loop {
        while let Ok(Some(text)) = incoming.take(LONGEST_COMMAND) {
            match serde_json::from_slice(&text) {
                Ok(Command::ChallengesServed(number)) => drop(served.send_replace(Some(number))),
                Ok(Command::Stop | Command::Drain | Command::Leave) => return,
                // Other commands are for serving processes.
                Ok(_) | Err(_) => tracing::debug!("ignored a command of the supervisor"),
            }
        }
        if ready.readable().await.is_err() {
            return;
        }
        match ready.try_io(Interest::READABLE, || incoming.read(&raw, READ)) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// Time limit for all workers to answer a set of challenges.
const PATIENCE: Duration = Duration::from_secs(10);
const READ: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use becket_process::protocol::ChallengeAnswer;
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

    fn next_event(supervisor: &UnixStream) -> Event {
        let (text, _) = fd_messages::receive(supervisor, 1 << 20, 0)
            .unwrap()
            .unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    fn command(supervisor: &UnixStream, command: &Command) {
        let text = serde_json::to_vec(command).unwrap();
        fd_messages::send(supervisor, &text, &[], PATIENCE).unwrap();
    }

    #[tokio::test]
    async fn a_set_is_served_when_its_number_comes_back() {
        let (supervisor, companion) = UnixStream::pair().unwrap();
        LocalSet::new()
            .run_until(async {
                let link = Link::start(companion).unwrap();
                let answers = tokio::task::spawn_blocking(move || {
                    let Event::Challenges(number, challenges) = next_event(&supervisor) else {
                        panic!("another event");
                    };
                    assert_eq!(challenges, [challenge()]);
                    command(&supervisor, &Command::Reopen);
                    command(
                        &supervisor,
                        &Command::ChallengesServed(number.wrapping_sub(1)),
                    );
                    command(&supervisor, &Command::ChallengesServed(number));
                    let withdrawn = Event::Challenges(number.wrapping_add(1), Vec::new());
                    assert_eq!(next_event(&supervisor), withdrawn);
                });
                link.serve(vec![challenge()]).await.unwrap();
                link.withdraw().await;
                answers.await.unwrap();
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
                let link = Link::start(companion).unwrap();
                let error = link.serve(vec![challenge()]).await.unwrap_err();
                assert!(error.to_string().contains("see its log"), "{error}");
            })
            .await;
    }
}
