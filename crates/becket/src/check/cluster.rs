//! What `becket check` shows of a cluster: which secrets, which epoch, which peers.
//!
//! Everything here must be the same on all nodes but the node's number: the ids of the secrets,
//! the rotation, and the digests of the policies, which are shown with the routes. One node
//! cannot see what the others are configured with, so the table says what to compare.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use becket_proto::ticket::UnixSeconds;
use serde::Serialize;

use crate::config::{Cluster, Config};
use crate::log::Timestamp;

/// The cluster as configured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct ClusterSummary {
    node: u16,
    secrets: Vec<SecretSummary>,
    rotation_seconds: u64,
    epoch: u32,
    epoch_began: String,
    next_rotation: String,
    tls12_tickets: bool,
    listen: Option<String>,
    peers: Vec<PeerSummary>,
    multicast: Option<String>,
    stud: Option<StudSummary>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct StudSummary {
    listen: String,
    policy: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct SecretSummary {
    id: String,
    file: String,
    seals: bool,
    /// It is the state of a ratchet.
    forgets: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct PeerSummary {
    name: String,
    addresses: Vec<String>,
}

impl ClusterSummary {
    pub(super) fn of(config: &Config, now: UnixSeconds) -> Option<Self> {
        let cluster = config.cluster.as_ref()?;
        let epoch = cluster.rotation.number_at(now);
        let began = cluster.rotation.start(epoch).0.into();
        Some(Self {
            node: cluster.node.0,
            secrets: secrets(cluster),
            rotation_seconds: cluster.rotation.duration().as_secs(),
            epoch: epoch.0,
            epoch_began: moment(began),
            next_rotation: moment(cluster.rotation.end(epoch).0),
            tls12_tickets: cluster.tls12_tickets,
            listen: cluster.listen.map(|at| at.to_string()),
            peers: cluster
                .peers
                .iter()
                .map(|peer| PeerSummary {
                    name: peer.name.to_string(),
                    addresses: peer.addresses.iter().map(ToString::to_string).collect(),
                })
                .collect(),
            multicast: cluster.multicast.as_ref().map(|to| to.group.to_string()),
            stud: cluster.stud.as_ref().map(|stud| StudSummary {
                listen: stud.listen.to_string(),
                policy: stud.policy_name.clone(),
            }),
        })
    }
}

fn secrets(cluster: &Cluster) -> Vec<SecretSummary> {
    let secrets = cluster.secrets.iter().enumerate();
    secrets
        .map(|(index, secret)| SecretSummary {
            id: format!("{:08x}", secret.id.0),
            file: secret.path.display().to_string(),
            seals: index == 0,
            forgets: secret.root.is_none(),
        })
        .collect()
}

fn moment(seconds: u64) -> String {
    Timestamp::from_unix(Duration::from_secs(seconds)).to_string()
}

impl Display for ClusterSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "cluster")?;
        writeln!(f, "  node      {}", self.node)?;
        for secret in &self.secrets {
            let part = match secret.seals {
                true => "seals and opens",
                false => "opens",
            };
            let kind = match secret.forgets {
                true => ", and forgets",
                false => "",
            };
            let SecretSummary { id, file, .. } = secret;
            writeln!(f, "  secret    {id} {part}{kind}: {file}")?;
        }
        let (epoch, began, next) = (self.epoch, &self.epoch_began, &self.next_rotation);
        writeln!(f, "  epoch     {epoch} since {began}, the next at {next}")?;
        writeln!(
            f,
            "  rotation  {}s, which must be the same on all nodes, as must be secrets and digests",
            self.rotation_seconds
        )?;
        let tickets = match self.tls12_tickets {
            true => "by ticket or ID",
            false => "by ID",
        };
        writeln!(f, "  tls 1.2   resumes {tickets}")?;
        match &self.listen {
            Some(listen) => writeln!(f, "  listen    {listen} (UDP)")?,
            None => writeln!(f, "  listen    nowhere: only tickets are shared")?,
        }
        for peer in &self.peers {
            let addresses = peer.addresses.join(", ");
            let name = &peer.name;
            match () {
                () if addresses.is_empty() => writeln!(f, "  peer      {name} -> not known yet")?,
                () if addresses == *name => writeln!(f, "  peer      {name}")?,
                () => writeln!(f, "  peer      {name} -> {addresses}")?,
            }
        }
        if let Some(group) = &self.multicast {
            writeln!(f, "  peers     also by multicast, {group}")?;
        }
        if let Some(StudSummary { listen, policy }) = &self.stud {
            writeln!(
                f,
                "  stud      {listen} (UDP), sessions for policy {policy}"
            )?;
        }
        Ok(())
    }
}
