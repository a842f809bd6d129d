//! The health of servers, watched by control: [`prober`] decides who is in service, [`mod@check`] is one check.

use std::sync::Arc;
use std::time::Duration;

use becket_proto::health::Condition;

pub(crate) mod check;
pub(crate) mod prober;

/// What control has found out about one server, for the admin pages. What follows from it for new clients is in the
/// server's state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched {
    /// What is thought of the server.
    pub(crate) condition: Condition,
    /// When that changed, since 1970, and why; nothing while it has not.
    pub(crate) change: Option<(Duration, Arc<str>)>,
    /// Checks that have ended.
    pub(crate) checks: u64,
    /// Checks that the server has not passed.
    pub(crate) check_failures: u64,
    /// Times that it went out of service.
    pub(crate) outages: u64,
}
