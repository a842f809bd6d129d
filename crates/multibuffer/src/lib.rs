//! RSA signatures eight at a time, for processors with AVX-512 IFMA.
//!
//! [`Multibuffer::sign`] takes requests, each with a [`PrivateKey`] and a message padded by
//! [`Scheme::encode`], and returns a signature for each. A vector register holds one limb of eight numbers,
//! so every instruction works on eight signatures, each with its own key. Keys have 2048, 3072 or 4096
//! bits, two primes of equal length, and the public exponent 65537. Other keys are refused, and have to
//! sign by other means.
//!
//! ```
//! use becket_multibuffer::{KeyError, PrivateKey};
//! assert_eq!(PrivateKey::from_pkcs8(b"no key").unwrap_err(), KeyError::Rejected);
//! ```
//!
//! * [`natural`]: a single number as limbs of 52 bits, and values that are computed once per key;
//! * [`key`]: the numbers of a key; [`encoding`]: hashing and padding of messages;
//! * [`vectors`]: eight numbers in memory; [`kernel`]: their products, squares and reductions; [`lanes`]:
//!   the kernel's operations without AVX-512;
//! * [`field`]: arithmetic with eight moduli; [`batch`]: eight signatures from start to end; [`sign`]:
//!   grouping of requests into batches.
//!
//! Each returned signature was computed on a blinded base, by instructions and addresses that do not depend
//! on key or message, and was verified with the public exponent. A signature that does not verify is an
//! [`Error::Mismatch`] of that request alone, and the caller signs again by other means. Numbers that reveal
//! the key are erased on drop; values that the compiler spilled to the stack are not.
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
