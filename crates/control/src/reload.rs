//! Reload: prepares the new configuration while the current one serves clients, then commits or
//! discards it.
//!
//! Preparing reads every file, reuses unchanged parts of the current configuration, builds every
//! TLS configuration once and binds every new address. The workers receive the new configuration
//! only if all of this succeeds. Names of servers and peers are resolved after the commit; known
//! names keep their addresses. A failed reload changes nothing, and reports all errors.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use becket_config::error::Problem;
use rustls::pki_types::UnixTime;
use serde::Serialize;
use serde_json::Value;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::sockets;
use becket_keys::checked::CheckedFiles;
use becket_prepare::Prepared;
use becket_prepare::source::ConfigSource;
use becket_process::link::resources::BoundSockets;
use becket_tls::config::{Config, Listener};
use becket_tls::hello_router::HelloRouter;
use becket_tls::route_configs::RouteParts;
use becket_tls::sessions::tickets::TicketSecrets;

/// The running reload and the queued reload. Requests during a reload are combined into one further
/// reload, which reads the files again.
#[derive(Debug, Default)]
pub struct Reloading {
    running: Option<JoinHandle<Reloaded>>,
    again: Option<ReloadRequest>,
}

#[derive(Debug)]
pub struct ReloadRequest {
    pub source: ConfigSource,
    /// Sockets that the supervisor bound for this reload.
    pub sockets: BoundSockets,
    /// Current configuration, whose unchanged parts are reused.
    pub running: Arc<Config>,
    pub secrets: Arc<TicketSecrets>,
    /// Wall-clock time, as the duration since 1970.
    pub unix: Duration,
    /// Number of reloads requested over the admin pages so far.
    pub asked: u64,
}

/// Result of preparing a reload. The caller commits or discards it.
#[derive(Debug)]
pub struct Reloaded {
    /// Number of reloads requested over the admin pages before this one started.
    pub asked: u64,
    pub sockets: BoundSockets,
    pub prepared: Result<LoadedReload, Vec<String>>,
}

#[derive(Debug)]
pub struct LoadedReload {
    pub prepared: Prepared,
    /// Files and folders to watch that this process opens itself.
    pub own: Vec<PathBuf>,
}

impl Reloading {
    /// Starts to prepare a reload on a separate thread. If a reload is running, queues the request
    /// instead.
    pub fn begin(&mut self, mut request: ReloadRequest) {
        if self.running.is_some() {
            let before = self.again.take().map_or(0, |before| before.asked);
            request.asked = request.asked.max(before);
            self.again = Some(request);
            return;
        }
        self.running = Some(spawn_blocking(move || Reloaded {
            prepared: prepare(&request),
            asked: request.asked,
            sockets: request.sockets,
        }));
    }

    /// Discards the running and the queued reload at the start of a drain, because they would open
    /// listeners again. Returns whether a reload was running.
    pub fn give_up(&mut self) -> bool {
        self.again = None;
        self.running.take().is_some()
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Waits until the running reload is prepared. Never returns if no reload is running. Cancel
    /// safe.
    pub async fn prepared(&mut self) -> Reloaded {
        let Some(task) = &mut self.running else {
            return std::future::pending().await;
        };
        let joined = task.await;
        self.running = None;
        if let Some(request) = self.again.take() {
            self.begin(request);
        }
        joined.unwrap_or_else(|error| Reloaded {
            asked: 0,
            sockets: BoundSockets::default(),
            prepared: Err(vec![error.to_string()]),
        })
    }
}

/// Loads the configuration, and checks that workers can use it. Blocks the thread.
fn prepare(request: &ReloadRequest) -> Result<LoadedReload, Vec<String>> {
    let now = UnixTime::since_unix_epoch(request.unix);
    let prepared = request.source.reload(&request.running, now);
    let prepared = prepared.map_err(|rejected| {
        let errors = rejected.errors.iter().map(Problem::to_string);
        errors.collect::<Vec<_>>()
    })?;
    let config = &prepared.config;
    build(config, &config.listeners, &request.secrets)
        .map_err(|problem| vec![problem.to_string()])?;
    let own = request.source.watched(&config.file);
    Ok(LoadedReload { prepared, own })
}

/// Remembers the checked certificate files, so that the next start is faster.
pub fn save_checked(checked: CheckedFiles) {
    if let Err(error) = checked.save() {
        tracing::warn!(name: "certificate-cache-failed", %error, "cannot write process.certificate-cache; the next start checks all certificates again");
    }
}

/// Builds every TLS configuration of the listeners once to detect errors. Discards the results.
pub fn build<'a>(
    config: &Config,
    listeners: impl IntoIterator<Item = &'a Arc<Listener>>,
    secrets: &Arc<TicketSecrets>,
) -> Result<(), Problem> {
    let parts = RouteParts::apart(secrets, &config.file);
    for listener in listeners {
        HelloRouter::new(Arc::clone(listener), &parts).map_err(|error| {
            Problem::new(
                format!("listener[{}]", listener.keys.name),
                error.to_string(),
            )
        })?;
    }
    Ok(())
}

