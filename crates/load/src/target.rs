//! What is put under load: `https://` or `http://` host, port and path.
//!
//! The name is resolved once, before the run. A target that is not on this machine is refused
//! unless the operator says that it is their own: a load tool is a weapon otherwise.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};

use http::Uri;
use http::uri::PathAndQuery;

use crate::Error;

/// A parsed target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// TLS, then HTTP/1; otherwise HTTP/1 in clear.
    pub is_tls: bool,
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Path and query, beginning with a slash.
    pub path: String,
}

impl Target {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Error::Plan`] with what would be accepted.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            Error::Plan(format!(
                "`{url}` is not a target: {why} (accepted: https://HOST[:PORT]/PATH, http://...)"
            ))
        };
        let uri: Uri = url.parse().map_err(|_| wrong("it is malformed"))?;
        let (is_tls, default) = match uri.scheme_str() {
            Some("https") => (true, 443),
            Some("http") => (false, 80),
            Some(_) => return Err(wrong("its scheme is unknown")),
            None => return Err(wrong("it has no scheme")),
        };
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let host = uri.host().unwrap_or_default();
        if host.is_empty() || authority.contains('@') {
            return Err(wrong("its host is empty or malformed"));
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
            port: port.ok_or_else(|| wrong("its port is not a number"))?,
            path: uri
                .path_and_query()
                .map_or("/", PathAndQuery::as_str)
                .to_owned(),
        })
    }

    /// Resolves the host to all its addresses, and refuses one that is elsewhere unless `owned`.
    ///
    /// # Errors
    /// [`Error::Plan`] when the name does not resolve or an address is not a loopback one.
    pub fn resolve(&self, owned: bool) -> Result<Vec<SocketAddr>, Error> {
        let found = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|e| Error::Unreachable(format!("`{}` does not resolve: {e}", self.host)))?;
        let addresses: Vec<SocketAddr> = found.collect();
        let elsewhere = |address: &&SocketAddr| !address.ip().to_canonical().is_loopback();
        match addresses.iter().find(elsewhere) {
            Some(address) if !owned => Err(Error::Plan(format!(
                "{} is not on this machine; load may only be put on what is yours: say --i-own-this-target if it is",
                address.ip()
            ))),
            _ => Ok(addresses),
        }
    }

    /// Returns host and port as an HTTP `Host` header has them.
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
    fn targets_are_read_and_shown_alike() {
        for url in ["https://127.0.0.1:8443/", "http://[::1]:80/a?b=c"] {
            let shown = Target::parse(url).unwrap().to_string();
            assert_eq!(shown, url.replace(":80/", "/"));
        }
        assert_eq!(Target::parse("https://localhost").unwrap().port, 443);
    }

    #[test]
    fn nonsense_is_refused_with_the_reason() {
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
    fn a_target_elsewhere_is_refused_unless_it_is_ones_own() {
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
