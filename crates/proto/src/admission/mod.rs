//! Admission control under overload: rates with bursts, and the usage of each client network.
//!
//! [`Rate`] is a token bucket stored as one number: the time at which the bucket is full again. The number fits into an
//! atomic, so that all workers can share one bucket without a lock. [`Sources`] stores such a bucket and counters for
//! each client network; it is bounded, and idle entries are removed. The caller defines the meaning of a token:
//! `crates/tls/src/admission.rs` takes a token for each full handshake before it uses the private key.
//!
//! Times are durations since an arbitrary origin of the caller's monotonic clock. A caller whose clock is slightly
//! behind may see too few tokens, but never too many.
//!
//! Source: ITU-T I.371, section A.2 (generic cell rate algorithm, virtual scheduling).

mod rate;
mod sources;

pub(crate) use self::rate::nanos;
pub use self::rate::{Bucket, Rate};
pub use self::sources::{Claim, Holding, Prefixes, Share, Source, Sources};
