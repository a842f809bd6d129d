//! The health of servers: [`prober`] decides which are in service, [`mod@check`] is one check.

pub mod check;
pub mod prober;
