//! Finds the process that listens on a TCP address, for error messages.
//!
//! Sources: proc_net(5), proc_pid_fd(5). Without privileges, only processes of the same user are
//! found. The number of descriptors that are read is limited.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use crate::identity::user_name;

/// Returns the process that listens on an address, such as `nginx (pid 812)`, or the user of the
/// socket if the process cannot be found. Returns `None` if neither is found. Blocks on files in
/// /proc.
pub fn port_holder(address: SocketAddr) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].into_iter();
    let mut tables = tables.filter_map(|path| fs::read_to_string(path).ok());
    let (uid, inode) = tables.find_map(|table| {
        let mut lines = table.lines().skip(1);
        lines.find_map(|line| listens_on(line, address))
    })?;
    let holder = process_with(&format!("socket:[{inode}]"));
    Some(holder.unwrap_or_else(|| format!("a program of user {}", user_name(uid))))
}

/// Parses a line of `/proc/net/tcp`. Returns the user ID and inode if it is a listening socket that
/// overlaps with `address`.
fn listens_on(line: &str, address: SocketAddr) -> Option<(u32, u64)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (host, port) = fields.get(1)?.split_once(':')?;
    let host = ip(host)?;
    let overlaps = host == address.ip() || host.is_unspecified() || address.ip().is_unspecified();
    let same_port = u16::from_str_radix(port, 16).ok()? == address.port();
    if !overlaps || !same_port || *fields.get(3)? != LISTENING {
        return None;
    }
    Some((fields.get(7)?.parse().ok()?, fields.get(9)?.parse().ok()?))
}

/// Parses an address in hexadecimal digits, whose 32-bit words have the byte order of this host.
fn ip(text: &str) -> Option<IpAddr> {
    let mut bytes = Vec::new();
    for word in text.as_bytes().chunks(8) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    }
}

fn process_with(link: &str) -> Option<String> {
    let mut left = MOST_DESCRIPTORS;
    for process in fs::read_dir("/proc").ok()?.filter_map(Result::ok) {
        let Ok(pid) = process.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let descriptors = fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten();
        for descriptor in descriptors.filter_map(Result::ok) {
            left = left.checked_sub(1)?;
            if fs::read_link(descriptor.path()).is_ok_and(|it| it == Path::new(link)) {
                let name = fs::read_to_string(process.path().join("comm")).ok()?;
                return Some(format!("{} (pid {pid})", name.trim_end().escape_debug()));
            }
        }
    }
    None
}

/// Value of the state column for a listening socket (TCP_LISTEN of tcp_states.h).
const LISTENING: &str = "0A";
/// Maximum number of descriptors that are read, in all processes together.
const MOST_DESCRIPTORS: usize = 200_000;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_listening_process_is_found() {
        let own = format!(" (pid {})", std::process::id());
        for host in ["127.0.0.1", "[::1]"] {
            let Ok(listener) = TcpListener::bind(format!("{host}:0")) else {
                continue;
            };
            let address = listener.local_addr().unwrap();
            assert!(port_holder(address).unwrap().ends_with(&own));
            let any = SocketAddr::new(IpAddr::from([0; 4]), address.port());
            assert!(port_holder(any).unwrap().ends_with(&own));
        }
    }

    #[test]
    fn other_sockets_and_malformed_lines_are_skipped() {
        let line =
            "0: 0100007F:01BB 00000000:0000 0A 00000000:00000000 00:00000000 00000000 33 0 4711 1";
        let at = |text: &str| text.parse().unwrap();
        if cfg!(target_endian = "little") {
            assert_eq!(listens_on(line, at("127.0.0.1:443")), Some((33, 4711)));
        }
        assert_eq!(listens_on(line, at("127.0.0.2:443")), None);
        assert_eq!(listens_on(line, at("127.0.0.1:444")), None);
        let connected = line.replace(" 0A ", " 01 ");
        assert_eq!(listens_on(&connected, at("127.0.0.1:443")), None);
        for broken in ["", "0:", "0: 0100007F 1", "0: xx:01BB a 0A"] {
            assert_eq!(listens_on(broken, at("127.0.0.1:443")), None);
        }
    }
}
