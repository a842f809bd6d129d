//! Addresses that no other test uses.
//!
//! Different ports are not enough: between finding a free port and using it, the kernel may give it to a client of another
//! test. Each call therefore returns another host of 127.0.0.0/8.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Returns a host of 127.0.0.0/8 that no other test uses, derived from process ID and a counter.
pub fn fresh_host() -> Ipv4Addr {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Relaxed);
    // 127.0.0.0/16 is reserved for other uses. The process ID provides 7 bits, the counter 16.
    let number = 0x1_0000 + ((std::process::id() & 0x7f) << 16 | (count & 0xffff));
    Ipv4Addr::from(0x7f00_0000 | number)
}

/// Returns a free TCP address on a host that no other test uses.
///
/// The kernel is not asked for a port, because it gives the same ports to sockets of all hosts and could give this one to another
/// socket before the test uses it.
pub fn fresh_address() -> SocketAddr {
    let host = fresh_host();
    let [_, _, high, low] = host.octets();
    let first = FIRST_PORT + u16::from_be_bytes([high, low]) % PORTS;
    let mut all = (first..FIRST_PORT + PORTS).chain(FIRST_PORT..first);
    let free = all.find(|port| TcpListener::bind((host, *port)).is_ok());
    SocketAddr::from((host, free.expect("a free port")))
}

/// Returns a free port of `::1`; `None` without IPv6. Other tests use the same host.
pub fn fresh_v6() -> Option<SocketAddr> {
    let probe = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).ok()?;
    probe.local_addr().ok()
}

/// First port. It is below the kernel's range for outgoing connections (ip_local_port_range).
const FIRST_PORT: u16 = 10_000;
/// Number of ports.
const PORTS: u16 = 20_000;
