//! Requests to list or close the open connections of a worker, sent by an operator.
//!
//! A request covers a limited number of connections, so that the worker does other work between the
//! pages of a long list. A connection is identified by its worker, its index and the time of its
//! accept, because an index is reused after its connection is closed.

use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use becket_proto::networks::Network;
use serde::{Serialize, Serializer};

use crate::connection::glance::{Glance, PHASES};
use becket_tls::config::Config;
use becket_tls::names;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId {
    worker: usize,
    place: usize,
    /// Time of the accept in nanoseconds since the process started.
    accepted: u64,
}

impl ConnectionId {
    pub(super) fn of(worker: usize, place: usize, glance: &Glance<'_>) -> Self {
        let accepted = glance.facts.accepted.as_nanos();
        Self {
            worker,
            place,
            accepted: u64::try_from(accepted).unwrap_or(u64::MAX),
        }
    }
}

impl Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.worker, self.place, self.accepted)
    }
}

impl FromStr for ConnectionId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(3, '-').map(|part| part.parse().ok());
        let mut next = || parts.next().flatten().ok_or(());
        let place = |number: u64| usize::try_from(number).map_err(|_| ());
        Ok(Self {
            worker: place(next()?)?,
            place: place(next()?)?,
            accepted: next()?,
        })
    }
}

impl Serialize for ConnectionId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A filter for connections. A connection matches if all fields that are set match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    id: Option<ConnectionId>,
    client: Option<Network>,
    listener: Option<String>,
    sni: Option<String>,
    backend: Option<String>,
    server: Option<String>,
    phase: Option<String>,
    age: Option<Duration>,
}

#[derive(Debug, PartialEq)]
pub struct BadField {
    pub fault: String,
    pub accepted: String,
}

impl Filter {
    pub const FIELDS: [&str; 8] = [
        "id", "client", "listener", "sni", "backend", "server", "phase", "age",
    ];

