//! What threads share their state by: of the standard library, and in models of `shuttle`, which chooses the thread that runs next.

#[cfg(all(test, feature = "models"))]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};
#[cfg(not(all(test, feature = "models")))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
