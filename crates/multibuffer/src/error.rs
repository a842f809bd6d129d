//! Why a key is refused, and why there is no signature.

/// Why a key is not for batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// AWS-LC does not take it: it is no RSA key, or its numbers do not belong together.
    #[error("not an RSA private key")]
    Rejected,
    /// Its length is another.
    #[error("not a key of 2048, 3072 or 4096 bits with two primes of half that length")]
    Length,
    /// Its public exponent is another.
    #[error("the public exponent is not 65537")]
    Exponent,
}

/// Why there is no signature. Other means may have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The message is not as long as the modulus, or not below it.
    #[error("the message does not fit the key")]
    Message,
    /// What was computed is not the signature: a fault of the processor, of the memory, or of this crate.
    #[error("the computed signature does not verify")]
    Mismatch,
    /// AWS-LC gave no random numbers.
    #[error("no random numbers")]
    Random,
}
