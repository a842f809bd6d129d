//! Starts a farm: several becket nodes that serve the same host name. The `failover` measure kills one of them, the `store` measure
//! their store.
//!
//! With a cluster, the nodes share a secret and replicate TLS 1.2 sessions over UDP on loopback. Without a cluster,
//! each node is independent. All other settings are equal.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Error;
use crate::peer::{Peer, Server, Site};
use crate::process::free_address;

/// Starts as many nodes as the case requires, all with the settings of `site`.
pub fn start(peer: &Peer, site: &Site<'_>, clustered: bool) -> Result<Vec<Server>, Error> {
    let count = site.settings.nodes;
    let sections = if clustered {
        sections(peer, site.directory, count)?
    } else {
        vec![String::new(); count]
    };
    start_with(peer, site, &sections)
}

/// Starts a node for each of these configuration sections.
pub fn start_with(peer: &Peer, site: &Site<'_>, sections: &[String]) -> Result<Vec<Server>, Error> {
    let nodes = sections.iter().enumerate().map(|(index, section)| {
        let node = peer.renamed(format!("{}-node-{}", peer.name, index + 1));
        node.start(&Site {
            address: free_address()?,
            extra: section,
            ..site.clone()
        })
    });
    nodes.collect()
}

/// Creates the cluster secret with `peer`, unless an earlier case of the run has created it.
pub fn secret(peer: &Peer, directory: &Path) -> Result<PathBuf, Error> {
    let file = directory.join("cluster.secret");
    if file.exists() {
        return Ok(file);
    }
    let output = Command::new(&peer.program)
        .arg("secret")
        .arg(&file)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::os(format!("cannot run {} secret", peer.program.display()), e))?;
    if output.status.success() {
        return Ok(file);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Peer(format!(
        "{} cannot create a cluster secret: {said}",
        peer.name
    )))
}

/// Creates a cluster and returns the `[cluster]` configuration section of each node.
pub fn sections(peer: &Peer, directory: &Path, count: usize) -> Result<Vec<String>, Error> {
    Ok(sections_of(
        &secret(peer, directory)?,
        &udp_addresses(count)?,
    ))
}

fn sections_of(secret: &Path, addresses: &[SocketAddr]) -> Vec<String> {
    let section = |(index, own): (usize, &SocketAddr)| {
        let others = addresses.iter().filter(|address| *address != own);
        let peers: Vec<String> = others.map(|address| format!("\"{address}\"")).collect();
        format!(
            "\n[cluster]\nsecret = \"{}\"\nnode = {}\nlisten = \"{own}\"\npeers = [{}]\n",
            secret.display(),
            index + 1,
            peers.join(", ")
        )
    };
    addresses.iter().enumerate().map(section).collect()
}

/// Returns `count` different addresses of 127.0.0.1 with free UDP ports.
fn udp_addresses(count: usize) -> Result<Vec<SocketAddr>, Error> {
    let failed = |e| Error::os("cannot find a free UDP port of 127.0.0.1", e);
    let sockets = (0..count).map(|_| UdpSocket::bind("127.0.0.1:0").map_err(failed));
    let sockets: Vec<UdpSocket> = sockets.collect::<Result<_, _>>()?;
    let address = |socket: &UdpSocket| socket.local_addr().map_err(failed);
    sockets.iter().map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_lists_all_other_nodes_and_not_itself() {
        let addresses: Vec<SocketAddr> = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]
            .map(|text| text.parse().unwrap())
            .to_vec();
        let sections = sections_of(Path::new("/s"), &addresses);
        assert_eq!(sections.len(), 3);
        assert!(sections[1].contains("node = 2\nlisten = \"127.0.0.1:2\""));
        assert!(sections[1].contains(r#"peers = ["127.0.0.1:1", "127.0.0.1:3"]"#));
    }
}
