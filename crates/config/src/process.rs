//! Sections with one table each: limits, timeouts, sessions, admission, logs, admin pages and
//! process.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use becket_proto::admission::{Prefixes, Rate, Share};

use crate::address::{AdminAddress, HostName, SectionName, SyslogAddress};
use crate::choices::{Facility, LogFormat, RsaBatch, SandboxMode};
use crate::memory_limit::MemoryLimit;
use crate::notation::{
    Auto, Bytes, DAY, HOUR, MILLISECOND, SECOND, Text, Time, ValueError, Whole, WholeOr, YEAR,
    as_text, checked_text, list,
};
use crate::section::section;

section! {
/// `[limits]`: bounds of resources that peers can consume, and of the work in one turn of the event
/// loop.
#[derive(Copy)]
pub struct LimitsSection {
    /// Maximum number of connections over all workers; absent means as many as file descriptors
    /// allow.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub connections: Option<usize>,
    /// Memory use above which idle connections are closed. At higher levels, new clients are first
    /// delayed, then rejected.
    pub memory: MemoryLimit,
    /// Maximum number of unfinished handshakes, over all workers.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub handshakes: usize = 10_000,
    /// Maximum length of a ClientHello in bytes, with record headers. curl sends about 600 bytes,
    /// and 1.8 KB with X25519MLKEM768. rustls accepts no handshake message above 64 KiB.
    #[serde(with = "Bytes::<1024, { 64 << 10 }>")]
    pub client_hello: usize = 16 << 10,
    /// Maximum length of a peer's certificate chain in bytes. One certificate has several hundred
    /// bytes.
    #[serde(with = "Bytes::<1024, { 64 << 10 }>")]
    pub certificate_chain: usize = 16 << 10,
    /// Maximum number of certificates in a chain in addition to the peer's own. webpki checks paths
    /// of at most six, so a higher limit would have no effect.
    #[serde(with = "Whole::<1, 6>")]
    pub chain_intermediates: usize = 6,
    /// Maximum number of intermediate certificates with the same subject. Two are needed if an
    /// authority has a new key or is cross-signed. More would slow down path building.
    #[serde(with = "Whole::<1, 2>")]
    pub chain_same_subject: usize = 2,
    /// Maximum number of bytes relayed for one connection and direction per turn. The minimum is
    /// one TLS record (RFC 8446, section 5.1), because a longer record could never be relayed.
    #[serde(with = "Bytes::<{ 16 << 10 }, { 1 << 30 }>")]
    pub bytes_per_turn: usize = 256 << 10,
    /// Number of pipes per worker for splice(2); 0 is off. splice(2) copies data within the kernel
    /// if becket itself encrypts neither side.
    #[serde(with = "Whole::<0, 100_000>")]
    pub pipes: usize = 64,
    /// Number of bytes after which the kernel takes over the TLS of a connection, if enabled.
    #[serde(with = "Bytes::<0, { 1 << 40 }>")]
    pub kernel_tls_after: usize = 1 << 20,
    /// Use kernel TLS 1.3 even if the kernel cannot replace keys: a KeyUpdate then ends the
    /// connection.
    pub kernel_tls_without_rekey: bool,
    /// Maximum length of a file request's first line and headers, in bytes.
    #[serde(with = "Bytes::<512, { 64 << 10 }>")]
    pub request_head: usize = 8 << 10,
    /// Maximum number of file requests per connection.
    #[serde(with = "Whole::<1, 1_000_000_000>")]
    pub requests: u32 = 1000,
}
}

section! {
/// `[timeouts]`: time limits of a connection's phases. The minimum is a millisecond, the resolution
/// of the timers.
pub struct Timeouts {
    /// Maximum time from accept to the complete ClientHello.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub hello: Duration = Duration::from_secs(3),
    /// Maximum time from accept to the end of the handshake.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub handshake: Duration = Duration::from_secs(10),
    /// Maximum time for a signature by a PKCS#11 token.
    #[serde(with = "Time::<{ 10 * MILLISECOND }, { 60 * SECOND }>")]
    pub pkcs11: Duration = Duration::from_secs(5),
    /// Maximum time to connect to a server.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub connect: Duration = Duration::from_secs(5),
    /// Maximum time without data in either direction.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub idle: Duration = Duration::from_secs(600),
    /// Maximum time without data after one side has finished sending.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub half_closed: Duration = Duration::from_secs(60),
    /// Maximum time from the first byte of a file request to the end of its headers.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub request: Duration = Duration::from_secs(10),
    /// Maximum time from a response to the next file request.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub keep_alive: Duration = Duration::from_secs(75),
    /// Maximum time without data in either direction during a drain, unless a response is
    /// outstanding.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub drain_idle: Duration = Duration::from_secs(5),
    /// Maximum time for the client to read the last bytes and close.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub linger: Duration = Duration::from_secs(2),
    /// Maximum time from SIGTERM to the exit of the process.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub drain: Duration = Duration::from_secs(30),
    /// Time limit of each phase of an upgrade: the new process first loads everything, then starts
    /// to serve clients.
    #[serde(with = "Time::<SECOND, { 3600 * SECOND }>")]
    pub upgrade: Duration = Duration::from_secs(20),
}
}

