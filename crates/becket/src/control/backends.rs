//! Backends and servers on the admin pages: their families in `/metrics`, their objects in `/status`.
//!
//! Read from the states that workers and control share, so a number is what it is at this moment. The
//! labels are names of the configuration.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::exposition::{Page, Scrape};
use crate::backend::backend_state::BackendState;
use crate::backend::server_state::ServerState;
use crate::config::{Backend, Balance, Server, ServerAddress};
use crate::log::Timestamp;
use crate::metrics::Counters;

/// One backend.
#[derive(Debug, Serialize)]
pub struct BackendStatus {
    /// Configuration name.
    pub name: String,
    /// Who gets the next connection.
    pub balance: Balance,
    /// Connections that wait for a slot.
    pub waiting: usize,
    /// Connections that may wait.
    pub queue_length: usize,
    /// Slots that were handed to somebody who waited.
    pub hand_overs: u64,
    /// Clients whose server is remembered.
    pub stick_entries: usize,
    /// Its servers.
    pub servers: Vec<ServerStatus>,
}

/// One server.
#[derive(Debug, Serialize)]
pub struct ServerStatus {
    /// As configured.
    pub name: String,
    /// What the name resolved to; a unix socket's path.
    pub addresses: Vec<String>,
    /// `passing`, `failing`, `disabled`, or `unresolved` while its name has not resolved yet.
    pub state: &'static str,
    /// Serves only when no other server can.
    pub backup: bool,
    /// Its share of new connections, as configured.
    pub weight: u32,
    /// Connections that it has.
    pub in_use: u32,
    /// Connections that it may have; `null` is no limit.
    pub maxconn: Option<u32>,
    /// Connects that succeeded.
    pub connections: u64,
    /// Connects that failed.
    pub failures: u64,
    /// Its number in becket's tickets.
    pub node: Option<u16>,
    /// `unchecked`, `on-trial`, `in-service` or `out-of-service`.
    pub condition: &'static str,
    /// When that changed; `null` while it has not.
    pub condition_since: Option<Timestamp>,
    /// Why.
    pub condition_reason: Option<String>,
    /// Health checks that have ended.
    pub checks: u64,
    /// Those that the server has not passed.
    pub check_failures: u64,
    /// Times that it went out of service.
    pub outages: u64,
    /// Its name did not resolve when it was last looked up; the addresses are the last that it had.
    pub lost_its_name: bool,
}

impl BackendStatus {
    /// Reads a backend; what is not known of it is what it is at the start.
    pub fn of(config: &Backend, states: &[Arc<BackendState>]) -> Self {
        let state = states.iter().find(|state| state.name() == config.name);
        let known = state.map(|state| state.servers());
        let known = known.iter().flat_map(|servers| servers.iter());
        let server = |server: &Server| {
            let state = known.clone().find(|state| *state.name() == server.name);
            state.map(|state| ServerStatus::of(server, state))
        };
        Self {
            name: config.name.clone(),
            balance: config.balance,
            waiting: state.map_or(0, |state| state.waiting()),
            queue_length: config.queue_length,
            hand_overs: state.map_or(0, |state| state.hand_overs()),
            stick_entries: state.map_or(0, |state| state.sticks()),
            servers: config.servers.iter().filter_map(server).collect(),
        }
    }
}

impl ServerStatus {
    fn of(config: &Server, state: &ServerState) -> Self {
        let address = |address: &ServerAddress| match address {
            ServerAddress::Tcp(address) => address.to_string(),
            ServerAddress::Unix(path) => path.display().to_string(),
        };
        let watched = &state.watched;
        let (since, reason) = match watched.change() {
            Some((since, reason)) => (Some(Timestamp::from_unix(since)), Some(reason.to_string())),
            None => (None, None),
        };
        Self {
            name: config.name.to_string(),
            addresses: state.addresses().iter().map(address).collect(),
            state: match (state.is_disabled(), state.has_address()) {
                (true, _) => "disabled",
                (false, false) => "unresolved",
                (false, true) => state.health().label(),
            },
            backup: config.backup,
            weight: config.weight,
            in_use: state.in_use(),
            maxconn: state.maxconn(),
            connections: state.connections(),
            failures: state.failures(),
            node: config.node,
            condition: watched.condition().label(),
            condition_since: since,
            condition_reason: reason,
            checks: watched.checks(),
            check_failures: watched.check_failures(),
            outages: watched.outages(),
            lost_its_name: watched.lost_its_name(),
        }
    }
}

impl Scrape {
    /// Writes the families about backends and servers.
    pub(super) fn backends(&self, page: &mut Page<'_>) -> fmt::Result {
        let of = |number: fn(&BackendState) -> u64| {
            let states = self.backends.iter();
            states.map(move |state| ([("backend", state.name())], number(state)))
        };
        page.gauges(
            "becket_queue",
            "Connections that wait for a slot of a server",
            of(|state| state.waiting() as u64),
        )?;
        page.counters(
            "becket_queue_hand_overs",
            "Slots handed to a connection that waited",
            of(BackendState::hand_overs),
        )?;
        page.histogram(
            "becket_queue_wait_seconds",
            "Time from asking for a slot to getting one, of connections that waited",
            self.histogram(|counters: &Counters| &counters.queue_waited),
        )?;
        page.histogram(
            "becket_queue_hand_over_seconds",
            "Time from giving back a slot to the connect of who waited for it",
            self.histogram(|counters: &Counters| &counters.hand_over),
        )?;
        page.gauges(
            "becket_stick_entries",
            "Clients whose server is remembered",
            of(|state| state.sticks() as u64),
        )?;
        self.servers(page)
    }

    fn servers(&self, page: &mut Page<'_>) -> fmt::Result {
        let lists = self.backends.iter().map(|backend| backend.servers());
        let servers: Vec<Arc<ServerState>> = lists.flat_map(|list| list.to_vec()).collect();
        let of = |number: fn(&ServerState) -> u64| {
            servers.iter().map(move |server| {
                let labels = [
                    ("backend", server.backend().name()),
                    ("server", &**server.name()),
                ];
                (labels, number(server))
            })
        };
        page.gauges(
            "becket_server_in_service",
            "1 if the server may be given connections",
            of(|server| u64::from(server.is_in_service())),
        )?;
        page.gauges(
            "becket_server_connections",
            "Connections to the server, connects under way included",
            of(|server| u64::from(server.in_use())),
        )?;
        page.counters(
            "becket_server_connects",
            "Connects to the server that succeeded",
            of(ServerState::connections),
        )?;
        page.counters(
            "becket_server_connect_failures",
            "Times that the server could not be connected",
            of(ServerState::failures),
        )?;
        page.counters(
            "becket_server_checks",
            "Health checks of the server that have ended",
            of(|server| server.watched.checks()),
        )?;
        page.counters(
            "becket_server_check_failures",
            "Health checks that the server has not passed",
            of(|server| server.watched.check_failures()),
        )?;
        page.counters(
            "becket_server_outages",
            "Times that the server went out of service",
            of(|server| server.watched.outages()),
        )?;
        page.gauges(
            "becket_server_lost_its_name",
            "1 if the server's name did not resolve when it was last looked up",
            of(|server| u64::from(server.watched.lost_its_name())),
        )
    }
}
