//! What an operator changes of a running server.
//!
//! Each change is whole or not at all, and `/status` shows it next to what the file says. It ends with the next reload, upgrade or
//! restart. `becket ctl --keep` writes the change to a file that is read with the configuration; this process only marks it, so that it
//! is not shown among the temporary changes.

use std::path::PathBuf;
use std::sync::Arc;

use axum::http::StatusCode;
use becket_config::error::Problem;
use rustls::pki_types::UnixTime;
use serde_json::{Value, json};

use super::Control;
use super::edits::{Edit, Edited, missing, no_server, said};
use super::outcomes::too_late;
use crate::backend::health::prober::Prober;
use crate::backend::server_state::{ServerState, Settings};
use crate::config::overrides::{Overrides, limit};
use crate::config::{Backend, Lasts};
use crate::control::api::{
    CertificateRemoval, CertificateSetting, Change, ChangeRequest, LogChange, Refused,
    ServerAddition, ServerChange, ServerRemoval,
};
use crate::control::state::LogLevel;
use crate::control::{reload, snapshot};
use crate::descriptors;
use crate::files::{Files, reason};
use crate::pki::keys::Loaded;
use crate::prepare::is_filter;
use crate::prepare::listeners::certificate_of;

impl Control {
    /// Carries a change out, and tells what is now. Returns whether a drain is to begin.
    pub(super) fn change(&mut self, asked: ChangeRequest, prober: &mut Prober) -> bool {
        let ChangeRequest { change, outcome } = asked;
        if self.handover.is_followed() && !matches!(change, Change::Asked(_)) {
            // The list of changes that the upgrade ends is complete.
            let text = "an upgrade is under way, nothing changed";
            let refused = Refused::new(StatusCode::CONFLICT, text, "another try after the upgrade");
            outcome.tell(Err(refused));
            return false;
        }
        let done = match change {
            Change::Server(change) => self.change_server(&change, prober),
            Change::AddServer(addition) => self.add_server(addition, prober),
            Change::RemoveServer(removal) => self.remove_server(removal),
            Change::SetCertificate(setting) => self.set_certificate(setting),
            Change::RemoveCertificate(removal) => self.remove_certificate(&removal),
            Change::Log(change) => self.change_log(change),
            Change::RotateTickets => self.rotate_tickets(),
            Change::ForgetSessions => Ok(self.forget_sessions()),
            Change::Asked(request) => return self.asked(request, outcome),
        };
        outcome.tell(done);
        false
    }

    fn change_server(&self, change: &ServerChange, prober: &mut Prober) -> Result<Value, Refused> {
        let (backend, at, state) = self.find(&change.backend, &change.server)?;
        let Settings {
            mut overrides,
            mut kept,
            ..
        } = state.settings();
        let addresses = change.server_addresses()?;
        let all = [&mut overrides, &mut kept].into_iter();
        for changed in all.take(1 + usize::from(change.keep)) {
            if let Some(mode) = change.mode {
                changed.mode = mode;
            }
            if let Some(weight) = change.weight {
                changed.weight = weight;
            }
            if let Some(maxconn) = change.maxconn {
                changed.maxconn = maxconn.map(limit);
            }
            if change.addresses.is_some() {
                changed.addresses.clone_from(&addresses);
            }
        }
        state.set_overrides(overrides, kept);
        prober.look_again();
        Ok(snapshot::server(&backend.servers[at], &state))
    }

    /// A server by names: its backend, its place there, and its state.
    fn find(
        &self,
        backend: &str,
        server: &str,
    ) -> Result<(Arc<Backend>, usize, Arc<ServerState>), Refused> {
        let config = self.state.config();
        let mut backends = config.backends.iter();
        let found = backends.find(|one| &*one.keys.name == backend);
        let found = found
            .ok_or_else(|| missing("backend", config.backends.iter().map(|it| &*it.keys.name.0)))?;
        let states = self.state.shared().backends.by_name(backend);
        let states = states.map(|state| state.servers()).unwrap_or_default();
        let mut states = states.iter();
        let place = found.servers.iter().position(|one| &*one.name == server);
        let state = states.find(|state| &**ServerState::name(state) == server);
        let (place, state) = place.zip(state).ok_or_else(|| no_server(found))?;
        Ok((Arc::clone(found), place, Arc::clone(state)))
    }

    fn add_server(
        &mut self,
        addition: ServerAddition,
        prober: &mut Prober,
    ) -> Result<Value, Refused> {
        let backend = addition.backend.clone();
        let address = addition.server.address.as_ref();
        let name = address.map(|address| Arc::clone(&address.text));
        self.commit_edits(self.edits.with(Edit::of_addition(addition))?)?;
        prober.look_again();
        let (backend, at, state) = self.find(&backend, &name.unwrap_or_default())?;
        Ok(snapshot::server(&backend.servers[at], &state))
    }

    fn remove_server(&mut self, removal: ServerRemoval) -> Result<Value, Refused> {
        let (_, _, state) = self.find(&removal.backend, &removal.server)?;
        let names = (removal.backend, removal.server);
        self.commit_edits(self.edits.without_server(names, Lasts::of(removal.keep))?)?;
        // One that comes back is as it is added then.
        state.set_overrides(Overrides::default(), Overrides::default());
        Ok(json!({"removed": &**state.name(), "open": state.in_use()}))
    }

