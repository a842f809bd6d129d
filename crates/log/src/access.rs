//! Access log lines: one per connection, and one per HTTP request for a static file.
//!
//! The worker fills an [`AccessRecord`] when the connection ends, and the thread of
//! `log::access_log` writes it. [`AccessRecord::fields`] lists the fields of a line for both text
//! and JSON; a test compares `docs/reference/metrics.md` with this list. Both formats escape bytes
//! from the peer (server name, protocol).
//!
//! A text line starts with the time of accept, followed by logfmt pairs separated by spaces. A
//! missing value is `-`. A JSON line is one object, with `null` for a missing value. The short
//! format is for people: it shows only requests (method, target, status, size and time) and failed
//! handshakes.

use std::fmt::{self, Display, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::facts::{ByteCounts, Facts, ResumedBy};
use super::{Escaped, Timestamp};
use becket_config::choices::LogFormat;
use becket_proto::close_reason::CloseReason;
use becket_stats::units::show_bytes;
use becket_sys::clock::Now;
use becket_tls::names;

/// Data for the access log line of a closed connection.
#[derive(Clone, Debug)]
pub struct AccessRecord {
    pub facts: Facts,
    /// Bytes of the client's socket.
    pub client_traffic: ByteCounts,
    /// Time from accept to close.
    pub total: Duration,
    pub reason: CloseReason,
}

#[derive(Clone, Debug)]
pub struct RequestRecord {
    /// Time when the request header was complete.
    pub at: Timestamp,
    pub client: SocketAddr,
    pub listener: Arc<str>,
    pub sni: Option<Box<str>>,
    pub id: Option<Box<[u8]>>,
    /// Method as the client sent it; `None` if the request cannot be parsed.
    pub method: Option<Box<str>>,
    /// Target as the client sent it; `None` if the request cannot be parsed.
    pub target: Option<Box<str>>,
    /// Status code; empty if the connection ended before the response.
    pub status: &'static str,
    pub bytes: u64,
    /// Monotonic time at which the request header was complete.
    pub began: Duration,
    /// Time from the complete request header to the last byte of the response.
    pub took: Duration,
}

#[derive(Debug)]
pub enum AccessLine {
    Connection(Box<AccessRecord>),
    Request(Box<RequestRecord>),
}

type Each<'a> = &'a mut dyn FnMut(&str, Field<'_>) -> fmt::Result;

impl AccessLine {
    /// Appends the line and a line break to `out`. Appends nothing for most connections in the
    /// short format. Allocates only to grow `out`, to escape a value in JSON, and to format a size
    /// with its unit.
    pub fn write(&self, format: LogFormat, out: &mut String) {
        let before = out.len();
        let written = match format {
            LogFormat::Text => self.write_text(out),
            LogFormat::Json => self.write_json(out),
            LogFormat::Short => self.write_short(out),
        };
        // A write to a `String` cannot fail, so an error here is a bug in a `Display`.
        if written.is_err() {
            out.truncate(before);
        }
    }

    fn time(&self) -> Timestamp {
        match self {
            Self::Connection(record) => record.facts.accepted_at,
            Self::Request(record) => record.at,
        }
    }

    fn fields(&self, each: Each<'_>) -> fmt::Result {
        match self {
            Self::Connection(record) => record.fields(each),
            Self::Request(record) => record.fields(each),
        }
    }

    fn write_text(&self, out: &mut String) -> fmt::Result {
        write!(out, "{}", self.time())?;
        self.fields(&mut |name, field| {
            write!(out, " {name}=")?;
            let start = out.len();
            plain(field, out)?;
            super::escape::quote(out, start)
        })?;
        out.write_char('\n')
    }

    fn write_json(&self, out: &mut String) -> fmt::Result {
        write!(out, "{{\"time\":\"{}\"", self.time())?;
        self.fields(&mut |name, field| match field {
            Field::Text(value) => {
                let value = serde_json::Value::String(value.to_string());
                write!(out, ",\"{name}\":{value}")
            }
            Field::Count(value) => write!(out, ",\"{name}\":{value}"),
            Field::Absent => write!(out, ",\"{name}\":null"),
        })?;
        out.write_str("}\n")
    }

    fn write_short(&self, out: &mut String) -> fmt::Result {
        match self {
            Self::Request(record) => record.write_short(out),
            Self::Connection(record) if record.reason.is_failed_handshake() => {
                let (client, reason) = (record.facts.client, record.reason.label());
                writeln!(out, "{client} handshake failed: {reason}")
            }
            Self::Connection(_) => Ok(()),
        }
    }
}

fn plain(field: Field<'_>, out: &mut String) -> fmt::Result {
    match field {
        Field::Text(value) => write!(out, "{value}"),
        Field::Count(value) => write!(out, "{value}"),
        Field::Absent => out.write_char('-'),
    }
}

impl RequestRecord {
    /// Creates the record of a request. `asked` is its method and target, or `None` if its head is
    /// invalid.
    pub fn new(facts: &Facts, asked: Option<(&str, &str)>, now: Now) -> Self {
        let (method, target) = asked.unzip();
        Self {
            at: Timestamp::from_unix(now.unix),
            client: facts.client,
            listener: Arc::clone(&facts.listener),
            sni: facts.server_name.clone(),
            id: facts.unique_id().map(Box::from),
            method: method.map(Box::from),
            target: target.map(Box::from),
            status: "",
            bytes: 0,
            began: now.mono,
            took: Duration::ZERO,
        }
    }

    fn fields(&self, each: Each<'_>) -> fmt::Result {
        let listener = Escaped::new(&*self.listener);
        let sni = self.sni.as_deref().map(Escaped::new);
        let id = self.id.as_deref().map(Escaped::new);
        let method = self.method.as_deref().map(Escaped::new);
        let target = self.target.as_deref().map(Escaped::new);
        let status = Some(&self.status).filter(|status| !status.is_empty());
        each("client", Field::Text(&self.client))?;
        each("listener", Field::Text(&listener))?;
        each("sni", text(sni.as_ref()))?;
        each("unique_id", text(id.as_ref()))?;
        each("method", text(method.as_ref()))?;
        each("path", text(target.as_ref()))?;
        each("status", text(status))?;
        each("bytes", Field::Count(self.bytes))?;
        each("request_us", time(Some(self.took)))
    }

    /// Writes a line such as `GET /a.txt 200 6 B 0.3 ms`.
    fn write_short(&self, out: &mut String) -> fmt::Result {
        let method = self.method.as_deref().map(Escaped::word);
        let target = self.target.as_deref().map(Escaped::word);
        let status = Some(&self.status).filter(|status| !status.is_empty());
        for field in [text(method.as_ref()), text(target.as_ref()), text(status)] {
            plain(field, out)?;
            out.push(' ');
        }
        let milliseconds = self.took.as_secs_f64() * 1e3;
        writeln!(
            out,
            "{} {milliseconds:.1} ms",
            show_bytes(self.bytes as f64)
        )
    }
}

#[derive(Clone, Copy)]
pub enum Field<'a> {
    /// Text that already contains the escapes of the text format. JSON output escapes it further.
    Text(&'a dyn Display),
    /// A count, or a time in microseconds.
    Count(u64),
    /// Unknown, or not applicable.
    Absent,
}

impl AccessRecord {
    pub fn new(
        mut facts: Facts,
        client_traffic: ByteCounts,
        reason: CloseReason,
        now: Now,
    ) -> Self {
        // Frees the received header, because the record may wait for a slow disk.
        if let Some(introduced) = &mut facts.introduced {
            introduced.header = None;
        }
        Self {
            total: now.mono.saturating_sub(facts.accepted),
            facts,
            client_traffic,
            reason,
        }
    }

    /// Calls `each` with every field in the order of the line.
    ///
    /// # Errors
    /// Returns the first error of `each`.
    pub fn fields(&self, each: Each<'_>) -> fmt::Result {
        let facts = &self.facts;
        let listener = Escaped::new(&*facts.listener);
        let sni = facts.server_name.as_deref().map(Escaped::new);
        let tls = facts.tls.as_ref();
        let version = tls.and_then(|tls| tls.version).map(names::version);
        let suite = tls.and_then(|tls| tls.suite).map(names::suite);
        let group = tls.and_then(|tls| tls.group).map(names::group);
        let alpn = tls.and_then(|tls| tls.alpn.as_deref()).map(Escaped::new);
        let server = facts.server.as_deref().map(Escaped::new);
        let identity = tls.and_then(|tls| tls.identity.as_deref());
        let subject = identity.map(|identity| Escaped::new(&*identity.subject));
        let serial = identity.map(|identity| Escaped::new(&*identity.serial));
        let id = facts.unique_id().map(Escaped::new);
        let (client, server_traffic) = (self.client_traffic, facts.server_traffic);
        each("client", Field::Text(&facts.client))?;
        each("listener", Field::Text(&listener))?;
        each("sni", text(sni.as_ref()))?;
        each("ja4", text(facts.ja4.as_ref()))?;
        each("version", text(version.as_ref()))?;
        each("suite", text(suite.as_ref()))?;
        each("group", text(group.as_ref()))?;
        each("alpn", text(alpn.as_ref()))?;
        let kind = tls.map(|tls| tls.resumed_by().map_or("full", ResumedBy::label));
        each("handshake", text(kind.as_ref()))?;
        each("subject", text(subject.as_ref()))?;
        each("serial", text(serial.as_ref()))?;
        let would_refuse = tls.and_then(|tls| tls.would_refuse);
        each("would_refuse", text(would_refuse.as_ref()))?;
        each("unique_id", text(id.as_ref()))?;
        each("server", text(server.as_ref()))?;
        each("client_bytes_in", Field::Count(client.received))?;
        each("client_bytes_out", Field::Count(client.sent))?;
        each("server_bytes_in", Field::Count(server_traffic.received))?;
        each("server_bytes_out", Field::Count(server_traffic.sent))?;
        each("handshake_us", time(tls.map(|tls| tls.took)))?;
        each("queue_us", time(Some(facts.queued)))?;
        each("connect_us", time(facts.connect))?;
        each("total_us", time(Some(self.total)))?;
        each("reason", Field::Text(&self.reason.label()))
    }
}

fn text<T: Display>(value: Option<&T>) -> Field<'_> {
    value.map_or(Field::Absent, |value| Field::Text(value))
}

fn time(value: Option<Duration>) -> Field<'static> {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    value.map_or(Field::Absent, |time| Field::Count(micros(time)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::facts::{Agreed, ProxyDetails};
    use becket_keys::identity::Identity;
    use becket_proto::client_hello::peek;
    use becket_sys::clock::Clock;
    use becket_tls::ja4::Ja4;
    use rustls::{CipherSuite, NamedGroup, ProtocolVersion};

    fn ja4() -> Ja4 {
        let hello = include_bytes!("../../proto/testdata/client_hello/openssl-tls12.bin");
        let Ok(Some(hello)) = peek(hello) else {
            panic!("no hello");
        };
        Ja4::of(&hello).unwrap()
    }

    fn facts() -> Facts {
        let start = Clock::start().now();
        let client = "192.0.2.1:4711".parse().unwrap();
        Facts {
            accepted_at: Timestamp::from_unix(Duration::from_micros(1_234_567_890_000_001)),
            server_name: Some("www.example.org".into()),
            ja4: Some(ja4()),
            tls: Some(Agreed {
                version: Some(ProtocolVersion::TLSv1_3),
                suite: Some(CipherSuite::TLS13_AES_128_GCM_SHA256),
                group: Some(NamedGroup::X25519MLKEM768),
                alpn: Some((*b"h2").into()),
                resumed: Some(ResumedBy::Psk),
                early_data: None,
                client_verified: true,
                identity: Some(Box::new(Identity {
                    subject: "CN=alice,O=Rope Walk".into(),
                    common_name: Some("alice".into()),
                    serial: "0ABC01".into(),
                })),
                would_refuse: Some("client-certificate"),
                presented: None,
                took: Duration::from_micros(740),
            }),
            introduced: Some(Box::new(ProxyDetails {
                unique_id: Some((*b"8d2f").into()),
                ..ProxyDetails::default()
            })),
            server: Some("127.0.0.1:8080".into()),
            server_traffic: ByteCounts {
                received: 1_024,
                sent: 80,
            },
            queued: Duration::from_micros(30),
            connect: Some(Duration::from_micros(210)),
            ..Facts::new(client, "web".into(), start)
        }
    }

    pub(crate) fn record() -> AccessRecord {
        AccessRecord {
            facts: facts(),
            client_traffic: ByteCounts {
                received: 900,
                sent: 2_000,
            },
            total: Duration::from_millis(12),
            reason: CloseReason::Finished,
        }
    }

    fn empty() -> AccessRecord {
        AccessRecord {
            facts: Facts {
                server_name: None,
                ja4: None,
                tls: None,
                introduced: None,
                server: None,
                ..facts()
            },
            reason: CloseReason::NotTls,
            ..record()
        }
    }

    pub(crate) fn connection(record: AccessRecord) -> AccessLine {
        AccessLine::Connection(Box::new(record))
    }

    fn line(record: &AccessRecord, format: LogFormat) -> String {
        let mut out = String::new();
        connection(record.clone()).write(format, &mut out);
        out
    }

    #[test]
    fn a_text_line_has_every_field_in_order() {
        assert_eq!(
            line(&record(), LogFormat::Text),
            "2009-02-13T23:31:30.000001Z client=192.0.2.1:4711 listener=web sni=www.example.org \
             ja4=t12d2808h2_d943125447b4_e7e480e5a997 version=TLSv1.3 suite=TLS_AES_128_GCM_SHA256 group=X25519MLKEM768 alpn=h2 \
             handshake=psk subject=\"CN=alice,O=Rope Walk\" serial=0ABC01 would_refuse=client-certificate unique_id=8d2f server=127.0.0.1:8080 client_bytes_in=900 client_bytes_out=2000 \
             server_bytes_in=1024 server_bytes_out=80 handshake_us=740 queue_us=30 connect_us=210 total_us=12000 \
             reason=finished\n"
        );
    }

    fn request() -> RequestRecord {
        let of = facts();
        RequestRecord {
            at: of.accepted_at,
            client: of.client,
            listener: of.listener,
            sni: None,
            id: None,
            method: Some("GET".into()),
            target: Some("/a b\nstatus=200".into()),
            status: "404",
            bytes: 14,
            began: Duration::ZERO,
            took: Duration::from_micros(30),
        }
    }

    #[test]
    fn a_hostile_request_path_forges_no_line() {
        let mut out = String::new();
        AccessLine::Request(Box::new(request())).write(LogFormat::Text, &mut out);
        assert_eq!(
            out,
            "2009-02-13T23:31:30.000001Z client=192.0.2.1:4711 listener=web sni=- unique_id=- method=GET \
             path=\"/a b\\\\x0astatus=200\" status=404 bytes=14 request_us=30\n"
        );
    }

    #[test]
    fn the_short_format_logs_requests_and_failed_connections_only() {
        let short = |line: AccessLine| {
            let mut out = String::new();
            line.write(LogFormat::Short, &mut out);
            out
        };
        let mut asked = request();
        let line = short(AccessLine::Request(Box::new(asked.clone())));
        assert_eq!(line, "GET /a\\x20b\\x0astatus=200 404 14 B 0.0 ms\n");
        (asked.method, asked.target, asked.status, asked.bytes) = (None, None, "", 1_499_950);
        assert_eq!(
            short(AccessLine::Request(Box::new(asked))),
            "- - - 1.4 MiB 0.0 ms\n"
        );
        assert_eq!(short(connection(record())), "");
        let failed = short(connection(empty()));
        assert_eq!(failed, "192.0.2.1:4711 handshake failed: not-tls\n");
    }

    #[test]
    fn unknown_values_are_logged_as_a_dash_or_null() {
        let text = line(&empty(), LogFormat::Text);
        assert!(text.contains(
            " sni=- ja4=- version=- suite=- group=- alpn=- handshake=- subject=- serial=- would_refuse=- unique_id=- server=- "
        ));
        let json: serde_json::Value =
            serde_json::from_str(&line(&empty(), LogFormat::Json)).unwrap();
        assert!(json["sni"].is_null() && json["handshake_us"].is_null());
        assert_eq!(json["reason"], "not-tls");
    }

    #[test]
    fn json_has_the_fields_of_text() {
        let json: serde_json::Value =
            serde_json::from_str(&line(&record(), LogFormat::Json)).unwrap();
        let mut names = vec!["time".to_owned()];
        let list = &mut names;
        record()
            .fields(&mut |name, _| {
                list.push(name.to_owned());
                Ok(())
            })
            .unwrap();
        names.sort();
        let keys: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, names);
        assert_eq!(json["client_bytes_in"], 900);
        assert_eq!(json["alpn"], "h2");
    }

    #[test]
    fn the_metrics_page_documents_exactly_the_access_log_fields() {
        let page = include_str!("../../../docs/reference/metrics.md");
        let (_, section) = page.split_once("## Access log").unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let documented: Vec<_> = rows.filter_map(|row| row.split('`').next()).collect();
        let mut names = Vec::new();
        let each = &mut |name: &str, _: Field<'_>| {
            names.push(name.to_owned());
            Ok(())
        };
        record().fields(each).unwrap();
        assert_eq!(names, documented);
    }

    #[test]
    fn a_hostile_name_forges_neither_a_line_nor_a_field() {
        let mut hostile = record();
        hostile.facts.server_name = Some("a reason=finished\nb\"\\".into());
        hostile.facts.tls.as_mut().unwrap().alpn = Some((*b"\xff\x00\x1b").into());
        let text = line(&hostile, LogFormat::Text);
        assert_eq!(text.lines().count(), 1);
        assert!(
            text.contains(r#" sni="a reason=finished\\x0ab\\\"\\\\" ja4="#),
            "{text}"
        );
        let json = line(&hostile, LogFormat::Json);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json.lines().count(), 1);
        assert_eq!(value["sni"], r#"a reason=finished\x0ab\"\\"#);
    }
}
