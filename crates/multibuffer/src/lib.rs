//! RSA signatures eight at a time, for processors with AVX-512 IFMA.
//!
//! [`Multibuffer::sign`] takes requests, each a [`PrivateKey`] and a message that [`Scheme::encode`] has padded, and answers
//! each with the signature. A vector register holds one limb of eight numbers, so that every instruction works for eight
//! signatures, each under a key of its own. Keys have 2048, 3072 or 4096 bits, two primes of equal length, and the public
//! exponent 65537; other keys are refused, and signed with elsewhere.
//!
//! ```
//! use becket_multibuffer::{KeyError, PrivateKey};
//! assert_eq!(PrivateKey::from_pkcs8(b"no key").unwrap_err(), KeyError::Rejected);
//! ```
//!
//! * [`natural`]: one number, as limbs of 52 bits; what is computed once per key;
//! * [`key`]: the numbers of a key; [`encoding`]: what is signed, from what is to be signed;
//! * [`vectors`]: eight numbers in memory; [`kernel`]: products, squares and reductions of them; [`lanes`]: its operations
//!   without instructions of AVX-512;
//! * [`field`]: arithmetic under eight moduli; [`batch`]: eight signatures from start to end; [`sign`]: which requests make a
//!   batch.
//!
//! What holds for every signature that leaves: it was computed on a blinded base, by a sequence of instructions and addresses
//! that does not depend on key or message, and it was verified with the public exponent. One that does not verify is an
//! [`Error::Mismatch`] of that request alone, and the caller signs again by other means. Numbers that would tell the key are
//! erased when they are dropped; what the compiler spilled to the stack is not.
#![forbid(unsafe_code)]

mod batch;
mod encoding;
mod error;
mod field;
mod kernel;
mod key;
mod lanes;
mod natural;
mod sign;
mod vectors;

pub use encoding::{Hash, Padding, Scheme};
pub use error::{Error, KeyError};
pub use key::PrivateKey;
pub use sign::{Multibuffer, SignRequest};
pub use vectors::LANES;
