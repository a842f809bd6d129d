//! Addresses and names as configured, before DNS resolution.
//!
//! Server names follow the rules of rustls, so that clients can send each configured name: letters,
//! digits, hyphens and underscores, in labels of at most 63 characters (RFC 1035 section 2.3.4).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use rustls_pki_types::DnsName;

use crate::notation::{Text, ValueError, as_text, checked_text};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `:PORT`, `*:PORT` or `[*]:PORT`: all addresses of this machine.
    Any(u16),
    /// `192.0.2.1:PORT` or `[2001:db8::1]:PORT`.
    Ip(IpAddr, u16),
    /// `name:PORT`.
    Name(String, u16),
    /// `/path`.
    Unix(PathBuf),
}

impl Address {
    /// Returns the addresses to bind or to connect to. Resolves names with `look_up`. Without IPv6,
    /// [`Self::Any`] expands to the IPv4 wildcard address only. Returns no address for a unix
    /// socket.
    ///
    /// # Errors
    /// Returns the error of `look_up`.
    pub fn expand<F: AsRef<[IpAddr]>, E>(
        &self,
        has_ipv6: bool,
        look_up: impl FnOnce(&str) -> Result<F, E>,
    ) -> Result<Vec<SocketAddr>, E> {
        let found;
        let (hosts, port) = match self {
            Self::Unix(_) => return Ok(Vec::new()),
            Self::Ip(ip, port) => (std::slice::from_ref(ip), port),
            Self::Any(port) if has_ipv6 => (&ANY[..], port),
            Self::Any(port) => (&ANY[..1], port),
            Self::Name(name, port) => {
                found = look_up(name)?;
                (found.as_ref(), port)
            }
        };
        let hosts = hosts.iter();
        Ok(hosts.map(|host| SocketAddr::new(*host, *port)).collect())
    }

    /// Returns the addresses to bind. `localhost` expands to the loopback addresses. Returns `None`
    /// for all other names, which need DNS.
    pub fn to_bind(&self, has_ipv6: bool) -> Option<Vec<SocketAddr>> {
        let loopback = if has_ipv6 {
            &LOOPBACK[..]
        } else {
            &LOOPBACK[..1]
        };
        let found = self.expand(has_ipv6, |name| {
            (name == "localhost").then_some(loopback).ok_or(())
        });
        found.ok()
    }
}

const LOOPBACK: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

const ANY: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    IpAddr::V6(Ipv6Addr::UNSPECIFIED),
];

macro_rules! addresses {
    ($($(#[$doc:meta])* $name:ident, $accepted:literal, $check:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            /// Address as configured, used as a label in metrics and logs.
            pub text: Arc<str>,
            pub address: Address,
        }

        impl Text for $name {
            const ACCEPTED: &str = $accepted;

            fn parse(text: &str) -> Result<Self, ValueError> {
                let check: fn(&str) -> Result<Address, &'static str> = $check;
                let address = check(text).map_err(|fault| refusal(text, fault, check))?;
                Ok(Self { text: text.into(), address })
            }

            fn write(&self) -> String {
                self.text.to_string()
            }
        }

        as_text!($name);
    )*};
}

addresses! {
    ListenAddress, "HOST:PORT, [V6]:PORT or :PORT", inet;
    ServerAddress, "HOST:PORT, [V6]:PORT or /unix/path", |text| if text.starts_with('/') {
        unix(text)
    } else {
        remote(text)
    };
    PeerAddress, "HOST:PORT or [V6]:PORT", remote;
    /// Address of a syslog daemon. Names are rejected, so that logging never waits for DNS.
    SyslogAddress, "the path of a socket such as /dev/log, IP:PORT or [V6]:PORT", fixed;
    /// Address of a server that needs no DNS: an IP address or a socket path.
    FixedAddress, "IP:PORT, [V6]:PORT or /unix/path", fixed;
    /// Address of the admin pages. Wildcard addresses are rejected, because the pages have no
    /// password.
    AdminAddress, "HOST:PORT or [V6]:PORT, such as 127.0.0.1:9443", |text| match inet(text)? {
        Address::Any(_) => Err("the admin page has no password, so the address must be explicit"),
        address => Ok(address),
    };
}

