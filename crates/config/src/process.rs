//! Sections that exist once: limits, timeouts, sessions, admission, logs, admin pages and process.

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
/// `[limits]`: limits on resources per process and per connection, and on the work in one turn of
/// the event loop.
#[derive(Copy)]
pub struct LimitsSection {
    /// Maximum number of connections over all workers; absent means the limit on file descriptors.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub connections: Option<usize>,
    /// Memory use above which idle connections are closed. At higher levels, new clients are first
    /// delayed, then rejected.
    pub memory: MemoryLimit,
    /// Maximum number of unfinished handshakes, over all workers.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub handshakes: usize = 10_000,
    /// Maximum length of a ClientHello in bytes, including record headers. Typical hellos have 600
    /// to 1800 bytes. rustls accepts at most 64 KiB.
    #[serde(with = "Bytes::<1024, { 64 << 10 }>")]
    pub client_hello: usize = 16 << 10,
    /// Maximum length of a peer's certificate chain in bytes.
    #[serde(with = "Bytes::<1024, { 64 << 10 }>")]
    pub certificate_chain: usize = 16 << 10,
    /// Maximum number of certificates in a chain in addition to the peer's own. webpki verifies at
    /// most six.
    #[serde(with = "Whole::<1, 6>")]
    pub chain_intermediates: usize = 6,
    /// Maximum number of intermediate certificates with one subject. An authority with a new key or
    /// a cross-signed certificate needs two. More would slow down path building.
    #[serde(with = "Whole::<1, 2>")]
    pub chain_same_subject: usize = 2,
    /// Maximum number of bytes relayed per connection and direction in one turn. The minimum is one
    /// TLS record (RFC 8446, section 5.1).
    #[serde(with = "Bytes::<{ 16 << 10 }, { 1 << 30 }>")]
    pub bytes_per_turn: usize = 256 << 10,
    /// Number of pipes per worker for splice(2), which relays data inside the kernel if becket
    /// encrypts neither side; 0 is off.
    #[serde(with = "Whole::<0, 100_000>")]
    pub pipes: usize = 64,
    /// Number of bytes after which the kernel encrypts and decrypts a connection, if kernel TLS is
    /// enabled.
    #[serde(with = "Bytes::<0, { 1 << 40 }>")]
    pub kernel_tls_after: usize = 1 << 20,
    /// Use kernel TLS 1.3 even if the kernel cannot update keys. A KeyUpdate of the peer then
    /// closes the connection.
    pub kernel_tls_without_rekey: bool,
    /// Maximum length in bytes of the request line and headers of a request for a file.
    #[serde(with = "Bytes::<512, { 64 << 10 }>")]
    pub request_head: usize = 8 << 10,
    /// Maximum number of requests for files on one connection.
    #[serde(with = "Whole::<1, 1_000_000_000>")]
    pub requests: u32 = 1000,
}
}

section! {
/// `[timeouts]`: time limits of a connection's phases. The minimum is one millisecond.
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
    /// Maximum time from the first byte of a request for a file to the end of its headers.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub request: Duration = Duration::from_secs(10),
    /// Maximum time from a response to the next request for a file.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub keep_alive: Duration = Duration::from_secs(75),
    /// Maximum time without data in either direction during a drain, unless a response is
    /// outstanding.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub drain_idle: Duration = Duration::from_secs(5),
    /// Maximum time for the client to close after the last bytes were sent.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub linger: Duration = Duration::from_secs(2),
    /// Maximum time from SIGTERM to the exit of the process.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub drain: Duration = Duration::from_secs(30),
    /// Maximum time for each phase of an upgrade: first the new process loads its files, then it
    /// starts to accept clients.
    #[serde(with = "Time::<SECOND, { 3600 * SECOND }>")]
    pub upgrade: Duration = Duration::from_secs(20),
}
}

section! {
/// `[sessions]`: resumption. No ticket is valid for more than seven days (RFC 8446, section 4.6.1).
pub struct Sessions {
    /// Maximum number of sessions in the table for TLS 1.2 clients that resume by session ID; 0 is
    /// off.
    #[serde(with = "Whole::<0, 100_000_000>")]
    pub table_entries: usize = 200_000,
    /// Maximum size of the session table in bytes. The minimum depends on `certificate-chain`: a
    /// session with the longest chain must fit into each of the 64 shards.
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
/// `[admission]`: limits on new clients; an absent limit is off. Rates are limited to ten million
/// per second.
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
/// `[admission.name]`: limits for each server name.
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
    /// Maximum percentage of a backend's `queue-length` that clients of one server name can use.
    #[serde(with = "Whole::<1, 100>")]
    pub queue_share: Option<u32>,
}
}

section! {
/// `[admission.ja4]`: limits for each JA4 fingerprint.
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
    /// Returns the limits on full handshakes of all clients together.
    pub fn all(&self) -> Share {
        share(
            self.full_handshakes_per_second,
            self.burst,
            self.full_handshakes_in_flight,
        )
    }

    /// Returns the limits on full handshakes of one source.
    pub fn source(&self) -> Share {
        share(
            self.source_full_handshakes_per_second,
            self.source_burst,
            self.source_full_handshakes_in_flight,
        )
    }

    /// Returns the limits on full handshakes for one server name.
    pub fn name(&self) -> Share {
        let name = &self.name;
        share(name.full_handshakes_per_second, name.burst, None)
    }

    /// Returns the limits on full handshakes with one fingerprint.
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
    /// The syslog daemon configured in `log.syslog`.
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

    /// Returns the target with a relative path resolved against `folder`.
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
    /// TCP address of the admin pages; absent means none.
    pub address: Option<AdminAddress>,
    /// Unix socket for the admin pages and for requests that change state.
    pub socket: Option<SocketPath>,
    pub socket_mode: SocketMode = SocketMode(0o600),
    /// Owner of the socket file; absent means the user that creates it.
    pub socket_owner: Option<String>,
    /// Group of the socket file; absent means the group of the process that creates it.
    pub socket_group: Option<String>,
    /// Host names accepted in the Host header, in addition to IP addresses and `localhost`.
    #[serde(with = "list")]
    pub hosts: Vec<HostName>,
}
}

checked_text! {
    /// Path of the admin pages' unix socket. A relative path is resolved against the folder of the
    /// configuration file.
    SocketPath(String), "the path of a socket of at most 100 bytes, such as /run/becket/admin.sock", "not the path of a socket", |text| {
        // sun_path holds 108 bytes with the final NUL (unix(7)). The socket is first created under
        // a temporary, longer name.
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
/// `[process]`: settings that a reload cannot change.
pub struct Process {
    /// Number of worker threads; `auto` means one per usable core.
    #[serde(with = "WholeOr::<Auto, 1, 1024>")]
    pub workers: Option<usize>,
    /// Number of threads for signatures with slow keys, such as RSA-4096; `auto` means one per
    /// worker.
    #[serde(with = "WholeOr::<Auto, 0, 1024>")]
    pub crypto_threads: Option<usize>,
    /// Sign with RSA in batches of eight.
    pub rsa_batch: RsaBatch,
    /// Number of PKCS#11 sessions per token, which limits the number of concurrent signatures.
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
    /// Reload the configuration when its file or a cluster secret changes.
    pub watch_config: bool,
    /// File that remembers which certificate files were checked, so that the next start with many
    /// certificates is faster.
    pub certificate_cache: Option<String>,
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
