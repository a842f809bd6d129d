//! Table of the requests to the admin pages, and the JSON types of changes.
//!
//! `docs/reference/admin.openapi.json` describes requests and responses; a test compares it with
//! this file. An error response includes the accepted input ([`Refused`]). The control loop
//! executes changes one at a time (`server/changes.rs`). The workers supply the lists of
//! connections ([`super::connections`]).

use std::fmt;
use std::net::IpAddr;

use axum::http::StatusCode;
use axum::response::Response;
use becket_config::address::FixedAddress;
use becket_config::backend;
use becket_config::choices::ServerMode;
use becket_config::notation::Text;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use tokio::net::unix::UCred;
use tokio::sync::oneshot;

use super::snapshot::Snapshot;
use becket_process::protocol::OperatorRequest;
use becket_proxy::worker::listing::{BadField, Filter};
use becket_tls::config::{MOST_ADDRESSES, ServerAddress};

pub(super) struct AdminRoute {
    pub(super) path: &'static str,
    pub(super) method: &'static str,
    pub(super) action: RouteAction,
}

#[derive(Clone, Copy)]
pub(super) enum RouteAction {
    /// Reports whether becket serves clients. Allowed for every client and every host name.
    Health,
    /// Creates a page from a snapshot of the server's state.
    Page(fn(Snapshot) -> Response),
    Connections,
    /// Counts connections by source, name and server.
    TopConnections,
    Kill,
    Sources,
    /// Parses the request body into a change, which the control loop executes.
    Change(fn(&[u8]) -> Result<OperatorChange, Refused>),
}

/// A change that the control loop executes.
#[derive(Debug, PartialEq)]
pub enum OperatorChange {
    Server(ServerChange),
    AddServer(ServerAddition),
    RemoveServer(ServerRemoval),
    Log(LogChange),
    RotateTickets,
    ForgetSessions,
    /// A request for which a signal exists as well.
    Asked(OperatorRequest),
}

impl OperatorChange {
    pub(super) fn of_server(body: &[u8]) -> Result<Self, Refused> {
        let change: ServerChange = parse(body)?;
        change.check()?;
        Ok(Self::Server(change))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PageClient {
    Network(IpAddr),
    /// Client of the unix socket; `None` if the kernel does not identify its process.
    Local(Option<UCred>),
}

impl fmt::Display for PageClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(f),
            Self::Local(None) => f.write_str("unknown user"),
            Self::Local(Some(user)) => {
                write!(f, "uid {}", user.uid())?;
                user.pid().map_or(Ok(()), |pid| write!(f, " pid {pid}"))
            }
        }
    }
}

/// Body of a request that has no fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoFields {}

/// Change of a field in a request that overrides the configuration file.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum FieldChange<T> {
    /// The field is absent.
    #[default]
    Keep,
    /// The field is `null`: the value of the configuration file applies again.
    Reset,
    Set(T),
}

impl<T: Clone> FieldChange<T> {
    pub fn apply(&self, to: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Reset => *to = None,
            Self::Set(value) => *to = Some(value.clone()),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for FieldChange<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(d)?.map_or(Self::Reset, Self::Set))
    }
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerChange {
    pub backend: String,
    pub server: String,
    #[serde(default)]
    pub mode: FieldChange<ServerMode>,
    #[serde(default)]
    pub weight: FieldChange<u32>,
    /// Maximum number of connections; 0 means no limit.
    #[serde(default)]
    pub maxconn: FieldChange<u32>,
    /// Addresses of the server: IP addresses with a port, or paths of unix sockets.
    #[serde(default)]
    pub addresses: FieldChange<Vec<String>>,
}

impl ServerChange {
    fn check(&self) -> Result<(), Refused> {
        if matches!(self.weight, FieldChange::Set(weight) if weight > 256) {
            return Err(Refused::unusable("weight is not in range", "0 to 256"));
        }
        self.server_addresses().map(drop)
    }

    pub fn server_addresses(&self) -> Result<FieldChange<Vec<ServerAddress>>, Refused> {
        let texts = match &self.addresses {
            FieldChange::Keep => return Ok(FieldChange::Keep),
            FieldChange::Reset => return Ok(FieldChange::Reset),
            FieldChange::Set(texts) => texts,
        };
        if texts.is_empty() || texts.len() > MOST_ADDRESSES {
            let accepted = format!("1 to {MOST_ADDRESSES} addresses, or null");
            return Err(Refused::unusable(
                "addresses: too few or too many",
                accepted,
            ));
        }
        let parse = |text: &String| {
            let parsed = FixedAddress::parse(text).ok();
            let address = parsed.and_then(|parsed| ServerAddress::fixed(&parsed.address));
            address.ok_or_else(|| {
                let accepted = "IP:PORT, [V6]:PORT or /unix/path; names are allowed only in the configuration file";
                Refused::unusable(format!("addresses: {text:?}"), accepted)
            })
        };
        let addresses = texts.iter().map(parse).collect::<Result<_, _>>();
        addresses.map(FieldChange::Set)
    }
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerAddition {
    pub backend: String,
    /// Settings of the server to add; the fields are named as in the configuration file.
    pub server: Box<backend::ServerSection>,
}

/// A server to remove: a configured server, or one added through the admin pages.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerRemoval {
    pub backend: String,
    pub server: String,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogChange {
    /// A log filter; `null` restores the filter of the configuration file.
    pub level: Option<String>,
}

/// Parses a JSON object from a request body. An empty body counts as an empty object.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refused> {
    let body = match body.trim_ascii() {
        [] => b"{}",
        body => body,
    };
    serde_json::from_slice(body).map_err(|error| {
        let code = match error.classify() {
            serde_json::error::Category::Data => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::BAD_REQUEST,
        };
        Refused::new(
            code,
            error.to_string(),
            "a JSON object: see docs/reference/admin.openapi.json",
        )
    })
}