/// Creates the error for an invalid address. If `text` is only a port number, the error suggests an
/// address with this port.
fn refusal(
    text: &str,
    fault: &'static str,
    check: fn(&str) -> Result<Address, &'static str>,
) -> ValueError {
    let is_port = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let guesses = [format!(":{text}"), format!("127.0.0.1:{text}")];
    match guesses.iter().find(|guess| is_port && check(guess).is_ok()) {
        Some(guess) => format!("{fault} (did you mean {guess}?)").into(),
        None => fault.into(),
    }
}

fn fixed(text: &str) -> Result<Address, &'static str> {
    if text.starts_with('/') {
        unix(text)
    } else {
        match remote(text)? {
            Address::Name(..) => Err("a name, but names are not resolved here"),
            address => Ok(address),
        }
    }
}

fn unix(text: &str) -> Result<Address, &'static str> {
    // sun_path holds 108 bytes, including the final NUL: unix(7).
    match text.len() {
        2..=107 if !text.contains('\0') => Ok(Address::Unix(text.into())),
        0..=107 => Err("not the path of a socket"),
        _ => Err("a path longer than 107 bytes"),
    }
}

fn remote(text: &str) -> Result<Address, &'static str> {
    match inet(text)? {
        Address::Any(_) => Err("no host"),
        Address::Ip(_, 0) | Address::Name(_, 0) => Err("port 0"),
        address => Ok(address),
    }
}

fn inet(text: &str) -> Result<Address, &'static str> {
    let (host, port) = text.rsplit_once(':').ok_or("no port")?;
    // `u16::from_str` accepts a leading `+`, which is not valid in an address.
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|_| digits).ok_or("not a port")?;
    if matches!(host, "" | "*" | "[*]") {
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
    DnsName::try_from(host).map_err(|_| "not a host name")?;
    Ok(Address::Name(host.to_owned(), port))
}

/// Server name in a route or a certificate, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NamePattern {
    /// `www.example.org`
    Exact(String),
    /// `*.example.org`, stored without `*.`. The `*` matches exactly one label.
    Wildcard(String),
}

impl NamePattern {
    /// Returns `true` if the pattern matches `name`, which must be in lower case.
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

impl Text for NamePattern {
    const ACCEPTED: &str = "a server name such as www.example.org or *.example.org";

