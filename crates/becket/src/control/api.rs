//! What may be asked of the admin pages, in one table, and what a change says.
//!
//! A change is a JSON object; so is every answer. `docs/admin.openapi.json` has all of it, held to this file by a test.
//! What is wrong with a request is answered with what would be accepted ([`Refused`]). Changes are carried out by control, one
//! at a time (`server/changes.rs`), between two turns of its loop; lists of connections come from the workers
//! ([`super::connections`]).

use std::fmt;

use axum::http::StatusCode;
use axum::response::Response;
use becket_config::backend;
use becket_config::notation::Text;
use becket_sys::process::Told;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use super::snapshot::Snapshot;
use crate::backend::overrides::ServerMode;
use crate::config::{MOST_ADDRESSES, ServerAddress};
use crate::worker::listing::{BadField, Filter};
use becket_config::address::{self, Address};

/// Until the file of edits: removed with it.
pub(crate) struct OperatorChange(pub Zeroizing<Vec<u8>>);

/// A path and a method, and what is done for them.
pub(super) struct Route {
    pub(super) path: &'static str,
    pub(super) method: &'static str,
    pub(super) action: Action,
}

/// What is done for a request.
#[derive(Clone, Copy)]
pub(super) enum Action {
    /// Says whether becket serves: to everybody, by every name.
    Health,
    /// Makes a page of what runs.
    Page(fn(Snapshot) -> Response),
    /// Lists connections.
    Connections,
    /// Counts connections by source, name and server.
    TopConnections,
    /// Ends connections.
    Kill,
    /// Lists sources.
    Sources,
    /// Reports the trials of policies.
    Trials,
    /// Has control change something.
    Change(fn(&[u8]) -> Result<Change, Refused>),
    /// Has control take a private key: over the socket only, and what was said is not logged.
    TakeKey(fn(&[u8]) -> Result<Change, Refused>),
    /// Has becket do what a signal would have it do. That takes its time.
    Tell(fn(&[u8]) -> Result<Change, Refused>),
}

/// What control is to change. What outlives an upgrade is told as the request that makes it again.
#[derive(Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Change {
    /// Something of a server.
    Server(ServerChange),
    /// A server more.
    AddServer(ServerAddition),
    /// A server less.
    RemoveServer(ServerRemoval),
    /// A certificate that the file does not have.
    SetCertificate(CertificateSetting),
    /// One of those less.
    #[serde(skip)]
    RemoveCertificate(CertificateRemoval),
    /// The level of the log.
    Log(LogChange),
    /// Ticket keys, before their time.
    #[serde(skip)]
    RotateTickets,
    /// Sessions that were kept.
    #[serde(skip)]
    ForgetSessions,
    /// What a signal would have it do.
    #[serde(skip)]
    Tell(Told),
}

impl Change {
    /// The request that makes it again, for the process that replaces this one.
    pub(crate) fn request(&self) -> OperatorChange {
        let secret = match self {
            Self::SetCertificate(setting) => setting.chain.len() + setting.key.0.len(),
            _ => 0,
        };
        // Enough for what is escaped: a text that grows would leave parts of a key behind.
        let mut text = Zeroizing::new(Vec::with_capacity(2 * secret + 1024));
        // A vector takes everything, and each of these is an object.
        serde_json::to_writer(&mut *text, self).expect("a change has a request");
        OperatorChange(text)
    }

    /// The change of a request that the process before this one wrote.
    pub(crate) fn again(text: &[u8]) -> Result<Self, Refused> {
        let change = parse(text)?;
        if let Self::Server(change) = &change {
            change.check()?;
        }
        Ok(change)
    }

    pub(super) fn of_server(body: &[u8]) -> Result<Self, Refused> {
        let change: ServerChange = parse(body)?;
        change.check()?;
        Ok(Self::Server(change))
    }

    pub(super) fn of_addition(body: &[u8]) -> Result<Self, Refused> {
        Ok(Self::AddServer(parse(body)?))
    }

    pub(super) fn of_removal(body: &[u8]) -> Result<Self, Refused> {
        Ok(Self::RemoveServer(parse(body)?))
    }

    pub(super) fn of_certificate(body: &[u8]) -> Result<Self, Refused> {
        Ok(Self::SetCertificate(parse(body)?))
    }

    pub(super) fn of_certificate_removal(body: &[u8]) -> Result<Self, Refused> {
        Ok(Self::RemoveCertificate(parse(body)?))
    }

    pub(super) fn of_log(body: &[u8]) -> Result<Self, Refused> {
        Ok(Self::Log(parse(body)?))
    }

    pub(super) fn of_tickets(body: &[u8]) -> Result<Self, Refused> {
        parse::<Nothing>(body).map(|_| Self::RotateTickets)
    }