/// Parses the filter for the connections to close: fields with strings or numbers, or `"all":
/// true`.
pub(super) fn filter_of(body: &[u8]) -> Result<Filter, Refused> {
    let mut fields: Map<String, Value> = parse(body)?;
    let all = fields.remove("all") == Some(Value::Bool(true));
    let mut filter = Filter::default();
    for (field, value) in &fields {
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        filter.set(field, &text)?;
    }
    if filter.is_empty() && !all {
        let accepted = format!("one of {}, or \"all\": true", Filter::FIELDS.join(", "));
        return Err(Refused::unusable("no connection is selected", accepted));
    }
    Ok(filter)
}

/// Decodes a URL query into names and values.
pub(super) fn query(text: Option<&str>) -> Vec<(String, String)> {
    let pairs = form_urlencoded::parse(text.unwrap_or_default().as_bytes());
    pairs.into_owned().collect()
}

#[derive(Debug, PartialEq)]
pub struct Refused {
    pub code: StatusCode,
    pub error: String,
    pub accepted: String,
}

impl Refused {
    pub fn new(code: StatusCode, error: impl Into<String>, accepted: impl Into<String>) -> Self {
        Self {
            code,
            error: error.into(),
            accepted: accepted.into(),
        }
    }

    pub fn unusable(error: impl Into<String>, accepted: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, error, accepted)
    }

    pub fn internal(error: &impl ToString) -> Self {
        let code = StatusCode::INTERNAL_SERVER_ERROR;
        Self::new(code, error.to_string(), "another try")
    }
}

pub fn as_json(answer: &impl Serialize) -> Result<Value, Refused> {
    serde_json::to_value(answer).map_err(|error| Refused::internal(&error))
}

impl From<BadField> for Refused {
    fn from(bad: BadField) -> Self {
        Self::unusable(bad.fault, bad.accepted)
    }
}

/// Channel that sends the result of a change to the client that requested it.
#[derive(Debug)]
pub struct ChangeOutcome(pub oneshot::Sender<Result<Value, Refused>>);

impl ChangeOutcome {
    pub fn tell(self, outcome: Result<Value, Refused>) {
        self.0.send(outcome).ok();
    }

    /// Returns whether the client has disconnected or timed out.
    pub fn is_unwanted(&self) -> bool {
        self.0.is_closed()
    }
}

#[derive(Debug)]
pub struct ChangeRequest {
    pub change: OperatorChange,
    pub outcome: ChangeOutcome,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(text: &str) -> Result<ServerChange, Refused> {
        match OperatorChange::of_server(text.as_bytes())? {
            OperatorChange::Server(change) => Ok(change),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn absent_fields_change_nothing_and_null_resets_to_the_file() {
        let change = server(r#"{"backend":"app","server":"a:1","weight":null,"maxconn":0}"#);
        let expected = ServerChange {
            backend: "app".to_owned(),
            server: "a:1".to_owned(),
            weight: FieldChange::Reset,
            maxconn: FieldChange::Set(0),
            ..ServerChange::default()
        };
        assert_eq!(change.unwrap(), expected);
    }

    #[test]
    fn invalid_changes_are_rejected_with_a_specific_error() {
        for (text, code, part) in [
            ("", 422, "missing field `backend`"),
            ("[", 400, "EOF"),
            (
                r#"{"backend":"app","server":"a","wait":1}"#,
                422,
                "`weight`",
            ),
            (
                r#"{"backend":"app","server":"a","weight":257}"#,
                422,
                "not in range",
            ),
            (
                r#"{"backend":"app","server":"a","mode":"up"}"#,
                422,
                "`maintenance`",
            ),
            (
                r#"{"backend":"app","server":"a","addresses":[]}"#,
                422,
                "too few",
            ),
            (
                r#"{"backend":"app","server":"a","addresses":["b.test:1"]}"#,
                422,
                "b.test",
            ),
        ] {
            let refused = server(text).unwrap_err();
            assert_eq!(refused.code.as_u16(), code, "{text}");
            assert!(refused.error.contains(part), "{refused:?}");
            assert!(!refused.accepted.is_empty());
        }
    }

    #[test]
    fn a_server_is_added_with_the_keys_of_the_file() {
        let add = |server: &str| {
            let text = format!("{{\"backend\":\"app\",\"server\":{server}}}");
            parse::<ServerAddition>(text.as_bytes())
        };
        let added = add(r#"{"address":"10.0.0.1:80","weight":7,"maxconn":9}"#);
        let addition = added.unwrap();
        assert_eq!(
            (addition.server.weight, addition.server.maxconn),
            (7, Some(9))
        );
        for refused in [r#"{"address":"a"}"#, r#"{"weight":257}"#, r#"{"port":1}"#] {
            assert_eq!(add(refused).unwrap_err().code.as_u16(), 422, "{refused}");
        }
    }

    #[test]
    fn closing_all_connections_requires_an_explicit_flag() {
        assert!(filter_of(b"").is_err());
        assert!(filter_of(br#"{"all":false}"#).is_err());
        assert!(filter_of(br#"{"all":true}"#).unwrap().is_empty());
        assert!(
            !filter_of(br#"{"age":60,"client":"::1"}"#)
                .unwrap()
                .is_empty()
        );
        assert!(filter_of(br#"{"age":"long"}"#).is_err());
    }

    #[test]
    fn a_query_is_decoded() {
        let expected = [("server", "[::1]:80"), ("name", "a b")];
        let expected = expected.map(|(field, value)| (field.to_owned(), value.to_owned()));
        assert_eq!(query(Some("server=%5B::1%5D%3A80&name=a+b")), expected);
        assert!(query(None).is_empty());
    }
}
