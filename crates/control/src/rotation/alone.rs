//! The rotation of ticket secrets on a host that is alone.
//!
//! Each epoch has a secret of its own, drawn at random when the epoch begins and erased when no
//! ticket may need it any more: whoever steals the memory later opens no ticket of an earlier
//! epoch (forward secrecy within two rotations; a TLS 1.2 ticket is the master secret). Epochs
//! follow the monotonic clock: a wall clock that is set back must not keep a secret alive.

use std::time::Duration;

use becket_proto::ticket::{Epoch, KeyId, NodeId, SecretId};
use becket_sys::clock::Now;

use super::NoRandomness;
use becket_tls::secret::shared::SecretBytes;
use becket_tls::sessions::tickets::{EpochSecret, KEPT_EPOCHS, TicketSecrets};

/// Draws secrets and says when the next is due.
#[derive(Debug)]
pub(super) struct Alone {
    /// Names this process' secrets, so that another's tickets are told apart from expired ones.
    id: SecretId,
    due: Duration,
    rotations: u64,
}

impl Alone {
    /// Draws the first secret.
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

    /// Goes on where another process was.
    pub(super) fn go_on(&mut self, id: SecretId, rotations: u64, due: Duration) {
        *self = Self { id, due, rotations };
    }

    /// The name of its secrets.
    pub(super) fn id(&self) -> SecretId {
        self.id
    }

    /// When it is due, begins a new epoch and drops what is older than the one before.
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

    /// Has the next epoch begin at the next tick.
    pub(super) fn hurry(&mut self) {
        self.due = Duration::ZERO;
    }

    /// When the next epoch begins, by the monotonic clock.
    pub(super) fn due(&self) -> Duration {
        self.due
    }

    /// How many epochs there have been before this one.
    pub(super) fn rotations(&self) -> u64 {
        self.rotations
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

    /// The secrets of three epochs, one after the other.
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
    fn a_rotation_keeps_the_epoch_before_and_no_other() {
        let (mut alone, [_, _, third]) = three();
        let starts: Vec<u32> = third.epochs.iter().map(|e| e.id.epoch.0).collect();
        assert_eq!(starts, [7200, 10800]);
        assert_eq!((alone.due(), alone.rotations()), (4 * HOUR, 2));
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
