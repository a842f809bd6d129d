//! The configuration file as written: one struct per table, nothing computed.
//!
//! Every key of `docs/config.md` is a field here, in kebab case, and a field's `Default` is the
//! documented default; a test holds the page against these structs. Values with a notation of
//! their own (durations, sizes, addresses, names) stay text: `prepare.rs` parses them, so that
//! all faults are found in one go. `None` stands for "not set" where no single value could be
//! the default. Reading the text, with lines and every fault, is `read.rs`' work.

mod backend;
mod cluster;
mod health;
mod onward;
mod policy;

use std::fmt;

use becket_proto::starttls::Protocol;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

pub use self::backend::{FileBackend, FileProxyTlv, FileServer};
pub use self::cluster::{FileCluster, FileClusterLimits};
pub use self::health::FileHealth;
pub use self::onward::{FileOnward, FileServerAlpn, FileVerify};
pub use self::policy::{FileClientCertificates, FilePolicy, FileVersion};
use crate::choices::{AlpnMismatch, LogFormat, UnknownNames};
use crate::error::Problem;

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct File {
    /// `[[listener]]`
    pub listener: Vec<FileListener>,
    /// `[[policy]]`
    pub policy: Vec<FilePolicy>,
    /// `[[backend]]`
    pub backend: Vec<FileBackend>,
    /// `[limits]`
    pub limits: FileLimits,
    /// `[timeouts]`
    pub timeouts: FileTimeouts,
    /// `[sessions]`
    pub sessions: FileSessions,
    /// `[admission]`
    pub admission: FileAdmission,
    /// `[cluster]`
    pub cluster: Option<FileCluster>,
    /// `[log]`
    pub log: FileLog,
    /// `[admin]`
    pub admin: FileAdmin,
    /// `[process]`
    pub process: FileProcess,
}

impl File {
    /// Parses TOML.
    ///
    /// # Errors
    /// Every syntax error, or else every unknown key and every value of a wrong type.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let reading = crate::read::read(text);
        match reading.problems.is_empty() {
            true => Ok(reading.file.unwrap_or_default()),
            false => Err(reading.problems),
        }
    }
}

/// `[[listener]]`: one front door.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileListener {
    /// Unique.
    pub name: Option<String>,
    /// `HOST:PORT`, `[V6]:PORT` or `:PORT`.
    pub bind: Option<Vec<String>>,
    /// Whether clients speak TLS.
    pub tls: bool,
    /// What is done with it.
    pub mode: FileMode,
    /// The protocol in which clients ask for it.
    pub starttls: Option<FileStartTls>,
    /// Whether cancels of PostgreSQL in clear are passed on; absent is yes.
    pub cancel_requests: Option<bool>,
    /// Bundles, directories and pairs.
    pub certificates: Option<Vec<FileCertificate>>,
    /// Name of a `[[policy]]`.
    pub policy: Option<String>,
    /// Name of a `[[backend]]`.
    pub backend: Option<String>,
    /// Protocols, most preferred first.
    pub alpn: Vec<String>,
    /// What to do when no protocol is shared; absent depends on `starttls`.
    pub alpn_mismatch: Option<AlpnMismatch>,
    /// What to do with a name that no certificate covers; absent depends on `starttls`.
    pub unknown_names: Option<UnknownNames>,
    /// Networks whose clients are let in; empty is all.
    pub allow: Vec<String>,
    /// Networks whose clients are not let in.
    pub deny: Vec<String>,
    /// The PROXY header that every connection begins with.
    pub accept_proxy: Option<FileAcceptProxy>,
    /// Networks of those who may send it.
    pub trusted_networks: Vec<String>,
    /// `[[listener.route]]`
    pub route: Vec<FileRoute>,
    /// Connections waiting to be accepted.
    pub backlog: u32,
    /// A duration or `off`; absent is 10 s where clients speak first.
    pub defer_accept: Option<Scalar>,
    /// Queue length or `off`.
    pub fast_open: Scalar,
    /// A duration or `off`.
    pub keepalive: Scalar,
    /// A size or `system`.
    pub receive_buffer: Scalar,
    /// A size or `system`.
    pub send_buffer: Scalar,
}

