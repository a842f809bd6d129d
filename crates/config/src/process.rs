//! The sections that are one table each: limits, times, sessions, admission, logs, the admin pages and the process.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use becket_proto::admission::{Prefixes, Rate, Share};
use serde::{Deserialize, Serialize};

use crate::address::{AdminAddress, HostName};
use crate::choices::LogFormat;
use crate::notation::{
    Auto, Bytes, DAY, HOUR, MILLISECOND, SECOND, Text, Time, Whole, WholeOr, YEAR, as_text, list,
};

/// `[limits]`: bounds on what peers can make grow, and on the work of one loop turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limits {
    /// Connections in all, over all workers; absent is what descriptors allow.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub connections: Option<usize>,
    /// Unfinished handshakes, over all workers.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub handshakes: usize,
    /// Bytes of an unfinished ClientHello, record headers included. A hello of curl is about 600 bytes, one with
    /// X25519MLKEM768 1.8 KB; rustls takes no handshake message above 64 KiB.
    #[serde(with = "Bytes::<1024, { 64 << 10 }>")]
    pub client_hello: usize,
    /// Bytes of a peer's chain of certificates; one has some hundred at least.
    #[serde(with = "Bytes::<1024, { 64 << 10 }>")]
    pub certificate_chain: usize,
    /// Certificates of the chain beside the peer's own. webpki goes no deeper than six: more could only be filler.
    #[serde(with = "Whole::<1, 6>")]
    pub chain_intermediates: usize,
    /// How many of those may have one subject: an authority that has a new key, or is signed by two others, is there twice.
    /// With more, the search for a path becomes long.
    #[serde(with = "Whole::<1, 2>")]
    pub chain_same_subject: usize,
    /// Connections accepted in one turn of a worker's loop.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub accepts_per_turn: usize,
    /// Handshakes moved in one turn of a worker's loop.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub handshakes_per_turn: usize,
    /// Time after which no further handshake is moved in one turn.
    #[serde(with = "Time::<MILLISECOND, SECOND>")]
    pub handshake_time_per_turn: Duration,
    /// Bytes relayed for one connection and direction in one turn; at least one TLS record (RFC 8446, section 5.1), or it
    /// could never be relayed.
    #[serde(with = "Bytes::<{ 16 << 10 }, { 1 << 30 }>")]
    pub bytes_per_turn: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: None,
            handshakes: 10_000,
            client_hello: 16 << 10,
            certificate_chain: 16 << 10,
            chain_intermediates: 6,
            chain_same_subject: 2,
            accepts_per_turn: 64,
            handshakes_per_turn: 16,
            handshake_time_per_turn: Duration::from_millis(1),
            bytes_per_turn: 256 << 10,
        }
    }
}

/// `[timeouts]`: how long each phase of a connection may take. At least a millisecond, the resolution of the timers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Timeouts {
    /// From accept to a whole hello.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub hello: Duration,
    /// From accept to the end of the handshake.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub handshake: Duration,
    /// To connect to a server.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub connect: Duration,
    /// Without a byte in either direction.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub idle: Duration,
    /// Without a byte once one side has finished sending.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub half_closed: Duration,
    /// While draining, without a byte in either direction and without an answer that is due.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub drain_idle: Duration,
    /// For the client to take the last bytes and close.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub linger: Duration,
    /// From SIGTERM to the end of the process.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            hello: Duration::from_secs(3),
            handshake: Duration::from_secs(10),
            connect: Duration::from_secs(5),
            idle: Duration::from_secs(600),
            half_closed: Duration::from_secs(60),
            drain_idle: Duration::from_secs(5),
            linger: Duration::from_secs(2),
            drain: Duration::from_secs(30),
        }
    }
}

/// `[sessions]`: resumption. No ticket is good for more than seven days (RFC 8446, section 4.6.1).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Sessions {
    /// Sessions kept in memory for TLS 1.2 clients that resume by ID; 0 is off.
    #[serde(with = "Whole::<0, 100_000_000>")]
    pub table_entries: usize,
    /// Bytes of what is kept for them. The table has 64 parts, and each must have room for the longest chain.
    #[serde(with = "Bytes::<{ 8 << 20 }, { 1 << 40 }>")]
    pub table_size: usize,
    /// How long a session ID is good for.
    #[serde(with = "Time::<SECOND, { 7 * DAY }>")]
    pub id_lifetime: Duration,
    /// How often the ticket key changes; absent is 8 h, or what the cluster has.
    #[serde(with = "Time::<SECOND, { 84 * HOUR }>")]
    pub ticket_rotation: Option<Duration>,
    /// Age after the full handshake at which no session resumes; absent is 24 h, or what the cluster has.
    #[serde(with = "Time::<SECOND, { 7 * DAY }>")]
    pub max_age: Option<Duration>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            table_entries: 200_000,
            table_size: 128 << 20,
            id_lifetime: Duration::from_secs(300),
            ticket_rotation: None,
            max_age: None,
        }
    }
}

