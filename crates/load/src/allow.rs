//! Targets that an agent allows, such as `10.1.0.0/16:443`, `[fd00::/8]:443` or `www.example.org:443`.

use std::net::SocketAddr;
use std::str::FromStr;

use becket_proto::networks::Network;
use becket_stats::units::UnitError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedTarget {
    host: AllowedHost,
    /// `None` allows all ports.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum AllowedHost {
    Network(Network),
    /// A URL must contain this name, in lower case; the agent resolves it.
    Name(String),
}

impl AllowedTarget {
    /// Returns `true` if a URL with this host, resolved to this address, is allowed.
    pub fn covers(&self, host: &str, address: SocketAddr) -> bool {
        let is_host = match &self.host {
            AllowedHost::Network(network) => network.contains(address.ip()),
            AllowedHost::Name(name) => name.eq_ignore_ascii_case(host),
        };
        is_host && self.port.is_none_or(|port| port == address.port())
    }
}

impl FromStr for AllowedTarget {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || {
            let accepted =
                "a target (accepted: 10.1.0.0/16:443, [fd00::/8]:443, NAME:443; * for all ports)";
            UnitError::new(text, accepted)
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = match port {
            "*" => None,
            port => Some(port.parse().map_err(|_| wrong())?),
        };
        let inner = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let host = match inner.unwrap_or(host).parse() {
            Ok(network) => AllowedHost::Network(network),
            Err(_) if !host.is_empty() && host.chars().all(is_name) => {
                AllowedHost::Name(host.to_owned())
            }
            Err(_) => return Err(wrong()),
        };
        Ok(Self { host, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_covers_its_network_or_name_and_its_port() {
        for (rule, host, address, covered) in [
            ("10.1.0.0/16:443", "x", "10.1.2.3:443", true),
            ("10.1.0.0/16:443", "x", "[::ffff:10.1.2.3]:443", true),
            ("10.1.0.0/16:443", "x", "10.2.0.1:443", false),
            ("10.1.0.0/16:443", "x", "10.1.2.3:444", false),
            ("10.1.2.3:443", "x", "10.1.2.3:443", true),
            ("10.1.2.3:*", "x", "10.1.2.3:9", true),
            ("10.1.2.3:*", "x", "10.1.2.4:9", false),
            ("[fd00::/8]:443", "x", "[fd12::1]:443", true),
            ("[::1]:443", "x", "[::1]:443", true),
            ("a.example:443", "A.example", "192.0.2.1:443", true),
            ("a.example:443", "b.example", "192.0.2.1:443", false),
        ] {
            let allowed: AllowedTarget = rule.parse().unwrap();
            let address = address.parse().unwrap();
            assert_eq!(allowed.covers(host, address), covered, "{rule} {address}");
        }
    }

    #[test]
    fn invalid_rules_are_rejected() {
        for rule in [
            "",
            ":443",
            "10.1.0.0/16",
            "10.1.0.1/16:443",
            "a b:1",
            "a:70000",
            "*:1",
        ] {
            let error = rule.parse::<AllowedTarget>().unwrap_err().to_string();
            assert!(error.contains("accepted"), "{rule}: {error}");
        }
    }
}
