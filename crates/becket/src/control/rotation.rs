//! The rotation of ticket secrets on a host that is alone.
//!
//! Each epoch has a secret of its own, drawn at random when the epoch begins and erased when no
//! ticket may need it any more: whoever steals the memory later opens no ticket of an earlier
//! epoch (forward secrecy within two rotations; a TLS 1.2 ticket is the master secret).

use std::sync::Arc;
use std::time::Duration;

use becket_proto::ticket::{Epoch, KeyId, SecretId};
use zeroize::Zeroizing;

use crate::clock::Now;
use crate::tls::tickets::{EpochSecret, KEPT_EPOCHS, Secrets};

/// Makes secrets and says when the next is due.
#[derive(Debug)]
pub struct Rotation {
    /// Names this process' secrets, so that another's tickets are told apart from expired ones.
    id: SecretId,
    current: Arc<Secrets>,
    /// By the monotonic clock: a wall clock that is set back must not keep a secret alive.
    begun: Duration,
    rotations: u64,
}

impl Rotation {
    /// Draws the first secret.
    ///
    /// # Errors
    ///
    /// When the system gives no random bytes.
    pub fn start(period: Duration, now: Now) -> Result<Self, NoRandomness> {
        let mut id = [0; 4];
        aws_lc_rs::rand::fill(&mut id).map_err(|_| NoRandomness)?;
        let id = SecretId(u32::from_ne_bytes(id));
        Ok(Self {
            id,
            current: Arc::new(Secrets {
                rotation: period,
                epochs: vec![draw(id, now)?],
            }),
            begun: now.mono,
            rotations: 0,
        })
    }

    /// Begins a new epoch and drops what is older than the one before.
    ///
    /// # Errors
    ///
    /// When the system gives no random bytes; the old secrets stay.
    pub fn rotate(&mut self, period: Duration, now: Now) -> Result<(), NoRandomness> {
        let fresh = draw(self.id, now)?;
        let kept = self.current.epochs.iter().rev().take(KEPT_EPOCHS as usize);
        let mut epochs: Vec<EpochSecret> = kept.rev().cloned().collect();
        epochs.push(fresh);
        self.current = Arc::new(Secrets {
            rotation: period,
            epochs,
        });
        self.begun = now.mono;
        self.rotations += 1;
        Ok(())
    }

    /// The secrets to seal and open with now.
    pub fn secrets(&self) -> &Arc<Secrets> {
        &self.current
    }

    /// When the next epoch begins, by the monotonic clock.
    pub fn due(&self) -> Duration {
        self.begun + self.current.rotation
    }

    /// How many epochs there have been before this one.
    pub fn rotations(&self) -> u64 {
        self.rotations
    }
}

/// The system gave no random bytes.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no random bytes from the system")]
pub struct NoRandomness;

fn draw(id: SecretId, now: Now) -> Result<EpochSecret, NoRandomness> {
    let mut secret = Zeroizing::new([0; 32]);
    aws_lc_rs::rand::fill(&mut secret[..]).map_err(|_| NoRandomness)?;
    Ok(EpochSecret {
        id: KeyId {
            secret: id,
            epoch: Epoch(u32::try_from(now.unix.as_secs()).unwrap_or(u32::MAX)),
        },
        secret,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(hours: u32) -> Now {
        Now {
            mono: HOUR * hours,
            unix: HOUR * hours,
            ..Clock::start().now()
        }
    }

    #[test]
    fn a_rotation_keeps_the_epoch_before_and_no_other() {
        let mut rotation = Rotation::start(HOUR, at(1)).expect("random");
        rotation.rotate(HOUR, at(2)).expect("random");
        rotation.rotate(HOUR, at(3)).expect("random");
        let epochs = rotation.secrets().epochs.iter();
        let starts: Vec<u32> = epochs.map(|epoch| epoch.id.epoch.0).collect();
        assert_eq!(starts, [7200, 10800]);
        assert_eq!(rotation.due(), 4 * HOUR);
    }

    #[test]
    fn every_epoch_has_a_secret_of_its_own() {
        let mut rotation = Rotation::start(HOUR, at(1)).expect("random");
        rotation.rotate(HOUR, at(2)).expect("random");
        let [old, new] = &rotation.secrets().epochs[..] else {
            panic!("two epochs");
        };
        assert_ne!(old.secret, new.secret);
    }
}
