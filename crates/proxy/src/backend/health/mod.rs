//! The health of servers, watched by control: [`prober`] decides who is in service, [`mod@check`] is one check.

use std::sync::Arc;
use std::time::Duration;

use becket_proto::health::Condition;

pub mod check;
pub mod prober;

/// What control has found out about one server, for the admin pages. What follows from it for new clients is in the
/// server's state.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// What is thought of the server.
    pub condition: Condition,
    /// When that changed, since 1970, and why; nothing while it has not.
    pub change: Option<(Duration, Arc<str>)>,
    /// Checks that have ended.
    pub checks: u64,
    /// Checks that the server has not passed.
    pub check_failures: u64,
    /// Times that it went out of service.
    pub outages: u64,
}
