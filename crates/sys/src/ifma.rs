//! Multiplies 52-bit limbs, eight at a time, with AVX-512 F and IFMA instructions behind safe functions.
//!
//! An [`Ifma`] proves that this processor has these instructions: only [`Ifma::detect`] creates one. Each operation
//! takes an [`Ifma`] and is one or two instructions, without branches or addresses that depend on the numbers.
//!
//! The operations are inlined only within [`Lanes::run`], which compiles its function for such processors. Elsewhere
//! each operation is a function call. So all callers of operations must be inlined into that function.
//!
//! Source: Intel's Intrinsics Guide, VPMADD52LUQ and VPMADD52HUQ.

use std::arch::x86_64::{
    __m512i, _mm_cvtsi64_si128, _mm512_add_epi64, _mm512_and_si512, _mm512_cmpeq_epi64_mask,
    _mm512_loadu_si512, _mm512_madd52hi_epu64, _mm512_madd52lo_epu64, _mm512_mask_mov_epi64,
    _mm512_set1_epi64, _mm512_srl_epi64, _mm512_storeu_si512, _mm512_sub_epi64,
};

use crate::lanes::{Lanes, Work};

/// Proof that the processor has AVX-512 F and IFMA.
#[derive(Clone, Copy, Debug)]
pub struct Ifma(());

/// Eight 64-bit words in one 512-bit register.
#[derive(Clone, Copy, Debug)]
pub struct Words(__m512i);

impl Ifma {
    /// Returns a proof if the processor has the instructions and the system saves their registers.
    #[must_use]
    pub fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512ifma");
        found.then_some(Self(()))
    }
}

impl Lanes for Ifma {
    type Vector = Words;

    fn run(self, work: impl Work) {
        #[target_feature(enable = "avx512f,avx512ifma")]
        fn compiled<W: Work>(ifma: Ifma, work: W) {
            work.run(ifma);
        }
        // SAFETY: `self` proves that the processor has both features.
        unsafe { compiled(self, work) }
    }

    #[inline(always)]
    fn load(self, from: &[u64; 8]) -> Words {
        // SAFETY: `self` proves that the processor has the instruction; the words are 64 bytes, at any alignment.
        Words(unsafe { _mm512_loadu_si512(from.as_ptr().cast()) })
    }

    #[inline(always)]
    fn store(self, words: Words, to: &mut [u64; 8]) {
        // SAFETY: as for `load`; the words are borrowed for writing.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), words.0) }
    }

    #[inline(always)]
    fn splat(self, word: u64) -> Words {
        // SAFETY: `self` proves that the processor has the instruction.
        Words(unsafe { _mm512_set1_epi64(word.cast_signed()) })
    }

    #[inline(always)]
    fn add(self, a: Words, b: Words) -> Words {
        // SAFETY: `self` proves that the processor has the instruction.
        Words(unsafe { _mm512_add_epi64(a.0, b.0) })
    }

    #[inline(always)]
    fn sub(self, a: Words, b: Words) -> Words {
        // SAFETY: `self` proves that the processor has the instruction.
        Words(unsafe { _mm512_sub_epi64(a.0, b.0) })
    }

    #[inline(always)]
    fn and(self, a: Words, b: Words) -> Words {
        // SAFETY: `self` proves that the processor has the instruction.
        Words(unsafe { _mm512_and_si512(a.0, b.0) })
    }

    #[inline(always)]
    fn shift_right(self, a: Words, bits: u32) -> Words {
        // SAFETY: `self` proves that the processor has the instruction.
        Words(unsafe { _mm512_srl_epi64(a.0, _mm_cvtsi64_si128(i64::from(bits))) })
    }

    #[inline(always)]
    fn add_low(self, sum: Words, a: Words, b: Words) -> Words {
        // SAFETY: `self` proves that the processor has the instruction.
        Words(unsafe { _mm512_madd52lo_epu64(sum.0, a.0, b.0) })
    }

    #[inline(always)]
    fn add_high(self, sum: Words, a: Words, b: Words) -> Words {
        // SAFETY: `self` proves that the processor has the instruction.
        Words(unsafe { _mm512_madd52hi_epu64(sum.0, a.0, b.0) })
    }

    #[inline(always)]
    fn where_equal(self, [a, b]: [Words; 2], then: Words, otherwise: Words) -> Words {
        // SAFETY: `self` proves that the processor has the instruction.
        Words(unsafe {
            let equal = _mm512_cmpeq_epi64_mask(a.0, b.0);
            _mm512_mask_mov_epi64(otherwise.0, equal, then.0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ifma_operations_match_integer_arithmetic() {
        let Some(ifma) = Ifma::detect() else {
            becket_tidy::lacks("needs AVX-512 IFMA");
            return;
        };
        let (a, b) = ([u64::MAX, 0, 1, 2, 3, 1 << 52, 1 << 51, 7], [u64::MAX; 8]);
        let [x, y] = [a, b].map(|words| ifma.load(&words));
        let each = |of: fn(u64, u64) -> u64| std::array::from_fn(|i| of(a[i], b[i]));
        let words = |of: Words| {
            let mut words = [0; 8];
            ifma.store(of, &mut words);
            words
        };
        let product =
            |a: u64, b: u64| u128::from(a % (1 << 52)) * u128::from(b % (1 << 52)) % (1 << 104);
        let low: [u64; 8] =
            std::array::from_fn(|i| (product(a[i], b[i]) % (1 << 52)) as u64 + a[i] / 2);
        let high: [u64; 8] = std::array::from_fn(|i| (product(a[i], b[i]) >> 52) as u64);
        assert_eq!(words(ifma.add(x, y)), each(u64::wrapping_add));
        assert_eq!(words(ifma.sub(x, y)), each(u64::wrapping_sub));
        assert_eq!(words(ifma.and(x, y)), each(|a, b| a & b));
        assert_eq!(words(ifma.shift_right(x, 52)), each(|a, _| a >> 52));
        assert_eq!(words(ifma.shift_right(x, 64)), [0; 8]);
        assert_eq!(words(ifma.add_low(ifma.shift_right(x, 1), x, y)), low);
        assert_eq!(words(ifma.add_high(ifma.splat(0), x, y)), high);
        let chosen = ifma.where_equal([x, y], ifma.splat(1), ifma.splat(0));
        assert_eq!(words(chosen), [1, 0, 0, 0, 0, 0, 0, 0]);
        struct Double<'a>(&'a mut [u64; 8]);
        impl Work for Double<'_> {
            #[inline(always)]
            fn run<L: Lanes>(self, ifma: L) {
                let words = ifma.load(self.0);
                ifma.store(ifma.add(words, words), self.0);
            }
        }
        let mut doubled = a;
        ifma.run(Double(&mut doubled));
        assert_eq!(doubled, each(|a, _| a.wrapping_mul(2)));
    }
}
