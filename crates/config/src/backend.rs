//! `[[backend]]`: a pool of servers, or a folder of files.

use std::net::IpAddr;
use std::time::Duration;

use becket_proto::health::{Checks, Passive, Rules};
use becket_proto::http_status::Expected;
use serde::Deserializer;

use crate::address::{SectionName, ServerAddress};
use crate::choices::{Balance, CheckKind, ConnectionsOnFailure, Introduction, ProxyTlv, StickBy};
use crate::notation::{
    DAY, MILLISECOND, MINUTE, Off, SECOND, Text, Time, TimeOr, Whole, checked_text, list,
    text_or_table,
};
use crate::policy::ServerTls;
use crate::section::section;

section! {
pub struct Backend {
    /// Unique name, used as a label in metrics and logs.
    pub name: SectionName,
    /// `[backend.files]`: serves the files of a folder instead of connecting to servers. A string
    /// is short for a table with only `root`.
    #[serde(deserialize_with = "folder")]
    pub files: Option<Files>,
    /// Header with data about the client, sent first on every connection to a server.
    pub proxy_header: Option<Introduction>,
    /// Optional TLVs of a PROXY header of version 2.
    pub proxy_tlvs: Vec<ProxyTlv>,
    /// `[backend.tls]`; without it, connections to servers are plain TCP.
    pub tls: Option<ServerTls>,
    pub balance: Balance,
    /// Maximum number of connections that wait for a server with a free slot; 0 rejects them
    /// immediately. A million waiting connections use at least 400 MB.
    #[serde(with = "Whole::<0, 1_000_000>")]
    pub queue_length: usize = 1024,
    /// Maximum time in the queue for a slot; absent means `timeouts.connect`.
    #[serde(with = "Time::<MILLISECOND, DAY>")]
    pub queue_timeout: Option<Duration>,
    /// Idle time after which a connection may be closed in favour of a connection that waits for a
    /// slot; absent means never.
    #[serde(with = "TimeOr::<Off, { 100 * MILLISECOND }, DAY>")]
    pub idle_reclaim: Option<Duration>,
    /// Remove a client from the queue when the client closes its side of the connection.
    pub abort_on_close: bool,
    /// Maximum number of additional servers or addresses to try after a failed connect. Each
    /// attempt may take `timeouts.connect`.
    #[serde(with = "Whole::<0, 100>")]
    pub retries: u32 = 3,
    /// Treatment of a server's open connections when the server is marked down.
    pub connections_on_failure: ConnectionsOnFailure,
    /// Property by which returning clients are recognized.
    pub stick: StickBy,
    /// Maximum number of remembered clients; 100 million take about 6 GB.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub stick_entries: usize = 100_000,
    /// Time after which the entry of a client that has not returned expires.
    #[serde(with = "Time::<SECOND, { 7 * DAY }>")]
    pub stick_lifetime: Duration = Duration::from_secs(30 * 60),
    /// Interval between DNS lookups of server names.
    #[serde(with = "TimeOr::<Off, SECOND, DAY>")]
    pub resolve_interval: Option<Duration> = Some(Duration::from_secs(60)),
    /// Source addresses for connections to servers, used round-robin. If empty, the kernel chooses.
    #[serde(with = "list")]
    pub source: Vec<IpAddr>,
    pub health: HealthSection,
    pub server: Vec<ServerSection>,
}
}

section! {
pub struct Files {
    /// Path of the folder; required.
    pub root: Option<String>,
    /// Names of index files, in the order of the search.
    pub index: Vec<String> = vec!["index.html".to_owned()],
    /// Follow symbolic links whose target is inside the folder.
    pub symlinks: bool,
    /// Send `name.br`, `name.zst` or `name.gz` instead of `name` to clients that accept the
    /// encoding.
    pub precompressed: bool,
    /// `[[backend.files.cache-control]]`: Cache-Control headers of responses; the first matching
    /// pattern applies.
    pub cache_control: Vec<CacheControl>,
    pub error_page: Vec<ErrorPage>,
    /// Value of the Strict-Transport-Security header, sent in every response over TLS.
    pub hsts: Option<FieldValue>,
    /// Maximum number of files that each worker keeps open.
    #[serde(with = "Whole::<0, 1_000_000>")]
    pub open_files: usize = 256,
}
}

