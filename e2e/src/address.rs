//! Addresses that no other test has.
//!
//! Ports alone would not do: between looking for a free one and using it, a client of another
//! test may get it from the kernel. Every call therefore takes another host of 127.0.0.0/8.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A host of 127.0.0.0/8 that nobody else uses: process and count make it.
pub fn fresh_host() -> Ipv4Addr {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Relaxed);
    // 127.0.0.0/16 is left to others; 7 bits are the process' and 16 the count's.
    let number = 0x1_0000 + ((std::process::id() & 0x7f) << 16 | (count & 0xffff));
    Ipv4Addr::from(0x7f00_0000 | number)
}

/// A free TCP address on a host that nobody else uses.
///
/// The kernel is not asked for a port: it gives the same ones to sockets of all hosts, and one of
/// them could be taken again before it is used.
pub fn fresh_address() -> SocketAddr {
    let host = fresh_host();
    let [_, _, high, low] = host.octets();
    let first = FIRST_PORT + u16::from_be_bytes([high, low]) % PORTS;
    let mut all = (first..FIRST_PORT + PORTS).chain(FIRST_PORT..first);
    let free = all.find(|port| TcpListener::bind((host, *port)).is_ok());
    SocketAddr::from((host, free.expect("a free port")))
}

/// A free port of `::1`, which has no siblings; nothing where the machine has no IPv6.
pub fn fresh_v6() -> Option<SocketAddr> {
    let probe = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).ok()?;
    probe.local_addr().ok()
}

/// Ports from here on are below those that the kernel gives out (ip_local_port_range).
const FIRST_PORT: u16 = 10_000;
/// How many there are.
const PORTS: u16 = 20_000;