section! {
/// `[sessions]`: resumption. No ticket is valid for more than seven days (RFC 8446, section 4.6.1).
pub struct Sessions {
    /// Maximum number of sessions in memory for TLS 1.2 clients that resume by ID; 0 is off.
    #[serde(with = "Whole::<0, 100_000_000>")]
    pub table_entries: usize = 200_000,
    /// Maximum size of the session table in bytes. The table has 64 shards, and the longest
    /// certificate chain must fit into each shard.
    #[serde(with = "Bytes::<{ 8 << 20 }, { 1 << 40 }>")]
    pub table_size: usize = 128 << 20,
    #[serde(with = "Time::<SECOND, { 7 * DAY }>")]
    pub id_lifetime: Duration = Duration::from_secs(300),
    /// Interval of ticket key rotation; absent means 8 h, or the cluster's value.
    #[serde(with = "Time::<SECOND, { 84 * HOUR }>")]
    pub ticket_rotation: Option<Duration>,
    /// Maximum age of a session since its full handshake; absent means 24 h, or the cluster's
    /// value.
    #[serde(with = "Time::<SECOND, { 7 * DAY }>")]
    pub max_age: Option<Duration>,
}
}

section! {
/// `[admission]`: limits for new clients; an absent limit is off. The highest rate is ten million
/// per second, one token every 100 ns, which no machine reaches.
pub struct Admission {
    /// Maximum number of full handshakes per second of all clients together.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub full_handshakes_per_second: Option<NonZeroU32>,
    /// Maximum burst of full handshakes; absent means `full-handshakes-per-second`.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub burst: Option<NonZeroU32>,
    /// Maximum number of unfinished full handshakes of all clients together.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub full_handshakes_in_flight: Option<NonZeroU32>,
    /// Maximum number of full handshakes per second of one source.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub source_full_handshakes_per_second: Option<NonZeroU32>,
    /// Maximum burst of full handshakes of one source; absent means
    /// `source-full-handshakes-per-second`.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub source_burst: Option<NonZeroU32>,
    /// Maximum number of unfinished full handshakes of one source.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub source_full_handshakes_in_flight: Option<NonZeroU32>,
    /// Maximum number of connections of one source.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub connections_per_source: Option<u32>,
    /// Maximum number of connections from one source that have no TLS keys yet, over all workers.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub half_open_per_source: u32 = 1000,
    /// Number of leading bits of an IPv4 address that identify a source.
    #[serde(with = "Whole::<0, 32>")]
    pub prefix_v4: u8 = 32,
    /// Number of leading bits of an IPv6 address that identify a source.
    #[serde(with = "Whole::<0, 128>")]
    pub prefix_v6: u8 = 64,
    /// Maximum number of tracked sources, and of tracked fingerprints.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub sources: usize = 100_000,
    pub name: NameLimits,
    pub ja4: Ja4Limits,
}
}

section! {
/// `[admission.name]`: limits of each server name.
pub struct NameLimits {
    /// Maximum number of open connections to one server name.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub connections: Option<u32>,
    /// Maximum number of full handshakes per second for one server name.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub full_handshakes_per_second: Option<NonZeroU32>,
    /// Maximum burst of full handshakes; absent means `full-handshakes-per-second`.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub burst: Option<NonZeroU32>,
    /// Maximum share of a backend's `queue-length` for clients of one server name, in percent.
    #[serde(with = "Whole::<1, 100>")]
    pub queue_share: Option<u32>,
}
}

