//! Builds `[cluster]`: the state that this Becket instance shares with other instances.
//!
//! This module reads the secrets from files that only their owner can read. Names of peers are
//! resolved at run time, because the hosts of a cluster must be able to start in any order.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use becket_cluster::Peer;
use becket_config::address::{Address, ListenAddress};
use becket_config::cluster as file;
use becket_config::error::Problem;
use becket_config::key;
use becket_config::key_source::KeySource;
use becket_config::notation::Text;
use becket_keys::authorities::authorities;
use becket_keys::files::shown;
use becket_keys::texts::{needs_password, read, warn_if_readable};
use becket_proto::epoch::EpochLength;
use becket_proto::ticket::NodeId;
use becket_sys::identity::UnixIdentity;
use zeroize::Zeroizing;

use super::ConfigBuilder;
use super::resolver::own_address;
use becket_tls::config::{Cluster, StoreFiles};
use becket_tls::secret;
use becket_tls::secret::file::{FileFault, ROOT_FILE, RunUser};
use becket_tls::secret::shared::SharedSecret;

/// Returns the last 16 bits of this host's address.
fn own_number() -> Option<u16> {
    let number = match own_address()? {
        IpAddr::V4(address) => address.to_bits() as u16,
        IpAddr::V6(address) => address.to_bits() as u16,
    };
    Some(number).filter(|number| *number > 0)
}

