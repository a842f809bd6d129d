//! `[cluster]`: what this becket shares with others.
//!
//! Secrets are read here, from files that only their owner can read. The chain of a secret that forgets does not stay in the
//! configuration, which lives on until a reload: it travels beside it, in [`Prepared::ratchets`](super::Prepared). Names of
//! peers are looked up while it runs, since a cluster must be able to start in any order.

use std::net::SocketAddr;
use std::sync::Arc;

use becket_cluster::{Multicast, Peer};
use becket_config::address::{Address, ListenAddress};
use becket_config::cluster as file;
use becket_config::error::Problem;
use becket_config::key;
use becket_proto::epoch::EpochLength;
use becket_proto::ticket::{NodeId, UnixSeconds};
use becket_sys::identity::UnixIdentity;

use super::ConfigBuilder;
use becket_tls::config::Cluster;
use becket_tls::secret;
use becket_tls::secret::file::RunUser;
use becket_tls::secret::ratchet::Ratchet;
use becket_tls::secret::shared::SharedSecret;

impl ConfigBuilder<'_> {
    /// The section, when there is one. Its chains are left in the builder.
    pub(super) fn cluster(&mut self) -> Option<Cluster> {
        let file = self.file;
        let cluster = file.cluster.as_ref().filter(|cluster| cluster.shares())?;
        let rotation = EpochLength::of(cluster.rotation);
        let secrets = self.secrets(cluster, rotation);
        let listen = self.udp_address(&key!("cluster", cluster.listen), cluster.listen.as_ref());
        let peers = self.peers(cluster, listen);
        let multicast = self.multicast(cluster, listen);
        Some(Cluster {
            node: NodeId(cluster.node.unwrap_or_default()),
            secrets,
            rotation: rotation?,
            listen,
            peers,
            multicast,
            keys: cluster.clone(),
        })
    }

    fn secrets(
        &mut self,
        cluster: &file::Cluster,
        length: Option<EpochLength>,
    ) -> Vec<SharedSecret> {
        let root = cluster
            .secret
            .as_deref()
            .map(|text| ("secret", text, false));
        let state = cluster.secret_state.as_deref();
        let state = state.map(|text| ("secret-state", text, true));
        let mut secrets: Vec<SharedSecret> = Vec::new();
        for (key, text, is_state) in root.into_iter().chain(state) {
            let path = format!("cluster.{key}");
            self.secret(&path, text, Some(is_state), length, &mut secrets);
        }
        for (index, text) in cluster.accept_secrets.iter().enumerate() {
            let path = format!("cluster.accept-secrets[{index}]");
            self.secret(&path, text, None, length, &mut secrets);
        }
        secrets
    }

    /// Who will read the secrets at reloads. An unknown user is a fault of `process.user`.
    fn run_user(&self) -> RunUser {
        let process = &self.file.process;
        let user = process.user.as_deref();
        let found = user.and_then(|user| {
            let identity = UnixIdentity::find(user, process.group.as_deref()).ok()?;
            Some((user, identity))
        });
        match found {
            Some((name, identity)) => RunUser {
                uid: identity.uid,
                name: name.to_owned(),
            },
            None => RunUser::effective(),
        }
    }

    /// Reads one file. `is_state` says which kind it must be.
    fn secret(
        &mut self,
        path: &str,
        text: &str,
        is_state: Option<bool>,
        length: Option<EpochLength>,
        secrets: &mut Vec<SharedSecret>,
    ) {
        let file = self.environment.base.join(text);
        let problem = |fault: &str| Problem::new(path, fault).text(&file.to_string_lossy());
        let opened = match secret::open(&self.environment.files, &file, &self.run_user()) {
            Ok(opened) => opened,
            Err(wrong) => {
                let problem = problem(&wrong.fault).accepted(wrong.accepted);
                return self.report.error(problem);
            }
        };
        let found = opened.ratchet.is_some();
        if is_state.is_some_and(|wanted| wanted != found) {
            let (fault, key) = if found {
                ("the state of a ratchet", "cluster.secret-state")
            } else {
                ("no state of a ratchet", "cluster.secret")
            };
            let accepted = format!("{key} instead");
            return self.report.error(problem(fault).accepted(accepted));
        }
        if let Some(same) = secrets.iter().find(|same| same.id == opened.secret.id) {
            let fault = format!("the same secret as in {}", same.path.display());
            return self
                .report
                .error(problem(&fault).accepted("each secret once"));
        }
        if let (Some(ratchet), Some(length)) = (opened.ratchet, length) {
            let found = self.ratchet(ratchet, length, &problem);
            self.report.errors.extend(found);
        }
        secrets.push(opened.secret);
    }

    /// Takes a chain over, unless it is not one of these epochs.
    fn ratchet(
        &mut self,
        ratchet: Ratchet,
        length: EpochLength,
        problem: &dyn Fn(&str) -> Problem,
    ) -> Option<Problem> {
        let (made, wanted) = (ratchet.length().duration(), length.duration());
        if made != wanted {
            let fault = format!("its epochs last {made:?}, and cluster.rotation is {wanted:?}");
            return Some(problem(&fault).accepted("the same on all nodes"));
        }
        let now = length.number_at(UnixSeconds(self.environment.now.as_secs()));
        let behind = now.0.saturating_sub(ratchet.floor().0);
        let most = ratchet.most_steps();
        if behind > most {
            let fault = format!("{behind} epochs behind the clock");
            let accepted =
                format!("at most {most}, a clock that is right, or the file of another node");
            return Some(problem(&fault).accepted(accepted));
        }
        if ratchet.floor() > now {
            let fault = "of an epoch to come: until the clock gets there, only tickets that are \
                         sealed with it open";
            self.report.warn(problem(fault));
        }
        self.ratchets.push(ratchet);
        None
    }

    /// Where one socket can receive datagrams.
    pub(super) fn udp_address(
        &mut self,
        path: &str,
        listen: Option<&ListenAddress>,
    ) -> Option<SocketAddr> {
        let address = &listen?.address;
        // One socket for both families, where there are two.
        let found = match address {
            Address::Any(port) if self.environment.ipv6 => SocketAddr::from(([0u16; 8], *port)),
            _ => self.resolve(path, address).into_iter().next()?,
        };
        if found.ip().is_multicast() {
            let fault = "a group is heard on cluster.multicast";
            self.report.refuse(path, fault, "an address of this host");
        }
        if found.port() == 0 {
            let fault = "port 0 is no port that peers could know";
            self.report.refuse(path, fault, "a port from 1 to 65535");
        }
        Some(found)
    }

    fn peers(&mut self, cluster: &file::Cluster, listen: Option<SocketAddr>) -> Vec<Peer> {
        let mut peers: Vec<Peer> = Vec::with_capacity(cluster.peers.len());
        for (index, peer) in cluster.peers.iter().enumerate() {
            let path = format!("{}[{index}]", key!("cluster", cluster.peers));
            if let Some((fault, accepted)) = unreachable(&peer.address, listen) {
                self.report.refuse(path, fault, accepted);
                continue;
            }
            peers.push(Peer {
                name: Arc::clone(&peer.text),
                addresses: self.known_addresses(&path, &peer.address),
                lookup: match &peer.address {
                    Address::Name(host, port) => Some((host.clone(), *port)),
                    Address::Ip(..) | Address::Any(_) | Address::Unix(_) => None,
                },
            });
        }
        peers
    }

    fn multicast(
        &mut self,
        cluster: &file::Cluster,
        listen: Option<SocketAddr>,
    ) -> Option<Multicast> {
        let Address::Ip(ip, port) = cluster.multicast.as_ref()?.address else {
            return None;
        };
        if listen.is_some_and(|listen| listen.ip().is_ipv4() != ip.is_ipv4()) {
            let fault = "of another family than cluster.listen";
            let path = key!("cluster", cluster.multicast);
            self.report.refuse(path, fault, "both IPv4 or both IPv6");
        }
        let interface = cluster.multicast_interface.as_ref();
        Some(Multicast {
            group: SocketAddr::new(ip, port),
            interface: interface.map(|name| name.0.clone()),
            // Unless somebody means more, a datagram stays on the link.
            ttl: cluster.multicast_ttl.unwrap_or(1),
        })
    }
}

/// Why the socket at `listen` cannot reach a peer by this address, and what it could.
fn unreachable(peer: &Address, listen: Option<SocketAddr>) -> Option<(&'static str, &'static str)> {
    let Address::Ip(ip, _) = peer else {
        return None;
    };
    if ip.is_multicast() {
        return Some(("a group", "the address of one host, or cluster.multicast"));
    }
    // The unspecified address of IPv6 stands for both families.
    let both = |listen: &SocketAddr| listen.is_ipv6() && listen.ip().is_unspecified();
    let listen = listen.filter(|listen| !both(listen))?;
    (listen.is_ipv4() != ip.to_canonical().is_ipv4()).then_some((
        "of another family than cluster.listen",
        "both IPv4 or both IPv6, or listen = \":PORT\"",
    ))
}
