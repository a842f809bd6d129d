//! A single number as limbs of 52 bits, lowest first, and the constants of a modulus.
//!
//! Contains the computations that are done once per key, and the conversion between bytes and limbs. Lengths
//! are public. Neither branches nor addresses depend on the digits, except where stated.

use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bits of a limb: the instructions multiply numbers of 52 bits.
pub(crate) const LIMB_BITS: u32 = 52;
/// Limbs per block: ten sums, ten limbs and a factor fit into 32 registers, and every supported length is a multiple of
/// ten.
pub(crate) const BLOCK: usize = 10;
pub(crate) const MASK: u64 = (1 << LIMB_BITS) - 1;

#[cfg_attr(test, derive(Debug))]
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub(crate) struct Natural(Vec<u64>);

impl Natural {
    /// Creates a number from limbs, each below 2^52, lowest first.
    pub(crate) fn new(limbs: Vec<u64>) -> Self {
        Self(limbs)
    }

    /// Converts big-endian bytes, which must fit into `limbs` limbs.
    pub(crate) fn from_be(bytes: &[u8], limbs: usize) -> Self {
        let mut number = Self(vec![0; limbs]);
        for (at, byte) in (0..).step_by(8).zip(bytes.iter().rev()) {
            let (limb, shift) = ((at / LIMB_BITS) as usize, at % LIMB_BITS);
            let placed = u64::from(*byte) << shift;
            number.0[limb] |= placed & MASK;
            if shift > LIMB_BITS - 8 {
                number.0[limb + 1] |= placed >> LIMB_BITS;
            }
        }
        number
    }

    /// Returns `len` big-endian bytes. The number must fit into them.
    pub(crate) fn to_be(&self, len: usize) -> Vec<u8> {
        let limb = |at: u32| self.0.get(at as usize).copied().unwrap_or(0);
        let byte = |at: u32| {
            let (index, shift) = (at / LIMB_BITS, at % LIMB_BITS);
            (limb(index) >> shift | limb(index + 1) << (LIMB_BITS - shift)) as u8
        };
        let places = (0..).step_by(8).take(len).map(byte);
        let mut bytes: Vec<u8> = places.collect();
        bytes.reverse();
        bytes
    }

    pub(crate) fn limbs(&self) -> &[u64] {
        &self.0
    }

    /// Returns `true` if this number is below another number of equal length. Only for public or random
    /// numbers, because the time depends on the digits.
    pub(crate) fn is_below(&self, other: &Self) -> bool {
        self.0.iter().rev().lt(other.0.iter().rev())
    }

    /// Subtracts two from an odd prime. The result is the exponent of an inverse modulo this prime.
    pub(crate) fn less_two(&self) -> Self {
        let mut less = self.clone();
        // The subtraction of two starts as a borrow. A lowest limb of 1 borrows from the next limb.
        let mut borrow = 2;
        for limb in &mut less.0 {
            let difference = limb.wrapping_sub(borrow);
            borrow = difference >> 63;
            *limb = difference & MASK;
        }
        less
    }

    fn double_below(&mut self, modulus: &Self) {
        let mut carry = 0;
        for limb in &mut self.0 {
            let sum = 2 * *limb + carry;
            *limb = sum & MASK;
            carry = sum >> LIMB_BITS;
        }
        let mut less = self.clone();
        let mut borrow = 0;
        for (limb, digit) in less.0.iter_mut().zip(&modulus.0) {
            let difference = limb.wrapping_sub(*digit).wrapping_sub(borrow);
            borrow = difference >> 63;
            *limb = difference & MASK;
        }
        // All ones if the modulus is larger, so that the number is kept.
        let keep = 0_u64.wrapping_sub(borrow);
        for (limb, reduced) in self.0.iter_mut().zip(&less.0) {
            *limb = (*limb & keep) | (reduced & !keep);
        }
    }
}

/// An odd modulus with the constants of Montgomery multiplication. R is 2^52 to the power of its number of
/// limbs, and the modulus is at most a sixteenth of R.
pub(crate) struct Modulus {
    pub(crate) number: Natural,
    /// R^2 modulo the number.
    pub(crate) r_squared: Natural,
    /// -1 / number modulo 2^52.
    pub(crate) minus_inverse: u64,
}

impl Modulus {
    /// Computes `r_squared` with one doubling per bit of R^2, which takes a few milliseconds for the longest modulus.
    pub(crate) fn new(number: Natural) -> Self {
        let mut r_squared = Natural(vec![0; number.0.len()]);
        r_squared.0[0] = 1;
        for _ in 0..2 * LIMB_BITS as usize * number.0.len() {
            r_squared.double_below(&number);
        }
        // Newton's method: each step doubles the number of correct low bits, starting at three.
        let low = number.0[0];
        let mut inverse = low;
        for _ in 0..5 {
            inverse = inverse.wrapping_mul(2_u64.wrapping_sub(low.wrapping_mul(inverse)));
        }
        Self {
            minus_inverse: inverse.wrapping_neg() & MASK,
            r_squared,
            number,
        }
    }
}

impl Drop for Modulus {
    fn drop(&mut self) {
        self.minus_inverse.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use num_bigint::BigUint;
    use proptest::prelude::*;

    use super::*;

    fn big(number: &Natural) -> BigUint {
        let limbs = number.0.iter().rev();
        limbs.fold(BigUint::ZERO, |sum, limb| (sum << LIMB_BITS) + *limb)
    }

    proptest! {
        #[test]
        fn bytes_survive_conversion_to_limbs_and_back(bytes in proptest::collection::vec(any::<u8>(), 1..128)) {
            let number = Natural::from_be(&bytes, 20);
            prop_assert_eq!(big(&number), BigUint::from_bytes_be(&bytes));
            prop_assert_eq!(number.to_be(bytes.len()), bytes);
        }

        #[test]
        fn modulus_constants_match_their_definitions(mut bytes in proptest::collection::vec(any::<u8>(), 128)) {
            bytes[0] |= 0x80;
            bytes[127] |= 1;
            let modulus = Modulus::new(Natural::from_be(&bytes, 20));
            let number = BigUint::from_bytes_be(&bytes);
            prop_assert_eq!(big(&modulus.r_squared), (BigUint::from(1_u8) << 2080) % &number);
            let product = u128::from(modulus.minus_inverse) * u128::from(modulus.number.0[0]);
            prop_assert_eq!((product + 1) % (1 << 52), 0);
            prop_assert_eq!(big(&modulus.number.less_two()) + 2_u8, number);
        }
    }

    #[test]
    fn numbers_of_equal_length_are_compared_by_value() {
        let of = |number: u64| Natural::from_be(&number.to_be_bytes(), 2);
        assert!(of(1 << 52).is_below(&of((1 << 52) + 1)));
        assert!(of(MASK).is_below(&of(1 << 52)));
        assert!(!of(7).is_below(&of(7)));
    }
}
