//! Synchronization types: those of the standard library, or those of `shuttle` in models, which
//! controls the thread schedule.

#[cfg(all(test, feature = "models"))]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(all(test, feature = "models")))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
