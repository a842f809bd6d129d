//! `[[backend]]`: a pool of servers, and how they are looked after.

use std::net::IpAddr;
use std::time::Duration;

use becket_proto::health::{Checks, Passive, Rules};
use becket_proto::http_status::Expected;

use crate::address::{SectionName, ServerAddress};
use crate::choices::{Balance, CheckKind, ConnectionsOnFailure, Introduction, ProxyTlv, StickBy};
use crate::notation::{
    DAY, MILLISECOND, MINUTE, Off, SECOND, Text, Time, TimeOr, Whole, checked_text, list,
};
use crate::policy::ServerTls;
use crate::section::section;

section! {
/// `[[backend]]`
pub struct Backend {
    /// Unique; a label of metrics and logs.
    pub name: SectionName,
    /// `[backend.files]`: a folder whose files are served here, in place of servers; its path alone is enough.
    #[serde(with = "folder")]
    pub files: Option<Files>,
    /// The PROXY header that is sent first on every connection.
    pub proxy_header: Option<Introduction>,
    /// What a header of version 2 says only if asked to.
    pub proxy_tlvs: Vec<ProxyTlv>,
    /// `[backend.tls]`; without it the servers speak plain TCP.
    pub tls: Option<ServerTls>,
    /// Which server gets the next connection.
    pub balance: Balance,
    /// Connections that may wait for a slot; 0 refuses at once. A million are 400 MB and more.
    #[serde(with = "Whole::<0, 1_000_000>")]
    pub queue_length: usize = 1024,
    /// How long one may wait; absent is `timeouts.connect`.
    #[serde(with = "Time::<MILLISECOND, DAY>")]
    pub queue_timeout: Option<Duration>,
    /// How long a connection must be at rest to be ended while others wait for a slot; absent is never.
    #[serde(with = "TimeOr::<Off, { 100 * MILLISECOND }, DAY>")]
    pub idle_reclaim: Option<Duration>,
    /// Whether a client that ends its stream while it waits gives up its place.
    pub abort_on_close: bool,
    /// Further servers or addresses that are tried when a connect fails; each may take `timeouts.connect`.
    #[serde(with = "Whole::<0, 100>")]
    pub retries: u32 = 3,
    /// What becomes of a server's connections when it goes out of service.
    pub connections_on_failure: ConnectionsOnFailure,
    /// By what clients are known again.
    pub stick: StickBy,
    /// Clients that are remembered; the most are some 6 GB.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub stick_entries: usize = 100_000,
    /// How long one is remembered that does not come back.
    #[serde(with = "Time::<SECOND, { 7 * DAY }>")]
    pub stick_lifetime: Duration = Duration::from_secs(30 * 60),
    /// How often server names are resolved anew.
    #[serde(with = "TimeOr::<Off, SECOND, DAY>")]
    pub resolve_interval: Option<Duration> = Some(Duration::from_secs(60)),
    /// Addresses of this host to connect from, in turn; the kernel chooses when there is none.
    #[serde(with = "list")]
    pub source: Vec<IpAddr>,
    /// `[backend.health]`
    pub health: HealthSection,
    /// `[[backend.server]]`
    pub server: Vec<ServerSection>,
}
}

section! {
/// `[backend.files]`
pub struct Files {
    /// The folder; absent is a fault.
    pub root: Option<String>,
    /// Names of files that stand for the folder in which they are, in the order in which they are looked for.
    pub index: Vec<String> = vec!["index.html".to_owned()],
    /// Symbolic links are followed, as long as they stay below the folder.
    pub symlinks: bool,
    /// A file `name.br`, `name.zst` or `name.gz` is sent in place of `name` to clients that take it.
    pub precompressed: bool,
    /// `[[backend.files.cache-control]]`: what clients are told of keeping files; the first whose pattern fits counts.
    pub cache_control: Vec<CacheControl>,
    /// `[[backend.files.error-page]]`
    pub error_page: Vec<ErrorPage>,
    /// The field Strict-Transport-Security of every answer that goes out by TLS.
    pub hsts: Option<FieldValue>,
    /// Files that each worker keeps open.
    #[serde(with = "Whole::<0, 1_000_000>")]
    pub open_files: usize = 256,
}
}

section! {
/// `[[backend.files.cache-control]]`
pub struct CacheControl {
    /// A pattern of paths, with `*`, `?` and `[a-z]`; a star stands for slashes, too.
    pub paths: String,
    /// The value of the field.
    pub value: FieldValue = FieldValue(String::new()),
}
}

