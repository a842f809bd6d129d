//! Errors of this crate: why a key is rejected, and why a signature is missing.

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// AWS-LC rejected the key: it is not an RSA key, or its numbers are inconsistent.
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
    /// The padded message has the wrong length, or is not below the modulus.
    #[error("the message does not fit the key")]
    Message,
    /// The computed signature does not verify, because of a fault in the processor, the memory or this crate.
    #[error("the computed signature does not verify")]
    Mismatch,
    /// AWS-LC provided no random numbers.
    #[error("no random numbers")]
    Random,
}
