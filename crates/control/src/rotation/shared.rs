//! The ticket secrets of a cluster, which each node derives from the shared secrets and its wall
//! clock.
//!
//! Each shared secret has the secrets of three epochs: the current one, the previous one, whose
//! tickets are still valid, and the next one, for peers whose clocks are ahead. New tickets are
//! sealed under the first shared secret, in the current epoch.

use std::time::Duration;

use becket_proto::epoch::{EpochLength, EpochNumber};
use becket_proto::ticket::{KeyId, NodeId, UnixSeconds};
use becket_sys::clock::Now;

use super::NotRotated;
use becket_tls::config::Cluster;
use becket_tls::secret::shared::SharedSecret;
use becket_tls::sessions::tickets::{EpochSecret, TicketSecrets};

#[derive(Debug)]
pub(super) struct ClusterRotation {
    node: NodeId,
    length: EpochLength,
    secrets: Vec<SharedSecret>,
    /// Epoch whose key seals new tickets.
    pub(super) epoch: EpochNumber,
}

impl ClusterRotation {
    pub(super) fn start(cluster: &Cluster, now: Now) -> Result<(Self, TicketSecrets), NotRotated> {
        let mut shared = Self {
            node: cluster.node,
            length: cluster.rotation,
            secrets: cluster.secrets.clone(),
            epoch: EpochNumber(0),
        };
        let secrets = shared.derive(now)?;
        Ok((shared, secrets))
    }

    /// Returns new secrets if the epoch has changed since the last call.
    pub(super) fn tick(&mut self, now: Now) -> Result<Option<TicketSecrets>, NotRotated> {
        if self.length.number_at(now.unix.into()) == self.epoch {
            return Ok(None);
        }
        self.derive(now).map(Some)
    }

    /// Returns the time at which the next epoch begins, on the wall clock.
    pub(super) fn due(&self) -> Duration {
        Duration::from_secs(self.length.end(self.epoch).0)
    }

    /// Derives the secrets for the epoch at `now`. The last element seals new tickets. Does not
    /// change the epoch if it fails.
    fn derive(&mut self, now: Now) -> Result<TicketSecrets, NotRotated> {
        let around = self.length.epochs_at(UnixSeconds::from(now.unix));
        let mut epochs = Vec::with_capacity(self.secrets.len() * 3);
        let mut sealing = None;
        for SharedSecret { id, root, .. } in &self.secrets {
            for number in around.iter() {
                let epoch = self.length.start(number);
                let secret = root.epoch_secret(epoch)?;
                let id = KeyId { secret: *id, epoch };
                let made = EpochSecret { id, secret };
                if sealing.is_none() && number == around.current {
                    sealing = Some(made);
                } else {
                    epochs.push(made);
                }
            }
        }
        epochs.push(sealing.ok_or(NotRotated::NoSecret)?);
        self.epoch = around.current;
        Ok(TicketSecrets {
            rotation: self.length.duration(),
            node: self.node,
            epochs,
        })
    }
}
