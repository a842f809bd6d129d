//! Temporary changes: what an operator changed that the next reload, upgrade or restart ends.

use std::sync::Arc;

use super::certificates::CertificateStatus;
use becket_proxy::backend::backend_state::BackendState;
use becket_tls::config::{Backend, Config, Lasts};

/// A backend as it is configured, and the state that workers and control share.
#[derive(Debug)]
pub struct RunningBackend {
    pub config: Arc<Backend>,
    pub state: Arc<BackendState>,
}

/// A level of the log that replaces the one of the configuration.
#[derive(Clone, Debug)]
pub struct LogLevel {
    pub level: String,
    /// It is a kept edit.
    pub keep: bool,
}

impl LogLevel {
    /// Returns the level of the kept edits.
    pub(super) fn kept(config: &Config) -> Option<Self> {
        let level = config.file.edits.log_level.clone()?;
        Some(Self { level, keep: true })
    }
}

/// Each temporary change, as text.
pub(super) fn temporary(
    backends: &[RunningBackend],
    certificates: &[CertificateStatus],
    log_level: Option<&LogLevel>,
) -> Vec<String> {
    let mut changes: Vec<String> = backends.iter().flat_map(of_backend).collect();
    let set = certificates.iter();
    let set = set.filter(|it| it.set_until == Some(Lasts::Reload));
    changes.extend(set.map(|it| format!("certificate of {}: {}", it.listener, it.name)));
    let level = log_level.filter(|level| !level.keep);
    changes.extend(level.map(|level| format!("log level: {}", level.level)));
    changes
}

/// Logs the temporary changes that a reload, an upgrade or a drain ends.
pub fn log_ended(changes: &[String]) {
    for change in changes {
        tracing::info!(change, "temporary change ended");
    }
}

fn of_backend(backend: &RunningBackend) -> Vec<String> {
    let name = &backend.config.keys.name;
    let states = backend.state.servers();
    let mut changes = Vec::new();
    for server in &backend.config.servers {
        let added = (server.added == Some(Lasts::Reload)).then(|| "added".to_owned());
        let state = states.iter().find(|state| *state.name() == server.name);
        let changed = state.map(|state| state.settings().temporary());
        let all: Vec<String> = added
            .into_iter()
            .chain(changed.into_iter().flatten())
            .collect();
        if !all.is_empty() {
            changes.push(format!("server {name}/{}: {}", server.name, all.join(", ")));
        }
    }
    let removed = backend.config.removed.iter();
    let removed = removed.filter(|(_, lasts)| *lasts == Lasts::Reload);
    changes.extend(removed.map(|(server, _)| format!("server {name}/{server}: removed")));
    changes
}