    pub(super) fn of_sessions(body: &[u8]) -> Result<Self, Refused> {
        parse::<Nothing>(body).map(|_| Self::ForgetSessions)
    }

    pub(super) fn of_reload(body: &[u8]) -> Result<Self, Refused> {
        parse::<Nothing>(body).map(|_| Self::Tell(Told::Reload))
    }

    pub(super) fn of_drain(body: &[u8]) -> Result<Self, Refused> {
        parse::<Nothing>(body).map(|_| Self::Tell(Told::Drain))
    }

    pub(super) fn of_upgrade(body: &[u8]) -> Result<Self, Refused> {
        parse::<Nothing>(body).map(|_| Self::Tell(Told::Upgrade))
    }
}

/// No fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// What is to be another of a server. What is absent stays as it is; `null` is what the file says.
#[derive(Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerChange {
    pub(crate) backend: String,
    pub(crate) server: String,
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) mode: Option<Option<ServerMode>>,
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) weight: Option<Option<u32>>,
    /// 0 is no limit.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) maxconn: Option<Option<u32>>,
    /// Addresses of IP with a port, or paths of unix sockets.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) addresses: Option<Option<Vec<String>>>,
    /// Whether a reload leaves what was changed of the server.
    pub(crate) keep: Option<bool>,
}

impl ServerChange {
    fn check(&self) -> Result<(), Refused> {
        if self.weight.flatten().is_some_and(|weight| weight > 256) {
            return Err(Refused::unusable("weight is not in range", "0 to 256"));
        }
        self.server_addresses().map(drop)
    }

    /// The addresses that are to be used.
    pub(crate) fn server_addresses(&self) -> Result<Option<Vec<ServerAddress>>, Refused> {
        let Some(Some(texts)) = &self.addresses else {
            return Ok(None);
        };
        if texts.is_empty() || texts.len() > MOST_ADDRESSES {
            let accepted = format!("1 to {MOST_ADDRESSES} addresses, or null");
            return Err(Refused::unusable(
                "addresses: too few or too many",
                accepted,
            ));
        }
        let parse = |text: &String| {
            let parsed = address::ServerAddress::parse(text).map(|parsed| parsed.address);
            match parsed {
                Ok(Address::Ip(ip, port)) => Ok(ServerAddress::Tcp((ip, port).into())),
                Ok(Address::Unix(path)) => Ok(ServerAddress::Unix(path)),
                _ => Err(Refused::unusable(
                    format!("addresses: {text:?}"),
                    "IP:PORT, [V6]:PORT or /unix/path; a name is for the file",
                )),
            }
        };
        texts.iter().map(parse).collect::<Result<_, _>>().map(Some)
    }
}

/// A server that is to be beside those of the file.
#[derive(Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerAddition {
    pub(crate) backend: String,
    /// With the keys that it would have in the file.
    #[serde(serialize_with = "without_nulls")]
    pub(crate) server: Box<backend::Server>,
    /// Whether a reload leaves it.
    #[serde(default)]
    pub(crate) keep: bool,
}

/// A server that is to be there no more, of the file or added.
#[derive(Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerRemoval {
    pub(crate) backend: String,
    pub(crate) server: String,
    /// Whether it stays away over a reload.
    #[serde(default)]
    pub(crate) keep: bool,
}

/// A certificate that is to be beside those of the file, and before them.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CertificateSetting {
    pub(crate) listener: String,
    /// PEM, the server's own first.
    pub(crate) chain: String,
    /// PEM.
    pub(crate) key: SecretText,
    /// Whether a reload leaves it.
    #[serde(default)]
    pub(crate) keep: bool,
}

/// A certificate that was set and is to be there no more.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CertificateRemoval {
    pub(crate) listener: String,
    /// One of its names.
    pub(crate) name: String,
}

/// A text that is not shown, and erased when it is dropped. Written only for the process that replaces this one.
#[derive(Clone, PartialEq)]
pub(crate) struct SecretText(pub(crate) Zeroizing<String>);

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d).map(|text| Self(Zeroizing::new(text)))
    }
}

impl Serialize for SecretText {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0)
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText")
    }
}

/// Another level of the log.
#[derive(Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogChange {
    /// A filter; `null` is that of the file.
    pub(crate) level: Option<String>,
    /// Whether a reload leaves it.
    #[serde(default)]
    pub(crate) keep: bool,
}

/// Tells a field that is `null` from one that is absent.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    d: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(d).map(Some)
}

/// The keys of a server, as a file has them: those that are absent are not there.
fn without_nulls<S: Serializer>(keys: &backend::Server, s: S) -> Result<S::Ok, S::Error> {
    let mut keys = serde_json::to_value(keys).map_err(serde::ser::Error::custom)?;
    if let Some(keys) = keys.as_object_mut() {
        keys.retain(|_, value| !value.is_null());
    }
    keys.serialize(s)
}

