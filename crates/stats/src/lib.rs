//! What the becket tools measure with and report in.
//!
//! * [`Histogram`]: latencies in nanoseconds with three significant digits, mergeable across threads.
//! * [`units`]: durations, sizes, rates and ratios as people write them, and how they are printed.
//! * [`ratio`]: how two series of measurements compare, and how sure one may be.
//! * [`report`]: the report model of `becket-load`; its JSON form has a committed schema.
//! * [`text`]: the same report as a page for a terminal.
//!
//! The crate is pure: no clock, no files, no sockets. Whoever measures passes numbers in and writes
//! strings out.
#![forbid(unsafe_code)]

pub mod histogram;
pub mod ratio;
pub mod report;
pub mod text;
pub mod units;

pub use histogram::Histogram;
