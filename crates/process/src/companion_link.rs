//! The connection between the serving process and the ACME companion.
//!
//! The supervisor creates a socket pair for the two processes, which run as different users, and
//! gives an end to each. A new serving process or companion gets a new pair. Messages are frames
//! with JSON ([`becket_sys::fd_messages`]). Certificates are indices in `acme.certificate`, followed
//! by those of on-demand certificates, so that neither process can name files of the other.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use becket_proto::acme::{BundleFacts, ChallengeAnswer};
use becket_sys::fd_messages::{Incoming, Outgoing};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::time::{Instant, sleep_until};
use zeroize::{Zeroize, Zeroizing};

/// Messages to the serving process.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromCompanion {
    /// The certificates of the companion. Sent first.
    Held(HeldBundles),
    /// All pending challenges, and the number of this set.
    Challenges(u32, Vec<AcmeChallenge>),
    /// The bundle that [`ToCompanion::Send`] requested.
    Bundle(u32, BundleText),
}

/// Messages to the companion.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToCompanion {
    /// All workers, and the other nodes, answer the challenges of the set with this number.
    ChallengesServed(u32),
    /// Ranks of this node among the nodes that can order each certificate. Rank 0 orders; a node
    /// without other nodes has rank 0.
    Ranks(Vec<u16>),
    /// Send the bundle of this certificate.
    Send(u32),
    /// Use this bundle, which another node ordered.
    Bundle(u32, BundleText),
    /// Clients asked for these names, for which there is no certificate.
    Wanted(Vec<Box<str>>),
}

/// Names and bundles of the companion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBundles {
    /// Names of the on-demand certificates, whose indices follow those of the configuration; `None`
    /// for an unused index.
    pub on_demand: Vec<Option<String>>,
    /// Bundles in use, one element for each certificate.
    pub bundles: Vec<Option<BundleFacts>>,
}

/// A pending challenge of an ACME authority, for a name of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcmeChallenge {
    /// Index of the certificate.
    pub certificate: u32,
    /// Index in the names of that certificate.
    pub name: u32,
    pub answer: ChallengeAnswer,
    /// Seconds from now until the challenge is withdrawn.
    pub lifetime: u32,
}

/// Chain and private key as PEM. Debug output omits them.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleText(String);

impl BundleText {
    /// Returns `None` for bytes that are not UTF-8, which is no PEM.
    pub fn new(mut bytes: Zeroizing<Vec<u8>>) -> Option<Self> {
        let text = String::from_utf8(std::mem::take(&mut *bytes));
        text.map(Self)
            .map_err(|error| error.into_bytes().zeroize())
            .ok()
    }

    pub fn into_bytes(mut self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(std::mem::take(&mut self.0).into_bytes())
    }
}

impl Drop for BundleText {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for BundleText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// One end of the connection.
#[derive(Debug)]
pub struct CompanionLink {
    stream: UnixStream,
    ready: tokio::net::UnixStream,
    incoming: Incoming,
    outgoing: Outgoing<OwnedFd>,
    /// Time before which no further message is taken.
    paused_until: Instant,
}

impl CompanionLink {
    /// # Errors
    /// Fails if the runtime cannot watch the socket.
    pub fn new(stream: OwnedFd) -> io::Result<Self> {
        let stream = UnixStream::from(stream);
        stream.set_nonblocking(true)?;
        Ok(Self {
            ready: tokio::net::UnixStream::from_std(stream.try_clone()?)?,
            stream,
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            paused_until: Instant::now(),
        })
    }

    /// Sends the part of a message that fits into the socket, and queues the remaining bytes. Drops
    /// the message if the other process has not read many earlier ones.
    pub fn send(&mut self, message: &impl Serialize) {
        if self.outgoing.len() >= MOST_QUEUED {
            tracing::debug!("dropped a message about certificates");
            return;
        }
        let pushed = serde_json::to_vec(message).map_err(io::Error::from);
        let pushed = pushed.and_then(|text| self.outgoing.push(&Zeroizing::new(text), Vec::new()));
        if let Err(error) = pushed.and_then(|()| self.outgoing.flush(&self.stream)) {
            // The end of the connection is noticed by the receiver.
            tracing::debug!(%error, "cannot send a message about certificates");
        }
    }

