//! How much room the clients of the admin pages take, with a limit for each stage of a request.
//!
//! TCP and the unix socket have one [`Visitors`] each, so that a flood over TCP never keeps an operator out of the socket. In each of them
//!
//! * at most [`SILENT`] clients have not asked yet: one more ends the oldest of the source that has most of them;
//! * at most [`PLACES`] answers are being made, and of one source at most its share: further requests are refused;
//! * answers that are being written have at most [`WRITING`] bytes and no place: a further one ends the oldest of the source that has most bytes.
//!
//! A source is an address (of IPv6 the /64), or a user at the unix socket.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::net::unix::UCred;

use tokio::sync::mpsc::Sender;
use tokio::sync::{Notify, Semaphore};

/// The client of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum PageClient {
    /// Over TCP, from this address.
    Network(IpAddr),
    /// Over the unix socket; `None` if the kernel does not name the process.
    Local(Option<UCred>),
}

impl PageClient {
    /// Returns the group that shares places: a /64 network of IPv6, or all processes of a user.
    pub(super) fn crowd(self) -> u128 {
        match self {
            Self::Network(address) => match address.to_canonical() {
                IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
                IpAddr::V6(address) => address.to_bits() >> 64 << 64,
            },
            Self::Local(user) => user.map_or(u128::MAX, |user| user.uid().into()),
        }
    }
}

/// Text for logs.
impl fmt::Display for PageClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(f),
            Self::Local(None) => f.write_str("somebody"),
            Self::Local(Some(user)) => {
                write!(f, "uid {}", user.uid())?;
                user.pid().map_or(Ok(()), |pid| write!(f, " pid {pid}"))
            }
        }
    }
}

/// Clients of one socket.
pub(super) struct Visitors {
    /// Oldest first.
    all: Mutex<Vec<Weak<Visitor>>>,
    /// Places of one source.
    share: usize,
    /// One page is made at a time.
    pub(super) page: Arc<Semaphore>,
    /// Dropped with the last client.
    _present: Sender<Infallible>,
}

/// A client of the pages.
pub(super) struct Visitor {
    pub(super) asker: PageClient,
    pub(super) among: Arc<Visitors>,
    stage: Mutex<RequestStage>,
    cut: Notify,
}

#[derive(Clone, Copy)]
enum RequestStage {
    Silent,
    /// Its answer is being made, which `takes_time` for a reload and the like.
    Asked {
        takes_time: bool,
    },
    /// Bytes of its answer.
    Writing(usize),
    Ended,
}

impl RequestStage {
    fn silent(self) -> usize {
        usize::from(matches!(self, Self::Silent))
    }

    fn bytes(self) -> usize {
        match self {
            Self::Writing(bytes) => bytes,
            _ => 0,
        }
    }
}

impl Visitors {
    /// Has no clients yet, each source of which may have a `share` of all places.
    pub(super) fn new(share: usize, present: Sender<Infallible>) -> Arc<Self> {
        Arc::new(Self {
            all: Mutex::default(),
            share,
            page: Arc::new(Semaphore::new(1)),
            _present: present,
        })
    }

    /// Adds a client that has not asked yet.
    pub(super) fn add(self: &Arc<Self>, asker: PageClient) -> Arc<Visitor> {
        self.make_room(SILENT - 1, RequestStage::silent);
        let visitor = Arc::new(Visitor {
            asker,
            among: Arc::clone(self),
            stage: Mutex::new(RequestStage::Silent),
            cut: Notify::new(),
        });
        let mut all = lock(&self.all);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&visitor));
        visitor
    }

    /// Ends the oldest client of the source that weighs most, until all together weigh no more than `most`.
    fn make_room(&self, most: usize, weight: fn(RequestStage) -> usize) {
        let all = self.all();
        let weigh = |one: &Arc<Visitor>| (one.asker.crowd(), weight(*lock(&one.stage)));
        let mut weights: Vec<_> = all.iter().map(weigh).collect();
        let mut sum: usize = weights.iter().map(|(_, weight)| weight).sum();
        while sum > most
            && let Some(first) = first_of_most(&weights)
        {
            *lock(&all[first].stage) = RequestStage::Ended;
            all[first].cut.notify_one();
            sum -= std::mem::take(&mut weights[first].1);
        }
    }

    fn all(&self) -> Vec<Arc<Visitor>> {
        lock(&self.all).iter().filter_map(Weak::upgrade).collect()
    }
}

impl Visitor {
    /// Takes a place until the answer is written or the client is dropped; false if there is none.
    pub(super) fn take_place(&self, takes_time: bool) -> bool {
        let mut all = self.among.all();
        all.retain(|one| matches!(*lock(&one.stage), RequestStage::Asked { .. }));
        let crowd = self.asker.crowd();
        let same = all.iter().filter(|one| one.asker.crowd() == crowd).count();
        let is_free = all.len() < PLACES && same < self.among.share;
        if is_free {
            *lock(&self.stage) = RequestStage::Asked { takes_time };
        }
        is_free
    }

