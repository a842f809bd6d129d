//! The target of the load: an `https://` or `http://` URL with host, port and path.
//!
//! The host is resolved once, before the run. A target on another machine is rejected unless the operator confirms ownership,
//! because a load generator can be misused to attack a server.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};

use http::Uri;
use http::uri::PathAndQuery;

use crate::Error;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub is_tls: bool,
    /// Host name or address; an IPv6 address has no brackets.
    pub host: String,
    pub port: u16,
    /// Path and query, beginning with a slash.
    pub path: String,
}

impl Target {
    pub fn parse(url: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            Error::Plan(format!(
                "`{url}` is not a valid target: {why} (accepted: https://HOST[:PORT]/PATH, http://...)"
            ))
        };
        let uri: Uri = url.parse().map_err(|_| wrong("malformed URL"))?;
        let (is_tls, default) = match uri.scheme_str() {
            Some("https") => (true, 443),
            Some("http") => (false, 80),
            Some(_) => return Err(wrong("unknown scheme")),
            None => return Err(wrong("no scheme")),
        };
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let host = uri.host().unwrap_or_default();
        if host.is_empty() || authority.contains('@') {
            return Err(wrong("empty or malformed host"));
        }
        let has_port = authority.len() > host.len();
        let port = if has_port {
            uri.port_u16()
        } else {
            Some(default)
        };
        Ok(Self {
            is_tls,
            host: host.trim_matches(['[', ']']).to_owned(),
            port: port.ok_or_else(|| wrong("the port is not a number"))?,
            path: uri
                .path_and_query()
                .map_or("/", PathAndQuery::as_str)
                .to_owned(),
        })
    }

    /// Resolves the host to all its addresses. Rejects an address that is not on this machine unless `owned` is true.
    ///
    /// # Errors
    /// [`Error::Plan`] if an address is not a loopback address, [`Error::Unreachable`] if the name does not resolve.
    pub fn resolve(&self, owned: bool) -> Result<Vec<SocketAddr>, Error> {
        let found = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|e| Error::Unreachable(format!("`{}` does not resolve: {e}", self.host)))?;
        let addresses: Vec<SocketAddr> = found.collect();
        let elsewhere = |address: &&SocketAddr| !address.ip().to_canonical().is_loopback();
        match addresses.iter().find(elsewhere) {
            Some(address) if !owned => Err(Error::Plan(format!(
                "{} is not on this machine; add --i-own-this-target if you own the server",
                address.ip()
            ))),
            _ => Ok(addresses),
        }
    }

    /// Returns host and port in the format of an HTTP `Host` header.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        match (self.is_tls, self.port) {
            (true, 443) | (false, 80) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_shown_as_it_was_written() {
        for url in ["https://127.0.0.1:8443/", "http://[::1]:80/a?b=c"] {
            let shown = Target::parse(url).unwrap().to_string();
            assert_eq!(shown, url.replace(":80/", "/"));
        }
        assert_eq!(Target::parse("https://localhost").unwrap().port, 443);
    }

    #[test]
    fn invalid_targets_are_rejected_with_the_reason() {
        for url in [
            "",
            "localhost:80",
            "ftp://x/",
            "https://:443/",
            "https://a:b/",
            "tcp://a:1",
            "https://a b/",
            "http://[::1/",
            "http://a/b c",
        ] {
            let error = Target::parse(url).unwrap_err().to_string();
            assert!(error.contains("accepted"), "{url}: {error}");
        }
    }

    #[test]
    fn a_target_on_another_machine_is_rejected_without_confirmation() {
        let target = Target::parse("https://192.0.2.1/").unwrap();
        assert!(
            target
                .resolve(false)
                .unwrap_err()
                .to_string()
                .contains("--i-own-this-target")
        );
        assert!(target.resolve(true).is_ok());
        assert!(
            Target::parse("https://127.1.2.3/")
                .unwrap()
                .resolve(false)
                .is_ok()
        );
        assert!(
            Target::parse("https://[::ffff:127.0.0.1]/")
                .unwrap()
                .resolve(false)
                .is_ok()
        );
    }
}
