//! Eight numbers side by side in memory, limb by limb, erased on drop.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::natural::Natural;

/// Number of signatures computed in parallel.
pub const LANES: usize = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Zeroize)]
#[repr(align(64))]
pub(crate) struct Eight(pub(crate) [u64; LANES]);

#[cfg_attr(test, derive(Debug))]
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub(crate) struct EightNaturals(pub(crate) Vec<Eight>);

impl EightNaturals {
    pub(crate) fn zero(limbs: usize) -> Self {
        Self(vec![Eight::default(); limbs])
    }

    pub(crate) fn gather(numbers: [&Natural; LANES]) -> Self {
        let limbs = 0..numbers[0].limbs().len();
        Self(
            limbs
                .map(|limb| Eight(numbers.map(|number| number.limbs()[limb])))
                .collect(),
        )
    }

    pub(crate) fn lane(&self, lane: usize) -> Natural {
        Natural::new(self.0.iter().map(|eight| eight.0[lane]).collect())
    }

    pub(crate) fn set_lane(&mut self, lane: usize, number: &Natural) {
        for (eight, limb) in self.0.iter_mut().zip(number.limbs()) {
            eight.0[lane] = *limb;
        }
    }
}
