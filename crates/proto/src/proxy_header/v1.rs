//! Version 1 of the header: one line of text, at most 107 bytes.
//!
//! IPv6 addresses are written only in groups of hexadecimal digits, also a mapped IPv4 address, because
//! every receiver supports this form. The decoder also accepts mapped addresses with a dotted part, since
//! senders that use `inet_ntop` write them. A line is decoded only after its CRLF has arrived. A line with a lone CR
//! or LF is refused. Source: section 2.1 of the specification.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::header::{Endpoints, ProxyHeader, Refusal, Tlvs, one_family};

pub(super) fn encode(endpoints: &Endpoints, out: &mut Vec<u8>) {
    let line = match *endpoints {
        Endpoints::Tcp {
            source,
            destination,
        } => tcp_line(source, destination),
        _ => "PROXY UNKNOWN\r\n".to_owned(),
    };
    out.extend_from_slice(line.as_bytes());
}

/// Decodes a line that starts with the signature. Returns `None` until its CRLF has arrived.
pub(super) fn decode(input: &[u8]) -> Result<Option<(ProxyHeader<'_>, usize)>, Refusal> {
    let Some(len) = line_len(input)? else {
        return Ok(None);
    };
    let line = input
        .get(SIGNATURE.len()..len - LINE_END.len())
        .unwrap_or_default();
    let endpoints = match line {
        [b'T', b'C', b'P', b'4', b' ', rest @ ..] => {
            tcp::<Ipv4Addr>(rest).ok_or(Refusal::Address)?
        }
        [b'T', b'C', b'P', b'6', b' ', rest @ ..] => {
            tcp::<Ipv6Addr>(rest).ok_or(Refusal::Address)?
        }
        // Section 2.1: "the receiver must ignore anything presented before the CRLF is found".
        b"UNKNOWN" | [b'U', b'N', b'K', b'N', b'O', b'W', b'N', b' ', ..] => Endpoints::Unknown,
        _ => return Err(Refusal::Protocol),
    };
    let tlvs = Tlvs::default();
    Ok(Some((ProxyHeader { endpoints, tlvs }, len)))
}

fn line_len(input: &[u8]) -> Result<Option<usize>, Refusal> {
    let line = input.get(..MAX_V1_BYTES).unwrap_or(input);
    let Some(end) = line.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        return match line.len() {
            // The CR of the longest valid line is at `LAST_CR`, so more bytes without a CR mean
            // that the line is too long.
            0..=LAST_CR => Ok(None),
            _ => Err(Refusal::LineEnd),
        };
    };
    match line.get(end..).unwrap_or_default() {
        [b'\r', b'\n', ..] => Ok(Some(end + LINE_END.len())),
        [b'\r'] if end < LAST_CR + 1 => Ok(None),
        _ => Err(Refusal::LineEnd),
    }
}

fn tcp_line(source: SocketAddr, destination: SocketAddr) -> String {
    let ports = format!("{} {}", source.port(), destination.port());
    match one_family(source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            format!("PROXY TCP4 {source} {destination} {ports}\r\n")
        }
        (source, destination) => format!(
            "PROXY TCP6 {} {} {ports}\r\n",
            groups(source),
            groups(destination)
        ),
    }
}

/// Writes an IPv6 address in hexadecimal groups only.
fn groups(address: IpAddr) -> String {
    match address {
        IpAddr::V6(address) => match address.to_ipv4_mapped().map(|mapped| mapped.octets()) {
            Some([a, b, c, d]) => format!(
                "::ffff:{:x}:{:x}",
                u16::from_be_bytes([a, b]),
                u16::from_be_bytes([c, d])
            ),
            None => address.to_string(),
        },
        IpAddr::V4(address) => groups(address.to_ipv6_mapped().into()),
    }
}

fn tcp<A: std::str::FromStr + Into<IpAddr>>(rest: &[u8]) -> Option<Endpoints> {
    let mut words = std::str::from_utf8(rest).ok()?.split(' ');
    let (source, destination) = (address::<A>(words.next()?)?, address::<A>(words.next()?)?);
    let (source_port, destination_port) = (port(words.next()?)?, port(words.next()?)?);
    words.next().is_none().then(|| Endpoints::Tcp {
        source: SocketAddr::new(source, source_port),
        destination: SocketAddr::new(destination, destination_port),
    })
}

fn address<A: std::str::FromStr + Into<IpAddr>>(word: &str) -> Option<IpAddr> {
    word.parse::<A>().ok().map(Into::into)
}

/// Parses a port. Section 2.1: "heading zeroes are not permitted in front of numbers".
fn port(word: &str) -> Option<u16> {
    let is_canonical = word == "0" || !word.starts_with(['0', '+']);
    word.parse().ok().filter(|_| is_canonical)
}

pub(super) const SIGNATURE: &[u8] = b"PROXY ";

/// Maximum length of the line with its CRLF, in bytes.
pub const MAX_V1_BYTES: usize = 107;

const LINE_END: &[u8] = b"\r\n";

/// Position of the CR in the longest line.
const LAST_CR: usize = MAX_V1_BYTES - LINE_END.len();