    /// Parses a pattern. Rejects names that no client can send: a trailing dot, an IP address, a
    /// bare `*`.
    fn parse(text: &str) -> Result<Self, ValueError> {
        let lower = text.to_ascii_lowercase();
        let (name, wildcard) = match lower.strip_prefix("*.") {
            Some(suffix) => (suffix, true),
            None => (lower.as_str(), false),
        };
        let fault = match name {
            "" => "empty",
            "*" => "a wildcard stands for one label, not for every name",
            name if name.ends_with('.') => "a trailing dot",
            name if name.contains('*') => "a wildcard must be the whole first label",
            name if name.parse::<IpAddr>().is_ok() => "an IP address, which no client sends",
            name if !name.is_ascii() => "not in ASCII form (xn--…)",
            name if DnsName::try_from(name).is_err() => "not a server name",
            name if wildcard => return Ok(Self::Wildcard(name.to_owned())),
            name => return Ok(Self::Exact(name.to_owned())),
        };
        Err(fault.into())
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

/// The name of a host in lower case, without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(pub String);

impl Text for HostName {
    const ACCEPTED: &str = "a name without a port, such as becket.example.org";

    fn parse(text: &str) -> Result<Self, ValueError> {
        match NamePattern::parse(text)? {
            NamePattern::Exact(name) => Ok(Self(name)),
            NamePattern::Wildcard(_) => Err("a wildcard".into()),
        }
    }

    fn write(&self) -> String {
        self.0.clone()
    }
}

checked_text! {
    /// Name of a section, used as a label in metrics and logs. The default, an empty name, is
    /// invalid.
    SectionName(Arc<str>), "1 to 64 letters, digits, '-', '_' or '.'", "not a usable name", |text| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        (1..=64).contains(&text.len()) && text.chars().all(is_plain)
    };
}

impl Default for SectionName {
    fn default() -> Self {
        Self("".into())
    }
}

impl std::ops::Deref for SectionName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

as_text!(NamePattern, HostName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_documented_forms() {
        let v4 = Address::Ip("192.0.2.1".parse().unwrap(), 443);
        assert_eq!(inet("192.0.2.1:443"), Ok(v4));
        let v6 = Address::Ip("2001:db8::1".parse().unwrap(), 443);
        assert_eq!(inet("[2001:db8::1]:443"), Ok(v6));
        for any in [":443", "*:443", "[*]:443"] {
            assert_eq!(inet(any), Ok(Address::Any(443)));
        }
        let name = Address::Name("localhost".into(), 80);
        assert_eq!(ServerAddress::parse("localhost:80").unwrap().address, name);
        let unix = Address::Unix("/run/app.sock".into());
        assert_eq!(ServerAddress::parse("/run/app.sock").unwrap().address, unix);
    }

    #[test]
    fn a_bare_port_is_rejected_with_a_suggested_address() {
        let fault = |error: ValueError| error.to_string();
        let listen = ListenAddress::parse("443").map_err(fault).unwrap_err();
        assert_eq!(listen, "no port (did you mean :443?)");
        let server = ServerAddress::parse("80").map_err(fault).unwrap_err();
        assert_eq!(server, "no port (did you mean 127.0.0.1:80?)");
        for other in ["nowhere", "99999"] {
            let other = ListenAddress::parse(other).map_err(fault).unwrap_err();
            assert_eq!(other, "no port");
        }
    }

    #[test]
    fn an_address_expands_to_one_or_more_sockets() {
        let expanded = |text: &str, has_ipv6| {
            let address = ServerAddress::parse(text).map(|it| it.address);
            let address = address.or_else(|_| ListenAddress::parse(text).map(|it| it.address));
            let found = address.unwrap().expand(has_ipv6, |name| match name {
                "a.test" => Ok(["192.0.2.1".parse().unwrap(), "::1".parse().unwrap()]),
                _ => Err("unknown"),
            });
            found.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        for (text, sockets) in [
            (":443", &["0.0.0.0:443", "[::]:443"][..]),
            ("192.0.2.9:1", &["192.0.2.9:1"]),
            ("a.test:80", &["192.0.2.1:80", "[::1]:80"]),
            ("/run/app.sock", &[]),
        ] {
            assert_eq!(expanded(text, true).unwrap(), sockets);
        }
        assert_eq!(expanded(":443", false).unwrap(), ["0.0.0.0:443"]);
        assert_eq!(expanded("b.test:1", true), Err("unknown"));
        let to_bind = |text: &str, has_ipv6| {
            ListenAddress::parse(text)
                .unwrap()
                .address
                .to_bind(has_ipv6)
        };
        let localhost = ["127.0.0.1:1", "[::1]:1"].map(|at| at.parse().unwrap());
        assert_eq!(to_bind("localhost:1", true), Some(localhost.to_vec()));
        assert_eq!(to_bind("localhost:1", false), Some(localhost[..1].to_vec()));
        assert_eq!(to_bind("a.test:1", true), None);
    }

    #[test]
    fn other_addresses_are_refused() {
        for text in [
            "", "443", "a:b", "::1:443", "[::1:443", "[a]:1", "h:99999", "h:+1", "/sock", "a b:1",
        ] {
            assert!(ListenAddress::parse(text).is_err(), "{text}");
        }
        let long = format!("/{}", "a".repeat(107));
        for text in [":80", "*:80", "app:0", "/run/peer", "app"] {
            assert!(PeerAddress::parse(text).is_err(), "{text}");
        }
        for text in [":80", "app:0", "/", "app", long.as_str()] {
            assert!(ServerAddress::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn server_names_are_lower_case_and_wildcards_one_label() {
        let exact = NamePattern::Exact("www.example.org".into());
        assert_eq!(NamePattern::parse("WWW.Example.org"), Ok(exact));
        let wildcard = NamePattern::Wildcard("example.org".into());
        assert_eq!(NamePattern::parse("*.example.org"), Ok(wildcard));
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
            assert!(NamePattern::parse(text).is_err(), "{text}");
        }
    }
}