impl Default for FileListener {
    fn default() -> Self {
        Self {
            name: None,
            bind: None,
            tls: true,
            mode: FileMode::default(),
            starttls: None,
            cancel_requests: None,
            certificates: None,
            policy: None,
            backend: None,
            alpn: Vec::new(),
            alpn_mismatch: None,
            unknown_names: None,
            allow: Vec::new(),
            deny: Vec::new(),
            accept_proxy: None,
            trusted_networks: Vec::new(),
            route: Vec::new(),
            backlog: 4096,
            defer_accept: None,
            fast_open: "off".into(),
            keepalive: "off".into(),
            receive_buffer: "system".into(),
            send_buffer: "system".into(),
        }
    }
}

/// Versions of the PROXY protocol that are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileAcceptProxy {
    /// Text.
    V1,
    /// Binary.
    V2,
    /// Either.
    Any,
}

/// What is done with the TLS of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileMode {
    /// It ends here.
    #[default]
    Terminate,
    /// It is looked at and passed on as it is.
    Passthrough,
}

/// A protocol that begins in clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileStartTls {
    /// RFC 3207.
    Smtp,
    /// RFC 9051, section 6.2.1.
    Imap,
    /// RFC 2595, section 4.
    Pop3,
    /// SSLRequest.
    Postgresql,
}

impl From<FileStartTls> for Protocol {
    fn from(protocol: FileStartTls) -> Self {
        match protocol {
            FileStartTls::Smtp => Self::Smtp,
            FileStartTls::Imap => Self::Imap,
            FileStartTls::Pop3 => Self::Pop3,
            FileStartTls::Postgresql => Self::Postgresql,
        }
    }
}

/// `[[listener.route]]`: where some of a listener's clients go.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileRoute {
    /// Server names, exact or `*.name`.
    pub names: Vec<String>,
    /// Protocols; the route is for clients that offer one of them.
    pub alpn: Option<Vec<String>>,
    /// Name of a `[[policy]]`.
    pub policy: Option<String>,
    /// Name of a `[[backend]]`.
    pub backend: Option<String>,
}

/// An entry of `certificates`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum FileCertificate {
    /// A bundle of chain and key, or a directory of bundles.
    Path(String),
    /// Chain and key in two files.
    Pair(FilePair),
}

/// `{ chain = "..", key = ".." }`
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FilePair {
    /// Certificates, the server's own first.
    pub chain: Option<String>,
    /// The private key.
    pub key: Option<String>,
}

impl<'de> Deserialize<'de> for FileCertificate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl<'de> Visitor<'de> for Shapes {
            type Value = FileCertificate;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a file, a directory or { chain = \"..\", key = \"..\" }")
            }

            fn visit_str<E>(self, path: &str) -> Result<Self::Value, E> {
                Ok(FileCertificate::Path(path.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                FilePair::deserialize(MapAccessDeserializer::new(map)).map(FileCertificate::Pair)
            }
        }
        deserializer.deserialize_any(Shapes)
    }
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileLimits {
    /// Connections in all; absent is what descriptors allow.
    pub connections: Option<u64>,
    /// Unfinished handshakes.
    pub handshakes: u64,
    /// A size.
    pub client_hello: Scalar,
    /// A size.
    pub certificate_chain: Scalar,
    /// Connections.
    pub accepts_per_turn: u64,
    /// Handshakes.
    pub handshakes_per_turn: u64,
    /// A duration.
    pub handshake_time_per_turn: Scalar,
    /// A size.
    pub bytes_per_turn: Scalar,
}

impl Default for FileLimits {
    fn default() -> Self {
        Self {
            connections: None,
            handshakes: 10_000,
            client_hello: "16KiB".into(),
            certificate_chain: "16KiB".into(),
            accepts_per_turn: 64,
            handshakes_per_turn: 16,
            handshake_time_per_turn: "1ms".into(),
            bytes_per_turn: "256KiB".into(),
        }
    }
}

/// `[timeouts]`, all durations.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileTimeouts {
    /// From accept to a whole hello.
    pub hello: Scalar,
    /// From accept to the end of the handshake.
    pub handshake: Scalar,
    /// To connect to a server.
    pub connect: Scalar,
    /// Without a byte in either direction.
    pub idle: Scalar,
    /// Without a byte once one side has finished sending.
    pub half_closed: Scalar,
    /// For the client to take the last bytes and close.
    pub linger: Scalar,
    /// From SIGTERM to the end of the process.
    pub drain: Scalar,
}

