//! Translates `shared-cache-*`. becket receives sessions from hosts with hitch or stud, and
//! exchanges sessions with other becket hosts. A remark explains why sessions are not shared.

use std::net::IpAddr;

use super::super::builder::address;
use super::super::setting::SettingSupport;
use super::reader::{HitchTranslator, MAIN, endpoint_of};
use super::scope::{CertificateEntry, words};

impl HitchTranslator {
    /// Sets the keys for sharing sessions with hosts that run hitch, stud or becket.
    pub(super) fn shared_cache(&mut self, certificates: &[CertificateEntry], is_shared: bool) {
        let Some((text, origin)) = self.global.text("shared-cache-listen") else {
            return self.shares_with_nobody("without shared-cache-listen");
        };
        let Some((host, port)) = endpoint_of(text) else {
            let accepted = "[HOST]:PORT, with the brackets";
            return self.out.refuse(origin, "not an address", accepted);
        };
        let (ip, listen) = (host.parse::<IpAddr>().ok(), address(host, port));
        let port = port.parse().unwrap_or_default();
        let is_group = ip.is_some_and(|ip| ip.is_multicast());
        let verify = self.global.text("client-verify");
        let verifies = verify.is_some_and(|(text, _)| text != "none");
        let versions = self.global.text("tls-protos");
        let is_new = versions.is_some_and(|(text, _)| words(text).all(|word| word != "TLSv1.2"));
        let pem = certificates.last().filter(|pem| !pem.path.contains('*'));
        let why = match pem {
            _ if self.global.on("client").is_some() => "client mode terminates no TLS",
            _ if is_group => "multicast is not supported; name each host",
            _ if verifies => "they do not identify client certificates",
            _ if is_new => "none of them is a TLS 1.3 session",
            _ if !is_shared => "each frontend has its own TLS settings",
            None => "without a pem-file for all frontends their key is not known",
            Some(pem) => {
                let key = self.out.place(pem.key.as_ref().unwrap_or(&pem.path));
                self.out.put("cluster.receive-stud", true, origin);
                self.out.put("cluster.stud-listen", listen, origin);
                self.out.put("cluster.stud-certificate", &*key, origin);
                self.out.put("cluster.stud-policy", MAIN, origin);
                return match ip {
                    _ if self.program != "stud" => {}
                    Some(ip) if !ip.is_unspecified() => self.share(key, (ip, port)),
                    _ => self.shares_with_nobody(
                        "without an address of this host in shared-cache-listen, which determines the node number",
                    ),
                };
            }
        };
        self.shares_with_nobody(why);
        let why = format!("sessions of other hosts are not accepted: {why}");
        self.out.amend(origin, SettingSupport::Different, why);
    }

    /// Exchanges sessions with other becket hosts. As in stud, the secret is derived from the
    /// shared private key. The datagrams use stud's port plus 1, because stud's datagrams have
    /// another format.
    fn share(&mut self, key: String, (ip, port): (IpAddr, u16)) {
        let Some(listen) = port.checked_add(1) else {
            return self.shares_with_nobody("shared-cache-listen has no next port");
        };
        let mut peers = Vec::new();
        for (text, origin) in std::mem::take(&mut self.peers) {
            let Some((host, port)) = peer_of(&text, port) else {
                let accepted = "HOST, HOST,PORT or [HOST]:PORT, with a port of at most 65534";
                self.out
                    .refuse(origin, "not an address of a host", accepted);
                continue;
            };
            if host.parse::<IpAddr>().is_ok_and(|ip| ip.is_multicast()) {
                let why = "sessions are not shared by multicast; name each host";
                self.out.amend(origin, SettingSupport::Different, why);
                continue;
            }
            peers.push(address(host, &port.to_string()));
            self.out.put("cluster.peers", peers.clone(), origin);
            if peers.len() == 1 {
                let listen = address(&ip.to_string(), &listen.to_string());
                self.out.put("cluster.listen", listen, origin);
                self.out.put("cluster.node", i64::from(node_of(ip)), origin);
                self.out.put("cluster.secret-from-key", &*key, origin);
            }
        }
    }

    /// Records in the peers' remarks why sessions are not shared with them.
    fn shares_with_nobody(&mut self, why: &str) {
        for (_, origin) in self.peers.iter().filter(|_| self.program == "stud") {
            let why = format!("sessions are not shared with other hosts: {why}");
            self.out.amend(*origin, SettingSupport::Different, why);
        }
    }
}

/// Returns a peer's host, and becket's port: stud's port plus 1.
fn peer_of(text: &str, port: u16) -> Option<(&str, u16)> {
    let (host, own) = match text.strip_prefix('[') {
        Some(_) if !text.ends_with(']') => {
            endpoint_of(text).map(|(host, port)| (host, Some(port)))?
        }
        Some(host) => (host.strip_suffix(']')?, None),
        None => match text.rsplit_once(',') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = own.map_or(Some(port), |own| own.parse().ok().filter(|own| *own > 0))?;
    let port = port.checked_add(1)?;
    (!["", "*"].contains(&host)).then_some((host, port))
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
