//! The sections that are one table each: limits, times, sessions, admission, logs, the admin pages and the process.

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
/// `[limits]`: bounds on what peers can make grow, and on the work of one loop turn.
#[derive(Copy)]
pub struct LimitsSection {
    /// Connections in all, over all workers; absent is what descriptors allow.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub connections: Option<usize>,
    /// Memory above which connections at rest end; then clients wait, and are refused.
    pub memory: MemoryLimit,
    /// Unfinished handshakes, over all workers.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub handshakes: usize = 10_000,
    /// Bytes of an unfinished ClientHello, record headers included. A hello of curl is about 600 bytes, one with
    /// X25519MLKEM768 1.8 KB; rustls takes no handshake message above 64 KiB.
    #[serde(with = "Bytes::<1024, { 64 << 10 }>")]
    pub client_hello: usize = 16 << 10,
    /// Bytes of a peer's chain of certificates; one has some hundred at least.
    #[serde(with = "Bytes::<1024, { 64 << 10 }>")]
    pub certificate_chain: usize = 16 << 10,
    /// Certificates of the chain beside the peer's own. webpki goes no deeper than six: more could only be filler.
    #[serde(with = "Whole::<1, 6>")]
    pub chain_intermediates: usize = 6,
    /// How many of those may have one subject: an authority that has a new key, or is signed by two others, is there twice.
    /// With more, the search for a path becomes long.
    #[serde(with = "Whole::<1, 2>")]
    pub chain_same_subject: usize = 2,
    /// Bytes relayed for one connection and direction in one turn; at least one TLS record (RFC 8446, section 5.1), or it
    /// could never be relayed.
    #[serde(with = "Bytes::<{ 16 << 10 }, { 1 << 30 }>")]
    pub bytes_per_turn: usize = 256 << 10,
    /// Pipes of one worker, through which bulk passes without a copy where no leg has TLS of ours; 0 is off.
    #[serde(with = "Whole::<0, 100_000>")]
    pub pipes: usize = 64,
    /// Bytes that a leg carries before the kernel takes over its TLS, where that is on.
    #[serde(with = "Bytes::<0, { 1 << 40 }>")]
    pub kernel_tls_after: usize = 1 << 20,
    /// Whether the kernel takes over TLS 1.3 although it cannot replace keys: a KeyUpdate then ends the connection.
    pub kernel_tls_without_rekey: bool,
    /// Bytes of the head of a request for a file.
    #[serde(with = "Bytes::<512, { 64 << 10 }>")]
    pub request_head: usize = 8 << 10,
    /// Requests for files that one connection may make.
    #[serde(with = "Whole::<1, 1_000_000_000>")]
    pub requests: u32 = 1000,
}
}

section! {
/// `[timeouts]`: how long each phase of a connection may take. At least a millisecond, the resolution of the timers.
pub struct Timeouts {
    /// From accept to a whole hello.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub hello: Duration = Duration::from_secs(3),
    /// From accept to the end of the handshake.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub handshake: Duration = Duration::from_secs(10),
    /// For a token to sign.
    #[serde(with = "Time::<{ 10 * MILLISECOND }, { 60 * SECOND }>")]
    pub pkcs11: Duration = Duration::from_secs(5),
    /// To connect to a server.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub connect: Duration = Duration::from_secs(5),
    /// Without a byte in either direction.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub idle: Duration = Duration::from_secs(600),
    /// Without a byte once one side has finished sending.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub half_closed: Duration = Duration::from_secs(60),
    /// From the first byte of a request for a file to its whole head.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub request: Duration = Duration::from_secs(10),
    /// Until the next request for a file.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub keep_alive: Duration = Duration::from_secs(75),
    /// While draining, without a byte in either direction and without an answer that is due.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub drain_idle: Duration = Duration::from_secs(5),
    /// For the client to take the last bytes and close.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub linger: Duration = Duration::from_secs(2),
    /// From SIGTERM to the end of the process.
    #[serde(with = "Time::<MILLISECOND, YEAR>")]
    pub drain: Duration = Duration::from_secs(30),
    /// For the new process of an upgrade to load everything, and once more until it serves.
    #[serde(with = "Time::<SECOND, { 3600 * SECOND }>")]
    pub upgrade: Duration = Duration::from_secs(20),
}
}

