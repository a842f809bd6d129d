//! A secret that forgets: the chain of epochs whose past cannot be brought back.
//!
//! Each epoch has a value, derived from the one before: `chain(e+1) = HKDF(chain(e))`. The secret that tickets of an
//! epoch hang on is derived beside it, under another label. A ratchet holds the value of the oldest epoch that it can
//! still need, the one before the current one; going on replaces it, in memory and in its file, so that whoever steals
//! either opens nothing older. All nodes start from a copy of one state and walk by their clocks; nothing is exchanged.
//!
//! The file names the length of its epochs, since a chain that is walked at another pace is another chain:
//!
//! ```text
//! becket secret state 1
//! rotation 28800
//! epoch 61723
//! chain (base64 of 32 bytes)
//! replication (base64 of 32 bytes)
//! ```
//!
//! Invariant: the number only grows, and the chain belongs to it. A clock that goes back finds the same epochs as before.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use becket_proto::epoch::{EpochLength, EpochNumber};
use becket_proto::ticket::SecretId;
use zeroize::Zeroizing;

use super::base64;
use super::file::{self, FileFault};
use super::shared::{NoRandomness, NotDerived, SecretBytes, SharedSecret, id_of};

/// The state of a chain, and where it is kept.
#[derive(Clone, Debug)]
pub struct Ratchet {
    path: PathBuf,
    length: EpochLength,
    /// The oldest epoch whose secret can be made.
    number: EpochNumber,
    chain: SecretBytes,
    replication: SecretBytes,
}

/// Why a chain was not walked.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum NotWalked {
    /// The clock is wrong, or the state is very old; to go on would take long and cannot be undone.
    #[error("its state is {0} epochs behind the clock, further than it will walk")]
    TooFar(u32),
    /// The library refused.
    #[error(transparent)]
    NotDerived(#[from] NotDerived),
}

impl Ratchet {
    /// Begins a chain at random. Its first epoch is the one before `now`'s, for peers whose clocks are behind.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn draw(path: &Path, length: EpochLength, now: EpochNumber) -> Result<Self, NoRandomness> {
        Ok(Self {
            path: path.to_owned(),
            length,
            number: EpochNumber(now.0.saturating_sub(1)),
            chain: SecretBytes::draw()?,
            replication: SecretBytes::draw()?,
        })
    }

    /// Reads the text of a state.
    ///
    /// # Errors
    /// Which line is not as it should be.
    pub fn parse(text: &str, path: &Path) -> Result<Self, FileFault> {
        let mut lines = text.lines();
        let wrong = |line: &str| FileFault::new(format!("not a whole state: {line}"), STATE_FILE);
        if lines.next() != Some(FIRST_LINE) {
            return Err(wrong("first line"));
        }
        let mut value = |key: &'static str| {
            let line = lines.next().and_then(|line| line.strip_prefix(key));
            let value = line.and_then(|rest| rest.strip_prefix(' '));
            value.ok_or_else(|| wrong(key))
        };
        let number = |key: &'static str, text: &str| text.parse::<u32>().map_err(|_| wrong(key));
        let bytes = |key: &'static str, text: &str| {
            base64::decode(text)
                .map(SecretBytes::new)
                .map_err(|_| wrong(key))
        };
        let seconds = number("rotation", value("rotation")?)?;
        let length = EpochLength::of(Duration::from_secs(seconds.into()));
        let ratchet = Self {
            path: path.to_owned(),
            length: length.ok_or_else(|| wrong("rotation"))?,
            number: EpochNumber(number("epoch", value("epoch")?)?),
            chain: bytes("chain", value("chain")?)?,
            replication: bytes("replication", value("replication")?)?,
        };
        match lines.next() {
            None => Ok(ratchet),
            Some(_) => Err(wrong("something follows")),
        }
    }

    /// The text of the state.
    pub fn text(&self) -> Zeroizing<String> {
        let (length, number) = (self.length.duration().as_secs(), self.number.0);
        let mut text = Zeroizing::new(String::with_capacity(TEXT_LEN));
        let chain = base64::encode(self.chain.expose());
        let replication = base64::encode(self.replication.expose());
        let start = format!("{FIRST_LINE}\nrotation {length}\nepoch {number}\nchain ");
        for part in [&start, chain.as_str(), "\nreplication ", &replication, "\n"] {
            text.push_str(part);
        }
        text
    }

    /// What the configuration keeps of it.
    pub fn shared(&self) -> SharedSecret {
        SharedSecret {
            id: self.id(),
            path: self.path.clone(),
            replication: self.replication.clone(),
            root: None,
        }
    }

    /// Names it on all nodes, in every epoch.
    pub fn id(&self) -> SecretId {
        id_of(&self.replication)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How long its epochs are.
    pub fn length(&self) -> EpochLength {
        self.length
    }

    /// The oldest epoch whose secret can be made.
    pub fn floor(&self) -> EpochNumber {
        self.number
    }

    /// Goes on to an epoch and forgets all before it; stays where it is if it is past that. Returns whether it moved.
    /// Costs a microsecond a step.
    ///
    /// # Errors
    /// When that would be too far; it then stays where it is.
    pub fn advance(&mut self, to: EpochNumber) -> Result<bool, NotWalked> {
        let Some(chain) = self.walk(to)? else {
            return Ok(false);
        };
        let moved = to != self.number;
        self.chain = chain;
        self.number = to;
        Ok(moved)
    }

    /// The secret of an epoch; none of those that are forgotten.
    ///
    /// # Errors
    /// When it is too far ahead.
    pub fn epoch_secret(&self, number: EpochNumber) -> Result<Option<SecretBytes>, NotWalked> {
        match self.walk(number)? {
            Some(chain) => Ok(Some(chain.derive(&[TICKETS])?)),
            None => Ok(None),
        }
    }

    /// How many epochs it will walk at a time: those of five years, as long as that is quick. A
    /// clock that is further ahead is more likely wrong than the state is old, and what is
    /// forgotten cannot be undone.
    pub fn most_steps(&self) -> u32 {
        let steps = FURTHEST.as_secs() / self.length.duration().as_secs().max(1);
        u32::try_from(steps).unwrap_or(MOST_STEPS).min(MOST_STEPS)
    }

    /// Keeps the state in its file. Blocks on the medium: milliseconds, or as long as that takes.
    ///
    /// # Errors
    /// What the system says; the file then holds the former state.
    pub fn save(&self) -> io::Result<()> {
        file::replace(&self.path, &self.text())
    }

    fn walk(&self, to: EpochNumber) -> Result<Option<SecretBytes>, NotWalked> {
        let Some(steps) = to.0.checked_sub(self.number.0) else {
            return Ok(None);
        };
        if steps > self.most_steps() {
            return Err(NotWalked::TooFar(steps));
        }
        let mut chain = self.chain.clone();
        for _ in 0..steps {
            chain = chain.derive(&[STEP])?;
        }
        Ok(Some(chain))
    }
}