section! {
/// `[admission.ja4]`: limits of each fingerprint.
pub struct Ja4Limits {
    /// Maximum number of open connections with one fingerprint.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub connections: Option<u32>,
    /// Maximum number of full handshakes per second with one fingerprint.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub full_handshakes_per_second: Option<NonZeroU32>,
    /// Maximum burst of full handshakes; absent means `full-handshakes-per-second`.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub burst: Option<NonZeroU32>,
    /// Fingerprints of clients to reject.
    #[serde(with = "list")]
    pub refuse: Vec<Ja4Text>,
}
}

/// A JA4 fingerprint, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ja4Text(pub String);

impl Text for Ja4Text {
    const ACCEPTED: &str = "a JA4 fingerprint such as \"t13d1516h2_8daaf6152771_e5627efa2ab1\"";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let text = text.to_ascii_lowercase();
        let lengths = text.split('_').map(|part| {
            let is_fit = part.bytes().all(|byte| byte.is_ascii_alphanumeric());
            is_fit.then_some(part.len())
        });
        if lengths.eq([Some(10), Some(12), Some(12)]) && text.starts_with('t') {
            Ok(Self(text))
        } else {
            Err("not a fingerprint of TLS over TCP".into())
        }
    }

    fn write(&self) -> String {
        self.0.clone()
    }
}

as_text!(Ja4Text);

impl Admission {
    /// Returns the full-handshake limits for all clients together.
    pub fn all(&self) -> Share {
        share(
            self.full_handshakes_per_second,
            self.burst,
            self.full_handshakes_in_flight,
        )
    }

    /// Returns the full-handshake limits for each source.
    pub fn source(&self) -> Share {
        share(
            self.source_full_handshakes_per_second,
            self.source_burst,
            self.source_full_handshakes_in_flight,
        )
    }

    /// Returns the full-handshake limits for each server name.
    pub fn name(&self) -> Share {
        let name = &self.name;
        share(name.full_handshakes_per_second, name.burst, None)
    }

    /// Returns the full-handshake limits for each fingerprint.
    pub fn ja4(&self) -> Share {
        let ja4 = &self.ja4;
        share(ja4.full_handshakes_per_second, ja4.burst, None)
    }

    /// Returns the lengths of the address prefixes that identify a source.
    pub fn prefixes(&self) -> Prefixes {
        Prefixes {
            v4: self.prefix_v4,
            v6: self.prefix_v6,
        }
    }

    pub fn limits_handshakes(&self) -> bool {
        let shares = [self.all(), self.source(), self.name(), self.ja4()];
        shares.iter().any(|share| *share != Share::default())
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

section! {
pub struct Log {
    /// A filter of `tracing`, such as `info` or `becket=debug`.
    pub level: String = "info".to_owned(),
    pub format: LogFormat,
    /// Target of the log. `off` and `syslog` require `log.syslog`.
    pub file: LogTarget = LogTarget::Stderr,
    /// Syslog daemon that also receives every line.
    pub syslog: Option<SyslogAddress>,
    pub syslog_facility: Facility,
    pub syslog_tag: SectionName = SectionName("becket".into()),
    /// Access log: one line per connection.
    pub access: LogTarget = LogTarget::Off,
}
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    Off,
    /// The daemon of `log.syslog`.
    Syslog,
    Stderr,
    /// A file, to which lines are appended.
    File(PathBuf),
}

impl LogTarget {
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Off | Self::Syslog | Self::Stderr => None,
        }
    }

    /// Resolves a relative path against `folder`.
    pub fn below(&self, folder: &Path) -> Self {
        match self {
            Self::File(path) => Self::File(folder.join(path)),
            other => other.clone(),
        }
    }
}

impl Text for LogTarget {
    const ACCEPTED: &str = "stderr, the path of a file, or syslog with log.syslog";

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "" => Err("empty".into()),
            "off" => Ok(Self::Off),
            "syslog" => Ok(Self::Syslog),
            "stderr" => Ok(Self::Stderr),
            path => Ok(Self::File(path.into())),
        }
    }

    fn write(&self) -> String {
        match self {
            Self::Off => "off".to_owned(),
            Self::Syslog => "syslog".to_owned(),
            Self::Stderr => "stderr".to_owned(),
            Self::File(path) => path.to_string_lossy().into_owned(),
        }
    }
}

as_text!(LogTarget);

section! {
pub struct Admin {
    /// Address of the admin pages; if absent, they have no TCP listener.
    pub address: Option<AdminAddress>,
    /// Unix socket for the admin pages, and for requests that change state.
    pub socket: Option<SocketPath>,
    pub socket_mode: SocketMode = SocketMode(0o600),
    /// Owner of the socket's file; absent means the user that creates it.
    pub socket_owner: Option<String>,
    /// Group of the socket's file; absent means the group of its creator.
    pub socket_group: Option<String>,
    /// Host names accepted in requests, in addition to IP addresses and `localhost`.
    #[serde(with = "list")]
    pub hosts: Vec<HostName>,
}
}