/// `[admission]`; a limit that is not set is off. More than ten million is more than any machine does in a second; a token
/// then still takes 100 ns to grow.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Admission {
    /// Full handshakes of all clients together.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub full_handshakes_per_second: Option<NonZeroU32>,
    /// At once; absent is as many as in a second.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub burst: Option<NonZeroU32>,
    /// Begun and not ended.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub full_handshakes_in_flight: Option<NonZeroU32>,
    /// Full handshakes of one source.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub source_full_handshakes_per_second: Option<NonZeroU32>,
    /// At once; absent is as many as in a second.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub source_burst: Option<NonZeroU32>,
    /// Begun and not ended, of one source.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub source_full_handshakes_in_flight: Option<NonZeroU32>,
    /// Connections of one source.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub connections_per_source: Option<u32>,
    /// Connections without keys of one source, over all workers.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub half_open_per_source: u32,
    /// Bits of an IPv4 address that make a source.
    #[serde(with = "Whole::<0, 32>")]
    pub prefix_v4: u8,
    /// Bits of an IPv6 address that make a source.
    #[serde(with = "Whole::<0, 128>")]
    pub prefix_v6: u8,
    /// Sources that are tracked at most.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub sources: usize,
}

impl Default for Admission {
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

impl Admission {
    /// Full handshakes of all clients together.
    pub fn all(&self) -> Share {
        share(
            self.full_handshakes_per_second,
            self.burst,
            self.full_handshakes_in_flight,
        )
    }

    /// Full handshakes of one source.
    pub fn source(&self) -> Share {
        share(
            self.source_full_handshakes_per_second,
            self.source_burst,
            self.source_full_handshakes_in_flight,
        )
    }

    /// How much of an address makes a source.
    pub fn prefixes(&self) -> Prefixes {
        Prefixes {
            v4: self.prefix_v4,
            v6: self.prefix_v6,
        }
    }

    /// Whether a full handshake needs anything.
    pub fn limits_handshakes(&self) -> bool {
        self.all() != Share::default() || self.source() != Share::default()
    }
}

fn share(
    rate: Option<NonZeroU32>,
    burst: Option<NonZeroU32>,
    in_flight: Option<NonZeroU32>,
) -> Share {
    Share {
        rate: rate.map(|rate| Rate::new(rate, burst.unwrap_or(rate))),
        in_flight: in_flight.map(NonZeroU32::get),
    }
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Log {
    /// A filter of `tracing`, such as `info` or `becket=debug`.
    pub level: String,
    /// Shape of the lines.
    pub format: LogFormat,
    /// Not `off`.
    pub file: LogTarget,
    /// One line per connection.
    pub access: LogTarget,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: LogFormat::default(),
            file: LogTarget::Stderr,
            access: LogTarget::Off,
        }
    }
}

/// Where lines of a log go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Nowhere.
    Off,
    /// To the standard error output.
    Stderr,
    /// To the end of a file.
    File(PathBuf),
}

impl LogTarget {
    /// The file, where it is one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Off | Self::Stderr => None,
        }
    }

    /// Where lines go if a relative path starts at this folder.
    pub fn below(&self, folder: &Path) -> Self {
        match self {
            Self::File(path) => Self::File(folder.join(path)),
            other => other.clone(),
        }
    }
}

impl Text for LogTarget {
    const ACCEPTED: &str = "stderr or the path of a file";

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("empty".to_owned()),
            "off" => Ok(Self::Off),
            "stderr" => Ok(Self::Stderr),
            path => Ok(Self::File(path.into())),
        }
    }

    fn write(&self) -> String {
        match self {
            Self::Off => "off".to_owned(),
            Self::Stderr => "stderr".to_owned(),
            Self::File(path) => path.to_string_lossy().into_owned(),
        }
    }
}

as_text!(LogTarget);

/// `[admin]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Admin {
    /// Where the pages are; nothing listens when absent.
    pub address: Option<AdminAddress>,
    /// Names that a request may give as its host, beside addresses and `localhost`.
    #[serde(with = "list")]
    pub hosts: Vec<HostName>,
}

/// `[process]`: a reload does not change it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Process {
    /// Worker threads; `auto` is one per usable core.
    #[serde(with = "WholeOr::<Auto, 1, 1024>")]
    pub workers: Option<usize>,
    /// Pin each worker to a core.
    pub pin: bool,
    /// User to become once the sockets are bound.
    pub user: Option<String>,
    /// Group to become; absent is the user's.
    pub group: Option<String>,
    /// Allow core dumps, which hold keys.
    pub core_dumps: bool,
    /// Write TLS secrets to the file that SSLKEYLOGFILE names.
    pub key_log: bool,
}

impl Default for Process {
    fn default() -> Self {
        Self {
            workers: None,
            pin: true,
            user: None,
            group: None,
            core_dumps: false,
            key_log: false,
        }
    }
}