/// Whether a text means to be a state.
pub fn is_state(text: &str) -> bool {
    text.starts_with("becket secret state")
}

const FIRST_LINE: &str = "becket secret state 1";
const STATE_FILE: &str = "a file that \"becket secret --state FILE\" made";

/// A little more than a state has.
const TEXT_LEN: usize = 256;

/// Clocks that lose their century land further away: in 2036, 2038 or 2106, or 19.6 years ahead.
const FURTHEST: Duration = Duration::from_secs(5 * 366 * 86_400);
/// A second or two of work, and two years of epochs of a minute.
const MOST_STEPS: u32 = 1_100_000;

const STEP: &[u8] = b"becket ratchet 1";
const TICKETS: &[u8] = b"becket epoch of a ratchet 1";

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn() -> Ratchet {
        let length = EpochLength::of(Duration::from_secs(28_800)).expect("whole seconds");
        Ratchet::draw(Path::new("state"), length, EpochNumber(60_001)).expect("random")
    }

    fn secret(of: &Ratchet, number: u32) -> Option<SecretBytes> {
        of.epoch_secret(EpochNumber(number)).expect("near")
    }

    #[test]
    fn a_state_comes_back_from_its_text() {
        let one = drawn();
        let two = Ratchet::parse(&one.text(), Path::new("elsewhere")).expect("whole");
        assert_eq!((one.id(), one.floor()), (two.id(), two.floor()));
        assert_eq!(secret(&one, 60_005), secret(&two, 60_005));
        assert!(one.text().len() <= TEXT_LEN);
    }

    #[test]
    fn a_state_that_is_cut_or_altered_is_refused_by_its_line() {
        let text = drawn().text();
        for (line, from) in [
            ("first line", "state 1"),
            ("rotation", "rotation"),
            ("epoch", "epoch "),
            ("chain", "chain "),
            ("replication", "replication "),
        ] {
            let broken = text.replace(from, "");
            let fault = Ratchet::parse(&broken, Path::new("s")).expect_err(line);
            assert!(fault.fault.ends_with(line), "{fault:?}");
        }
        for cut in 0..text.len() - 1 {
            let fault = Ratchet::parse(&text[..cut], Path::new("s"));
            assert!(fault.is_err(), "{cut}");
        }
        let longer = format!("{}more\n", *text);
        assert!(Ratchet::parse(&longer, Path::new("s")).is_err());
        let zero = text.replace("28800", "0");
        assert!(Ratchet::parse(&zero, Path::new("s")).is_err());
    }

    #[test]
    fn copies_that_walk_at_different_times_agree() {
        let (early, mut late) = (drawn(), drawn_copy());
        fn drawn_copy() -> Ratchet {
            drawn()
        }
        late.chain = early.chain.clone();
        late.replication = early.replication.clone();
        for step in [60_001, 60_003, 60_090] {
            assert!(late.advance(EpochNumber(step)).expect("near"));
        }
        assert_eq!(secret(&early, 60_100), secret(&late, 60_100));
        assert_ne!(secret(&early, 60_100), secret(&late, 60_101));
        assert_eq!(early.id(), late.id());
    }

    #[test]
    fn what_is_behind_is_forgotten_also_in_the_text() {
        let mut ratchet = drawn();
        let before = ratchet.text();
        assert!(secret(&ratchet, 60_000).is_some());
        assert!(ratchet.advance(EpochNumber(60_001)).expect("near"));
        assert_eq!(secret(&ratchet, 60_000), None);
        assert!(!ratchet.advance(EpochNumber(59_000)).expect("behind"));
        assert_eq!(ratchet.floor(), EpochNumber(60_001));
        let chain = |text: &str| text.lines().nth(3).map(str::to_owned);
        assert_ne!(chain(&before), chain(&ratchet.text()));
    }

    #[test]
    fn a_walk_is_bounded() {
        let mut ratchet = drawn();
        let far = EpochNumber(60_001 + ratchet.most_steps());
        assert!(matches!(ratchet.advance(far), Err(NotWalked::TooFar(_))));
        assert_eq!(ratchet.floor(), EpochNumber(60_000));
    }
}
