//! UDP sockets with large buffers, for messages between hosts.
//!
//! All sockets are non-blocking and close-on-exec. They are bound without `SO_REUSEADDR`: otherwise a second process
//! could bind the same port and receive the datagrams.
//!
//! Sources: udp(7), ip(7), ipv6(7), socket(7) and the kernel's networking/filter.rst.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use rustix::net::sockopt;
use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};

/// Opens a UDP socket on `address`.
///
/// Requests `buffer` bytes for each direction, even above `net.core.rmem_max` and `wmem_max` if `CAP_NET_ADMIN` allows
/// it. The kernel may grant less. A socket on `[::]` also receives and sends IPv4, with IPv4-mapped addresses.
///
/// # Errors
/// `AddrInUse` if the port is in use; `PermissionDenied` for a low port without `CAP_NET_BIND_SERVICE`;
/// `AddrNotAvailable` for an address that no interface has.
pub fn datagrams(address: SocketAddr, buffer: usize) -> io::Result<UdpSocket> {
    let socket = open(address)?;
    enlarge(&socket, buffer);
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Attaches a socket filter that drops every datagram that does not begin with `signature`. A
/// dropped datagram takes no space in the socket's buffer and does not wake the process. `ss -uam`
/// shows the number of drops, after the `d`.
///
/// # Errors
/// `OutOfMemory` if `net.core.optmem_max` is used up.
pub fn hear_only(socket: &UdpSocket, signature: [u8; 3]) -> io::Result<()> {
    let [a, b, c] = signature;
    let wanted = u32::from_be_bytes([a, b, c, 0]);
    // The filter's offset 0 is the UDP header. A load after the end of the datagram drops the datagram.
    let filter = [
        SockFilter::new(LOAD_WORD, 0, 0, UDP_HEADER_BYTES),
        SockFilter::new(AND, 0, 0, 0xffff_ff00),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, wanted),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
        SockFilter::new(RETURN, 0, 0, 0),
    ];
    SockRef::from(socket).attach_filter(&filter)
}

fn open(address: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    Ok(socket)
}

fn enlarge(socket: &Socket, buffer: usize) {
    // A refusal is ignored, because smaller buffers only lose more datagrams in a burst.
    if sockopt::set_socket_recv_buffer_size_force(socket, buffer).is_err() {
        let _granted_less = socket.set_recv_buffer_size(buffer);
    }
    if sockopt::set_socket_send_buffer_size_force(socket, buffer).is_err() {
        let _granted_less = socket.set_send_buffer_size(buffer);
    }
}

const UDP_HEADER_BYTES: u32 = 8;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use std::time::Duration;

    use super::*;

    const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    /// Receives the next datagram; a test that waits in vain fails here.
    fn next(socket: &UdpSocket) -> Vec<u8> {
        socket.set_nonblocking(false).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let mut buffer = [0; 64];
        let (len, _) = socket.recv_from(&mut buffer).unwrap();
        buffer[..len].to_vec()
    }

    #[test]
    fn a_port_in_use_and_a_foreign_address_are_rejected() {
        let socket = datagrams(LOOPBACK, 64 * 1024).unwrap();
        assert!(SockRef::from(&socket).recv_buffer_size().unwrap() >= 64 * 1024);
        let address = socket.local_addr().unwrap();
        let again = datagrams(address, 64 * 1024).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
        let foreign = SocketAddr::from(([192, 0, 2, 1], 0));
        let refused = datagrams(foreign, 64 * 1024).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrNotAvailable);
    }

    #[test]
    fn datagrams_without_the_signature_are_dropped() {
        for host in [LOOPBACK, (Ipv6Addr::UNSPECIFIED, 0).into()] {
            let Ok(socket) = datagrams(host, 4096) else {
                becket_tidy::skip("needs IPv6");
                continue;
            };
            hear_only(&socket, *b"abc").unwrap();
            let port = socket.local_addr().unwrap().port();
            let sender = datagrams(LOOPBACK, 4096).unwrap();
            for bytes in ["", "a", "abc", "abd1", "xabc1", "abc1", "abc2 and more"] {
                let to = (Ipv4Addr::LOCALHOST, port);
                sender.send_to(bytes.as_bytes(), to).unwrap();
            }
            assert_eq!(next(&socket), b"abc1");
            assert_eq!(next(&socket), b"abc2 and more");
        }
    }

    #[test]
    fn a_socket_on_the_ipv6_wildcard_address_receives_ipv4() {
        let Ok(socket) = datagrams((Ipv6Addr::UNSPECIFIED, 0).into(), 4096) else {
            becket_tidy::skip("needs IPv6");
            return;
        };
        let port = socket.local_addr().unwrap().port();
        let v4 = datagrams(LOOPBACK, 4096).unwrap();
        v4.send_to(b"over v4", (Ipv4Addr::LOCALHOST, port)).unwrap();
        assert_eq!(next(&socket), b"over v4");
    }
}
