//! Measured capacities by server and settings, shared by several scenarios.

use std::collections::BTreeMap;

use becket_load::report::Negotiated;

use crate::peer::Kind;
use crate::result::Point;

#[derive(Clone, Debug, Default)]
pub struct Capacity {
    pub rate: f64,
    /// `true` if `rate` is a lower bound because the client was the bottleneck.
    pub bound: bool,
    pub negotiated: Option<Negotiated>,
    pub curve: Vec<Point>,
}

#[derive(Clone, Debug, Default)]
pub struct Capacities(BTreeMap<(String, BTreeMap<String, String>), Capacity>);

impl Capacities {
    /// Returns the known capacity of a server. Ignores the `full-handshakes` setting, which does not change the
    /// capacity.
    pub fn get(&self, server: &str, settings: &BTreeMap<String, String>) -> Option<Capacity> {
        self.0.get(&key(server, settings)).cloned()
    }

    pub fn insert(&mut self, server: &str, settings: &BTreeMap<String, String>, found: Capacity) {
        self.0.insert(key(server, settings), found);
    }

    /// Returns the lowest capacity of any server with these settings, or 0. Ignores the settings in `OWN`, and excludes
    /// stunnel unless it is the only server.
    ///
    /// stunnel uses a thread per connection, so it is too slow to determine the load of all servers.
    pub fn least(&self, settings: &BTreeMap<String, String>) -> f64 {
        let alike = |other: &BTreeMap<String, String>| {
            let own = |(name, _): &(&String, &String)| !OWN.contains(&name.as_str());
            other.iter().filter(own).eq(settings.iter().filter(own))
        };
        let found = self
            .0
            .iter()
            .filter(|((_, other), found)| alike(other) && found.rate >= 1.0);
        let found: Vec<(&str, f64)> = found
            .map(|((server, _), found)| (server.as_str(), found.rate))
            .collect();
        let slow = |server: &str| server.starts_with(Kind::Stunnel.name());
        let rates = found
            .iter()
            .filter(|(server, _)| found.len() == 1 || !slow(server));
        rates.map(|(_, rate)| *rate).reduce(f64::min).unwrap_or(0.0)
    }
}

fn key(server: &str, settings: &BTreeMap<String, String>) -> (String, BTreeMap<String, String>) {
    let mut settings = settings.clone();
    settings.remove("full-handshakes");
    (server.to_owned(), settings)
}

/// Settings that only some servers support. They do not change the rate of a flood.
const OWN: &[&str] = &["crypto-threads", "full-handshakes"];

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(key: &str, threads: &str) -> BTreeMap<String, String> {
        let all = [("key", key), ("crypto-threads", threads)];
        all.map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    }

    #[test]
    fn the_common_flood_depends_on_all_servers_measured_with_that_key() {
        let mut capacities = Capacities::default();
        for (server, key, threads, rate) in [
            ("becket", "rsa2048", "auto", 1500.0),
            ("nginx", "rsa2048", "auto", 900.0),
            ("stunnel", "rsa2048", "auto", 300.0),
            ("becket", "rsa2048", "0", 1400.0),
            ("becket", "rsa4096", "0", 200.0),
        ] {
            let found = Capacity {
                rate,
                ..Capacity::default()
            };
            capacities.insert(server, &settings(key, threads), found);
        }
        assert_eq!(capacities.least(&settings("rsa2048", "0")), 900.0);
        assert_eq!(capacities.least(&settings("rsa4096", "0")), 200.0);
        assert_eq!(capacities.least(&settings("p256", "0")), 0.0);
    }
}
