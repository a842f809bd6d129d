//! Operations on eight words at a time.
//!
//! [`Lanes`] defines the operations. [`ifma`](crate::ifma) implements them with AVX-512
//! instructions, and tests implement them with ordinary integers.

/// Operations on eight words at a time, in constant time: no operation branches on a word or uses a
/// word as an address.
pub trait Lanes: Copy {
    type Vector: Copy;

    /// Runs `work` in a function that is compiled with the instructions of these lanes.
    fn run(self, work: impl Work);

    fn load(self, from: &[u64; 8]) -> Self::Vector;
    fn store(self, words: Self::Vector, to: &mut [u64; 8]);
    fn splat(self, word: u64) -> Self::Vector;

    /// Returns `a + b` per lane, modulo 2^64.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns `a - b` per lane, modulo 2^64.
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn and(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns `a / 2^bits` per lane; zero if `bits` is 64 or more.
    fn shift_right(self, a: Self::Vector, bits: u32) -> Self::Vector;

    /// Returns `sum` plus the lower 52 bits of the product `a * b`, per lane. Only the lower 52
    /// bits of `a` and `b` are used.
    fn add_low(self, sum: Self::Vector, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns `sum` plus the product `a * b` divided by 2^52, per lane. Only the lower 52 bits of
    /// `a` and `b` are used.
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
    /// Must be `#[inline(always)]`, like every function that it calls, so that it is compiled for
    /// these lanes.
    fn run<L: Lanes>(self, lanes: L);
}
