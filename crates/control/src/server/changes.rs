//! Changes of a running becket by an operator.
//!
//! Each change is made as a whole or refused, and `/status` shows it next to the value of the file. It ends with the next reload, upgrade
//! or restart. `becket ctl --keep` writes the change to a file that is read with the configuration; this process only marks it, so that it
//! is not shown among the temporary changes.

use std::path::PathBuf;
use std::sync::Arc;

use axum::http::StatusCode;
use becket_config::error::Problem;
use rustls::pki_types::UnixTime;
use serde_json::Value;

use super::Control;
use super::edits::{Edit, Edited, in_one_line, no_server, place_of};
use super::outcomes::too_late;
use crate::api::{
    CertificateRemoval, CertificateSetting, ChangeRequest, LogChange, OperatorChange, Refused,
    ServerAddition, ServerChange, ServerRemoval, as_json,
};
use crate::replies::{
    ForgottenSessions, RemovedCertificate, RemovedServer, RotatedTickets, SetCertificate,
};
use crate::temporary::LogLevel;
use crate::{reload, snapshot};
use becket_keys::files::{Files, reason};
use becket_keys::keys::Loaded;
use becket_prepare::is_filter;
use becket_prepare::listeners::certificate_of;
use becket_proxy::backend::registry::Backends;
use becket_proxy::backend::server_state::{ServerSettings, ServerState};
use becket_tls::config::overrides::Overrides;
use becket_tls::config::{Lasts, Server};

impl Control {
    /// Makes a change and answers the client.
    pub(super) async fn change(&mut self, asked: ChangeRequest) {
        let ChangeRequest { change, outcome } = asked;
        let done = match change {
            OperatorChange::Asked(request) => return self.asked(request, outcome).await,
            // The list of changes that the upgrade ends is complete.
            _ if self.handover.is_followed() => Err(Refused::new(
                StatusCode::CONFLICT,
                "an upgrade is under way, nothing changed",
                "another try after the upgrade",
            )),
            OperatorChange::Server(change) => self.change_server(&change),
            OperatorChange::AddServer(addition) => self.add_server(addition),
            OperatorChange::RemoveServer(removal) => self.remove_server(removal),
            OperatorChange::SetCertificate(setting) => self.set_certificate(setting),
            OperatorChange::RemoveCertificate(removal) => self.remove_certificate(&removal),
            OperatorChange::Log(change) => self.change_log(change),
            OperatorChange::RotateTickets => self.rotate_tickets(),
            OperatorChange::ForgetSessions => as_json(&self.forget_sessions()),
        };
        outcome.tell(done);
    }

    fn change_server(&mut self, change: &ServerChange) -> Result<Value, Refused> {
        let (server, state) = self.find(&change.backend, &change.server)?;
        let addresses = change.server_addresses()?;
        let apply = |to: &mut Overrides| {
            change.mode.apply(&mut to.mode);
            change.weight.apply(&mut to.weight);
            change.maxconn.apply(&mut to.maxconn);
            addresses.apply(&mut to.addresses);
        };
        let ServerSettings {
            mut overrides,
            mut kept,
            ..
        } = state.settings();
        apply(&mut overrides);
        if change.keep {
            apply(&mut kept);
        }
        state.set_overrides(overrides, kept);
        self.prober.readopt();
        as_json(&snapshot::server(&server, &state))
    }

    /// Finds a server by names.
    fn find(&self, backend: &str, server: &str) -> Result<(Server, Arc<ServerState>), Refused> {
        let config = self.state.config();
        let found = &config.backends[place_of(&config, backend)?];
        let states = self.state.shared().backends.by_name(backend);
        let states = states.map(|state| state.servers()).unwrap_or_default();
        let state = states.iter().find(|state| &**state.name() == server);
        let running = found.servers.iter().find(|one| &*one.name == server);
        let both = running.zip(state).ok_or_else(|| no_server(found))?;
        Ok((both.0.clone(), Arc::clone(both.1)))
    }

    fn add_server(&mut self, addition: ServerAddition) -> Result<Value, Refused> {
        let backend = addition.backend.clone();
        let address = addition.server.address.as_ref();
        let name = address.map_or_else(String::new, |address| address.text.to_string());
        let edit = Edit::AddServer {
            backend: addition.backend,
            keys: addition.server,
        };
        let edited = self.config.edits.with(edit, Lasts::of(addition.keep))?;
        self.commit_edits(edited)?;
        self.prober.readopt();
        let (server, state) = self.find(&backend, &name)?;
        as_json(&snapshot::server(&server, &state))
    }