section! {
/// `[[backend.files.error-page]]`
pub struct ErrorPage {
    /// The status of the answer.
    pub status: Option<u16>,
    /// The file that is its body, below the folder.
    pub path: String,
}
}

/// A table of files, or the path of its folder.
mod folder {
    use serde::{Deserializer, Serialize, Serializer};

    use super::Files;
    use crate::notation::text_or_table;

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Files>, D::Error> {
        let of_root = |root| Files {
            root: Some(root),
            ..Files::default()
        };
        let accepted = "the path of a folder, or a table with its root";
        text_or_table(d, accepted, of_root, |files| files).map(Some)
    }

    pub(super) fn serialize<S: Serializer>(files: &Option<Files>, s: S) -> Result<S::Ok, S::Error> {
        files.serialize(s)
    }
}

section! {
/// `[[backend.server]]`
pub struct ServerSection {
    /// Where it listens; absent is a fault.
    pub address: Option<ServerAddress>,
    /// Its share of new connections; with 0 it gets only clients that stick to it. As HAProxy: enough steps for any pair of
    /// machines.
    #[serde(with = "Whole::<0, 256>")]
    pub weight: u32 = 1,
    /// Connections that it may have; absent is no limit.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub maxconn: Option<u32>,
    /// Serves only when no other server can.
    pub backup: bool,
    /// Gets no connections.
    pub disabled: bool,
    /// Its number in becket's tickets, when it is a becket itself.
    #[serde(with = "Whole::<0, 65_535>")]
    pub node: Option<u16>,
}
}

section! {
/// `[backend.health]`: how the servers are looked after.
pub struct HealthSection {
    /// How far a check goes.
    pub check: CheckKind,
    /// Between two checks.
    #[serde(with = "Time::<{ 100 * MILLISECOND }, DAY>")]
    pub interval: Duration = Duration::from_secs(2),
    /// Between two checks while the state may change.
    #[serde(with = "Time::<{ 100 * MILLISECOND }, DAY>")]
    pub fast_interval: Duration = Duration::from_secs(1),
    /// For each address of a server.
    #[serde(with = "Time::<MILLISECOND, { 10 * MINUTE }>")]
    pub timeout: Duration = Duration::from_secs(2),
    /// Good checks in a row that bring a server back.
    #[serde(with = "Whole::<1, 1000>")]
    pub rise: u32 = 2,
    /// Bad checks in a row that take it out.
    #[serde(with = "Whole::<1, 1000>")]
    pub fall: u32 = 3,
    /// What an HTTP check asks for.
    pub path: RequestPath = RequestPath("/".to_owned()),
    /// The host that it names; absent is the server's address.
    pub host: Option<RequestHost>,
    /// Statuses of a server that is well.
    #[serde(with = "list")]
    pub expect: Vec<Expected> = ["2xx", "3xx"]
        .iter()
        .filter_map(|one| one.parse().ok())
        .collect(),
    /// How long a server that came back gets less than its share.
    #[serde(with = "TimeOr::<Off, SECOND, DAY>")]
    pub slow_start: Option<Duration>,
    /// Connects that fail in a row and take a server out; absent is off.
    #[serde(with = "Whole::<1, 1000>")]
    pub passive_failures: Option<u32>,
    /// How long it then stays out.
    #[serde(with = "Time::<{ 100 * MILLISECOND }, DAY>")]
    pub passive_pause: Duration = Duration::from_secs(10),
}
}

impl HealthSection {
    /// What takes a server out of service and brings it back.
    pub fn rules(&self) -> Rules {
        let checks = Checks {
            interval: self.interval,
            fast_interval: self.fast_interval,
            rise: self.rise,
            fall: self.fall,
        };
        let pause = self.passive_pause;
        let passive = self.passive_failures;
        Rules {
            checks: (self.check != CheckKind::None).then_some(checks),
            passive: passive.map(|failures| Passive { failures, pause }),
            slow_start: self.slow_start.unwrap_or_default(),
        }
    }
}

checked_text! {
    /// A value of an HTTP field, without line ends.
    FieldValue(String), "visible ASCII and spaces", "not the value of a field", |text| {
        !text.trim().is_empty() && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
    };
    /// The path in a request line.
    RequestPath(String), "visible ASCII, beginning with a slash", "not a path", |text| {
        text.starts_with('/') && is_visible(text)
    };
    /// The host of a request.
    RequestHost(String), "visible ASCII", "not a host", |text| !text.is_empty() && is_visible(text);
}

fn is_visible(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}
