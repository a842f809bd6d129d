//! Operations on eight words at a time.
//!
//! [`Lanes`] defines the operations. [`ifma`](crate::ifma) implements them with AVX-512
//! instructions, and tests implement them with ordinary integers.

/// Operations on eight words at a time. None of them branches on a word, or uses it as an address.
pub trait Lanes: Copy {
    /// One word per lane, in a register if there is one.
    type Vector: Copy;

    /// Runs `work` in a function that is compiled with the instructions of these lanes.
    fn run(self, work: impl Work);

    fn load(self, from: &[u64; 8]) -> Self::Vector;
    fn store(self, words: Self::Vector, to: &mut [u64; 8]);
    /// Repeats a word in all lanes.
    fn splat(self, word: u64) -> Self::Vector;

    /// `a + b`, modulo 2^64.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a - b`, modulo 2^64.
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn and(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a / 2^bits`; zero for 64 bits and more.
    fn shift_right(self, a: Self::Vector, bits: u32) -> Self::Vector;

    /// `sum + (a b mod 2^52)`, with the lower 52 bits of `a` and `b`.
    fn add_low(self, sum: Self::Vector, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `sum + a b / 2^52`, with the lower 52 bits of `a` and `b`.
    fn add_high(self, sum: Self::Vector, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Selects per lane: `then` if both words of `pair` are equal, otherwise `otherwise`.
    fn where_equal(
        self,
        pair: [Self::Vector; 2],
        then: Self::Vector,
        otherwise: Self::Vector,
    ) -> Self::Vector;
}

pub trait Work {
    /// Does the work. Must be `#[inline(always)]`, like everything that it calls.
    fn run<L: Lanes>(self, lanes: L);
}