    /// Parses a value and sets a field of the filter.
    ///
    /// # Errors
    /// Fails if the field does not exist or the value is invalid.
    pub fn set(&mut self, field: &str, value: &str) -> Result<(), BadField> {
        let bad = |accepted: &str| BadField {
            fault: format!("{field}: {value:?}"),
            accepted: accepted.to_owned(),
        };
        let text = Some(value.to_owned());
        match field {
            "id" => self.id = Some(value.parse().map_err(|()| bad("an id of a list"))?),
            "client" => {
                let accepted = "an address or a network such as 192.0.2.0/24";
                self.client = Some(value.parse().map_err(|_| bad(accepted))?);
            }
            "listener" => self.listener = text,
            "sni" => self.sni = text.map(|name| name.to_ascii_lowercase()),
            "backend" => self.backend = text,
            "server" => self.server = text,
            "phase" if PHASES.contains(&value) => self.phase = text,
            "phase" => return Err(bad(&PHASES.join(", "))),
            "age" => {
                let seconds = value.parse().map_err(|_| bad("whole seconds"))?;
                self.age = Some(Duration::from_secs(seconds));
            }
            _ => {
                return Err(BadField {
                    fault: format!("there is no {field:?}"),
                    accepted: Self::FIELDS.join(", "),
                });
            }
        }
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the first field whose listener, backend or server name is not in the configuration.
    pub fn unknown(&self, config: &Config) -> Option<BadField> {
        let listeners = config.listeners.iter().map(|it| it.keys.name.to_string());
        let backends = config.backends.iter().map(|it| &it.keys.name);
        let servers = config.backends.iter().flat_map(|backend| {
            let name = &backend.keys.name;
            let servers = backend.servers.iter();
            servers.map(move |server| format!("{name}/{}", server.name))
        });
        let of_backend = |server: &String| {
            let backend = self.backend.as_ref();
            backend.is_none_or(|wanted| server.split_once('/').is_some_and(|it| it.0 == wanted))
        };
        let fields: [(_, _, Vec<String>); 3] = [
            ("listener", &self.listener, listeners.collect()),
            (
                "backend",
                &self.backend,
                backends.map(ToString::to_string).collect(),
            ),
            ("server", &self.server, servers.filter(of_backend).collect()),
        ];
        fields.into_iter().find_map(|(field, wanted, known)| {
            let wanted = wanted.as_deref()?;
            let is_wanted = |name: &String| match name.split_once('/') {
                Some((backend, server)) => is_server(wanted, backend, server),
                None => name == wanted,
            };
            (!known.iter().any(is_wanted)).then(|| BadField {
                fault: format!("{field}: {wanted:?} is not in the running configuration"),
                accepted: known.join(", "),
            })
        })
    }

    pub(super) fn takes(&self, id: ConnectionId, glance: &Glance<'_>, now: Duration) -> bool {
        fn is(wanted: &Option<String>, found: Option<&str>) -> bool {
            wanted.is_none() || wanted.as_deref() == found
        }
        let (facts, server) = (glance.facts, glance.server);
        let client = facts.client.ip();
        let age = now.saturating_sub(facts.accepted);
        self.id.is_none_or(|wanted| wanted == id)
            && self.client.is_none_or(|wanted| wanted.contains(client))
            && is(&self.listener, Some(&facts.listener))
            && is(&self.sni, facts.server_name.as_deref())
            && is(&self.backend, server.map(|server| server.backend().name()))
            && self.server.as_deref().is_none_or(|wanted| {
                server.is_some_and(|it| is_server(wanted, it.backend().name(), it.name()))
            })
            && is(&self.phase, Some(glance.phase))
            && self.age.is_none_or(|least| age >= least)
    }
}

/// Returns `true` if `text` is `SERVER` or `BACKEND/SERVER` for this server.
fn is_server(text: &str, backend: &str, server: &str) -> bool {
    text == server || text.split_once('/') == Some((backend, server))
}

#[derive(Clone, Debug, Serialize)]
pub struct ConnectionRow {
    pub id: ConnectionId,
    pub client: SocketAddr,
    pub listener: Arc<str>,
    pub sni: Option<Box<str>>,
    pub phase: &'static str,
    pub version: Option<&'static str>,
    pub suite: Option<&'static str>,
    /// `full`, or the kind of resumption; `None` if the connection has no completed TLS handshake.
    pub handshake: Option<&'static str>,
    pub backend: Option<String>,
    pub server: Option<Arc<str>>,
    pub age_seconds: u64,
    pub client_bytes_in: u64,
    pub client_bytes_out: u64,
    pub server_bytes_in: u64,
    pub server_bytes_out: u64,
}

impl ConnectionRow {
    pub(super) fn of(id: ConnectionId, glance: &Glance<'_>, now: Duration) -> Self {
        let facts = glance.facts;
        let tls = facts.tls.as_ref();
        Self {
            id,
            client: SocketAddr::new(facts.client.ip().to_canonical(), facts.client.port()),
            listener: Arc::clone(&facts.listener),
            sni: facts.server_name.clone(),
            phase: glance.phase,
            version: tls.and_then(|tls| tls.version).map(names::version),
            suite: tls.and_then(|tls| tls.suite).map(names::suite),
            handshake: tls.map(|tls| tls.resumed.map_or("full", |by| by.label())),
            backend: glance.server.map(|it| it.backend().name().to_owned()),
            server: glance.server.map(|it| Arc::clone(it.name())),
            age_seconds: now.saturating_sub(facts.accepted).as_secs(),
            client_bytes_in: glance.traffic.received,
            client_bytes_out: glance.traffic.sent,
            server_bytes_in: facts.server_traffic.received,
            server_bytes_out: facts.server_traffic.sent,
        }
    }
}

pub struct ReplySender<T>(Box<dyn FnOnce(T) + Send>);

impl<T> ReplySender<T> {
    pub fn new(send: impl FnOnce(T) + Send + 'static) -> Self {
        Self(Box::new(send))
    }

    pub(super) fn send(self, answer: T) {
        (self.0)(answer);
    }
}

impl<T> fmt::Debug for ReplySender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplySender")
    }
}

/// Request for one page of a worker's connection list.
#[derive(Debug)]
pub struct Listing {
    pub filter: Arc<Filter>,
    pub from: usize,
    pub most: usize,
    pub reply: ReplySender<ListedPage>,
}

#[derive(Debug, Default)]
pub struct ListedPage {
    pub rows: Vec<ConnectionRow>,
    /// Index from which the next page starts; `None` after the last page.
    pub next: Option<usize>,
}

