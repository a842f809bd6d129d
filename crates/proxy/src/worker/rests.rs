//! Who goes first when memory is short: connections at rest, counted by how long they have been.
//!
//! Pure. Two looks at all connections find the longest without a list of them: the first counts by seconds, the second ends those above
//! the second that the first found.

use std::time::Duration;

/// How many connections have been at rest for how long.
#[derive(Debug)]
pub(super) struct Rests {
    /// By whole seconds; the last is for that and more.
    seconds: Box<[usize; LONGEST + 1]>,
    /// Of all connections, how much is to end.
    share: f64,
}

impl Rests {
    /// Nobody was looked at yet. At most this share of all connections is to end.
    pub(super) fn new(share: f64) -> Self {
        Self {
            seconds: Box::new([0; LONGEST + 1]),
            share,
        }
    }

    /// Counts one. Who was in use within the last second is.
    pub(super) fn count(&mut self, rest: Duration) {
        let seconds = usize::try_from(rest.as_secs()).unwrap_or(LONGEST);
        self.seconds[seconds.min(LONGEST)] += 1;
    }

    /// For how long one must have been at rest to end, and how many of `all` connections may: a second at least, and one.
    pub(super) fn longest(&self, all: usize) -> (Duration, usize) {
        let most = ((all as f64 * self.share).ceil() as usize).max(1);
        let mut found = 0;
        let enough = |seconds: &usize| {
            found += self.seconds[*seconds];
            found >= most
        };
        let least = (1..=LONGEST).rev().find(enough).unwrap_or(1);
        (Duration::from_secs(least as u64), most)
    }
}

/// Seconds that are told apart: half an hour. Of connections that have been at rest for longer, any may go first.
const LONGEST: usize = 1800;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn those_that_end_are_the_longest(
            rests in proptest::collection::vec(0_u64..4000, 0..200),
            share in 0.0_f64..1.0,
        ) {
            let mut counted = Rests::new(share);
            for rest in &rests {
                counted.count(Duration::from_secs(*rest));
            }
            let (least, most) = counted.longest(rests.len());
            let least = least.as_secs();
            let above = |bound: u64| rests.iter().filter(|rest| **rest >= bound).count();
            prop_assert!(least >= 1);
            prop_assert!(most <= rests.len().max(1));
            // Nobody ends while enough have been at rest for a second more.
            prop_assert!(least == LONGEST as u64 || above(least + 1) < most);
            // All that may go first can.
            prop_assert!(least == 1 || above(least) >= most);
        }
    }
}
