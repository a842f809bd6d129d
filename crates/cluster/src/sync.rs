//! Synchronization of threads: with the standard library, and in models with `shuttle`, which chooses the
//! thread that runs next.

#[cfg(all(test, feature = "models"))]
pub(crate) use shuttle::sync::atomic;
#[cfg(not(all(test, feature = "models")))]
pub(crate) use std::sync::atomic;
