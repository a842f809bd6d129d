//! The rotation of ticket secrets: which ones there are now, and when they change.
//!
//! A host that is alone draws a secret at random for each epoch ([`alone`]); in a cluster every
//! node derives the same ones from what they share, by its wall clock ([`shared`]). Control asks
//! [`Rotation::tick`] now and then and hands what changed to the workers; keys of the next epoch
//! are made one epoch ahead, so that no handshake ever waits for one.
//!
//! A rotation that fails leaves the secrets of before in use and is tried again a minute later.

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
use becket_log::Timestamp;
use becket_tls::config::Config;
use becket_tls::secret::shared::SecretBytes;
pub use becket_tls::secret::shared::{NoRandomness, NotDerived};
use becket_tls::sessions::tickets::{EpochSecret, TicketSecrets};

/// Makes secrets and says when the next are due.
#[derive(Debug)]
pub struct Rotation {
    kind: RotationKind,
    current: Arc<TicketSecrets>,
    /// By the monotonic clock: not before then is anything tried again.
    rest_until: Duration,
}

#[derive(Debug)]
enum RotationKind {
    Alone(Alone),
    Shared(ClusterRotation),
}

/// Where the rotation stands, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RotationState {
    /// Number of the epoch whose key seals new tickets: alone since the start, in a cluster since
    /// 1970, the same on all nodes.
    pub epoch: u64,
    /// When it began, by the wall clock.
    pub epoch_started: Timestamp,
    /// When the next begins.
    pub due: Due,
    /// Number of this node; `None` when it is alone.
    pub node: Option<u16>,
    /// Ids of the secrets in hex: the one that seals, then those that also open. A host that is alone has drawn its own.
    pub secrets: Vec<String>,
}

/// A moment by one of the two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Since the process started.
    Mono(Duration),
    /// Since 1970.
    Unix(Duration),
}

impl Due {
    /// How long until then; zero when it is past.
    pub fn after(self, now: Now) -> Duration {
        match self {
            Self::Mono(due) => due.saturating_sub(now.mono),
            Self::Unix(due) => due.saturating_sub(now.unix),
        }
    }
}

/// Why secrets were not rotated.
#[derive(Debug, thiserror::Error)]
pub enum NotRotated {
    /// Of the host that is alone.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
    /// The library refused.
    #[error(transparent)]
    NotDerived(#[from] NotDerived),
    /// There is no secret.
    #[error("a cluster without a secret")]
    NoSecret,
}

impl Rotation {
    /// Draws the first secret of a host that is alone.
    ///
    /// # Errors
    ///
    /// When the system gives no random bytes.
    pub fn start(period: Duration, now: Now) -> Result<Self, NoRandomness> {
        let (alone, secrets) = Alone::start(period, now)?;
        Ok(Self {
            kind: RotationKind::Alone(alone),
            current: Arc::new(secrets),
            rest_until: Duration::ZERO,
        })
    }

    /// Makes the secrets that a configuration asks for.
    ///
    /// # Errors
    ///
    /// When they cannot be made.
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

    /// What another process on this host needs to go on with these secrets; nothing in a cluster, whose secrets come from files.
    pub fn hand_over(&self, now: Now) -> Option<HandedSecrets> {
        let RotationKind::Alone(alone) = &self.kind else {
            return None;
        };
        let epochs = self.current.epochs.iter();
        let secret = |epoch: &EpochSecret| Zeroizing::new(*epoch.secret.expose());
        Some(HandedSecrets {
            id: alone.id(),
            rotations: alone.rotations(),
            due: Due::Mono(alone.due()).after(now),
            epochs: epochs
                .map(|epoch| (epoch.id.epoch, secret(epoch)))
                .collect(),
        })
    }

    /// Goes on with the secrets of the process before this one. Returns whether they are of use: not in a cluster.
    pub fn take_over(&mut self, handed: HandedSecrets, now: Now) -> bool {
        let RotationKind::Alone(alone) = &mut self.kind else {
            return false;
        };
        let id = handed.id;
        alone.go_on(id, handed.rotations, now.mono + handed.due);
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

    /// The rotation of another configuration; nothing where this one goes on as it is.
    ///
    /// # Errors
    ///
    /// When the secrets cannot be made; this one is unchanged in any case.
    pub fn reloaded(&self, config: &Config, now: Now) -> Result<Option<Self>, NotRotated> {
        if config.cluster.is_none() && matches!(self.kind, RotationKind::Alone(_)) {
            return Ok(None);
        }
        let mut next = Self::of(config, now)?;
        // The same ids are the same secrets: the keys that workers have will do.
        if next.current.same_as(&self.current) {
            next.current = Arc::clone(&self.current);
        }
        Ok(Some(next))
    }

    /// Begins a new epoch if it is time to, and says whether there are new secrets. `period` is
    /// the rotation of a host that is alone.
    ///
    /// # Errors
    ///
    /// When secrets cannot be made; the old ones stay, and it is tried again later.
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
                // A wall clock that jumps to and fro does not keep the workers busy.
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

    /// Begins a new epoch before its time. Nothing happens in a cluster, whose nodes change keys together, or within a second
    /// of the last change.
    ///
    /// # Errors
    /// As [`Self::tick`].
    pub fn rotate_now(&mut self, period: Duration, now: Now) -> Result<bool, NotRotated> {
        match &mut self.kind {
            RotationKind::Alone(alone) if now.mono >= self.rest_until => alone.hurry(),
            _ => return Ok(false),
        }
        self.tick(period, now)
    }

    /// The secrets to seal and open with now.
    pub fn secrets(&self) -> &Arc<TicketSecrets> {
        &self.current
    }

    /// Where it stands.
    pub fn standing(&self) -> RotationState {
        let (epoch, due) = match &self.kind {
            RotationKind::Alone(alone) => (alone.rotations(), Due::Mono(alone.due())),
            RotationKind::Shared(shared) => (shared.epoch().0.into(), Due::Unix(shared.due())),
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
        RotationState {
            epoch,
            epoch_started: Timestamp::from_unix(Duration::from_secs(started.into())),
            due,
            node: Some(self.current.node.0).filter(|node| *node > 0),
            secrets,
        }
    }
}

/// Between two rotations that a wall clock asks for. A node whose keys are this late is served by
/// those of the next epoch, which it has already.
const BREATH: Duration = Duration::from_secs(1);
/// After one that failed.
const RETRY: Duration = Duration::from_secs(60);
