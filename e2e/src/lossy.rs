//! A path for datagrams between two hosts that loses some of them.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Two addresses, one for each host: what one of them sends to its address reaches the other from
/// the other's. The path loses one datagram in `n`, in each direction.
#[derive(Debug)]
pub struct LossyPath {
    /// Where the first host sends to.
    pub for_first: SocketAddr,
    /// Where the second host sends to.
    pub for_second: SocketAddr,
    lost: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl LossyPath {
    /// Opens a path between two hosts on `address`, where both reach it.
    pub fn between(address: std::net::IpAddr, hosts: [SocketAddr; 2], n: u64) -> Self {
        let socket = || UdpSocket::bind((address, 0)).expect("a socket");
        let (first, second) = (socket(), socket());
        let at = |socket: &UdpSocket| socket.local_addr().expect("an address");
        let (for_first, for_second) = (at(&first), at(&second));
        let (lost, stop) = (Arc::default(), Arc::default());
        let copy = |socket: &UdpSocket| socket.try_clone().expect("a descriptor");
        let ways = [
            (copy(&first), copy(&second), hosts[1]),
            (second, first, hosts[0]),
        ];
        let threads = ways.map(|(from, by, to)| {
            let (lost, stop) = (Arc::clone(&lost), Arc::clone(&stop));
            from.set_read_timeout(Some(LOOK)).expect("a time-out");
            thread::spawn(move || forward(&from, &by, to, n, &lost, &stop))
        });
        Self {
            for_first,
            for_second,
            lost,
            stop,
            threads: threads.into(),
        }
    }

    /// How many datagrams were lost so far.
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }
}

fn forward(
    from: &UdpSocket,
    by: &UdpSocket,
    to: SocketAddr,
    n: u64,
    lost: &AtomicU64,
    stop: &AtomicBool,
) {
    let mut buffer = [0; 2048];
    let mut count = 0_u64;
    while !stop.load(Relaxed) {
        let Ok((len, _)) = from.recv_from(&mut buffer) else {
            continue;
        };
        count += 1;
        if count.is_multiple_of(n) {
            lost.fetch_add(1, Relaxed);
        } else {
            by.send_to(&buffer[..len], to).ok();
        }
    }
}

impl Drop for LossyPath {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

/// How long the path may go on after it was dropped.
const LOOK: Duration = Duration::from_millis(50);
