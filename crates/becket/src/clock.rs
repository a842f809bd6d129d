//! The clocks.

pub use becket_sys::clock::{Clock, Now, Stopwatch};
