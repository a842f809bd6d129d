//! Defines the settings of a server in one case, and values that the configurations of several peers share.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::scenario::Settings;

#[derive(Clone, Debug)]
pub struct Site<'a> {
    pub address: SocketAddr,
    pub backend: SocketAddr,
    pub certificate: &'a Path,
    pub settings: &'a Settings,
    pub directory: &'a Path,
    pub connections: u64,
    pub cpus: &'a [usize],
    /// Additional configuration sections, used only for becket.
    pub extra: &'a str,
}

impl Site<'_> {
    /// Returns the directory with the files to serve. It contains one file per body size.
    pub fn files(&self) -> PathBuf {
        self.directory.join("files")
    }

    /// Returns the addresses of all backend servers. A single program listens on all of them.
    pub(super) fn backends(&self) -> Vec<SocketAddr> {
        let byte = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
        let at = |number| {
            let address = [127, 0, byte(number / 250), byte(number % 250 + 1)];
            SocketAddr::from((address, self.backend.port()))
        };
        match self.settings.servers {
            1 => vec![self.backend],
            count => (0..count).map(at).collect(),
        }
    }
}

/// Finds the first line that starts with `begin`, and returns the first `count` words after it.
pub(super) fn words_after(said: &str, begin: &str, count: usize) -> Option<String> {
    let line = said.lines().find_map(|line| line.strip_prefix(begin))?;
    Some(first_words(line, count))
}

pub(super) fn first_words(text: &str, count: usize) -> String {
    let words: Vec<&str> = text.split_ascii_whitespace().take(count).collect();
    words.join(" ")
}

/// Returns the names of a cipher suite: OpenSSL's name for TLS 1.2, and the IANA name for TLS 1.3.
pub(super) fn suite_names(suite: &str) -> (&'static str, &'static str) {
    match suite {
        "aes256" => (
            "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384",
            "TLS_AES_256_GCM_SHA384",
        ),
        "chacha20" => (
            "ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305",
            "TLS_CHACHA20_POLY1305_SHA256",
        ),
        _ => (
            "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256",
            "TLS_AES_128_GCM_SHA256",
        ),
    }
}

/// Returns the groups that every server accepts, in OpenSSL's notation. The client's key share selects one of them. TLS
/// 1.2 also requires the curve of the certificate in this list.
pub(super) fn groups(settings: &Settings) -> &'static str {
    match settings.group.as_str() {
        "x25519mlkem768" => "X25519MLKEM768:X25519:P-256:P-384",
        "p256" => "P-256:X25519:P-384",
        _ => "X25519:P-256:P-384",
    }
}

pub(super) const SESSIONS: u32 = 200_000;
pub(super) const BACKLOG: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_a_thousand_servers_has_its_own_address() {
        let found = crate::catalog::find(&["scraped".to_owned()]).unwrap();
        let (_, settings) = &found[0].cases(false).unwrap()[0];
        let address = SocketAddr::from(([127, 0, 0, 1], 7));
        let site = Site {
            address,
            backend: address,
            certificate: Path::new("/c"),
            settings,
            directory: Path::new("/d"),
            connections: 1,
            cpus: &[],
            extra: "",
        };
        let all: std::collections::BTreeSet<SocketAddr> = site.backends().into_iter().collect();
        assert_eq!((all.len(), all.first()), (1000, Some(&address)));
    }
}