    /// Releases the place, and makes room for an answer of `bytes` bytes.
    pub(super) fn write(&self, bytes: usize) {
        let bytes = bytes.max(LEAST_BYTES);
        self.among
            .make_room(WRITING.saturating_sub(bytes), RequestStage::bytes);
        *lock(&self.stage) = RequestStage::Writing(bytes);
    }

    /// Returns whether its answer may take longer than a page does.
    pub(super) fn takes_time(&self) -> bool {
        matches!(*lock(&self.stage), RequestStage::Asked { takes_time: true })
    }

    /// Waits until the client must make room for another one.
    pub(super) async fn must_end(&self) {
        self.cut.notified().await;
    }
}

/// The place of the first of the source that weighs most; `None` if nothing has a weight.
fn first_of_most(weights: &[(u128, usize)]) -> Option<usize> {
    let mut sums: HashMap<u128, usize> = HashMap::new();
    for (from, weight) in weights {
        *sums.entry(*from).or_default() += weight;
    }
    let present = weights.iter().enumerate();
    let present = present.filter(|(_, (_, weight))| *weight > 0);
    let first = present.min_by_key(|(_, (from, _))| Reverse(sums[from]));
    first.map(|(place, _)| place)
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Scrapers, health probes and browsers need about ten. A flood pushes out a client that is alone at its address only with this many
/// other addresses, within a round trip.
const SILENT: usize = 32;
/// A page takes milliseconds, so this many are a queue of a tenth of a second.
pub(super) const PLACES: usize = 32;
/// Places of one address: a scraper has one at a time.
pub(super) const SHARE_OF_AN_ADDRESS: usize = PLACES / 4;
/// Some answers of the largest hosts, or hundreds of the usual ones.
const WRITING: usize = 32 * 1024 * 1024;
/// For the buffers of a connection.
const LEAST_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn visitors(share: usize) -> Arc<Visitors> {
        Visitors::new(share, tokio::sync::mpsc::channel(1).0)
    }

    fn from(visitors: &Arc<Visitors>, address: &str) -> Arc<Visitor> {
        visitors.add(PageClient::Network(address.parse().unwrap()))
    }

    fn has_ended(visitor: &Visitor) -> bool {
        matches!(*lock(&visitor.stage), RequestStage::Ended)
    }

    #[test]
    fn a_crowd_makes_room_and_a_lone_client_stays() {
        let first = |addresses: &[&str]| {
            let crowd = |one: &&str| PageClient::Network(one.parse().unwrap()).crowd();
            let weights = addresses.iter().map(|one| (crowd(one), 1));
            first_of_most(&weights.collect::<Vec<_>>())
        };
        let (check, crowd) = ("192.0.2.1", "192.0.2.66");
        assert_eq!(first(&[check, crowd, crowd]), Some(1));
        let in_a_net = [check, "2001:db8::1", "192.0.2.2", "2001:db8::ff"];
        assert_eq!(first(&in_a_net), Some(1));
        assert_eq!(first(&[check, "::ffff:192.0.2.66", crowd]), Some(1));
        assert_eq!(first(&[check, crowd]), Some(0), "the oldest of equals");
        assert_eq!(first(&[]), None);
    }

    #[test]
    fn a_source_has_its_share_of_places_and_an_answer_that_is_written_has_none() {
        let visitors = visitors(SHARE_OF_AN_ADDRESS);
        let take = |address: &str| {
            let visitor = from(&visitors, address);
            visitor.take_place(false).then_some(visitor)
        };
        let mut held: Vec<_> = (0..SHARE_OF_AN_ADDRESS)
            .map(|_| take("192.0.2.66").unwrap())
            .collect();
        assert!(take("192.0.2.66").is_none());
        held.extend((0..PLACES - SHARE_OF_AN_ADDRESS).map(|n| {
            let address = format!("192.0.2.{n}");
            take(&address).unwrap()
        }));
        assert!(take("192.0.2.99").is_none());
        held[0].write(100_000);
        let newest = take("192.0.2.66").unwrap();
        drop(newest);
        assert!(take("192.0.2.99").is_some());
    }

    #[test]
    fn answers_that_are_not_read_make_room_for_others() {
        let visitors = visitors(PLACES);
        let write = |address, bytes| {
            let visitor = from(&visitors, address);
            visitor.write(bytes);
            visitor
        };
        let reader = write("192.0.2.1", WRITING / 4);
        let slow = [0; 3].map(|_| write("192.0.2.66", WRITING / 4));
        assert!(!slow.iter().any(|one| has_ended(one)));
        let next = write("192.0.2.2", WRITING / 4);
        let ended = slow.each_ref().map(|one| has_ended(one));
        assert_eq!(ended, [true, false, false]);
        assert!(!has_ended(&reader) && !has_ended(&next));
        let huge = write("192.0.2.3", 2 * WRITING);
        assert!([&reader, &next, &slow[2]].map(|one| has_ended(one)) == [true; 3]);
        assert!(!has_ended(&huge), "the newest is written, whatever it is");
    }
}
