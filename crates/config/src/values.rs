//! The notations of single values: durations, sizes, addresses and server names.
//!
//! Everything here is pure and takes the text as written; a value that does not parse becomes a
//! [`Mismatch`] that says what is accepted. Resolution of host names is `prepare.rs`' work.
//! Server names obey the rules of rustls (letters, digits, hyphens and underscores, labels of at
//! most 63 characters, RFC 1035 section 2.3.4), so that a name that is configured can arrive.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use rustls_pki_types::DnsName;

use crate::error::Mismatch;

/// Parses a duration: whole numbers with units, largest unit first, such as `10s` or `1m30s`.
/// Units are `ms`, `s`, `m`, `h` and `d`, each at most once; the sum is at most 365 days.
///
/// # Errors
/// Anything else, also a bare number.
pub fn duration(text: &str) -> Result<Duration, Mismatch> {
    let mismatch = |fault: &str| Mismatch::new(fault, DURATION);
    let mut rest = text;
    let mut sum = Duration::ZERO;
    let mut last = u64::MAX;
    while !rest.is_empty() {
        let (count, unit, tail) = step(rest).ok_or_else(|| mismatch("not a duration"))?;
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "" => return Err(mismatch("a duration without a unit")),
            _ => return Err(mismatch("an unknown unit of time")),
        };
        if millis >= last {
            return Err(mismatch("units out of order"));
        }
        last = millis;
        let part = count.checked_mul(millis).map(Duration::from_millis);
        sum = part
            .and_then(|part| sum.checked_add(part))
            .filter(|sum| *sum <= LONGEST)
            .ok_or_else(|| mismatch("longer than 365 days"))?;
        rest = tail;
    }
    if last == u64::MAX {
        return Err(mismatch("empty"));
    }
    Ok(sum)
}

/// Parses a number of bytes: a whole number, bare or with `B`, `KiB`, `MiB` or `GiB`.
///
/// # Errors
/// Anything else, and numbers that do not fit in 64 bits.
pub fn size(text: &str) -> Result<u64, Mismatch> {
    let mismatch = |fault: &str| Mismatch::new(fault, SIZE);
    let (count, unit, tail) = step(text).ok_or_else(|| mismatch("not a size"))?;
    if !tail.is_empty() {
        return Err(mismatch("not a size"));
    }
    let factor = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(mismatch("an unknown unit of size")),
    };
    count
        .checked_mul(factor)
        .ok_or_else(|| mismatch("too large"))
}

/// Takes the leading digits and the letters behind them off a text.
fn step(text: &str) -> Option<(u64, &str, &str)> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, rest) = text.split_at(digits);
    let letters = rest
        .find(|c: char| !c.is_ascii_alphabetic())
        .unwrap_or(rest.len());
    let (unit, tail) = rest.split_at(letters);
    Some((number.parse().ok()?, unit, tail))
}

/// An address as written, before names are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `:PORT`, every address of this machine.
    Any(u16),
    /// `192.0.2.1:PORT` or `[2001:db8::1]:PORT`.
    Ip(IpAddr, u16),
    /// `name:PORT`.
    Name(String, u16),
    /// `/path`.
    Unix(PathBuf),
}

/// Parses an address where one can listen: `HOST:PORT`, `[V6]:PORT` or `:PORT`.
///
/// # Errors
/// Anything else, also a path.
pub fn listen_address(text: &str) -> Result<Address, Mismatch> {
    address(text).map_err(|fault| Mismatch::new(fault, LISTEN))
}

/// Parses the address of a server: `HOST:PORT`, `[V6]:PORT` or `/unix/path`.
///
/// # Errors
/// Anything else, also `:PORT` and port 0.
pub fn server_address(text: &str) -> Result<Address, Mismatch> {
    let mismatch = |fault: &str| Mismatch::new(fault, SERVER);
    if text.starts_with('/') {
        // sun_path holds 108 bytes with its final NUL: unix(7).
        return match text.len() {
            2..=107 if !text.contains('\0') => Ok(Address::Unix(text.into())),
            0..=107 => Err(mismatch("not the path of a socket")),
            _ => Err(mismatch("a path longer than 107 bytes")),
        };
    }
    match address(text).map_err(mismatch)? {
        Address::Any(_) => Err(mismatch("no host")),
        Address::Ip(_, 0) | Address::Name(_, 0) => Err(mismatch("port 0")),
        address => Ok(address),
    }
}

