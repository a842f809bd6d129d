//! Creates a network with a round-trip time of 20 ms between a client and a server on the same machine.
//!
//! Client and server are network namespaces with a TUN device each. Threads of the bench read packets from one device
//! and write them to the second one after [`ONE_WAY`]. TCP handshakes, TLS handshakes and slow start therefore behave
//! as over a long distance, which a delay in a TCP relay cannot reproduce.
//!
//! The namespaces have no names. The kernel removes them and the devices when the bench exits for any reason.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use becket_load::clock;
use becket_sys::tun;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::scenario::Measure;
use crate::{Error, place};

/// Network namespaces of the client and the server, and the delayed link between them.
#[derive(Debug)]
pub struct Network {
    server: File,
    client: File,
    line: Arc<Line>,
}

/// State that the threads of the link share.
#[derive(Debug, Default)]
struct Line {
    is_over: AtomicBool,
    /// Number of packets dropped because the queue was full.
    dropped: AtomicU64,
    /// Number of packets that the client has sent.
    from_client: AtomicU64,
    from_server: AtomicU64,
}

/// Packet in transit, with its delivery time.
type Held = (Instant, Vec<u8>);
/// Selects the counter of one direction.
type Counter = fn(&Line) -> &AtomicU64;

impl Network {
    /// Creates the network if the measure needs one. The threads of the link run on `cpus`. The error describes what
    /// the machine must support.
    pub fn of(measure: Measure, cpus: &[usize]) -> Result<Option<Self>, String> {
        if measure != Measure::Delay {
            return Ok(None);
        }
        let needs = |error: &dyn std::fmt::Display| {
            format!("needs root, /dev/net/tun and `ip` (iproute2): {error}")
        };
        let made = place::on(cpus, || {
            Self::make().map_err(|e| Error::os("a network of namespaces", e))
        });
        made.map(Some).map_err(|e| needs(&e))
    }

    fn make() -> io::Result<Self> {
        let (client, from_client) = host(CLIENT)?;
        let (server, from_server) = host(SERVER)?;
        let line = Arc::new(Line::default());
        let (to_client, to_server) = (from_client.try_clone()?, from_server.try_clone()?);
        carry(from_client, to_server, (&line, |line| &line.from_client));
        carry(from_server, to_client, (&line, |line| &line.from_server));
        Ok(Self {
            server,
            client,
            line,
        })
    }

    pub fn dropped(&self) -> u64 {
        self.line.dropped.load(Ordering::Relaxed)
    }

    /// Returns the number of packets that the client and the server have sent.
    pub fn packets(&self) -> [u64; 2] {
        let Line {
            from_client,
            from_server,
            ..
        } = &*self.line;
        [from_client, from_server].map(|count| count.load(Ordering::Relaxed))
    }

    /// Runs `work` with the calling thread in the client's namespace. Sockets, threads and processes that `work`
    /// creates stay in this namespace.
    pub fn at_client<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        within(&self.client, work)
    }

    /// Measures the median round-trip time with UDP datagrams.
    pub fn round_trip(&self) -> Result<Duration, Error> {
        let failed = |e| Error::os("cannot send a datagram to the server and back", e);
        let bind = |address| UdpSocket::bind((address, 0)).map_err(failed);
        let server = within(&self.server, || bind(SERVER))?;
        let client = self.at_client(|| bind(CLIENT))?;
        let ping = || -> io::Result<Duration> {
            let begin = clock::now();
            client.send_to(&[0], server.local_addr()?)?;
            let (_, from) = uninterrupted(|| server.recv_from(&mut [0]))?;
            server.send_to(&[0], from)?;
            uninterrupted(|| client.recv(&mut [0]))?;
            Ok(clock::now() - begin)
        };
        for socket in [&client, &server] {
            let limit = socket.set_read_timeout(Some(PATIENCE));
            limit.map_err(failed)?;
        }
        let pings = (0..PINGS).map(|_| ping());
        let mut pings = pings.collect::<io::Result<Vec<_>>>().map_err(failed)?;
        pings.sort();
        Ok(pings[PINGS / 2])
    }
}