checked_text! {
    /// Path of the admin pages' unix socket. A relative path is resolved against the folder of the
    /// configuration file.
    SocketPath(String), "the path of a socket of at most 100 bytes, such as /run/becket/admin.sock", "not the path of a socket", |text| {
        // sun_path holds 108 bytes, including the final NUL (unix(7)), and the socket is created
        // under a longer name.
        (1..=100).contains(&text.len()) && !text.contains('\0') && !text.ends_with('/')
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(pub u32);

impl Text for SocketMode {
    const ACCEPTED: &str = "permissions in octal, such as \"0600\" or \"0660\"";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let digits = matches!(text.len(), 3 | 4) && text.bytes().all(|byte| byte.is_ascii_digit());
        let mode = u32::from_str_radix(text, 8).ok().filter(|_| digits);
        match mode {
            Some(mode) if mode <= 0o777 => Ok(Self(mode)),
            _ => Err("not permissions".into()),
        }
    }

    fn write(&self) -> String {
        format!("{:04o}", self.0)
    }
}

as_text!(SocketMode);

section! {
/// `[process]`: settings that a reload does not change.
pub struct Process {
    /// Worker threads; `auto` means one per usable core.
    #[serde(with = "WholeOr::<Auto, 1, 1024>")]
    pub workers: Option<usize>,
    /// Threads that sign with slow keys, such as RSA-4096; `auto` means one per worker.
    #[serde(with = "WholeOr::<Auto, 0, 1024>")]
    pub crypto_threads: Option<usize>,
    /// Sign with RSA in batches of eight.
    pub rsa_batch: RsaBatch,
    /// Number of PKCS#11 sessions with each token; a session creates one signature at a time.
    #[serde(with = "Whole::<1, 256>")]
    pub pkcs11_sessions: u16 = 8,
    /// Pin each worker to a core.
    pub pin: bool = true,
    /// User to switch to after the sockets are bound.
    pub user: Option<String>,
    /// Group to switch to; absent means the user's group.
    pub group: Option<String>,
    /// File for the process ID of the main process.
    pub pid_file: Option<String>,
    /// Allow core dumps, which contain keys.
    pub core_dumps: bool,
    /// Restrict the serving process to the files and system calls that it needs.
    pub sandbox: SandboxMode,
    /// Lock memory, so that it is not swapped out.
    pub lock_memory: bool,
    /// Write TLS secrets to the file named by SSLKEYLOGFILE.
    pub key_log: bool,
    /// Reload certificate files when they change.
    pub watch: bool = true,
}
}

impl Process {
    pub fn has_crypto_threads(&self) -> bool {
        self.crypto_threads != Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Problem, Report};
    use crate::file::File;

    #[test]
    fn a_log_target_is_written_as_it_is_read_and_a_path_starts_at_its_folder() {
        let folder = Path::new("/etc/becket");
        for (text, below) in [
            ("off", "off"),
            ("syslog", "syslog"),
            ("stderr", "stderr"),
            ("becket.log", "/etc/becket/becket.log"),
            ("/var/log/becket", "/var/log/becket"),
        ] {
            let target = LogTarget::parse(text).unwrap();
            assert_eq!(target.write(), text);
            assert_eq!(target.below(folder).write(), below);
        }
        assert_eq!(LogTarget::parse(""), Err("empty".into()));
    }

    #[test]
    fn the_main_log_cannot_be_disabled() {
        let faults = |text: &str| {
            let mut report = Report::default();
            File::parse(text).unwrap().check(&mut report);
            let of_log = |problem: &Problem| problem.path.starts_with("log.");
            report.errors.iter().filter(|it| of_log(it)).count()
        };
        assert_eq!(faults("[log]\nfile = 'off'\naccess = 'off'\n"), 1);
        assert_eq!(faults("[log]\nfile = 'stderr'\naccess = 'off'\n"), 0);
        assert_eq!(faults("[log]\nfile = 'off'\nsyslog = '/dev/log'\n"), 0);
        assert_eq!(faults("[log]\naccess = 'syslog'\nsyslog = '/dev/log'\n"), 0);
        assert_eq!(faults("[log]\nfile = 'syslog'\naccess = 'syslog'\n"), 2);
    }
}