/// Parses the address of a peer: `HOST:PORT` or `[V6]:PORT`.
///
/// # Errors
/// Anything else, also `:PORT`, port 0 and a path.
pub fn peer_address(text: &str) -> Result<Address, Mismatch> {
    let mismatch = |fault: &str| Mismatch::new(fault, PEER);
    match address(text).map_err(mismatch)? {
        Address::Any(_) => Err(mismatch("no host")),
        Address::Ip(_, 0) | Address::Name(_, 0) => Err(mismatch("port 0")),
        address => Ok(address),
    }
}

fn address(text: &str) -> Result<Address, &'static str> {
    let (host, port) = text.rsplit_once(':').ok_or("no port")?;
    let port = digits(port).ok_or("not a port")?;
    if host.is_empty() {
        return Ok(Address::Any(port));
    }
    if let Some(inner) = host.strip_prefix('[') {
        let inner = inner.strip_suffix(']').ok_or("brackets do not match")?;
        let ip = inner.parse().map_err(|_| "not an IPv6 address")?;
        return Ok(Address::Ip(IpAddr::V6(ip), port));
    }
    if host.contains(':') {
        return Err("an IPv6 address without brackets");
    }
    if let Ok(ip) = host.parse() {
        return Ok(Address::Ip(IpAddr::V4(ip), port));
    }
    match DnsName::try_from(host) {
        Ok(_) => Ok(Address::Name(host.to_owned(), port)),
        Err(_) => Err("not a host name"),
    }
}

/// A port without sign or blanks, which `u16::from_str` would take.
fn digits(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

/// A server name as a route or a certificate spells it, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NamePattern {
    /// `www.example.org`
    Exact(String),
    /// `*.example.org`, kept without `*.`; stands for exactly one label.
    Wildcard(String),
}

impl NamePattern {
    /// Whether a name in lower case is covered; a wildcard stands for exactly one label.
    pub fn matches(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        match self {
            Self::Exact(exact) => exact == name,
            Self::Wildcard(suffix) => name
                .split_once('.')
                .is_some_and(|(label, rest)| !label.is_empty() && rest == suffix),
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Wildcard(suffix) => write!(f, "*.{suffix}"),
        }
    }
}

/// Parses a server name, exact or `*.name`, into lower case.
///
/// # Errors
/// Names that cannot be in a ClientHello: a trailing dot, an IP address, a bare `*`.
pub fn server_name(text: &str) -> Result<NamePattern, Mismatch> {
    let lower = text.to_ascii_lowercase();
    let (name, wildcard) = match lower.strip_prefix("*.") {
        Some(suffix) => (suffix, true),
        None => (lower.as_str(), false),
    };
    let fault = match name {
        "" => Some("empty"),
        "*" => Some("a wildcard stands for one label, not for every name"),
        name if name.ends_with('.') => Some("a trailing dot"),
        name if name.contains('*') => Some("a wildcard is the whole first label"),
        name if name.parse::<IpAddr>().is_ok() => Some("an IP address, which no client sends"),
        name if !name.is_ascii() => Some("not in ASCII form (xn--…)"),
        name if DnsName::try_from(name).is_err() => Some("not a server name"),
        _ => None,
    };
    if let Some(fault) = fault {
        return Err(Mismatch::new(fault, NAME));
    }
    Ok(match wildcard {
        true => NamePattern::Wildcard(name.to_owned()),
        false => NamePattern::Exact(name.to_owned()),
    })
}

/// Parses the name of a protocol for ALPN (RFC 7301, section 3.1): 1 to 255 printable characters.
///
/// # Errors
/// Empty, longer, or other characters.
pub fn protocol(text: &str) -> Result<Vec<u8>, Mismatch> {
    match text.len() {
        1..=255 if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(text.into()),
        _ => Err(Mismatch::new("not the name of a protocol", PROTOCOL)),
    }
}

