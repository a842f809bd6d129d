//! The health of servers: [`prober`] determines which servers are in service, [`mod@check`] is one
//! check, and [`cancel`] sends PostgreSQL cancel requests over the connection of a check.

pub mod cancel;
pub mod check;
pub mod prober;