/// The object of a request; nothing is an empty one.
fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refused> {
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
            "a JSON object: see docs/admin.openapi.json",
        )
    })
}

/// The filter of a request to end connections: fields with texts or numbers, or `"all": true`, which means it.
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
        return Err(Refused::unusable("no connection is named", accepted));
    }
    Ok(filter)
}

/// The words behind the `?` of a request, decoded.
pub(super) fn query(text: Option<&str>) -> Vec<(String, String)> {
    let pairs = form_urlencoded::parse(text.unwrap_or_default().as_bytes());
    pairs.into_owned().collect()
}

/// Why nothing was done.
#[derive(Debug, PartialEq)]
pub(crate) struct Refused {
    pub(crate) code: StatusCode,
    pub(crate) error: String,
    /// What would be done.
    pub(crate) accepted: String,
}

impl Refused {
    pub(crate) fn new(
        code: StatusCode,
        error: impl Into<String>,
        accepted: impl Into<String>,
    ) -> Self {
        Self {
            code,
            error: error.into(),
            accepted: accepted.into(),
        }
    }

    /// The request is understood, and what it says cannot be used.
    pub(crate) fn unusable(error: impl Into<String>, accepted: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, error, accepted)
    }
}

impl From<BadField> for Refused {
    fn from(bad: BadField) -> Self {
        Self::unusable(bad.fault, bad.accepted)
    }
}

/// Where an outcome is told. Whoever asked may have left.
#[derive(Debug)]
pub(crate) struct ChangeOutcome(pub(crate) oneshot::Sender<Result<Value, Refused>>);

impl ChangeOutcome {
    pub(crate) fn tell(self, outcome: Result<Value, Refused>) {
        self.0.send(outcome).ok();
    }

    /// Whether nobody waits for it any more.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.0.is_closed()
    }
}

/// A change for control, and where the outcome is told.
#[derive(Debug)]
pub(crate) struct ChangeRequest {
    pub(crate) change: Change,
    pub(crate) outcome: ChangeOutcome,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(text: &str) -> Result<ServerChange, Refused> {
        match Change::of_server(text.as_bytes())? {
            Change::Server(change) => Ok(change),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_absent_stays_and_null_is_what_the_file_says() {
        let change = server(r#"{"backend":"app","server":"a:1","weight":null,"maxconn":0}"#);
        let expected = ServerChange {
            backend: "app".to_owned(),
            server: "a:1".to_owned(),
            weight: Some(None),
            maxconn: Some(Some(0)),
            ..ServerChange::default()
        };
        assert_eq!(change.unwrap(), expected);
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_what_could() {
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
    fn a_server_is_added_with_the_keys_of_the_file_and_a_key_is_not_shown() {
        let add = |server: &str| {
            let text = format!("{{\"backend\":\"app\",\"server\":{server}}}");
            Change::of_addition(text.as_bytes())
        };
        let added = add(r#"{"address":"10.0.0.1:80","weight":7,"maxconn":9,"fast-open":true}"#);
        let Ok(Change::AddServer(addition)) = added else {
            panic!("{added:?}");
        };
        assert_eq!(
            (addition.server.weight, addition.server.maxconn),
            (7, Some(9))
        );
        assert!(addition.server.fast_open && !addition.keep);
        for refused in [r#"{"address":"a"}"#, r#"{"weight":257}"#, r#"{"port":1}"#] {
            assert_eq!(add(refused).unwrap_err().code.as_u16(), 422, "{refused}");
        }
        let text = br#"{"listener":"web","chain":"c","key":"hidden"}"#;
        let shown = format!("{:?}", Change::of_certificate(text).unwrap());
        assert!(!shown.contains("hidden"), "{shown}");
    }

    #[test]
    fn what_outlives_an_upgrade_is_written_as_it_is_read() {
        let add = br#"{"backend":"app","server":{"address":"a.test:80","maxconn":9},"keep":true}"#;
        let set = br#"{"listener":"web","chain":"c\n","key":"k\n"}"#;
        let change = br#"{"backend":"app","server":"a:1","weight":7,"maxconn":0,"keep":true}"#;
        for change in [
            Change::of_addition(add),
            Change::of_removal(br#"{"backend":"app","server":"a:1"}"#),
            Change::of_certificate(set),
            Change::of_server(change),
            Change::of_log(br#"{"level":"debug","keep":true}"#),
        ] {
            let change = change.unwrap();
            assert_eq!(Change::again(&change.request().0).unwrap(), change);
        }
        for refused in [
            &br#"{"tell":"drain"}"#[..],
            br#""forget-sessions""#,
            br#"{"server":{"backend":"app","server":"a","weight":257}}"#,
        ] {
            assert!(Change::again(refused).is_err());
        }
    }

    #[test]
    fn to_end_all_connections_has_to_be_said() {
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