impl Default for FileTimeouts {
    fn default() -> Self {
        Self {
            hello: "3s".into(),
            handshake: "10s".into(),
            connect: "5s".into(),
            idle: "10m".into(),
            half_closed: "1m".into(),
            linger: "2s".into(),
            drain: "30s".into(),
        }
    }
}

/// `[sessions]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileSessions {
    /// Sessions; 0 is off.
    pub table_entries: u64,
    /// A size.
    pub table_size: Scalar,
    /// A duration.
    pub id_lifetime: Scalar,
    /// A duration; not in a cluster.
    pub ticket_rotation: Option<Scalar>,
    /// A duration.
    pub max_age: Option<Scalar>,
}

impl Default for FileSessions {
    fn default() -> Self {
        Self {
            table_entries: 200_000,
            table_size: "128MiB".into(),
            id_lifetime: "5m".into(),
            ticket_rotation: None,
            max_age: None,
        }
    }
}

/// `[admission]`; a limit that is not set is off.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileAdmission {
    /// Of all clients together.
    pub full_handshakes_per_second: Option<u64>,
    /// At once; absent is as many as in a second.
    pub burst: Option<u64>,
    /// Begun and not ended.
    pub full_handshakes_in_flight: Option<u64>,
    /// Of one source.
    pub source_full_handshakes_per_second: Option<u64>,
    /// At once; absent is as many as in a second.
    pub source_burst: Option<u64>,
    /// Begun and not ended, of one source.
    pub source_full_handshakes_in_flight: Option<u64>,
    /// Open, of one source.
    pub connections_per_source: Option<u64>,
    /// Without keys, of one source.
    pub half_open_per_source: u64,
    /// Bits of an IPv4 address that make a source.
    pub prefix_v4: u64,
    /// Bits of an IPv6 address that make a source.
    pub prefix_v6: u64,
    /// Sources that are tracked at most.
    pub sources: u64,
}

impl Default for FileAdmission {
    fn default() -> Self {
        Self {
            full_handshakes_per_second: None,
            burst: None,
            full_handshakes_in_flight: None,
            source_full_handshakes_per_second: None,
            source_burst: None,
            source_full_handshakes_in_flight: None,
            connections_per_source: None,
            half_open_per_source: 1000,
            prefix_v4: 32,
            prefix_v6: 64,
            sources: 100_000,
        }
    }
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileLog {
    /// A filter of `tracing`.
    pub level: String,
    /// Text or JSON.
    pub format: LogFormat,
    /// `stderr` or a file.
    pub file: String,
    /// `off`, `stderr` or a file.
    pub access: String,
}

impl Default for FileLog {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: LogFormat::default(),
            file: "stderr".to_owned(),
            access: "off".to_owned(),
        }
    }
}

/// `[admin]`
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileAdmin {
    /// `HOST:PORT` or `[V6]:PORT`.
    pub address: Option<String>,
    /// Names by which browsers and scrapers call the pages.
    pub hosts: Vec<String>,
}

/// `[process]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileProcess {
    /// A number or `auto`.
    pub workers: Scalar,
    /// Pin each worker to a core.
    pub pin: bool,
    /// User to become once the sockets are bound.
    pub user: Option<String>,
    /// Group to become.
    pub group: Option<String>,
    /// Allow core dumps.
    pub core_dumps: bool,
    /// Write TLS secrets to the file that SSLKEYLOGFILE names.
    pub key_log: bool,
}

impl Default for FileProcess {
    fn default() -> Self {
        Self {
            workers: "auto".into(),
            pin: true,
            user: None,
            group: None,
            core_dumps: false,
            key_log: false,
        }
    }
}

/// A string or a whole number as written, to be parsed by its notation later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Scalar(pub String);

impl From<&str> for Scalar {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl Visitor<'_> for Shapes {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a whole number")
            }

            fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(text.to_owned()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }
        }
        deserializer.deserialize_any(Shapes)
    }
}
