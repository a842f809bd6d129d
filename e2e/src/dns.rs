//! A DNS server with configurable answers, which a test can change while the server runs.
//!
//! It supports what a stub resolver needs: UDP, class IN, A and AAAA. It uses no compression except for the name of the
//! question, and no EDNS. It answers NXDOMAIN for unknown names.
//!
//! Source: RFC 1035, sections 4.1.1 to 4.1.3; RFC 3596 for AAAA.

use std::collections::HashMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use becket_tidy::skip;

use crate::network::Host;
use crate::place::Place;
use crate::tool::{Tool, finish};

/// DNS server. Stops on drop.
#[derive(Debug)]
pub struct Dns {
    address: IpAddr,
    zone: Arc<Zone>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Answer for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Addresses of both families. A question receives the addresses of its family.
    Addresses(Vec<IpAddr>),
    NoSuchName,
    Failure,
    Silence,
}

#[derive(Debug, Default)]
struct Zone {
    answers: Mutex<HashMap<String, Answer>>,
}

impl Dns {
    /// Starts a server on port 53 of a host.
    pub fn on(host: &Host) -> Self {
        let address = IpAddr::from(host.address);
        let socket = host.within(|| UdpSocket::bind((address, PORT)).expect("port 53"));
        socket.set_read_timeout(Some(LOOK)).expect("a time-out");
        let (zone, stop) = (Arc::<Zone>::default(), Arc::<AtomicBool>::default());
        let (known, stopped) = (Arc::clone(&zone), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut query = [0; 512];
            while !stopped.load(Relaxed) {
                let Ok((len, from)) = socket.recv_from(&mut query) else {
                    continue;
                };
                if let Some(answer) = known.answer(&query[..len]) {
                    socket.send_to(&answer, from).ok();
                }
            }
        });
        Self {
            address,
            zone,
            stop,
            thread: Some(thread),
        }
    }

    /// Sets the answer for a name.
    pub fn set(&self, name: &str, answer: Answer) {
        let mut answers = self.zone.lock();
        answers.insert(name.to_owned(), answer);
    }

    /// Sets the addresses for a name.
    pub fn points(&self, name: &str, to: &[IpAddr]) {
        self.set(name, Answer::Addresses(to.to_vec()));
    }

    /// Returns a launcher for [`Becket::start_by`](crate::Becket::start_by) that makes this the only DNS server. The
    /// process runs in its own mount namespace with its own `/etc/resolv.conf` and `/etc/nsswitch.conf`. Records the
    /// test as skipped if this is not possible.
    #[track_caller]
    pub fn launcher(&self, place: &Place) -> Option<Vec<String>> {
        let unshare = Tool::find("unshare")?;
        let address = self.address;
        // One attempt with a short time-out per question: tests wait for becket's own retries.
        let resolver = format!("nameserver {address}\nsearch .\noptions timeout:1 attempts:1\n");
        place.write("resolv.conf", &resolver);
        place.write("nsswitch.conf", "hosts: dns\n");
        let launcher = ["--mount", "sh", "-c", BIND, "becket"];
        let mut trial = unshare.command([&launcher[..], &["true"]].concat());
        trial.current_dir(place.folder());
        let trial = finish(trial, "");
        if trial.code != 0 {
            skip(&format!("needs a resolv.conf of its own: {}", trial.stderr));
            return None;
        }
        let unshare = unshare.path().to_string_lossy();
        let launcher = [&[&*unshare], &launcher[..]].concat();
        Some(launcher.into_iter().map(str::to_owned).collect())
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl Zone {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Answer>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the answer to a query; `None` for silence or an invalid query.
    fn answer(&self, query: &[u8]) -> Option<Vec<u8>> {
        let question = query.get(HEADER..)?;
        let (name, len) = read_name(question)?;
        let question = question.get(..len + 4)?;
        let kind = u16::from_be_bytes([question[len], question[len + 1]]);
        let answer = self.lock().get(&name).cloned();
        let (code, addresses) = match answer.unwrap_or(Answer::NoSuchName) {
            Answer::Addresses(addresses) => (0, addresses),
            Answer::NoSuchName => (NXDOMAIN, Vec::new()),
            Answer::Failure => (SERVFAIL, Vec::new()),
            Answer::Silence => return None,
        };
        let records: Vec<Vec<u8>> = addresses
            .iter()
            .filter_map(|ip| record(*ip, kind))
            .collect();
        let count = u16::try_from(records.len()).ok()?.to_be_bytes();
        // ID, flags of a recursive answer, one question, number of answers.
        let mut message = vec![query[0], query[1], 0x81, 0x80 | code, 0, 1];
        message.extend(count);
        message.extend([0; 4]);
        message.extend(question);
        message.extend(records.concat());
        Some(message)
    }
}

/// Parses a name. Returns it in lower case without the last dot, with its length in the message.
fn read_name(bytes: &[u8]) -> Option<(String, usize)> {
    let (mut labels, mut at) = (Vec::new(), 0);
    loop {
        let len = usize::from(*bytes.get(at)?);
        at += 1;
        if len == 0 {
            return Some((labels.join("."), at));
        }
        let label = bytes.get(at..at + len)?;
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        at += len;
    }
}

/// Returns a resource record for the name of the question if the address is of the requested kind.
fn record(ip: IpAddr, kind: u16) -> Option<Vec<u8>> {
    let data = match (ip, kind) {
        (IpAddr::V4(ip), A) => ip.octets().to_vec(),
        (IpAddr::V6(ip), AAAA) => ip.octets().to_vec(),
        _ => return None,
    };
    let [high, low] = kind.to_be_bytes();
    // The name of the question, kind, class IN, a TTL of zero.
    let mut record = vec![0xc0, HEADER as u8, high, low, 0, 1, 0, 0, 0, 0];
    record.extend((data.len() as u16).to_be_bytes());
    record.extend(data);
    Some(record)
}

/// Bind-mounts both files (the second one if the host has it), then executes the program.
const BIND: &str = "mount --bind resolv.conf /etc/resolv.conf && \
                    { [ ! -e /etc/nsswitch.conf ] || \
                    mount --bind nsswitch.conf /etc/nsswitch.conf; } && exec \"$@\"";
const PORT: u16 = 53;
/// Length of the header in bytes.
const HEADER: usize = 12;
const A: u16 = 1;
const AAAA: u16 = 28;
const SERVFAIL: u8 = 2;
const NXDOMAIN: u8 = 3;
/// Maximum time that the server runs after drop.
const LOOK: Duration = Duration::from_millis(50);