section! {
pub struct CacheControl {
    /// Pattern of request paths with `*`, `?` and `[a-z]`; `*` also matches slashes.
    pub paths: String,
    pub value: FieldValue = FieldValue(String::new()),
}
}

section! {
pub struct ErrorPage {
    pub status: Option<u16>,
    /// File sent as the body, relative to the folder.
    pub path: String,
}
}

/// Deserializes `files` from a table, or from only the path of the folder.
fn folder<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Files>, D::Error> {
    let of_root = |root| Files {
        root: Some(root),
        ..Files::default()
    };
    let accepted = "the path of a folder, or a table with its root";
    text_or_table(d, accepted, of_root, |files| files).map(Some)
}

section! {
pub struct ServerSection {
    /// Address of the server; required.
    pub address: Option<ServerAddress>,
    /// Weight relative to the backend's other servers, in the range of HAProxy. A server with
    /// weight 0 receives only clients that stick to it.
    #[serde(with = "Whole::<0, 256>")]
    pub weight: u32 = 1,
    /// Maximum number of connections; absent means no limit.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub maxconn: Option<u32>,
    /// Use the server only if no other server is available.
    pub backup: bool,
    /// Send no connections to the server.
    pub disabled: bool,
    /// Node number in the tickets of the server, if the server runs becket.
    #[serde(with = "Whole::<0, 65_535>")]
    pub node: Option<u16>,
}
}

section! {
pub struct HealthSection {
    pub check: CheckKind,
    /// Interval between two checks.
    #[serde(with = "Time::<{ 100 * MILLISECOND }, DAY>")]
    pub interval: Duration = Duration::from_secs(2),
    /// Interval before the first result, and while results contradict the server's state. Never
    /// longer than `interval`.
    #[serde(with = "Time::<{ 100 * MILLISECOND }, DAY>")]
    pub fast_interval: Duration = Duration::from_secs(1),
    /// Timeout of a check, for each address of the server.
    #[serde(with = "Time::<MILLISECOND, { 10 * MINUTE }>")]
    pub timeout: Duration = Duration::from_secs(2),
    /// Number of consecutive successful checks after which a server is marked up.
    #[serde(with = "Whole::<1, 1000>")]
    pub rise: u32 = 2,
    /// Number of consecutive failed checks after which a server is marked down.
    #[serde(with = "Whole::<1, 1000>")]
    pub fall: u32 = 3,
    pub path: RequestPath = RequestPath("/".to_owned()),
    /// Host header of an HTTP check; absent means the server's address.
    pub host: Option<RequestHost>,
    /// HTTP statuses that count as healthy.
    #[serde(with = "list")]
    pub expect: Vec<Expected> = ["2xx", "3xx"]
        .iter()
        .filter_map(|one| one.parse().ok())
        .collect(),
    /// Time after a recovery during which the server receives a reduced share of new clients.
    #[serde(with = "TimeOr::<Off, SECOND, DAY>")]
    pub slow_start: Option<Duration>,
    /// Number of consecutive failed connects after which a server is marked down; absent means that
    /// connects do not count.
    #[serde(with = "Whole::<1, 1000>")]
    pub passive_failures: Option<u32>,
    /// Time for which failed connects keep a server marked down.
    #[serde(with = "Time::<{ 100 * MILLISECOND }, DAY>")]
    pub passive_pause: Duration = Duration::from_secs(10),
}
}

impl HealthSection {
    pub fn rules(&self) -> Rules {
        let checks = Checks {
            interval: self.interval,
            fast_interval: self.fast_interval.min(self.interval),
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
    /// Value of an HTTP field, without line breaks.
    FieldValue(String), "visible ASCII and spaces", "not the value of a field", |text| {
        !text.trim().is_empty() && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
    };
    RequestPath(String), "visible ASCII, beginning with a slash", "not a path", |text| {
        text.starts_with('/') && is_visible(text)
    };
    RequestHost(String), "visible ASCII", "not a host", |text| !text.is_empty() && is_visible(text);
}

fn is_visible(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}