/// Parses the name of a section, which becomes a label of metrics and logs.
///
/// # Errors
/// Anything but 1 to 64 letters, digits, `-`, `_` and `.`.
pub fn section_name(text: &str) -> Result<&str, Mismatch> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match text.len() {
        1..=64 if text.chars().all(plain) => Ok(text),
        _ => Err(Mismatch::new("not a usable name", SECTION)),
    }
}

const DURATION: &str = "a duration such as \"500ms\", \"10s\", \"1m30s\", \"24h\" or \"7d\"";
const SIZE: &str = "a size such as 65536, \"64KiB\" or \"1MiB\"";
const LISTEN: &str = "HOST:PORT, [V6]:PORT or :PORT";
const SERVER: &str = "HOST:PORT, [V6]:PORT or /unix/path";
const PEER: &str = "HOST:PORT or [V6]:PORT";
const NAME: &str = "a server name such as www.example.org or *.example.org";
const PROTOCOL: &str = "the name of a protocol, such as \"h2\" or \"http/1.1\"";
const SECTION: &str = "1 to 64 letters, digits, '-', '_' or '.'";

/// So that no sum with a clock overflows, and because nothing here is meant to take a year.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_numbers_with_units_in_order() {
        for (text, millis) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("1m30s", 90_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
            ("0s", 0),
            ("1h2ms", 3_600_002),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn other_durations_are_refused() {
        for text in [
            "",
            "10",
            "s",
            "1.5s",
            "1s1s",
            "1s1m",
            "1 s",
            "-1s",
            "1w",
            "366d",
            "99999999999999999999s",
            "18446744073709551615d",
            "1é",
            "é",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(size("65536"), Ok(65536));
        assert_eq!(size("64KiB"), Ok(64 * 1024));
        assert_eq!(size("1MiB"), Ok(1024 * 1024));
        assert_eq!(size("2GiB"), Ok(2 << 30));
        for text in [
            "",
            "64KB",
            "64 KiB",
            "KiB",
            "1KiB2",
            "18446744073709551615KiB",
            "-1",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_have_the_documented_forms() {
        let v4 = Address::Ip("192.0.2.1".parse().unwrap(), 443);
        assert_eq!(listen_address("192.0.2.1:443"), Ok(v4));
        let v6 = Address::Ip("2001:db8::1".parse().unwrap(), 443);
        assert_eq!(listen_address("[2001:db8::1]:443"), Ok(v6));
        assert_eq!(listen_address(":443"), Ok(Address::Any(443)));
        let name = Address::Name("localhost".into(), 80);
        assert_eq!(server_address("localhost:80"), Ok(name));
        let unix = Address::Unix("/run/app.sock".into());
        assert_eq!(server_address("/run/app.sock"), Ok(unix));
    }

    #[test]
    fn other_addresses_are_refused_with_what_is_accepted() {
        for text in [
            "", "443", "a:b", "::1:443", "[::1:443", "[a]:1", "h:99999", "h:+1", "/sock", "a b:1",
        ] {
            assert_eq!(listen_address(text).unwrap_err().accepted, LISTEN, "{text}");
        }
        let long = format!("/{}", "a".repeat(107));
        for text in [":80", "app:0", "/run/peer", "app"] {
            assert_eq!(peer_address(text).unwrap_err().accepted, PEER, "{text}");
        }
        for text in [":80", "app:0", "/", "app", long.as_str()] {
            assert_eq!(server_address(text).unwrap_err().accepted, SERVER, "{text}");
        }
    }

    #[test]
    fn server_names_are_lower_case_and_wildcards_one_label() {
        let exact = NamePattern::Exact("www.example.org".into());
        assert_eq!(server_name("WWW.Example.org"), Ok(exact));
        let wildcard = NamePattern::Wildcard("example.org".into());
        assert_eq!(server_name("*.example.org"), Ok(wildcard));
        for text in [
            "",
            "*",
            "*.",
            "w*.example.org",
            "*.*.org",
            "a.",
            "192.0.2.1",
            "::1",
            "bücher.example",
            "a..b",
            "-a",
        ] {
            assert!(server_name(text).is_err(), "{text}");
        }
    }
}