#[derive(Debug)]
pub struct Killing {
    pub filter: Arc<Filter>,
    pub count: u64,
    /// Receives `count` when all connections were checked.
    pub reply: ReplySender<u64>,
}

#[cfg(test)]
mod tests {
    use becket_tls::config::{Backend, Server};

    use super::*;

    #[test]
    fn a_row_has_the_documented_fields() {
        let text = include_str!("../../../../docs/reference/admin.openapi.json");
        let api: serde_json::Value = serde_json::from_str(text).unwrap();
        let row = ConnectionRow {
            id: "1-2-3".parse().unwrap(),
            client: ([192, 0, 2, 1], 1).into(),
            listener: "web".into(),
            sni: None,
            phase: PHASES[0],
            version: None,
            suite: None,
            handshake: None,
            backend: None,
            server: None,
            age_seconds: 0,
            client_bytes_in: 0,
            client_bytes_out: 0,
            server_bytes_in: 0,
            server_bytes_out: 0,
        };
        let row = serde_json::to_value(row).unwrap();
        let written = &api["components"]["schemas"]["Connection"]["properties"];
        let keys = |object: &serde_json::Value| -> Vec<String> {
            object.as_object().unwrap().keys().cloned().collect()
        };
        assert_eq!(keys(&row), keys(written));
    }

    #[test]
    fn a_connection_id_parses_only_in_its_printed_form() {
        let id = ConnectionId {
            worker: 1,
            place: 22,
            accepted: 333,
        };
        assert_eq!(id.to_string(), "1-22-333");
        assert_eq!("1-22-333".parse(), Ok(id));
        for text in [
            "",
            "1",
            "1-2",
            "a-2-3",
            "1-2-3-4",
            "-1-2-3",
            "1-2-99999999999999999999",
        ] {
            assert!(text.parse::<ConnectionId>().is_err(), "{text}");
        }
    }

    #[test]
    fn filter_names_missing_from_the_configuration_are_rejected() {
        let backend =
            |name, server| Arc::new(Backend::plain(name, vec![Server::plain(server, vec![])]));
        let config = Config {
            backends: vec![backend("app", "10.0.0.1:1"), backend("farm", "/run/a.sock")],
            ..Config::default()
        };
        let (all, of_farm) = ("app/10.0.0.1:1, farm//run/a.sock", "farm//run/a.sock");
        for (fields, accepted) in [
            (&[("server", "10.0.0.1:1")][..], None),
            (&[("server", "app/10.0.0.1:1")], None),
            (&[("server", "/run/a.sock"), ("backend", "farm")], None),
            (&[("server", "farm//run/a.sock")], None),
            (&[("client", "::1"), ("sni", "a.test")], None),
            (&[("server", "farm/10.0.0.1:1")], Some(all)),
            (&[("server", "app/")], Some(all)),
            (
                &[("server", "10.0.0.1:1"), ("backend", "farm")],
                Some(of_farm),
            ),
            (&[("backend", "ap")], Some("app, farm")),
            (&[("listener", "web")], Some("")),
        ] {
            let mut filter = Filter::default();
            for (field, value) in fields {
                filter.set(field, value).unwrap();
            }
            let unknown = filter.unknown(&config).map(|bad| bad.accepted);
            assert_eq!(unknown.as_deref(), accepted, "{fields:?}");
        }
    }

    #[test]
    fn filter_errors_list_the_accepted_fields_and_values() {
        let mut filter = Filter::default();
        let values = [
            "0-1-2",
            "192.0.2.0/24",
            "web",
            "WWW.example.org",
            "app",
            "a:1",
            "relaying",
            "60",
        ];
        for (field, value) in Filter::FIELDS.into_iter().zip(values) {
            assert!(Filter::default().is_empty());
            filter.set(field, value).unwrap();
            assert!(!filter.is_empty());
        }
        assert_eq!(filter.sni.as_deref(), Some("www.example.org"));
        for (field, value, accepted) in [
            ("phase", "idle", "relaying"),
            ("age", "1h", "whole seconds"),
            ("client", "example.org", "192.0.2.0/24"),
            ("ip", "::1", "client"),
        ] {
            let bad = filter.set(field, value).unwrap_err();
            assert!(bad.accepted.contains(accepted), "{bad:?}");
        }
    }
}
