//! Rotation of ticket secrets on a host without a cluster.
//!
//! Time is divided into epochs. Each epoch has a random secret, created when the epoch begins and
//! erased when all tickets sealed under it have expired. An attacker that reads the memory later
//! cannot decrypt tickets of earlier epochs. This gives forward secrecy within two rotations, also
//! for TLS 1.2, whose tickets contain the master secret.
//!
//! Epochs follow the monotonic clock, so that setting back the wall clock cannot extend the life of
//! a secret.

use std::time::Duration;

use becket_proto::ticket::{Epoch, KeyId, NodeId, SecretId};
use becket_sys::clock::Now;

use super::NoRandomness;
use becket_tls::secret::shared::SecretBytes;
use becket_tls::sessions::tickets::{EpochSecret, KEPT_EPOCHS, TicketSecrets};

/// Creates a random secret per epoch, and stores when the next epoch begins.
#[derive(Debug)]
pub(super) struct Alone {
    /// ID of this process's secrets. Tickets with this ID whose secret was erased have expired;
    /// tickets with a different ID come from another becket.
    pub(super) id: SecretId,
    /// Start of the next epoch, by the monotonic clock.
    pub(super) due: Duration,
    /// Number of completed epochs.
    pub(super) rotations: u64,
}

impl Alone {
    pub(super) fn start(period: Duration, now: Now) -> Result<(Self, TicketSecrets), NoRandomness> {
        let mut id = [0; 4];
        aws_lc_rs::rand::fill(&mut id).map_err(|_| NoRandomness)?;
        let id = SecretId(u32::from_ne_bytes(id));
        let secrets = TicketSecrets {
            rotation: period,
            node: NodeId(0),
            epochs: vec![draw(id, now)?],
        };
        let alone = Self {
            id,
            due: now.mono + period,
            rotations: 0,
        };
        Ok((alone, secrets))
    }

    /// Begins a new epoch if it is due. Retains the secret of the previous epoch, and erases older
    /// secrets.
    pub(super) fn tick(
        &mut self,
        period: Duration,
        current: &TicketSecrets,
        now: Now,
    ) -> Result<Option<TicketSecrets>, NoRandomness> {
        if now.mono < self.due {
            return Ok(None);
        }
        let fresh = draw(self.id, now)?;
        let kept = current.epochs.iter().rev().take(KEPT_EPOCHS as usize);
        let mut epochs: Vec<EpochSecret> = kept.rev().cloned().collect();
        epochs.push(fresh);
        self.due = now.mono + period;
        self.rotations += 1;
        Ok(Some(TicketSecrets {
            rotation: period,
            node: NodeId(0),
            epochs,
        }))
    }
}

fn draw(id: SecretId, now: Now) -> Result<EpochSecret, NoRandomness> {
    Ok(EpochSecret {
        id: KeyId {
            secret: id,
            epoch: Epoch(u32::try_from(now.unix.as_secs()).unwrap_or(u32::MAX)),
        },
        secret: SecretBytes::draw()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use becket_sys::clock::Clock;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(hours: u32) -> Now {
        Now {
            mono: HOUR * hours,
            unix: HOUR * hours,
            ..Clock::start().now()
        }
    }

    /// Returns the secrets of three successive epochs.
    fn three() -> (Alone, [TicketSecrets; 3]) {
        let (mut alone, first) = Alone::start(HOUR, at(1)).expect("random");
        let mut next = |current: &TicketSecrets, hours| {
            let next = alone.tick(HOUR, current, at(hours)).expect("random");
            next.expect("due")
        };
        let second = next(&first, 2);
        let third = next(&second, 3);
        (alone, [first, second, third])
    }

    #[test]
    fn a_rotation_keeps_only_the_previous_epoch() {
        let (mut alone, [_, _, third]) = three();
        let starts: Vec<u32> = third.epochs.iter().map(|e| e.id.epoch.0).collect();
        assert_eq!(starts, [7200, 10800]);
        assert_eq!((alone.due, alone.rotations), (4 * HOUR, 2));
        let early = alone.tick(HOUR, &third, at(3)).expect("random");
        assert!(early.is_none());
    }

    #[test]
    fn every_epoch_has_a_secret_of_its_own() {
        let (_, [_, second, _]) = three();
        let [old, new] = &second.epochs[..] else {
            panic!("two epochs");
        };
        assert_ne!(old.secret, new.secret);
    }
}
