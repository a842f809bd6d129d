//! The kernel's operations with ordinary integers.
//!
//! [`Portable`] returns the same results as the instructions in `becket_sys::ifma`, so that tests run on every
//! processor. It is for tests only: it is slower than signing one message at a time, and a compiler may turn its masks
//! into branches.

use becket_sys::lanes::{Lanes, Work};

use crate::natural::{LIMB_BITS, MASK};
use crate::vectors::{Eight, LANES};

/// Lanes of ordinary integers. Operations are not inlined, because the inlined kernel would be eight times as
/// long and take minutes to compile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

impl Lanes for Portable {
    type Vector = Eight;

    fn run(self, work: impl Work) {
        work.run(self);
    }

    #[inline(always)]
    fn load(self, from: &[u64; LANES]) -> Eight {
        Eight(*from)
    }

    #[inline(always)]
    fn store(self, words: Eight, to: &mut [u64; LANES]) {
        *to = words.0;
    }

    #[inline(always)]
    fn splat(self, word: u64) -> Eight {
        Eight([word; LANES])
    }

    #[inline(never)]
    fn add(self, a: Eight, b: Eight) -> Eight {
        each(|lane| a.0[lane].wrapping_add(b.0[lane]))
    }

    #[inline(never)]
    fn sub(self, a: Eight, b: Eight) -> Eight {
        each(|lane| a.0[lane].wrapping_sub(b.0[lane]))
    }

    #[inline(never)]
    fn and(self, a: Eight, b: Eight) -> Eight {
        each(|lane| a.0[lane] & b.0[lane])
    }

    #[inline(never)]
    fn shift_right(self, a: Eight, bits: u32) -> Eight {
        each(|lane| a.0[lane] >> bits)
    }

    #[inline(never)]
    fn add_low(self, sum: Eight, a: Eight, b: Eight) -> Eight {
        each(|lane| sum.0[lane].wrapping_add(product(a.0[lane], b.0[lane]) as u64 & MASK))
    }

    #[inline(never)]
    fn add_high(self, sum: Eight, a: Eight, b: Eight) -> Eight {
        each(|lane| sum.0[lane].wrapping_add((product(a.0[lane], b.0[lane]) >> LIMB_BITS) as u64))
    }

    #[inline(never)]
    fn where_equal(self, [a, b]: [Eight; 2], then: Eight, otherwise: Eight) -> Eight {
        each(|lane| {
            let differ = a.0[lane] ^ b.0[lane];
            // The highest bit of `differ | -differ` is set if any bit of `differ` is set.
            let keep = 0_u64.wrapping_sub((differ | differ.wrapping_neg()) >> 63);
            (otherwise.0[lane] & keep) | (then.0[lane] & !keep)
        })
    }
}

#[inline(always)]
fn each(word: impl Fn(usize) -> u64) -> Eight {
    Eight(std::array::from_fn(word))
}

#[inline(always)]
fn product(a: u64, b: u64) -> u128 {
    u128::from(a & MASK) * u128::from(b & MASK)
}
