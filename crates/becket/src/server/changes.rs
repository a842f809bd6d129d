//! What an operator has changed of a running server, beside the file.
//!
//! Each change is whole or not at all, and `/status` shows it beside what the file says. A reload undoes it, unless it was to
//! be kept; the next start knows nothing of it.

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::Control;
use crate::backend::health::prober::Prober;
use crate::control::api::{Change, ChangeRequest, LogChange, Refused, ServerChange};
use crate::control::snapshot;
use crate::control::state::LogLevel;
use crate::prepare::is_filter;

impl Control {
    /// Carries a change out, and tells what is now. Returns whether a drain is to begin.
    pub(super) fn change(&mut self, asked: ChangeRequest, prober: &mut Prober) -> bool {
        let ChangeRequest { change, outcome } = asked;
        let done = match change {
            Change::Server(change) => self.change_server(&change, prober),
            Change::Log(change) => self.change_log(change),
            Change::RotateTickets => self.rotate_tickets(),
            Change::ForgetSessions => Ok(self.forget_sessions()),
            Change::Tell(told) => return self.obey(told, outcome),
        };
        outcome.tell(done);
        false
    }

    fn change_server(&self, change: &ServerChange, prober: &mut Prober) -> Result<Value, Refused> {
        let config = self.state.config();
        let missing = |what: &str, names: Vec<&str>| {
            let error = format!("there is no {what}");
            Refused::new(StatusCode::NOT_FOUND, error, names.join(", "))
        };
        let mut backends = config.backends.iter();
        let backend = backends.find(|backend| *backend.keys.name == *change.backend);
        let backend = backend.ok_or_else(|| {
            let names = config.backends.iter().map(|it| &*it.keys.name.0);
            missing("such backend", names.collect())
        })?;
        let states = self.state.shared().backends.by_name(&backend.keys.name);
        let states = states.map(|state| state.servers()).unwrap_or_default();
        let mut servers = backend.servers.iter();
        let server = servers.find(|server| *server.name == *change.server);
        let found = server.and_then(|server| {
            let is = |state: &&Arc<_>| {
                *crate::backend::server_state::ServerState::name(state) == server.name
            };
            Some((server, states.iter().find(is)?))
        });
        let (server, state) = found.ok_or_else(|| {
            let names = backend.servers.iter().map(|it| &*it.name);
            missing("such server", names.collect())
        })?;
        let mut overrides = state.settings().overrides;
        if let Some(mode) = change.mode {
            overrides.mode = mode;
        }
        if let Some(weight) = change.weight {
            overrides.weight = weight;
        }
        if let Some(maxconn) = change.maxconn {
            overrides.maxconn = maxconn.map(|most| Some(most).filter(|most| *most > 0));
        }
        if change.addresses.is_some() {
            overrides.addresses = change.server_addresses()?;
        }
        if let Some(keep) = change.keep {
            overrides.keep = keep;
        }
        if overrides.is_empty() {
            overrides.keep = false;
        }
        state.set_overrides(overrides);
        prober.look_again();
        Ok(snapshot::server(server, state))
    }

    fn change_log(&self, change: LogChange) -> Result<Value, Refused> {
        let config = self.state.config();
        let level = change.level.as_deref().unwrap_or(&config.log.level);
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
