//! Atomic types of the standard library. Models use the types of `shuttle` instead, which controls
//! the thread schedule.

#[cfg(all(test, feature = "models"))]
pub(crate) use shuttle::sync::atomic;
#[cfg(not(all(test, feature = "models")))]
pub(crate) use std::sync::atomic;
