//! Address of a store that a fleet shares: `cluster.store`.

use crate::address::PeerAddress;
use crate::notation::{Text, ValueError, as_text};

/// A Redis or Valkey server, or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    /// Address as configured, used in the log and the status.
    pub text: String,
    pub has_tls: bool,
    pub topology: StoreTopology,
    /// Hosts and ports of the server, the sentinels, or some nodes of the Redis Cluster; never empty.
    pub nodes: Vec<(String, u16)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreTopology {
    Single,
    /// Sentinels, which know the address of the primary with this name.
    Sentinel(String),
    Cluster,
}

impl Text for StoreAddress {
    const ACCEPTED: &str = "redis://HOST:PORT, redis+sentinel://HOST:PORT,HOST:PORT/NAME or redis+cluster://HOST:PORT,HOST:PORT; with TLS, rediss instead of redis";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let (scheme, rest) = text.split_once("://").ok_or("no scheme")?;
        if rest.contains('@') {
            return Err("a URL with a user or a password, which belong to cluster.store-user and cluster.store-password-file".into());
        }
        let (hosts, path) = match rest.split_once('/') {
            Some((hosts, path)) => (hosts, Some(path)),
            None => (rest, None),
        };
        let (program, kind) = match scheme.split_once('+') {
            Some((program, kind)) => (program, Some(kind)),
            None => (scheme, None),
        };
        let has_tls = match program {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err("an unknown scheme".into()),
        };
        let topology = match (kind, path.unwrap_or_default()) {
            (None, "") => StoreTopology::Single,
            (Some("cluster"), "") => StoreTopology::Cluster,
            (Some("sentinel"), "") => return Err("no name of the primary after the hosts".into()),
            (Some("sentinel"), name) if !name.contains(['/', '?', '#']) => {
                StoreTopology::Sentinel(name.to_owned())
            }
            (None | Some("cluster"), _) => {
                return Err("a path, but only database 0 without options is used".into());
            }
            (Some("sentinel"), _) => return Err("not the name of a primary".into()),
            (Some(_), _) => return Err("an unknown scheme".into()),
        };
        let nodes: Vec<_> = hosts.split(',').map(node).collect::<Result<_, _>>()?;
        if topology == StoreTopology::Single && nodes.len() > 1 {
            return Err("several hosts, but redis:// names one".into());
        }
        if nodes.len() > MOST_NODES {
            return Err(format!("more than {MOST_NODES} hosts").into());
        }
        Ok(Self {
            text: text.to_owned(),
            has_tls,
            topology,
            nodes,
        })
    }

    fn write(&self) -> String {
        self.text.clone()
    }
}

as_text!(StoreAddress);

fn node(text: &str) -> Result<(String, u16), ValueError> {
    let text = PeerAddress::parse(text)?.text;
    let (host, port) = text.rsplit_once(':').ok_or("no port")?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok((host.to_owned(), port.parse().map_err(|_| "not a port")?))
}

/// Maximum number of hosts; a client needs a few of them to find the others.
const MOST_NODES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(text: &str) -> Vec<(String, u16)> {
        StoreAddress::parse(text).unwrap().nodes
    }

    #[test]
    fn each_topology_has_a_notation() {
        let single = StoreAddress::parse("rediss://store.example.org:6380").unwrap();
        assert!(single.has_tls);
        assert_eq!(single.topology, StoreTopology::Single);
        assert_eq!(
            nodes("valkey://[2001:db8::1]:6379"),
            [("2001:db8::1".to_owned(), 6379)]
        );
        let sentinel = StoreAddress::parse("redis+sentinel://a:26379,b:26380/main").unwrap();
        assert_eq!(
            sentinel.topology,
            StoreTopology::Sentinel("main".to_owned())
        );
        assert_eq!(
            sentinel.nodes,
            [("a".to_owned(), 26379), ("b".to_owned(), 26380)]
        );
        let cluster = StoreAddress::parse("valkeys+cluster://a:1,b:2/").unwrap();
        assert!(cluster.has_tls);
        assert_eq!(cluster.topology, StoreTopology::Cluster);
    }

    #[test]
    fn other_urls_are_refused_with_the_fault() {
        let many = ["a:1"; MOST_NODES + 1].join(",");
        for (text, fault) in [
            ("a:6379", "no scheme"),
            ("http://a:1", "an unknown scheme"),
            ("redis+x://a:1", "an unknown scheme"),
            ("redis://:pass@a:1", "store-password-file"),
            ("redis://a", "no port"),
            ("redis://a:0", "port 0"),
            ("redis://a:1/3", "database 0"),
            ("redis://a:1,b:2", "several hosts"),
            ("redis+sentinel://a:1", "no name"),
            ("redis+sentinel://a:1/b/c", "not the name"),
            (&format!("redis+cluster://{many}"), "more than 16"),
        ] {
            let error = StoreAddress::parse(text).unwrap_err().to_string();
            assert!(error.contains(fault), "{text}: {error}");
        }
    }
}
