//! Statistics and units for the measurements of the becket tools.
//!
//! [`ratio::Interval`] is the ratio of two series of measurements with its uncertainty. [`units`]
//! parses and formats quantities.
//!
//! The crate is pure: it uses no clock, no files and no sockets. Programs pass numbers in and write
//! strings out.
//!
//! ```
//! use becket_stats::ratio::{Interval, Verdict};
//!
//! let rounds = [(80.0, 100.0), (81.0, 100.0), (79.0, 100.0)];
//! let interval = Interval::paired(&rounds, 0.95).unwrap();
//! assert_eq!(interval.verdict(), Verdict::Less);
//! ```
#![forbid(unsafe_code)]

pub mod ratio;
pub mod units;