impl ConfigBuilder<'_> {
    /// Returns the settings of the cluster; `None` if the section is missing.
    pub(super) fn cluster(&mut self) -> Option<Cluster> {
        let file = self.file;
        let cluster = file.cluster.as_ref()?;
        let secrets = self.secrets(cluster);
        let listen = self.udp_address(&key!("cluster", cluster.listen), cluster.listen.as_ref());
        let peers = self.peers(cluster, listen);
        let node = cluster.node.or_else(own_number).unwrap_or_else(|| {
            let fault = "no route from which an address of this host could be taken";
            let accepted = "1 to 65535, different on each node";
            self.report
                .refuse(key!("cluster", cluster.node), fault, accepted);
            0
        });
        Some(Cluster {
            node: NodeId(node),
            secrets,
            rotation: EpochLength::of(cluster.rotation)?,
            listen,
            peers,
            store: self.store_files(cluster),
            keys: cluster.clone(),
        })
    }

    fn store_files(&mut self, cluster: &file::Cluster) -> StoreFiles {
        let files = &self.environment.files;
        let password = cluster.store_password_file.as_ref().and_then(|text| {
            let at = self.environment.base.join(text);
            let read = secret::file::read(files, &at, &self.run_user());
            let refuse = |wrong: FileFault| {
                let path = key!("cluster", cluster.store_password_file);
                let accepted = match &*wrong.accepted {
                    ROOT_FILE => "a file of one line, the password".to_owned(),
                    advice => advice.to_owned(),
                };
                let problem = Problem::new(path, wrong.fault).text(&at.to_string_lossy());
                self.report.error(problem.accepted(accepted));
            };
            let text = read.map_err(refuse).ok()?;
            Some(Zeroizing::new(
                text.trim_end_matches(['\r', '\n']).to_owned(),
            ))
        });
        let authorities = cluster.store_ca.as_ref().and_then(|text| {
            let path = key!("cluster", cluster.store_ca);
            let at = self.environment.base.join(text);
            authorities(files, &path, &at, &mut self.report)?;
            files.bytes(&at).ok()
        });
        StoreFiles {
            password,
            authorities,
        }
    }

    fn secrets(&mut self, cluster: &file::Cluster) -> Vec<SharedSecret> {
        let mut secrets: Vec<SharedSecret> = Vec::new();
        if let Some(text) = &cluster.secret_from_key {
            let path = key!("cluster", cluster.secret_from_key);
            let accepted = "a PEM file with a private key of RSA, ECDSA or Ed25519";
            secrets.extend(self.secret_from_key(&path, text, accepted));
        }
        if let Some(text) = &cluster.secret {
            self.secret("cluster.secret", text, &mut secrets);
        }
        for (index, text) in cluster.accept_secrets.iter().enumerate() {
            let path = format!("cluster.accept-secrets[{index}]");
            self.secret(&path, text, &mut secrets);
        }
        secrets
    }

    /// Returns the user under which a reload reads the secrets. The check of `process.user` reports
    /// an unknown user.
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
                gid: identity.gid,
                name: name.to_owned(),
            },
            None => RunUser::effective(),
        }
    }

    fn secret(&mut self, path: &str, text: &str, secrets: &mut Vec<SharedSecret>) {
        let file = self.environment.base.join(text);
        let problem = |fault: &str| Problem::new(path, fault).text(&file.to_string_lossy());
        let opened = match secret::open(&self.environment.files, &file, &self.run_user()) {
            Ok(opened) => opened,
            Err(wrong) => {
                let problem = problem(&wrong.fault).accepted(wrong.accepted);
                return self.report.error(problem);
            }
        };
        if let Some(same) = secrets.iter().find(|same| same.id == opened.id) {
            let fault = format!("the same secret as in {}", same.path.display());
            return self
                .report
                .error(problem(&fault).accepted("each secret once"));
        }
        secrets.push(opened);
    }

    /// Derives the secret from the private key in a PEM file, which must contain exactly one.
    fn secret_from_key(&mut self, path: &str, text: &str, accepted: &str) -> Option<SharedSecret> {
        if !matches!(KeySource::parse(text), Ok(KeySource::File(_))) {
            let fault = "a key on a token, which becket cannot read";
            self.report.refuse(path, fault, accepted);
            return None;
        }
        let at = self.environment.base.join(text);
        let pem = read(&self.environment.files, path, &at, &mut self.report)?;
        if needs_password(path, &at, &pem, &mut self.report) {
            return None;
        }
        warn_if_readable(path, &at, &pem, &mut self.report);
        let made = match pem.keys.as_slice() {
            [key] => SharedSecret::of_private_key(key, &at).ok_or("a private key of another kind"),
            [] => Err("no private key"),
            _ => Err("more than one private key"),
        };
        let refuse = |fault| {
            self.report
                .error(shown(path, &at, fault).accepted(accepted))
        };
        made.map_err(refuse).ok()
    }

    pub(super) fn udp_address(
        &mut self,
        path: &str,
        listen: Option<&ListenAddress>,
    ) -> Option<SocketAddr> {
        let address = &listen?.address;
        // One IPv6 socket receives both families if this host supports both.
        let found = match address {
            Address::Any(port) if self.environment.ipv6 => SocketAddr::from(([0u16; 8], *port)),
            _ => self.resolve(path, address).into_iter().next()?,
        };
        if found.ip().is_multicast() {
            self.report
                .refuse(path, "a multicast address", "an address of this host");
        }
        if found.port() == 0 {
            let fault = "port 0 is not a fixed port";
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
}

/// Returns why the socket at `listen` cannot reach `peer`, and a hint for the fix; `None` if it
/// can.
fn unreachable(peer: &Address, listen: Option<SocketAddr>) -> Option<(&'static str, &'static str)> {
    let Address::Ip(ip, _) = peer else {
        return None;
    };
    if ip.is_multicast() {
        return Some(("a multicast address", "the address of one host"));
    }
    // A socket on the unspecified IPv6 address receives IPv4 datagrams as well.
    let both = |listen: &SocketAddr| listen.is_ipv6() && listen.ip().is_unspecified();
    let listen = listen.filter(|listen| !both(listen))?;
    (listen.is_ipv4() != ip.to_canonical().is_ipv4()).then_some((
        "not in the address family of cluster.listen",
        "both IPv4 or both IPv6, or listen = \":PORT\"",
    ))
}