section! {
/// `[sessions]`: resumption. No ticket is good for more than seven days (RFC 8446, section 4.6.1).
pub struct Sessions {
    /// Sessions kept in memory for TLS 1.2 clients that resume by ID; 0 is off.
    #[serde(with = "Whole::<0, 100_000_000>")]
    pub table_entries: usize = 200_000,
    /// Bytes of what is kept for them. The table has 64 parts, and each must have room for the longest chain.
    #[serde(with = "Bytes::<{ 8 << 20 }, { 1 << 40 }>")]
    pub table_size: usize = 128 << 20,
    /// How long a session ID is good for.
    #[serde(with = "Time::<SECOND, { 7 * DAY }>")]
    pub id_lifetime: Duration = Duration::from_secs(300),
    /// How often the ticket key changes; absent is 8 h, or what the cluster has.
    #[serde(with = "Time::<SECOND, { 84 * HOUR }>")]
    pub ticket_rotation: Option<Duration>,
    /// Age after the full handshake at which no session resumes; absent is 24 h, or what the cluster has.
    #[serde(with = "Time::<SECOND, { 7 * DAY }>")]
    pub max_age: Option<Duration>,
}
}

section! {
/// `[admission]`; a limit that is not set is off. More than ten million is more than any machine does in a second; a token
/// then still takes 100 ns to grow.
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
    pub half_open_per_source: u32 = 1000,
    /// Bits of an IPv4 address that make a source.
    #[serde(with = "Whole::<0, 32>")]
    pub prefix_v4: u8 = 32,
    /// Bits of an IPv6 address that make a source.
    #[serde(with = "Whole::<0, 128>")]
    pub prefix_v6: u8 = 64,
    /// Sources that are tracked at most, and as many fingerprints.
    #[serde(with = "Whole::<1, 100_000_000>")]
    pub sources: usize = 100_000,
    /// `[admission.name]`
    pub name: NameLimits,
    /// `[admission.ja4]`
    pub ja4: Ja4Limits,
}
}

section! {
/// `[admission.name]`: limits of each server name.
pub struct NameLimits {
    /// Open connections.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub connections: Option<u32>,
    /// Full handshakes.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub full_handshakes_per_second: Option<NonZeroU32>,
    /// At once; absent is as many as in a second.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub burst: Option<NonZeroU32>,
    /// Percent of a backend's `queue-length`.
    #[serde(with = "Whole::<1, 100>")]
    pub queue_share: Option<u32>,
}
}

section! {
/// `[admission.ja4]`: limits of each fingerprint.
pub struct Ja4Limits {
    /// Open connections.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub connections: Option<u32>,
    /// Full handshakes.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub full_handshakes_per_second: Option<NonZeroU32>,
    /// At once; absent is as many as in a second.
    #[serde(with = "Whole::<1, 10_000_000>")]
    pub burst: Option<NonZeroU32>,
    /// Fingerprints that are not served.
    #[serde(with = "list")]
    pub refuse: Vec<Ja4Text>,
}
}

/// A JA4 fingerprint, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ja4Text(String);

impl Ja4Text {
    /// The fingerprint.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

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

    /// Full handshakes of one server name.
    pub fn name(&self) -> Share {
        let name = &self.name;
        share(name.full_handshakes_per_second, name.burst, None)
    }

