//! Temporary changes by an operator, which the next reload, upgrade or restart discards.

use std::sync::Arc;

use becket_proxy::backend::backend_state::BackendState;
use becket_tls::config::Backend;

#[derive(Debug)]
pub struct RunningBackend {
    pub config: Arc<Backend>,
    pub state: Arc<BackendState>,
}

pub(super) fn temporary(backends: &[RunningBackend], log_level: Option<&str>) -> Vec<String> {
    let servers = backends.iter().flat_map(of_backend);
    let level = log_level.map(|level| format!("log level: {level}"));
    servers.chain(level).collect()
}

/// Logs the temporary changes that a reload, an upgrade or a drain discards.
pub fn log_ended(changes: &[String]) {
    for change in changes {
        tracing::info!(name: "temporary-change-ended", change, "temporary change reverted");
    }
}

fn of_backend(backend: &RunningBackend) -> Vec<String> {
    let name = &backend.config.keys.name;
    let states = backend.state.servers();
    let mut changes = Vec::new();
    for server in &backend.config.servers {
        let added = server.added.then(|| "added".to_owned());
        let state = states.iter().find(|state| *state.name() == server.name);
        let changed = state.map(|state| state.settings().overrides.lines());
        let all: Vec<String> = added
            .into_iter()
            .chain(changed.into_iter().flatten())
            .collect();
        if !all.is_empty() {
            changes.push(format!("server {name}/{}: {}", server.name, all.join(", ")));
        }
    }
    let removed = backend.config.removed.iter();
    changes.extend(removed.map(|server| format!("server {name}/{server}: removed")));
    changes
}