/// Returns `true` if the number of this node changed and the address for replication did not. The
/// new number then applies to tickets at once, but to replication only after a restart.
fn is_renumbered(old: &Config, new: &Config) -> bool {
    let both = old.cluster.as_ref().zip(new.cluster.as_ref());
    both.is_some_and(|(was, is)| {
        was.listen.is_some() && was.listen == is.listen && was.node != is.node
    })
}

/// Returns the changed keys of a section, except those in `live`, which a reload applies.
fn changed<T: Serialize>(section: &str, was: &T, is: &T, live: &[&str]) -> Vec<String> {
    let table = |keys| match serde_json::to_value(keys) {
        Ok(Value::Object(table)) => table,
        other => unreachable!("a section is a table of keys: {other:?}"),
    };
    let (was, is) = (table(was), table(is));
    let keys: BTreeSet<_> = was.keys().chain(is.keys()).collect();
    keys.into_iter()
        .filter(|key| was.get(*key) != is.get(*key) && !live.contains(&key.as_str()))
        .map(|key| format!("{section}.{key}"))
        .collect()
}

/// Returns all changed keys that take effect only after a restart.
pub fn waiting_for_restart(old: &Config, new: &Config) -> Vec<String> {
    let single = [
        ("admin.address", old.admin.address != new.admin.address),
        ("admin.socket", old.admin.socket != new.admin.socket),
        ("cluster.node", is_renumbered(old, new)),
    ];
    let mut keys: Vec<String> = single
        .into_iter()
        .filter(|(_, differs)| *differs)
        .map(|(key, _)| key.to_owned())
        .collect();
    keys.extend(changed("log", &old.log, &new.log, &["level"]));
    let (was, is) = (&old.file.process, &new.file.process);
    keys.extend(changed(
        "process",
        was,
        is,
        &["certificate-cache", "key-log", "watch", "watch-config"],
    ));
    for listener in &new.listeners {
        let kept = |other: &&Arc<Listener>| {
            sockets::options(&other.keys) != sockets::options(&listener.keys)
                && other
                    .bind
                    .iter()
                    .any(|address| listener.bind.contains(address))
        };
        if old.listeners.iter().any(|other| kept(&other)) {
            keys.push(format!(
                "listener[{}], options of its sockets",
                listener.keys.name
            ));
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use becket_proto::epoch::EpochLength;
    use becket_proto::ticket::NodeId;

    use super::*;
    use crate::sample;
    use becket_tls::config::Cluster;
    use becket_tls::secret::shared::{SecretBytes, SharedSecret};

    fn clustered(change: impl FnOnce(&mut Cluster)) -> Config {
        let secret = SecretBytes::new(zeroize::Zeroizing::new([1; 32]));
        let mut cluster = Cluster {
            node: NodeId(1),
            secrets: vec![SharedSecret::of_root(secret, Path::new("secret")).unwrap()],
            rotation: EpochLength::of(Duration::from_secs(60)).unwrap(),
            listen: Some(([127, 0, 0, 1], 1).into()),
            peers: Vec::new(),
            store: Default::default(),
            keys: Default::default(),
        };
        change(&mut cluster);
        let mut config = sample::config();
        config.cluster = Some(cluster);
        config
    }

    #[test]
    fn process_settings_need_a_restart_and_log_settings_do_not() {
        let changed = |change: fn(&mut Config)| {
            let mut new = sample::config();
            change(&mut new);
            waiting_for_restart(&sample::config(), &new)
        };
        assert_eq!(changed(|_| {}), [""; 0]);
        let pinned = changed(|new| {
            let mut file = (*new.file).clone();
            file.process.pin = false;
            file.process.key_log = true;
            file.log.level = "debug".to_owned();
            new.file = file.into();
        });
        assert_eq!(pinned, ["process.pin"]);
    }

    #[test]
    fn fixed_replication_settings_need_a_restart() {
        let old = clustered(|_| {});
        let waits = |new: &Config| waiting_for_restart(&old, new);
        assert_eq!(waits(&clustered(|_| {})), [""; 0]);
        assert_eq!(waits(&clustered(|c| c.node = NodeId(2))), ["cluster.node"]);
        assert_eq!(waits(&sample::config()), [""; 0], "it ends at once");
        let silent = |config: &mut Cluster| config.listen = None;
        assert_eq!(waits(&clustered(silent)), [""; 0]);
        let moved =
            clustered(|c| (c.listen, c.node) = (Some(([127, 0, 0, 1], 2).into()), NodeId(2)));
        assert_eq!(
            waits(&moved),
            [""; 0],
            "a new socket starts a new membership"
        );
        // A node that shares only tickets changes its number at once.
        let renumbered = clustered(|c| (c.listen, c.node) = (None, NodeId(2)));
        assert_eq!(
            waiting_for_restart(&clustered(silent), &renumbered),
            [""; 0]
        );
    }
}
