//! The health of servers.
//!
//! [`mod@check`] is one health check, and [`prober`] runs the checks of all servers and marks
//! servers up or down. [`cancel`] sends PostgreSQL cancel requests, over connections that are
//! opened like those of a check.

pub mod cancel;
pub mod check;
pub mod prober;
