//! Measurements of the becket tools.
//!
//! It owns [`ratio::Interval`], the ratio of two series of measurements with its uncertainty, and [`units`], which parses and
//! formats quantities.
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

pub mod ratio;
pub mod units;
