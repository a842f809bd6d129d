//! Which servers of a backend may be given a client: those in service that have a weight and have not failed it. While no
//! other server can serve, backups do.

use std::sync::Arc;

use super::pool::Pick;
use super::server_state::ServerState;

/// The servers that one client may be given, as they are now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Eligible<'a> {
    servers: &'a [Arc<ServerState>],
    /// Those that have failed it, by [`ServerState::key`].
    tried: &'a [u64],
    backups: bool,
}

impl<'a> Eligible<'a> {
    pub(super) fn new(servers: &'a [Arc<ServerState>], tried: &'a [u64]) -> Self {
        let serves = |server: &Arc<ServerState>| server.is_usable() && !server.is_backup();
        Self {
            servers,
            tried,
            backups: !servers.iter().any(serves),
        }
    }

    /// Whether this is one of them.
    pub(super) fn contains(&self, server: &ServerState) -> bool {
        server.is_usable()
            && server.is_backup() == self.backups
            && !self.tried.contains(&server.key())
    }

    /// Where none of them has a slot: whether waiting makes sense.
    pub(super) fn shortage(&self) -> Pick {
        let comes = |server: &Arc<ServerState>| self.contains(server) || server.is_awaited();
        if self.servers.iter().any(comes) {
            Pick::Full
        } else {
            Pick::Nobody
        }
    }
}
