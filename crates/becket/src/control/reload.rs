//! Reload: prepare beside the running configuration, then commit or discard.
//!
//! Preparing reads every file, resolves every name, builds every TLS configuration once and binds
//! every new address; only when all of that worked are the workers told. A reload that fails has
//! changed nothing, and says everything that is wrong.

use std::sync::Arc;

use becket_proto::session_table::SessionTable;
use rustls::pki_types::UnixTime;

use crate::config::error::Problem;
use crate::config::prepare::Prepared;
use crate::config::source::Source;
use crate::config::{Config, Process};
use crate::tls::front::Front;
use crate::tls::tickets::Secrets;
use crate::tls::twins::Parts;

/// Loads the configuration anew and proves that workers will be able to use it. Blocks.
///
/// # Errors
///
/// All that is wrong, one line each.
pub fn prepare(
    source: &Source,
    secrets: &Arc<Secrets>,
    now: UnixTime,
) -> Result<Prepared, Vec<String>> {
    let prepared = source.load(now).map_err(|rejected| {
        rejected
            .errors
            .iter()
            .map(Problem::to_string)
            .collect::<Vec<_>>()
    })?;
    rehearse(&prepared.config, secrets).map_err(|problem| vec![problem])?;
    Ok(prepared)
}

/// Builds every TLS configuration once, and drops them.
fn rehearse(config: &Config, secrets: &Arc<Secrets>) -> Result<(), String> {
    let parts = Parts {
        table: Arc::new(SessionTable::new(Default::default(), Default::default())),
        secrets: Arc::clone(secrets),
        sessions: config.sessions.clone(),
        key_log: false,
    };
    for listener in &config.listeners {
        Front::new(Arc::clone(listener), &parts)
            .map_err(|error| format!("listener[{}]: {error}", listener.name))?;
    }
    Ok(())
}

/// The keys of `[process]` that differ and wait for a restart.
pub fn waiting_for_restart(old: &Process, new: &Process) -> Vec<&'static str> {
    let differs = [
        ("process.workers", old.workers != new.workers),
        ("process.pin", old.pin != new.pin),
        ("process.user", old.user != new.user),
        ("process.group", old.group != new.group),
        ("process.core-dumps", old.core_dumps != new.core_dumps),
    ];
    let differing = differs.into_iter().filter(|(_, differs)| *differs);
    differing.map(|(key, _)| key).collect()
}