    /// Full handshakes of one fingerprint.
    pub fn ja4(&self) -> Share {
        let ja4 = &self.ja4;
        share(ja4.full_handshakes_per_second, ja4.burst, None)
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
/// `[log]`
pub struct Log {
    /// A filter of `tracing`, such as `info` or `becket=debug`.
    pub level: String = "info".to_owned(),
    /// Shape of the lines.
    pub format: LogFormat,
    /// Not `off`, unless there is `syslog`.
    pub file: LogTarget = LogTarget::Stderr,
    /// A daemon that gets every line, too.
    pub syslog: Option<SyslogAddress>,
    /// What the lines are about.
    pub syslog_facility: Facility,
    /// The name of the program in them.
    pub syslog_tag: SectionName = SectionName("becket".into()),
    /// One line per connection.
    pub access: LogTarget = LogTarget::Off,
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

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "" => Err("empty".into()),
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

section! {
/// `[admin]`
pub struct Admin {
    /// Where the pages are; nothing listens when absent.
    pub address: Option<AdminAddress>,
    /// A unix socket for the pages, and for changes.
    pub socket: Option<SocketPath>,
    /// Who may connect to it.
    pub socket_mode: SocketMode = SocketMode(0o600),
    /// The user who owns its file; absent is the one who makes it.
    pub socket_owner: Option<String>,
    /// The group that owns its file; absent is that of the one who makes it.
    pub socket_group: Option<String>,
    /// Names that a request may give as its host, beside addresses and `localhost`.
    #[serde(with = "list")]
    pub hosts: Vec<HostName>,
}
}

checked_text! {
    /// Path of the socket of the admin pages. A relative path starts at the folder of the file.
    SocketPath(String), "the path of a socket of at most 100 bytes, such as /run/becket/admin.sock", "not the path of a socket", |text| {
        // sun_path holds 108 bytes with its final NUL (unix(7)), and the socket is made under a longer name.
        (1..=100).contains(&text.len()) && !text.contains('\0') && !text.ends_with('/')
    };
}

/// Permission bits of the file of a socket.
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
/// `[process]`: a reload does not change it.
pub struct Process {
    /// Worker threads; `auto` is one per usable core.
    #[serde(with = "WholeOr::<Auto, 1, 1024>")]
    pub workers: Option<usize>,
    /// Threads that sign for the workers with expensive keys; `auto` is one per worker.
    #[serde(with = "WholeOr::<Auto, 0, 1024>")]
    pub crypto_threads: Option<usize>,
    /// Whether they sign with RSA in batches of eight.
    pub rsa_batch: RsaBatch,
    /// Sessions with a token, each of which makes one signature at a time.
    #[serde(with = "Whole::<1, 256>")]
    pub pkcs11_sessions: u16 = 8,
    /// Pin each worker to a core.
    pub pin: bool = true,
    /// User to become once the sockets are bound.
    pub user: Option<String>,
    /// Group to become; absent is the user's.
    pub group: Option<String>,
    /// A folder that is the whole file system of the process that serves.
    pub chroot: Option<String>,
    /// A file for the number of the main process.
    pub pid_file: Option<String>,
    /// Allow core dumps, which hold keys.
    pub core_dumps: bool,
    /// Confine the process that serves to files and system calls that it needs.
    pub sandbox: SandboxMode,
    /// Keep memory from being swapped out.
    pub lock_memory: bool,
    /// Write TLS secrets to the file that SSLKEYLOGFILE names.
    pub key_log: bool,
    /// Take files of certificates that change.
    pub watch: bool = true,
}
}

impl Process {
    /// Whether workers have signatures made elsewhere.
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
    fn the_log_itself_is_never_off() {
        let faults = |text: &str| {
            let mut report = Report::default();
            File::parse(text).unwrap().check(&mut report);
            let of_log = |problem: &Problem| problem.path.starts_with("log.");
            report.errors.iter().filter(|it| of_log(it)).count()
        };
        assert_eq!(faults("[log]\nfile = 'off'\naccess = 'off'\n"), 1);
        assert_eq!(faults("[log]\nfile = 'stderr'\naccess = 'off'\n"), 0);
        assert_eq!(faults("[log]\nfile = 'off'\nsyslog = '/dev/log'\n"), 0);
    }
}
