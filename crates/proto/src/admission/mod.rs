//! Who may come in when more want to than can be served: rates with bursts, and what each source has in hand.
//!
//! [`Rate`] is a token bucket that is kept as one number: the time at which the bucket will be full again. That number
//! fits an atomic, so one bucket serves all workers without a lock. [`Sources`] keeps the same, and counts, for each
//! network that clients come from, bounded and expiring. Neither knows what a token is for: a full handshake costs one
//! where the private key would be used, and `crates/tls/src/admission.rs` asks for it there.
//!
//! Times are durations since one arbitrary origin of a monotonic clock, the caller's. A caller whose clock is a little
//! behind another's asks of a bucket as it will be a moment later, never of one that has more.
//!
//! Source: ITU-T I.371, section A.2 (generic cell rate algorithm, virtual scheduling).

mod rate;
mod sources;

pub(crate) use self::rate::nanos;
pub use self::rate::{Bucket, Rate};
pub use self::sources::{Claim, Holding, Prefixes, Share, Source, Sources};
