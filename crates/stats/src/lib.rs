//! Statistics for measurements, and parsing and formatting of units, for the becket tools.
//!
//! [`ratio::Interval`] is the ratio of two series of measurements with its confidence interval.
//! [`units`] parses and formats quantities.
//!
//! The crate uses no clock, no files and no sockets.
//!
//! ```
//! use std::cmp::Ordering;
//!
//! use becket_stats::ratio::Interval;
//!
//! let rounds = [(80.0, 100.0), (81.0, 100.0), (79.0, 100.0)];
//! let interval = Interval::paired(&rounds, 0.95).unwrap();
//! assert_eq!(interval.against(1.0), Some(Ordering::Less));
//! ```
#![forbid(unsafe_code)]

pub mod ratio;
pub mod units;
