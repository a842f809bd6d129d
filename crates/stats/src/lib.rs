//! What the becket tools measure with and report in.
//!
//! It owns [`Histogram`] (latencies in nanoseconds with three significant digits, mergeable across threads),
//! [`ratio::Interval`] (how two series of measurements compare, and how sure that is) and [`report::LoadReport`] (the report of
//! `becket-load`, whose JSON form has a committed schema). [`units`] reads and prints quantities, [`text`] prints a report.
//!
//! The crate is pure: no clock, no files, no sockets. Programs pass numbers in and write strings out.
//!
//! ```
//! use becket_stats::ratio::{Interval, Verdict};
//!
//! let rounds = [(80.0, 100.0), (81.0, 100.0), (79.0, 100.0)];
//! let interval = Interval::paired(&rounds, 0.95).unwrap();
//! assert_eq!(interval.verdict(), Verdict::Less);
//! ```
#![forbid(unsafe_code)]

pub mod histogram;
pub mod ratio;
pub mod report;
pub mod text;
pub mod units;

pub use histogram::Histogram;
