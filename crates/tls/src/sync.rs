//! Atomic types. These are the types of the standard library; in model tests, they are the types of
//! `shuttle`, which controls the thread schedule.

#[cfg(all(test, feature = "models"))]
pub(crate) use shuttle::sync::atomic;
#[cfg(not(all(test, feature = "models")))]
pub(crate) use std::sync::atomic;
