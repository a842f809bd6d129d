//! The rotation of ticket secrets.
//!
//! A single host creates a random secret for each epoch ([`alone`]). In a cluster, every node
//! derives identical secrets from the shared secret and its wall clock ([`shared`]). The control
//! loop calls [`Rotation::tick`] regularly and sends new secrets to the workers. Handshakes never
//! wait, because a worker uses the previous secrets until it receives the new ones.
//!
//! If a rotation fails, the previous secrets remain in use, and the rotation is retried after a
//! minute.

mod alone;
mod shared;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use becket_proto::handover::Secrets as HandedSecrets;
use becket_proto::ticket::KeyId;
use becket_sys::clock::Now;
use zeroize::Zeroizing;

use self::alone::Alone;
use self::shared::ClusterRotation;
use super::status::TicketKeys;
use becket_log::Timestamp;
use becket_tls::config::Config;
use becket_tls::secret::shared::SecretBytes;
pub use becket_tls::secret::shared::{NoRandomness, NotDerived};
use becket_tls::sessions::tickets::{EpochSecret, TicketSecrets};

/// Creates ticket secrets, and determines when the next secrets are due.
#[derive(Debug)]
pub struct Rotation {
    kind: RotationKind,
    current: Arc<TicketSecrets>,
    /// Earliest time of the next rotation, by the monotonic clock.
    rest_until: Duration,
}

#[derive(Debug)]
enum RotationKind {
    Alone(Alone),
    Shared(ClusterRotation),
}

/// A time by the monotonic clock or the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Since the process started.
    Mono(Duration),
    /// Since 1970.
    Unix(Duration),
}

impl Due {
    /// Returns the duration from `now` until this time; zero if it has passed.
    pub fn after(self, now: Now) -> Duration {
        match self {
            Self::Mono(due) => due.saturating_sub(now.mono),
            Self::Unix(due) => due.saturating_sub(now.unix),
        }
    }
}

/// Reason why secrets were not rotated.
#[derive(Debug, thiserror::Error)]
pub enum NotRotated {
    /// The system has no random bytes for the secret of a single host.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
    /// The cryptographic library failed.
    #[error(transparent)]
    NotDerived(#[from] NotDerived),
    /// The cluster has no secret.
    #[error("the cluster has no secret")]
    NoSecret,
}

impl Rotation {
    /// Creates the first secret of a single host.
    ///
    /// # Errors
    ///
    /// Fails if the system provides no random bytes.
    pub fn start(period: Duration, now: Now) -> Result<Self, NoRandomness> {
        let (alone, secrets) = Alone::start(period, now)?;
        Ok(Self {
            kind: RotationKind::Alone(alone),
            current: Arc::new(secrets),
            rest_until: Duration::ZERO,
        })
    }

    /// Creates the secrets for a configuration.
    ///
    /// # Errors
    ///
    /// Fails if the secrets cannot be created.
    pub fn of(config: &Config, now: Now) -> Result<Self, NotRotated> {
        let Some(cluster) = &config.cluster else {
            return Ok(Self::start(config.file.ticket_rotation(), now)?);
        };
        let (shared, secrets) = ClusterRotation::start(cluster, now)?;
        Ok(Self {
            kind: RotationKind::Shared(shared),
            current: Arc::new(secrets),
            rest_until: Duration::ZERO,
        })
    }

    /// Returns the secrets for the process that replaces this process; `None` in a cluster, whose
    /// secrets come from files.
    pub fn hand_over(&self, now: Now) -> Option<HandedSecrets> {
        let RotationKind::Alone(alone) = &self.kind else {
            return None;
        };
        let epochs = self.current.epochs.iter();
        let secret = |epoch: &EpochSecret| Zeroizing::new(*epoch.secret.expose());
        Some(HandedSecrets {
            id: alone.id,
            rotations: alone.rotations,
            due: Due::Mono(alone.due).after(now),
            epochs: epochs
                .map(|epoch| (epoch.id.epoch, secret(epoch)))
                .collect(),
        })
    }

