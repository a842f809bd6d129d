//! Eight numbers at a time: words of 64 bits, one per lane, and what is done to all eight of them.
//!
//! [`Lanes`] is what the kernel is written in. [`Ifma`] does each operation by an instruction or two; [`Portable`] computes
//! the same anywhere, so that every test runs everywhere, and is never used in service: it is slower than one signature at a
//! time, and a compiler may make branches of its masks.
//!
//! [`Numbers`] are eight numbers in memory, limb by limb. They are erased when dropped.

#[cfg(target_arch = "x86_64")]
use becket_sys::ifma::{Ifma, Words, Work};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::LANES;
use crate::kernel::Step;
use crate::natural::{LIMB_BITS, MASK, Natural};

/// A word of each lane, in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Zeroize)]
#[repr(align(64))]
pub(crate) struct Eight(pub(crate) [u64; LANES]);

/// Eight numbers of one length, from the lowest limb up.
#[cfg_attr(test, derive(Debug))]
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub(crate) struct Numbers(pub(crate) Vec<Eight>);

impl Numbers {
    /// Eight zeros.
    pub(crate) fn zero(limbs: usize) -> Self {
        Self(vec![Eight::default(); limbs])
    }

    /// A number per lane, all of one length.
    pub(crate) fn gather(numbers: [&Natural; LANES]) -> Self {
        let limbs = 0..numbers[0].limbs().len();
        Self(
            limbs
                .map(|limb| Eight(numbers.map(|number| number.limbs()[limb])))
                .collect(),
        )
    }

    /// The number of one lane.
    pub(crate) fn lane(&self, lane: usize) -> Natural {
        Natural::new(self.0.iter().map(|eight| eight.0[lane]).collect())
    }

    /// Puts another number into one lane.
    pub(crate) fn set_lane(&mut self, lane: usize, number: &Natural) {
        for (eight, limb) in self.0.iter_mut().zip(number.limbs()) {
            eight.0[lane] = *limb;
        }
    }
}

/// What is done to eight words at a time. No operation branches, or chooses an address, by what the words are.
pub(crate) trait Lanes: Copy {
    /// A word of each lane, in a register where there is one.
    type Vector: Copy;

    /// Takes a step, in a function that is compiled for these lanes.
    fn run(self, step: Step<'_>);

    fn load(self, from: &Eight) -> Self::Vector;
    fn store(self, words: Self::Vector, to: &mut Eight);
    fn splat(self, word: u64) -> Self::Vector;

    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn and(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn shift_right(self, a: Self::Vector, bits: u32) -> Self::Vector;

    /// `sum + (a b mod 2^52)`, of the lower 52 bits of `a` and `b`.
    fn add_low(self, sum: Self::Vector, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `sum + a b / 2^52`, of the lower 52 bits of `a` and `b`.
    fn add_high(self, sum: Self::Vector, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `then` where the pair is equal, `otherwise` elsewhere.
    fn where_equal(
        self,
        pair: [Self::Vector; 2],
        then: Self::Vector,
        otherwise: Self::Vector,
    ) -> Self::Vector;
}

#[cfg(target_arch = "x86_64")]
impl Work for Step<'_> {
    #[inline(always)]
    fn run(self, ifma: Ifma) {
        self.take(ifma);
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for Ifma {
    type Vector = Words;

    fn run(self, step: Step<'_>) {
        Self::run(self, step);
    }

    #[inline(always)]
    fn load(self, from: &Eight) -> Words {
        Self::load(self, &from.0)
    }

    #[inline(always)]
    fn store(self, words: Words, to: &mut Eight) {
        Self::store(self, words, &mut to.0);
    }

    #[inline(always)]
    fn splat(self, word: u64) -> Words {
        Self::splat(self, word)
    }

    #[inline(always)]
    fn add(self, a: Words, b: Words) -> Words {
        Self::add(self, a, b)
    }

    #[inline(always)]
    fn sub(self, a: Words, b: Words) -> Words {
        Self::sub(self, a, b)
    }

    #[inline(always)]
    fn and(self, a: Words, b: Words) -> Words {
        Self::and(self, a, b)
    }

    #[inline(always)]
    fn shift_right(self, a: Words, bits: u32) -> Words {
        Self::shift_right(self, a, bits)
    }

    #[inline(always)]
    fn add_low(self, sum: Words, a: Words, b: Words) -> Words {
        Self::add_low(self, sum, a, b)
    }

    #[inline(always)]
    fn add_high(self, sum: Words, a: Words, b: Words) -> Words {
        Self::add_high(self, sum, a, b)
    }

    #[inline(always)]
    fn where_equal(self, [a, b]: [Words; 2], then: Words, otherwise: Words) -> Words {
        Self::where_equal(self, a, b, then, otherwise)
    }
}

/// Lanes of ordinary integers. Operations are calls, which keeps the kernel, eight times as long here, from being compiled for
/// minutes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

impl Lanes for Portable {
    type Vector = Eight;

    fn run(self, step: Step<'_>) {
        step.take(self);
    }

    #[inline(always)]
    fn load(self, from: &Eight) -> Eight {
        *from
    }

    #[inline(always)]
    fn store(self, words: Eight, to: &mut Eight) {
        *to = words;
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
            // The highest bit is set where any is.
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
