//! Changes that an operator makes to a running becket.
//!
//! Each change is applied as a whole or refused. `/status` shows the changed value next to that of
//! the file. A change lasts until the next reload, upgrade or restart.

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::Value;

use super::Control;
use super::edits::{no_server, place_of, with_server, without_server};
use super::outcomes::too_late;
use crate::api::{
    ChangeRequest, LogChange, OperatorChange, Refused, ServerAddition, ServerChange, ServerRemoval,
    as_json,
};
use crate::replies::{ForgottenSessions, RemovedServer, RotatedTickets};
use crate::snapshot;
use becket_prepare::is_filter;
use becket_proxy::backend::registry::Backends;
use becket_proxy::backend::server_state::ServerState;
use becket_tls::config::overrides::Overrides;
use becket_tls::config::{Config, Server};

impl Control {
    pub(super) async fn change(&mut self, asked: ChangeRequest) {
        let ChangeRequest { change, outcome } = asked;
        let done = match change {
            OperatorChange::Asked(request) => return self.asked(request, outcome).await,
            // Rejects the change, because the next process takes over. It would discard the change,
            // and the logged list of discarded changes would not contain it.
            _ if self.handover.is_followed() => Err(Refused::new(
                StatusCode::CONFLICT,
                "an upgrade is in progress, nothing changed",
                "another attempt after the upgrade",
            )),
            OperatorChange::Server(change) => self.change_server(&change),
            OperatorChange::AddServer(addition) => self.add_server(&addition),
            OperatorChange::RemoveServer(removal) => self.remove_server(&removal),
            OperatorChange::Log(change) => self.change_log(change),
            OperatorChange::RotateTickets => self.rotate_tickets(),
            OperatorChange::ForgetSessions => as_json(&self.forget_sessions()),
        };
        outcome.tell(done);
    }

    fn change_server(&mut self, change: &ServerChange) -> Result<Value, Refused> {
        let (server, state) = self.find(&change.backend, &change.server)?;
        let addresses = change.server_addresses()?;
        let mut overrides = state.settings().overrides;
        change.mode.apply(&mut overrides.mode);
        change.weight.apply(&mut overrides.weight);
        change.maxconn.apply(&mut overrides.maxconn);
        addresses.apply(&mut overrides.addresses);
        state.set_overrides(overrides);
        self.prober.readopt();
        as_json(&snapshot::server(&server, &state))
    }

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

    fn add_server(&mut self, addition: &ServerAddition) -> Result<Value, Refused> {
        let (backend, keys) = (&addition.backend, &addition.server);
        self.commit_edited(with_server(&self.state.config(), backend, keys)?)?;
        self.prober.readopt();
        let name = keys.address.as_ref().map_or("", |address| &address.text);
        let (server, state) = self.find(backend, name)?;
        as_json(&snapshot::server(&server, &state))
    }

    fn remove_server(&mut self, removal: &ServerRemoval) -> Result<Value, Refused> {
        let (backend, server) = (&removal.backend, &removal.server);
        let (_, state) = self.find(backend, server)?;
        self.commit_edited(without_server(&self.state.config(), backend, server)?)?;
        // Resets the overrides: they must not apply to a server of this name that is added later.
        state.set_overrides(Overrides::default());
        as_json(&RemovedServer {
            removed: state.name().to_string(),
            open: state.in_use(),
        })
    }

    fn commit_edited(&mut self, config: Config) -> Result<(), Refused> {
        if self.state.is_draining() {
            return Err(too_late());
        }
        let exchanged = self.exchange_edited(config, Backends::adopt);
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
        self.state.change(|it| it.log_level = change.level);
        as_json(&self.state.log_status())
    }

    fn rotate_tickets(&mut self) -> Result<Value, Refused> {
        let period = self.state.config().file.ticket_rotation();
        let now = self.state.shared().clock.now();
        let rotated = self.rotation.rotate_now(period, now);
        if !rotated.map_err(|error| Refused::internal(&error))? {
            let text = "ticket keys of a cluster cannot be rotated on one host, and no keys can be rotated twice within a second";
            let accepted = "a new secret for the cluster (see becket secret --help), or another attempt after a second";
            return Err(Refused::new(StatusCode::CONFLICT, text, accepted));
        }
        self.use_secrets();
        as_json(&RotatedTickets {
            epoch: self.rotation.standing().0.epoch,
        })
    }

    /// Removes all sessions stored in this process. Tickets are stored by clients, and expire with
    /// their keys.
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
