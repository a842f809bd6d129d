//! Translates stud's `shared-cache-*`: hosts that run becket in place of stud share their sessions.

use std::net::IpAddr;

use super::super::builder::{SettingId, address};
use super::reader::{HitchTranslator, endpoint_of};
use super::scope::CertificateEntry;

impl HitchTranslator {
    /// Sets the keys of `[cluster]`. As in stud, the secret is derived from the shared private key.
    pub(super) fn shared_cache(&mut self, certificates: &[CertificateEntry]) {
        if self.program != "stud" {
            return;
        }
        let Some((text, origin)) = self.global.text("shared-cache-listen") else {
            return self.shares_with_nobody("without shared-cache-listen");
        };
        let Some((host, port)) = endpoint_of(text) else {
            let accepted = "[HOST]:PORT, with the brackets";
            return self.out.refuse(origin, "not an address", accepted);
        };
        let listen = address(host, port);
        let pem = certificates.last().filter(|pem| !pem.path.contains('*'));
        let key = pem.map(|pem| {
            self.out.place(
                pem.block
                    .text("private-key")
                    .map_or(&*pem.path, |(key, _)| key),
            )
        });
        let why = match (host.parse::<IpAddr>(), key) {
            _ if self.global.on("client").is_some() => "client mode terminates no TLS",
            (Ok(ip), _) if ip.is_multicast() => "multicast is not supported; name each host",
            (_, None) => "without a pem-file there is no common key",
            (Ok(ip), Some(key)) if !ip.is_unspecified() => {
                let port = port.to_owned();
                return self.share(&key, (ip, listen, &port), origin);
            }
            _ => {
                "without an address of this host in shared-cache-listen, which determines the node number"
            }
        };
        self.shares_with_nobody(why);
        let why = format!("sessions are not shared with other hosts: {why}");
        self.out.differs(origin, why);
    }

    fn share(&mut self, key: &str, (ip, listen, port): (IpAddr, String, &str), origin: SettingId) {
        let mut peers = Vec::new();
        for (text, origin) in std::mem::take(&mut self.peers) {
            let Some((host, port)) = peer_of(&text, port) else {
                let accepted = "HOST, HOST,PORT or [HOST]:PORT";
                self.out
                    .refuse(origin, "not an address of a host", accepted);
                continue;
            };
            if host.parse::<IpAddr>().is_ok_and(|ip| ip.is_multicast()) {
                let why = "sessions are not shared by multicast; name each host";
                self.out.differs(origin, why);
                continue;
            }
            peers.push(address(host, port));
            self.out.put("cluster.peers", peers.clone(), origin);
        }
        if peers.is_empty() {
            let why = "no shared-cache-peer names another host";
            return self.out.differs(origin, why);
        }
        self.out.put("cluster.listen", listen, origin);
        self.out.put("cluster.node", i64::from(node_of(ip)), origin);
        self.out.put("cluster.secret-from-key", key, origin);
    }

    /// Records in the peers' remarks why sessions are not shared with them.
    fn shares_with_nobody(&mut self, why: &str) {
        for (_, origin) in &self.peers {
            let why = format!("sessions are not shared with other hosts: {why}");
            self.out.differs(*origin, why);
        }
    }
}

/// Returns a peer's host and port; the default is this host's port.
fn peer_of<'t>(text: &'t str, default: &'t str) -> Option<(&'t str, &'t str)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(_) if !text.ends_with(']') => endpoint_of(text)?,
        Some(host) => (host.strip_suffix(']')?, default),
        None => text.rsplit_once(',').unwrap_or((text, default)),
    };
    let is_valid = port.parse::<u16>().is_ok_and(|port| port > 0);
    (is_valid && !["", "*"].contains(&host)).then_some((host, port))
}

/// Derives a node number from this host's address. Numbers differ within a network of 65536
/// addresses, and rarely collide between networks.
fn node_of(ip: IpAddr) -> u16 {
    let parts = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().segments(),
        IpAddr::V6(ip) => ip.segments(),
    };
    let mix = |node: u16, part: &u16| node.wrapping_mul(0x9e37) ^ part;
    parts.iter().fold(0, mix).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_one_network_have_numbers_of_their_own() {
        let of = |ip: [u8; 4]| node_of(ip.into());
        let all = (0..=u8::MAX).flat_map(|c| (0..=u8::MAX).map(move |d| of([10, 7, c, d])));
        let numbers: std::collections::BTreeSet<u16> = all.collect();
        // 0 is not a valid number, and becomes 1.
        assert_eq!(numbers.len(), 65_535);
        assert_ne!(of([10, 1, 0, 5]), of([10, 2, 0, 5]));
    }
}