    fn remove_server(&mut self, removal: ServerRemoval) -> Result<Value, Refused> {
        let (_, state) = self.find(&removal.backend, &removal.server)?;
        let (lasts, edits) = (Lasts::of(removal.keep), &self.config.edits);
        let edited = edits.without_server(removal.backend, removal.server, lasts)?;
        self.commit_edits(edited)?;
        // A server of this name that is added later has no overrides.
        state.set_overrides(Overrides::default(), Overrides::default());
        as_json(&RemovedServer {
            removed: state.name().to_string(),
            open: state.in_use(),
        })
    }

    fn set_certificate(&mut self, setting: CertificateSetting) -> Result<Value, Refused> {
        self.check_readable(&setting.files)?;
        let (loaded, warnings) = self.load(&setting)?;
        let (listener, kept) = (setting.listener, setting.keep);
        let names: Vec<String> = loaded.names.iter().map(ToString::to_string).collect();
        let edit = Edit::SetCertificate {
            listener: listener.clone(),
            loaded: Arc::new(loaded),
        };
        let (edits, config) = self.config.edits.with(edit, Lasts::of(kept))?;
        // A certificate that workers cannot use is refused as a whole.
        let built = reload::build(&config, &config.listeners, self.rotation.secrets());
        built.map_err(|error| Refused::unusable(error.to_string(), CERTIFICATE))?;
        self.commit_edits((edits, config))?;
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        tracing::info!(
            listener,
            ?names,
            kept,
            "certificate set through the admin API"
        );
        as_json(&SetCertificate {
            listener,
            names,
            kept,
            warnings,
        })
    }

    fn load(&self, setting: &CertificateSetting) -> Result<(Loaded, Vec<Problem>), Refused> {
        let now = UnixTime::since_unix_epoch(self.state.shared().clock.now().unix);
        let batches = self.state.config().batches.is_some();
        let made = certificate_of(&setting.chain, &setting.key.0, now, batches);
        let made = made.map_err(|errors| Refused::unusable(in_one_line(&errors), CERTIFICATE))?;
        if made.0.names.is_empty() {
            let error = "the certificate has no name that a client could ask for";
            return Err(Refused::unusable(error.to_string(), CERTIFICATE));
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
                let accepted = "files that becket can read at every start and reload";
                Refused::unusable(fault, accepted)
            })?;
        }
        Ok(())
    }

    fn remove_certificate(&mut self, removal: &CertificateRemoval) -> Result<Value, Refused> {
        let (listener, name) = (&removal.listener, &removal.name);
        self.commit_edits(self.config.edits.without_certificate(listener, name)?)?;
        as_json(&RemovedCertificate {
            listener: listener.clone(),
            removed: name.clone(),
        })
    }

    fn commit_edits(&mut self, edited: Edited) -> Result<(), Refused> {
        if self.state.is_draining() {
            return Err(too_late());
        }
        let exchanged = self.exchange_edited(edited, Backends::adopt);
        exchanged.map_err(|error| Refused::internal(&error))
    }

    fn change_log(&self, change: LogChange) -> Result<Value, Refused> {
        let config = self.state.config();
        let level = change.level.as_deref().unwrap_or(&config.file.log.level);
        if !is_filter(level) || self.logs.logging.set_level(level).is_err() {
            let accepted =
                "error, warn, info, debug, trace, or a list such as \"info,becket_tls=debug\"";
            return Err(Refused::unusable(format!("level: {level:?}"), accepted));
        }
        let changed = change.level.map(|level| LogLevel {
            level,
            keep: change.keep,
        });
        self.state.set_log_level(changed);
        as_json(&self.state.log_status())
    }

    fn rotate_tickets(&mut self) -> Result<Value, Refused> {
        let period = self.state.config().file.ticket_rotation();
        let now = self.state.shared().clock.now();
        let rotated = self.rotation.rotate_now(period, now);
        if !rotated.map_err(|error| Refused::internal(&error))? {
            let text = "the keys of a cluster change on all hosts at once, and no keys change twice in a second";
            let accepted =
                "another secret for the cluster (becket secret --help), or a second of patience";
            return Err(Refused::new(StatusCode::CONFLICT, text, accepted));
        }
        self.use_secrets();
        as_json(&RotatedTickets {
            epoch: self.rotation.standing().epoch,
        })
    }

    /// Forgets all sessions that are kept here. Clients keep tickets, which expire with their keys.
    fn forget_sessions(&self) -> ForgottenSessions {
        let (shared, config) = (self.state.shared(), self.state.config());
        let keys = &config.file.sessions;
        let [sessions, early_sessions] = [&shared.table, &shared.early].map(|table| {
            let forgotten = table.set_limits(0, 0);
            table.set_limits(keys.table_entries, keys.table_size);
            forgotten
        });
        ForgottenSessions {
            sessions,
            early_sessions,
        }
    }
}

/// Accepted certificates.
const CERTIFICATE: &str = "a chain and the key of its first certificate, PEM";