    /// Adopts the secrets of the old process. Returns `false` in a cluster, whose secrets come from
    /// files.
    pub fn take_over(&mut self, handed: HandedSecrets, now: Now) -> bool {
        let RotationKind::Alone(alone) = &mut self.kind else {
            return false;
        };
        let id = handed.id;
        *alone = Alone {
            id,
            due: now.mono + handed.due,
            rotations: handed.rotations,
        };
        let epochs = handed
            .epochs
            .into_iter()
            .map(|(epoch, secret)| EpochSecret {
                id: KeyId { secret: id, epoch },
                secret: SecretBytes::new(secret),
            });
        self.current = Arc::new(TicketSecrets {
            rotation: self.current.rotation,
            node: self.current.node,
            epochs: epochs.collect(),
        });
        true
    }

    /// Returns the rotation for a new configuration; `None` if the current rotation continues.
    ///
    /// # Errors
    ///
    /// Fails if the secrets cannot be created. The current rotation is unchanged in any case.
    pub fn reloaded(&self, config: &Config, now: Now) -> Result<Option<Self>, NotRotated> {
        if config.cluster.is_none() && matches!(self.kind, RotationKind::Alone(_)) {
            return Ok(None);
        }
        let mut next = Self::of(config, now)?;
        // Equal IDs mean equal secrets, so the workers can keep their keys.
        if next.current.same_as(&self.current) {
            next.current = Arc::clone(&self.current);
        }
        Ok(Some(next))
    }

    /// Begins a new epoch if it is due. Returns `true` if there are new secrets. `period` is the
    /// time between two rotations on a single host.
    ///
    /// # Errors
    ///
    /// Fails if the secrets cannot be created. The old secrets stay in use, and the rotation is
    /// retried later.
    pub fn tick(&mut self, period: Duration, now: Now) -> Result<bool, NotRotated> {
        if now.mono < self.rest_until {
            return Ok(false);
        }
        let next = match &mut self.kind {
            RotationKind::Alone(alone) => {
                alone.tick(period, &self.current, now).map_err(Into::into)
            }
            RotationKind::Shared(shared) => shared.tick(now),
        };
        match next {
            Ok(None) => Ok(false),
            Ok(Some(secrets)) => {
                // Limits the rate of rotations, in case the wall clock jumps back and forth.
                self.rest_until = now.mono + BREATH;
                self.current = Arc::new(secrets);
                Ok(true)
            }
            Err(error) => {
                self.rest_until = now.mono + RETRY;
                Err(error)
            }
        }
    }

    /// Begins a new epoch early. Returns `false` in a cluster, whose nodes change keys together,
    /// and within a second of the last change.
    ///
    /// # Errors
    /// As [`Self::tick`].
    pub fn rotate_now(&mut self, period: Duration, now: Now) -> Result<bool, NotRotated> {
        match &mut self.kind {
            RotationKind::Alone(alone) if now.mono >= self.rest_until => alone.due = Duration::ZERO,
            _ => return Ok(false),
        }
        self.tick(period, now)
    }

    pub fn secrets(&self) -> &Arc<TicketSecrets> {
        &self.current
    }

    /// Returns the state of the rotation, for the admin pages, and the start of the next epoch.
    pub fn standing(&self) -> (TicketKeys, Due) {
        let (epoch, due) = match &self.kind {
            RotationKind::Alone(alone) => (alone.rotations, Due::Mono(alone.due)),
            RotationKind::Shared(shared) => (shared.epoch.0.into(), Due::Unix(shared.due())),
        };
        let sealing = self.current.epochs.last();
        let opening = self.current.epochs.iter();
        let mut secrets: Vec<String> = Vec::new();
        for epoch in sealing.into_iter().chain(opening) {
            let id = format!("{:08x}", epoch.id.secret.0);
            if !secrets.contains(&id) {
                secrets.push(id);
            }
        }
        let started = sealing.map_or(0, |epoch| epoch.id.epoch.0);
        let keys = TicketKeys {
            epoch,
            epoch_started: Timestamp::from_unix(Duration::from_secs(started.into())),
            next_rotation_seconds: 0,
            node: Some(self.current.node.0).filter(|node| *node > 0),
            secrets,
        };
        (keys, due)
    }
}

/// Minimum time between two rotations. A node that rotates this much later than its peers can still
/// open their tickets, because it already has the key of the next epoch.
const BREATH: Duration = Duration::from_secs(1);
/// Time until the retry of a failed rotation.
const RETRY: Duration = Duration::from_secs(60);
