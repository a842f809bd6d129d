//! Traffic and CPU time of each host for sharing TLS 1.2 sessions by ID, over UDP to all other hosts and in a store.
//! Joins and keep-alives (13 bytes per second and peer) are neglected.

use serde::Serialize;

use super::returns::LIVE_PEERS;

/// Cost of a host that makes [`NEW_PER_S`] full handshakes per second.
#[derive(Debug, Serialize)]
pub(super) struct FanOut {
    pub(super) hosts: u64,
    /// Bytes sent per second to all other hosts.
    pub(super) udp_bytes: f64,
    /// Used cores, for sending and receiving.
    pub(super) udp_cores: f64,
    /// Becket replicates to this number of hosts at this rate.
    pub(super) udp_is_possible: bool,
    /// Bytes exchanged with the store per second.
    pub(super) store_bytes: f64,
    pub(super) store_cores: f64,
    /// Commands per second from all hosts to the store.
    pub(super) store_commands: f64,
}

impl FanOut {
    /// Returns the cost for `lookups` look-ups in the store for each new session.
    pub(super) fn new(hosts: u64, lookups: f64) -> Self {
        let peers = hosts.saturating_sub(1) as f64;
        let in_datagram = ((DATAGRAM - SEALED) / RECORD).floor();
        let on_wire = RECORD + (SEALED + UDP_IP) / in_datagram;
        let udp_bytes = peers * NEW_PER_S * on_wire;
        let commands = NEW_PER_S * (1.0 + lookups);
        Self {
            hosts,
            udp_bytes,
            udp_cores: 2.0 * peers * NEW_PER_S * UDP_CPU_US / 1e6,
            udp_is_possible: peers <= LIVE_PEERS as f64 && udp_bytes <= UDP_LIMIT,
            store_bytes: commands * STORE_BYTES,
            store_cores: commands * STORE_CPU_US / 1e6,
            store_commands: commands * hosts as f64,
        }
    }
}

/// Full handshakes with a session ID per second: an assumption.
pub(super) const NEW_PER_S: f64 = 1000.0;
/// Record of a new session: 60 bytes of fields (`crates/cluster/src/replica/record.rs`) and 80 of state (decision 0018).
const RECORD: f64 = 140.0;
/// `MAX_DATAGRAM` in `crates/cluster/src/replica/datagram.rs`.
const DATAGRAM: f64 = 1400.0;
/// Header and tag of a datagram, as there.
const SEALED: f64 = 32.0;
/// Headers of UDP (RFC 768) and IPv4 (RFC 791).
const UDP_IP: f64 = 28.0;
/// CPU for a session, on the sender and on the receiver each, measured with one peer (notes of decision 0018). That each
/// further peer costs as much is an assumption.
const UDP_CPU_US: f64 = 2.8;
/// `bytes_per_second` in `ReplicaLimits`.
const UDP_LIMIT: f64 = 32.0 * 1024.0 * 1024.0;
/// Command and answer with the record, nonce, tag, key and framing: an assumption.
const STORE_BYTES: f64 = 250.0;
/// CPU of a host for a command: an assumption.
const STORE_CPU_US: f64 = 10.0;
/// Commands per second of one Redis: an assumption, after its own page (81 000 to 110 000 without pipelining).
pub(super) const STORE_COMMANDS: f64 = 100_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_grows_with_the_hosts_and_a_store_does_not() {
        let (few, many) = (FanOut::new(11, 2.0), FanOut::new(101, 2.0));
        assert!((many.udp_bytes / few.udp_bytes - 10.0).abs() < 1e-9);
        assert_eq!(many.store_bytes, few.store_bytes);
        assert!((few.udp_bytes - 10.0 * 1000.0 * (140.0 + 60.0 / 9.0)).abs() < 1e-6);
    }

    #[test]
    fn udp_is_possible_for_64_peers() {
        assert!(FanOut::new(65, 0.0).udp_is_possible);
        assert!(!FanOut::new(66, 0.0).udp_is_possible);
    }
}
