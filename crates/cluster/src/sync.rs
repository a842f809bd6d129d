//! What threads share their state by: of the standard library, and in models of `shuttle`, which chooses the thread that runs next.

#[cfg(all(test, feature = "models"))]
pub(crate) use shuttle::sync::atomic;
#[cfg(not(all(test, feature = "models")))]
pub(crate) use std::sync::atomic;