    /// Receives the next message, and sends queued ones meanwhile. Returns `None` at the end of the
    /// connection and after a message that is too long or unknown. Pauses after each message, so
    /// that a process that floods costs little. Cancel-safe.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Option<T> {
        loop {
            sleep_until(self.paused_until).await;
            if let Some(text) = self.incoming.take(LONGEST).ok()? {
                let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
                self.paused_until = Instant::now() + PAUSE + Duration::from_micros(bytes);
                return serde_json::from_slice(&Zeroizing::new(text)).ok();
            }
            let mut interest = Interest::READABLE;
            if !self.outgoing.is_empty() {
                interest |= Interest::WRITABLE;
            }
            let ready = self.ready.ready(interest).await.ok()?;
            if ready.is_writable() && !self.outgoing.is_empty() {
                let flushed = self.ready.try_io(Interest::WRITABLE, || {
                    let is_sent = self.outgoing.flush(&self.stream)?;
                    is_sent
                        .then_some(())
                        .ok_or(io::ErrorKind::WouldBlock.into())
                });
                match flushed {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => return None,
                    _ => {}
                }
            }
            if ready.is_readable() || ready.is_read_closed() {
                let read = self.ready.try_io(Interest::READABLE, || {
                    self.incoming.read(&self.stream, READ)
                });
                match read {
                    Ok(0) => return None,
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return None,
                }
            }
        }
    }
}

/// Maximum length of a message in bytes; fits 10 000 configured and 10 000 on-demand certificates
/// with the longest names.
const LONGEST: usize = 8 * 1024 * 1024;
/// Pause after each message; a microsecond for each byte is added.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of unread messages.
const MOST_QUEUED: usize = 64;
const READ: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_arrive_in_order_and_the_end_is_noticed() {
        let (one, two) = UnixStream::pair().unwrap();
        let mut one = CompanionLink::new(one.into()).unwrap();
        let mut two = CompanionLink::new(two.into()).unwrap();
        // Longer than the buffer of the socket.
        let bytes = Zeroizing::new(vec![b'a'; 1 << 20]);
        let bundle = BundleText::new(bytes.clone()).unwrap();
        assert_eq!(format!("{bundle:?}"), "1048576 bytes");
        one.send(&ToCompanion::Bundle(3, bundle));
        one.send(&ToCompanion::Ranks(vec![1]));
        let received = async {
            let Some(ToCompanion::Bundle(3, bundle)) = two.next().await else {
                panic!("another message");
            };
            assert_eq!(bundle.into_bytes(), bytes);
            assert_eq!(two.next().await, Some(ToCompanion::Ranks(vec![1])));
            two.send(&FromCompanion::Challenges(1, Vec::new()));
        };
        let (answer, ()) = tokio::join!(one.next(), received);
        assert_eq!(answer, Some(FromCompanion::Challenges(1, Vec::new())));
        drop(one);
        assert_eq!(two.next::<ToCompanion>().await, None);
    }

    #[tokio::test]
    async fn a_process_that_does_not_read_costs_a_bounded_queue() {
        let (one, _two) = UnixStream::pair().unwrap();
        let mut one = CompanionLink::new(one.into()).unwrap();
        for _ in 0..100 {
            one.send(&ToCompanion::Ranks(vec![0; 100_000]));
        }
        assert_eq!(one.outgoing.len(), MOST_QUEUED);
    }

    #[tokio::test]
    async fn an_unknown_message_ends_the_connection() {
        let (one, two) = UnixStream::pair().unwrap();
        let mut one = CompanionLink::new(one.into()).unwrap();
        let mut two = CompanionLink::new(two.into()).unwrap();
        one.send(&"Other");
        assert_eq!(two.next::<ToCompanion>().await, None);
    }
}
