//! Reasons for refusing a key, and for a missing signature.

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// AWS-LC rejects the key: it is not an RSA key, or its numbers are inconsistent.
    #[error("not an RSA private key")]
    Rejected,
    /// The length of the key or of its primes is not supported.
    #[error("not a key of 2048, 3072 or 4096 bits with two primes of half that length")]
    Length,
    /// The public exponent is not 65537.
    #[error("the public exponent is not 65537")]
    Exponent,
}

/// Reason for a missing signature. The caller can sign with another implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The message is not as long as the modulus, or not below it.
    #[error("the message does not fit the key")]
    Message,
    /// The computed number is not the signature: a fault of the processor, the memory, or this crate.
    #[error("the computed signature does not verify")]
    Mismatch,
    /// AWS-LC provided no random numbers.
    #[error("no random numbers")]
    Random,
}