    fn set_certificate(&mut self, setting: CertificateSetting) -> Result<Value, Refused> {
        self.check_readable(&setting.files)?;
        let (listener, kept) = (setting.listener.clone(), setting.keep);
        let (loaded, warnings) = self.load(&setting)?;
        let names: Vec<String> = loaded.names.iter().map(ToString::to_string).collect();
        let edited = self.edits.with(Edit::of_setting(setting, loaded))?;
        self.check_builds(&edited)?;
        self.commit_edits(edited)?;
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        tracing::info!(listener, ?names, kept, "certificate set beside the file");
        Ok(json!({"listener": listener, "names": names, "kept": kept, "warnings": warnings}))
    }

    fn load(&self, setting: &CertificateSetting) -> Result<(Loaded, Vec<Problem>), Refused> {
        let now = UnixTime::since_unix_epoch(self.state.shared().clock.now().unix);
        let batches = self.state.config().batches.is_some();
        let made = certificate_of(&setting.chain, &setting.key.0, now, batches);
        let made = made.map_err(|errors| Refused::unusable(said(&errors), CERTIFICATE))?;
        if made.0.names.is_empty() {
            let error = "the certificate has no name that a client could ask for";
            return Err(Refused::unusable(error, CERTIFICATE));
        }
        Ok(made)
    }

    /// Refuses files of a kept certificate with which the next start or reload would fail. Under `process.user`, root reads them.
    fn check_readable(&self, files: &[PathBuf]) -> Result<(), Refused> {
        if self.state.config().file.process.user.is_some() {
            return Ok(());
        }
        let opens = Files::default().within(self.sandbox.reach());
        for path in files {
            opens.open(path).map_err(|error| {
                let fault = format!("{}: {}", path.display(), reason(&error));
                Refused::unusable(
                    fault,
                    "files that becket can read at every start and reload",
                )
            })?;
        }
        Ok(())
    }

    /// Whether everything that listeners need can be built.
    fn check_builds(&self, (_, config): &Edited) -> Result<(), Refused> {
        let built = reload::build(config, &config.listeners, self.rotation.secrets());
        let built = built.map_err(|error| Refused::unusable(error, CERTIFICATE));
        built.map(drop)
    }

    fn remove_certificate(&mut self, removal: &CertificateRemoval) -> Result<Value, Refused> {
        let edited = self
            .edits
            .without_certificate(&removal.listener, &removal.name)?;
        self.commit_edits(edited)?;
        Ok(json!({"listener": removal.listener, "removed": removal.name}))
    }

    /// Has everything use the configuration with these edits.
    fn commit_edits(&mut self, (edits, config): Edited) -> Result<(), Refused> {
        if self.state.is_draining() {
            return Err(too_late());
        }
        let failed = |error: String| {
            let code = StatusCode::INTERNAL_SERVER_ERROR;
            Refused::new(code, error, "another try")
        };
        let raised = descriptors::raise(&config, self.workers.len());
        raised.map_err(|error| failed(error.to_string()))?;
        let threads = self.workers.prepare_for(&config);
        threads.map_err(|error| failed(error.to_string()))?;
        self.edits = edits;
        let adopted = self.state.shared().backends.adopt(&config);
        self.exchange(config, &adopted, self.no_sockets());
        Ok(())
    }

    fn change_log(&self, change: LogChange) -> Result<Value, Refused> {
        let config = self.state.config();
        let level = change.level.as_deref().unwrap_or(&config.file.log.level);
        let set = is_filter(level).then(|| self.logging.set_level(level));
        if !matches!(set, Some(Ok(()))) {
            let accepted =
                "error, warn, info, debug, trace, or a list such as \"info,becket::tls=debug\"";
            return Err(Refused::unusable(format!("level: {level:?}"), accepted));
        }
        let changed = change.level.map(|level| LogLevel {
            level,
            keep: change.keep,
        });
        self.state.set_log_level(changed);
        Ok(self.state.log_status())
    }

    fn rotate_tickets(&mut self) -> Result<Value, Refused> {
        let period = self.state.config().file.ticket_rotation();
        let now = self.state.shared().clock.now();
        match self.rotation.rotate_now(period, now) {
            Ok(true) => {}
            Ok(false) => {
                let text = "the keys of a cluster change on all hosts at once, and no keys change twice in a second";
                let accepted = "another secret for the cluster (becket secret --help), or a second of patience";
                return Err(Refused::new(StatusCode::CONFLICT, text, accepted));
            }
            Err(error) => {
                let code = StatusCode::INTERNAL_SERVER_ERROR;
                return Err(Refused::new(code, error.to_string(), "another try"));
            }
        }
        self.workers.rotate(self.rotation.secrets());
        let standing = self.rotation.standing();
        let epoch = standing.epoch;
        self.state.set_rotation(standing);
        Ok(json!({"epoch": epoch}))
    }

    /// Forgets all sessions that are kept here. Tickets, which clients keep, go with their keys.
    fn forget_sessions(&self) -> Value {
        let (shared, config) = (self.state.shared(), self.state.config());
        let keys = &config.file.sessions;
        let [sessions, early] = [&shared.table, &shared.early].map(|table| {
            let forgotten = table.set_limits(0, 0);
            table.set_limits(keys.table_entries, keys.table_size);
            forgotten
        });
        json!({"sessions": sessions, "early_sessions": early})
    }
}

/// What a certificate is set with.
const CERTIFICATE: &str = "a chain and the key of its first certificate, PEM";
