//! Operations on eight words at a time.
//!
//! [`Lanes`] says what they are. [`ifma`](crate::ifma) has them as instructions of AVX-512, and tests have them as ordinary integers.

/// What is done to eight words at a time. No operation branches, or chooses an address, by what the words are.
pub trait Lanes: Copy {
    /// A word of each lane, in a register where there is one.
    type Vector: Copy;

    /// Does work, in a function that is compiled for these lanes.
    fn run(self, work: impl Work);

    /// Eight words from memory.
    fn load(self, from: &[u64; 8]) -> Self::Vector;
    /// Eight words to memory.
    fn store(self, words: Self::Vector, to: &mut [u64; 8]);
    /// The word, eight times.
    fn splat(self, word: u64) -> Self::Vector;

    /// `a + b`, modulo 2^64.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a - b`, modulo 2^64.
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The bits that both have.
    fn and(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a / 2^bits`; zero for 64 bits and more.
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

/// What [`Lanes::run`] runs.
pub trait Work {
    /// Does it. Must be `#[inline(always)]`, and so must be what it calls.
    fn run<L: Lanes>(self, lanes: L);
}
