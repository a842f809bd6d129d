//! The ticket secrets of a cluster: what every node derives for itself, by its wall clock.
//!
//! Of every secret that is accepted there are three epochs at a time: the current one, the one
//! before, whose tickets are still good, and the next, which a peer whose clock is ahead may be
//! in. The first secret's current epoch seals. A secret that is the root of all its epochs finds
//! any of them again; one that is a ratchet goes on as soon as an epoch is over and forgets it,
//! so a clock that is set back finds that epoch gone: it then seals in the oldest that is left.

use std::time::Duration;

use becket_proto::epoch::{EpochLength, EpochNumber};
use becket_proto::ticket::{KeyId, NodeId, SecretId, UnixSeconds};
use becket_sys::clock::Now;

use super::{NotRotated, NotSaved};
use becket_tls::config::Cluster;
use becket_tls::secret::ratchet::Ratchet;
use becket_tls::secret::shared::{SecretBytes, TicketRoot};
use becket_tls::sessions::tickets::{EpochSecret, TicketSecrets};

/// The secrets of a cluster, and the epoch by this node's clock.
#[derive(Debug)]
pub(super) struct ClusterRotation {
    node: NodeId,
    length: EpochLength,
    members: Vec<Member>,
    /// By the clock; what seals may be ahead of it.
    epoch: EpochNumber,
    sealing: EpochNumber,
}

#[derive(Debug)]
struct Member {
    id: SecretId,
    source: SecretSource,
}

#[derive(Debug)]
enum SecretSource {
    Root(TicketRoot),
    Ratchet {
        ratchet: Ratchet,
        /// It has moved, and its file has not.
        unsaved: bool,
    },
}

impl ClusterRotation {
    /// Takes the secrets of a cluster; `ratchets` has the chains of those that forget.
    pub(super) fn start(
        cluster: &Cluster,
        mut ratchets: Vec<Ratchet>,
        now: Now,
    ) -> Result<(Self, TicketSecrets), NotRotated> {
        let mut members = Vec::with_capacity(cluster.secrets.len());
        for secret in &cluster.secrets {
            let source = match &secret.root {
                Some(root) => SecretSource::Root(root.clone()),
                None => {
                    let of = |ratchet: &Ratchet| ratchet.id() == secret.id;
                    let found = ratchets.iter().position(of).ok_or(NotRotated::NoSecret)?;
                    SecretSource::Ratchet {
                        ratchet: ratchets.swap_remove(found),
                        // Also one that stands still is written once: a folder in which that
                        // fails is noticed now, and not in eight hours.
                        unsaved: true,
                    }
                }
            };
            members.push(Member {
                id: secret.id,
                source,
            });
        }
        let mut shared = Self {
            node: cluster.node,
            length: cluster.rotation,
            members,
            epoch: EpochNumber(0),
            sealing: EpochNumber(0),
        };
        let secrets = shared.derive(now)?;
        Ok((shared, secrets))
    }

    /// When the clock is in another epoch, the secrets of that.
    pub(super) fn tick(&mut self, now: Now) -> Result<Option<TicketSecrets>, NotRotated> {
        if self.length.number_at(now.unix.into()) == self.epoch {
            return Ok(None);
        }
        self.derive(now).map(Some)
    }

    /// Keeps the ratchets that have moved.
    pub(super) fn save(&mut self) -> Result<(), NotSaved> {
        for member in &mut self.members {
            if let SecretSource::Ratchet { ratchet, unsaved } = &mut member.source
                && *unsaved
            {
                ratchet.save().map_err(|error| NotSaved {
                    path: ratchet.path().to_owned(),
                    error,
                })?;
                *unsaved = false;
            }
        }
        Ok(())
    }

    /// The epoch that seals.
    pub(super) fn sealing(&self) -> EpochNumber {
        self.sealing
    }

    /// When the next epoch begins, by the wall clock.
    pub(super) fn due(&self) -> Duration {
        Duration::from_secs(self.length.end(self.epoch).0)
    }

    /// Walks to the epoch of `now`; an error leaves the epoch as it was.
    fn derive(&mut self, now: Now) -> Result<TicketSecrets, NotRotated> {
        let now = UnixSeconds::from(now.unix);
        let mut epochs = Vec::with_capacity(self.members.len() * 3);
        let mut sealing = None;
        for member in &mut self.members {
            let (current, made) = member.derive(self.length, now)?;
            for secret in made {
                if sealing.is_none() && secret.0 == current {
                    sealing = Some(secret);
                } else {
                    epochs.push(secret.1);
                }
            }
        }
        let (number, sealing) = sealing.ok_or(NotRotated::NoSecret)?;
        epochs.push(sealing);
        self.sealing = number;
        self.epoch = self.length.number_at(now);
        Ok(TicketSecrets {
            rotation: self.length.duration(),
            node: self.node,
            epochs,
        })
    }
}

impl Member {
    /// The epoch that this secret would seal in, and the secrets of all that it opens.
    fn derive(
        &mut self,
        length: EpochLength,
        now: UnixSeconds,
    ) -> Result<(EpochNumber, Vec<(EpochNumber, EpochSecret)>), NotRotated> {
        let floor = match &mut self.source {
            SecretSource::Root(_) => EpochNumber(0),
            SecretSource::Ratchet { ratchet, unsaved } => {
                let before = length.number_at(now).0.saturating_sub(1);
                *unsaved |= ratchet
                    .advance(EpochNumber(before))
                    .map_err(|error| NotRotated::NotWalked(self.id.0, error))?;
                ratchet.floor()
            }
        };
        let epochs = length.epochs_at(now, floor);
        let mut made = Vec::with_capacity(3);
        for number in epochs.iter() {
            let epoch = length.start(number);
            if let Some(secret) = self.source.epoch_secret(number, length, self.id)? {
                let id = KeyId {
                    secret: self.id,
                    epoch,
                };
                made.push((number, EpochSecret { id, secret }));
            }
        }
        Ok((epochs.current, made))
    }
}

impl SecretSource {
    fn epoch_secret(
        &self,
        number: EpochNumber,
        length: EpochLength,
        id: SecretId,
    ) -> Result<Option<SecretBytes>, NotRotated> {
        match self {
            Self::Root(root) => Ok(Some(root.epoch_secret(length.start(number))?)),
            Self::Ratchet { ratchet, .. } => ratchet
                .epoch_secret(number)
                .map_err(|error| NotRotated::NotWalked(id.0, error)),
        }
    }
}
