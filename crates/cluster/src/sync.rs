//! Synchronization types: from the standard library, or from `shuttle` in model tests, which
//! control the order in which threads run.

#[cfg(all(test, feature = "models"))]
pub(crate) use shuttle::sync::atomic;
#[cfg(not(all(test, feature = "models")))]
pub(crate) use std::sync::atomic;
