//! Eight numbers side by side in memory, limb by limb, erased on drop.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::natural::Natural;

/// Number of signatures that are computed side by side.
pub const LANES: usize = 8;

/// One word per lane, in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Zeroize)]
#[repr(align(64))]
pub(crate) struct Eight(pub(crate) [u64; LANES]);

/// Eight numbers of equal length, lowest limb first.
#[cfg_attr(test, derive(Debug))]
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub(crate) struct EightNaturals(pub(crate) Vec<Eight>);

impl EightNaturals {
    /// Creates eight zeros.
    pub(crate) fn zero(limbs: usize) -> Self {
        Self(vec![Eight::default(); limbs])
    }

    /// Combines one number per lane, all of equal length.
    pub(crate) fn gather(numbers: [&Natural; LANES]) -> Self {
        let limbs = 0..numbers[0].limbs().len();
        Self(
            limbs
                .map(|limb| Eight(numbers.map(|number| number.limbs()[limb])))
                .collect(),
        )
    }

    /// Returns the number in a lane.
    pub(crate) fn lane(&self, lane: usize) -> Natural {
        Natural::new(self.0.iter().map(|eight| eight.0[lane]).collect())
    }

    /// Sets the number in a lane.
    pub(crate) fn set_lane(&mut self, lane: usize, number: &Natural) {
        for (eight, limb) in self.0.iter_mut().zip(number.limbs()) {
            eight.0[lane] = *limb;
        }
    }
}