/// Repeats `call` while signals interrupt it, because the kernel does not restart a receive call with a time-out.
fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.line.is_over.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` in the server's namespace if there is a network, otherwise in the current one.
pub fn at_server<T>(
    network: Option<&Network>,
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    match network {
        Some(network) => within(&network.server, work),
        None => work(),
    }
}

fn within<T>(host: &File, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let enter = |host: &File| {
        move_into_link_name_space(host.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|e| Error::os("cannot enter a network namespace", e.into()))
    };
    let here =
        File::open(NAMESPACE).map_err(|e| Error::os(format!("cannot open {NAMESPACE}"), e))?;
    enter(host)?;
    let result = work();
    enter(&here)?;
    result
}

/// Creates a network namespace with a TUN device, and returns both.
fn host(address: Ipv4Addr) -> io::Result<(File, File)> {
    let make = move || {
        tun::unshare_network()?;
        let device = tun::open("delay")?;
        ip("link set lo up")?;
        ip(&format!("addr add {address}/30 dev delay"))?;
        ip(&format!(
            "link set delay up mtu 1500 txqueuelen {MOST_HELD}"
        ))?;
        // Disables saved TCP metrics, because the metrics of earlier connections would speed up later ones.
        std::fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1")?;
        Ok((File::open(NAMESPACE)?, device))
    };
    let made = thread::spawn(make).join();
    made.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

fn ip(words: &str) -> io::Result<()> {
    let output = Command::new("ip").args(words.split(' ')).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("ip {words}: {}", said.trim())))
}

/// Starts two threads that carry packets in one direction until the link is closed. One receives packets, and one
/// delivers them after the delay.
fn carry(from: File, to: File, (line, sent): (&Arc<Line>, Counter)) {
    let (held, due) = sync_channel(MOST_HELD);
    let line = Arc::clone(line);
    thread::spawn(move || take(from, &held, (&line, sent)));
    thread::spawn(move || deliver(to, &due));
}

fn take(mut from: File, held: &SyncSender<Held>, (line, sent): (&Line, Counter)) {
    let mut packet = [0; 2048];
    while !line.is_over.load(Ordering::Relaxed) {
        match from.read(&mut packet) {
            Ok(count) => {
                sent(line).fetch_add(1, Ordering::Relaxed);
                let packet = packet[..count].to_vec();
                match held.try_send((clock::now() + ONE_WAY, packet)) {
                    Ok(()) => {}
                    Err(TrySendError::Full(_)) => {
                        line.dropped.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(TrySendError::Disconnected(_)) => return,
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut device = [PollFd::new(&from, PollFlags::IN)];
                // Ignore signals and time-outs, because the loop polls again.
                poll(&mut device, Some(&LOOK)).ok();
            }
            Err(_) => return,
        }
    }
}

fn deliver(mut to: File, due: &Receiver<Held>) {
    for (arrives, packet) in due {
        thread::sleep(arrives.saturating_duration_since(clock::now()));
        // If the queue of the device is full, the packet is lost, as in a real network.
        drop(to.write(&packet));
    }
}

/// Delay of a packet in each direction.
const ONE_WAY: Duration = Duration::from_millis(10);
/// Maximum number of packets in transit per direction.
const MOST_HELD: usize = 16_384;
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const NAMESPACE: &str = "/proc/thread-self/ns/net";
/// Interval at which the threads check whether the link is closed.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
const PINGS: usize = 9;
const PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_test_network_delays_handshakes_and_adds_no_device_to_the_host() {
        let place = place::Place::here().unwrap();
        let network = match Network::of(Measure::Delay, &place.all()) {
            Ok(network) => network.unwrap(),
            Err(machine) => return becket_tidy::skip(&machine),
        };
        let round_trip = ONE_WAY * 2;
        assert!(network.round_trip().unwrap() >= round_trip);
        let failed = |e| Error::os("connection failed", e);
        let listener = at_server(Some(&network), || {
            TcpListener::bind((SERVER, 0)).map_err(failed)
        });
        let listener = listener.unwrap();
        let address = listener.local_addr().unwrap();
        let begin = clock::now();
        let client = network.at_client(|| TcpStream::connect(address).map_err(failed));
        assert!(client.is_ok() && clock::now() - begin >= round_trip);
        assert_eq!(network.dropped(), 0);
        // The datagrams of the round-trip time, SYN and ACK; SYN-ACK in the opposite direction.
        let [client, server] = network.packets();
        assert!(client.min(server) > PINGS as u64);
        // The host's own namespace has no such device.
        assert!(!std::path::Path::new("/sys/class/net/delay").exists());
    }

    #[test]
    fn other_measures_need_no_network() {
        assert!(Network::of(Measure::Idle, &[0]).unwrap().is_none());
    }
}
