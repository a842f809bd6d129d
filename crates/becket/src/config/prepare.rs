//! From the file to the [`Config`]: reads keys, resolves the names that are needed to listen, checks every reference.
//!
//! [`prepare`] changes nothing outside and starts nothing, so that a reload and `becket check`
//! can run it beside a running terminator. It never stops at the first fault: each part leaves
//! a harmless value where it found one and goes on, and the outcome is a `Config` only if there
//! was no error at all. Blocks on files and name resolution. Never panics, whatever the file.
//!
//! This file holds the sections with plain values; `listeners.rs`, `policies.rs` and
//! `backends.rs` hold the rest.

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use becket_sys::identity::Identity;
use rustls_pki_types::UnixTime;
use tracing_subscriber::filter::LevelFilter;

use super::error::{Problem, Rejected, Report};
use super::file::{File, Scalar};
use super::names::Names;
pub use super::names::ServerNames;
use super::values::{self, Address};
use super::{AccessLog, Cluster, Config, Limits, Log, Process, Sessions, Timeouts};
use crate::descriptors;
use crate::files::{Files, reason};
use crate::log::check_level;
use crate::pki::keys::Loader;
use crate::resolver::Resolver;
use crate::secret::ratchet::Ratchet;

/// What the outcome depends on besides the file.
pub struct World<'a> {
    /// Relative paths start here: the folder of the file.
    pub base: &'a Path,
    /// The time at which certificates must be valid.
    pub now: UnixTime,
    /// This machine has IPv6, so `:PORT` means both families.
    pub ipv6: bool,
    /// How many descriptors the process may have open, at most.
    pub descriptors: u64,
    /// Resolves host names.
    pub resolver: Resolver,
    /// Whether those of servers and peers, too.
    pub server_names: ServerNames,
    /// What opens files.
    pub files: Files,
}

impl<'a> World<'a> {
    /// The world as the operating system has it.
    pub fn system(base: &'a Path, now: UnixTime, server_names: ServerNames, files: Files) -> Self {
        Self {
            base,
            now,
            ipv6: UdpSocket::bind("[::]:0").is_ok(),
            descriptors: becket_sys::rlimit::most_open_files(),
            resolver: Resolver::system(),
            server_names,
            files,
        }
    }
}

/// A valid configuration and what was noticed on the way.
#[derive(Debug)]
pub struct Prepared {
    /// Ready for use.
    pub config: Config,
    /// Not wrong enough to refuse.
    pub warnings: Vec<Problem>,
    /// Every file and directory that a reload must be able to read again.
    pub files: Vec<PathBuf>,
    /// The chains of those secrets of the cluster that forget; none of them stays in the
    /// configuration, which would keep what they have forgotten.
    pub ratchets: Vec<Ratchet>,
}

/// Makes a configuration. Blocks.
///
/// # Errors
/// All that is wrong, each with its key path.
pub fn prepare(file: &File, world: &World<'_>) -> Result<Prepared, Rejected> {
    let mut draft = Draft {
        file,
        world,
        loader: Loader {
            provider: rustls::crypto::aws_lc_rs::default_provider(),
            now: world.now,
            files: world.files.clone(),
        },
        report: Report::default(),
        names: Names::new(world.resolver.clone()),
        files: Vec::new(),
        ratchets: Vec::new(),
        binds: Vec::new(),
        used_policies: HashSet::new(),
        used_backends: HashSet::new(),
        metered: false,
        most_chain: 0,
    };
    let mut limits = draft.limits();
    draft.most_chain = limits.certificate_chain;
    if world.server_names == ServerNames::Now {
        draft.names.look_up_servers(file);
    }
    let admission = draft.admission();
    draft.metered = admission.limits_handshakes();
    let backends = draft.backends();
    let policies = draft.policies();
    let mut cluster = draft.cluster();
    let listeners = draft.listeners(&policies);
    draft.stud(&mut cluster, &listeners);
    draft.warn_unused();
    let sessions = draft.sessions(cluster.as_ref(), limits.client_hello / 2);
    draft.check_early_data(&listeners, &backends, &sessions);
    let process = draft.process();
    let fixed = descriptors::fixed(&listeners, process.worker_count());
    limits.connections = draft.connections(fixed);
    let config = Config {
        listeners,
        backends,
        limits,
        timeouts: draft.timeouts(),
        sessions,
        admission,
        cluster,
        log: draft.log(),
        admin: draft.admin(),
        process,
    };
    let Report { errors, warnings } = draft.report;
    if !errors.is_empty() {
        return Err(Rejected {
            origin: String::new(),
            errors,
            warnings,
        });
    }
    Ok(Prepared {
        config,
        warnings,
        files: draft.files,
        ratchets: draft.ratchets,
    })
}

/// A configuration in the making.
pub(super) struct Draft<'a> {
    pub(super) file: &'a File,
    pub(super) world: &'a World<'a>,
    pub(super) loader: Loader,
    pub(super) report: Report,
    names: Names,
    pub(super) files: Vec<PathBuf>,
    pub(super) ratchets: Vec<Ratchet>,
    /// Addresses taken so far, with the key that takes them.
    pub(super) binds: Vec<(SocketAddr, String)>,
    pub(super) used_policies: HashSet<String>,
    pub(super) used_backends: HashSet<usize>,
    /// Full handshakes are limited, so keys cost a token.
    pub(super) metered: bool,
    /// Bytes of a peer's chain of certificates.
    pub(super) most_chain: usize,
}

impl Draft<'_> {
    fn limits(&mut self) -> Limits {
        let file = self.file;
        let limits = &file.limits;
        Limits {
            // Until it is known how many addresses there are: see `connections`.
            connections: DEFAULT_CONNECTIONS,
            handshakes: self.count("limits.handshakes", limits.handshakes),
            client_hello: self.size("limits.client-hello", &limits.client_hello, MESSAGE_BYTES),
            certificate_chain: self.size(
                "limits.certificate-chain",
                &limits.certificate_chain,
                MESSAGE_BYTES,
            ),
            accepts_per_turn: self.count("limits.accepts-per-turn", limits.accepts_per_turn),
            handshakes_per_turn: self
                .count("limits.handshakes-per-turn", limits.handshakes_per_turn),
            handshake_time_per_turn: self.duration(
                "limits.handshake-time-per-turn",
                &limits.handshake_time_per_turn,
                SHORTEST..=SECOND,
            ),
            bytes_per_turn: self.size("limits.bytes-per-turn", &limits.bytes_per_turn, TURN_BYTES),
        }
    }

    /// As many as are asked for, or as descriptors allow beside those that are `fixed`: an error where that is next to
    /// nothing.
    fn connections(&mut self, fixed: u64) -> usize {
        if let Some(connections) = self.file.limits.connections {
            return self.count("limits.connections", connections);
        }
        let limit = self.world.descriptors;
        let fits = descriptors::fitting(limit, fixed);
        if fits < LEAST_CONNECTIONS {
            let needed = descriptors::needed(LEAST_CONNECTIONS, fixed);
            let fault = format!(
                "the hard limit of open files (RLIMIT_NOFILE) is {limit}, which has room for {fits} connections"
            );
            let accepted = format!(
                "at least {needed} open files ({}), or the key with a smaller number",
                descriptors::HOW_TO_RAISE
            );
            let problem = Problem::new("limits.connections", fault);
            self.report.error(problem.accepted(accepted));
        }
        fits.clamp(1, DEFAULT_CONNECTIONS)
    }

    fn timeouts(&mut self) -> Timeouts {
        let file = self.file;
        let timeouts = &file.timeouts;
        let mut read =
            |key: &str, value| self.duration(&format!("timeouts.{key}"), value, SHORTEST..=LONGEST);
        Timeouts {
            hello: read("hello", &timeouts.hello),
            handshake: read("handshake", &timeouts.handshake),
            connect: read("connect", &timeouts.connect),
            idle: read("idle", &timeouts.idle),
            half_closed: read("half-closed", &timeouts.half_closed),
            linger: read("linger", &timeouts.linger),
            drain: read("drain", &timeouts.drain),
        }
    }

    fn sessions(&mut self, cluster: Option<&Cluster>, longest_ticket: usize) -> Sessions {
        let file = self.file;
        let sessions = &file.sessions;
        let shared = file.cluster.as_ref();
        let rotation = self.session_key(
            (TICKET_ROTATION_KEY, sessions.ticket_rotation.as_ref()),
            ("cluster.rotation", shared.map(|shared| &shared.rotation)),
        );
        let shared_age = shared.and_then(|shared| shared.session_max_age.as_ref());
        let age = self.session_key(
            ("sessions.max-age", sessions.max_age.as_ref()),
            ("cluster.session-max-age", shared_age),
        );
        let mut read = |path: &str, value, longest| self.duration(path, value, SECOND..=longest);
        let lifetime = &sessions.id_lifetime;
        let id_lifetime = read("sessions.id-lifetime", lifetime, TICKET_LIFETIME);
        let ticket_rotation = match (cluster, rotation) {
            (Some(cluster), _) => cluster.rotation.duration(),
            (None, Some((TICKET_ROTATION_KEY, value))) => {
                read(TICKET_ROTATION_KEY, value, TICKET_LIFETIME / 2)
            }
            (None, _) => TICKET_ROTATION,
        };
        let max_age = age.map_or(MAX_AGE, |(path, value)| read(path, value, TICKET_LIFETIME));
        let entries = sessions.table_entries;
        let table_entries = usize::try_from(entries).ok().filter(|n| *n <= MOST_THINGS);
        if table_entries.is_none() {
            self.out_of_range("sessions.table-entries", entries.to_string(), COUNT_FROM_0);
        }
        Sessions {
            table_entries: table_entries.unwrap_or_default(),
            table_bytes: self.size("sessions.table-size", &sessions.table_size, TABLE_BYTES),
            longest_ticket,
            id_lifetime,
            ticket_rotation,
            max_age,
        }
    }

    fn log(&mut self) -> Log {
        let file = self.file;
        let log = &file.log;
        if !is_filter(&log.level) {
            self.report.error(
                Problem::new("log.level", "not a filter")
                    .text(&log.level)
                    .accepted("error, warn, info, debug, trace, or a list such as \"info,becket::tls=debug\""),
            );
        }
        Log {
            level: log.level.clone(),
            format: log.format,
            file: match log.file.as_str() {
                "stderr" => None,
                path => Some(self.log_file("log.file", path)),
            },
            access: match log.access.as_str() {
                "off" => None,
                "stderr" => Some(AccessLog::Stderr),
                path => Some(AccessLog::File(self.log_file("log.access", path))),
            },
        }
    }

    /// A file to be written: its folder must be there.
    fn log_file(&mut self, path: &str, text: &str) -> PathBuf {
        let file = self.world.base.join(text);
        let fault = match file.parent() {
            _ if text.is_empty() => Some("empty"),
            _ if file.is_dir() => Some("a directory"),
            Some(folder) if !folder.is_dir() => Some("the folder does not exist"),
            _ => None,
        };
        if let Some(fault) = fault {
            let problem = Problem::new(path, fault).text(text);
            self.report
                .error(problem.accepted("stderr or the path of a file"));
        }
        file
    }

    fn process(&mut self) -> Process {
        let file = self.file;
        let process = &file.process;
        self.check_identity(process.user.as_deref(), process.group.as_deref());
        if process.key_log {
            let fault = "TLS secrets are written to the file that SSLKEYLOGFILE names";
            self.report
                .warn(Problem::new("process.key-log", fault).value("true"));
        }
        Process {
            workers: self.workers(&process.workers),
            pin: process.pin,
            user: process.user.clone(),
            group: process.group.clone(),
            core_dumps: process.core_dumps,
            key_log: process.key_log,
        }
    }

    fn check_identity(&mut self, user: Option<&str>, group: Option<&str>) {
        let problem = match (user, group) {
            (None, None) => return,
            (None, Some(group)) => {
                let fault = "a group without a user";
                Problem::new("process.group", fault)
                    .text(group)
                    .accepted("process.user with it")
            }
            (Some(user), group) => {
                let Err(error) = Identity::find(user, group) else {
                    return;
                };
                Problem::new("process.user", reason(&error))
                    .text(user)
                    .accepted("a user, and perhaps a group, of this machine")
            }
        };
        self.report.error(problem);
    }

    fn workers(&mut self, workers: &Scalar) -> Option<NonZeroUsize> {
        if workers.0 == "auto" {
            return None;
        }
        let number = workers.0.parse().ok();
        let number = number.filter(|number: &NonZeroUsize| number.get() <= MOST_WORKERS);
        if number.is_none() {
            let problem = Problem::new("process.workers", "not a number of workers");
            self.report
                .error(problem.text(&workers.0).accepted("\"auto\" or 1 to 1024"));
        }
        number
    }

    /// A number of things, at least 1.
    pub(super) fn count(&mut self, path: &str, value: u64) -> usize {
        match usize::try_from(value) {
            Ok(value) if (1..=MOST_THINGS).contains(&value) => value,
            _ => {
                self.out_of_range(path, value.to_string(), COUNT_FROM_1);
                1
            }
        }
    }

    /// A number of bytes.
    pub(super) fn size(&mut self, path: &str, value: &Scalar, range: RangeInclusive<u64>) -> usize {
        let Some(bytes) = self.report.take(path, &value.0, values::size(&value.0)) else {
            return 1;
        };
        match usize::try_from(bytes) {
            Ok(size) if range.contains(&bytes) => size,
            _ => {
                let (least, most) = (range.start(), range.end());
                let accepted = format!("{least} to {most} bytes");
                self.out_of_range(path, format!("{:?}", value.0), &accepted);
                1
            }
        }
    }

    /// A duration.
    pub(super) fn duration(
        &mut self,
        path: &str,
        value: &Scalar,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        let parsed = values::duration(&value.0);
        let Some(duration) = self.report.take(path, &value.0, parsed) else {
            return SECOND;
        };
        if !range.contains(&duration) {
            let accepted = format!("{:?} to {:?}", range.start(), range.end());
            self.out_of_range(path, format!("{:?}", value.0), &accepted);
        }
        duration
    }

    fn out_of_range(&mut self, path: &str, value: String, accepted: &str) {
        let problem = Problem::new(path, "not in range").value(value);
        self.report.error(problem.accepted(accepted));
    }

    /// The socket addresses of an address as written; none, and an error, if there is none.
    pub(super) fn resolve(&mut self, path: &str, text: &str, address: &Address) -> Vec<SocketAddr> {
        self.look_up(address).unwrap_or_else(|why| {
            let fault = format!("the name does not resolve: {why}");
            let problem = Problem::new(path, fault).text(text);
            self.report
                .error(problem.accepted("a name that DNS or /etc/hosts knows"));
            Vec::new()
        })
    }

    /// The same, or why there is none.
    fn look_up(&self, address: &Address) -> Result<Vec<SocketAddr>, String> {
        let (name, port) = match address {
            Address::Unix(_) => return Ok(Vec::new()),
            Address::Ip(ip, port) => return Ok(vec![SocketAddr::new(*ip, *port)]),
            Address::Any(port) => {
                let mut any = vec![SocketAddr::from(([0, 0, 0, 0], *port))];
                if self.world.ipv6 {
                    any.push(SocketAddr::from(([0u16; 8], *port)));
                }
                return Ok(any);
            }
            Address::Name(name, port) => (name, *port),
        };
        let found = self.names.look_up(name)?;
        Ok(found.iter().map(|ip| SocketAddr::new(*ip, port)).collect())
    }

    /// Where a server or a peer is, as far as it is known with the configuration: a name is not, unless all are
    /// looked up, and one that does not resolve is a warning.
    pub(super) fn whereabouts(
        &mut self,
        path: &str,
        text: &str,
        address: &Address,
    ) -> Vec<SocketAddr> {
        let is_name = matches!(address, Address::Name(..));
        if is_name && self.world.server_names == ServerNames::Later {
            return Vec::new();
        }
        self.look_up(address).unwrap_or_else(|why| {
            let fault = format!("the name does not resolve: {why}");
            self.report.warn(Problem::new(path, fault).text(text));
            Vec::new()
        })
    }

    /// Takes an address for a socket of ours; of two that overlap the second is an error.
    pub(super) fn claim(&mut self, path: &str, text: &str, address: SocketAddr) {
        let overlaps = |other: &SocketAddr| {
            let (a, b) = (address.ip(), other.ip());
            let covers = a == b || a.is_unspecified() || b.is_unspecified();
            address.port() == other.port() && a.is_ipv4() == b.is_ipv4() && covers
        };
        let taken = self.binds.iter().find(|(other, _)| overlaps(other));
        if address.port() == 0 {
            let problem = Problem::new(path, "port 0 is no port that clients could know");
            self.report
                .error(problem.text(text).accepted("a port from 1 to 65535"));
        } else if let Some((other, by)) = taken {
            let fault = match *other == address {
                true => format!("{address} is bound by {by} already"),
                false => format!("{address} overlaps with {other} of {by}"),
            };
            let problem = Problem::new(path, fault).text(text);
            self.report.error(problem.accepted("each address once"));
        }
        self.binds.push((address, path.to_owned()));
    }

    /// Checks the names of the sections of one kind, which must be there and differ.
    pub(super) fn check_names<'n>(
        &mut self,
        names: impl Iterator<Item = (String, Option<&'n str>)>,
    ) {
        let mut seen = HashSet::new();
        for (path, name) in names {
            let path = format!("{path}.name");
            let Some(name) = name else {
                let problem = Problem::new(path, "missing");
                self.report.error(problem.accepted("a name of its own"));
                continue;
            };
            let usable = self.report.take(&path, name, values::section_name(name));
            if usable.is_some() && !seen.insert(name) {
                let problem = Problem::new(path, "an earlier section has this name");
                self.report
                    .error(problem.text(name).accepted("a name of its own"));
            }
        }
    }

    fn warn_unused(&mut self) {
        let file = self.file;
        for (index, backend) in file.backend.iter().enumerate() {
            if let Some(name) = backend.name.as_deref()
                && !self.used_backends.contains(&index)
            {
                let fault = "no listener uses this backend";
                self.report
                    .warn(Problem::new(format!("backend[{name}]"), fault));
            }
        }
        for policy in &file.policy {
            if let Some(name) = policy.name.as_deref()
                && !self.used_policies.contains(name)
            {
                let fault = "no listener uses this policy";
                self.report
                    .warn(Problem::new(format!("policy[{name}]"), fault));
            }
        }
    }
}

/// Whether `tracing` takes it, and a lone word is a level: as a target it would silence us.
fn is_filter(level: &str) -> bool {
    let parts = level.split(',').map(str::trim);
    let lone = parts.filter(|part| !part.contains(['=', '[']));
    !level.trim().is_empty()
        && check_level(level).is_ok()
        && lone
            .into_iter()
            .all(|word| word.parse::<LevelFilter>().is_ok())
}

/// Two descriptors for each, and some for everything else.
/// 400 MB at 4 KiB each when idle; more than one machine's sites see, and less than its memory.
const DEFAULT_CONNECTIONS: usize = 100_000;
/// With fewer a server is of no use that its operator has not thought of.
const LEAST_CONNECTIONS: usize = 16;

/// Of the key of tickets: a working day of resumptions.
const TICKET_ROTATION: Duration = Duration::from_secs(8 * 3600);
/// Of a session since its full handshake.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);

const TICKET_ROTATION_KEY: &str = "sessions.ticket-rotation";

const COUNT_FROM_1: &str = "1 to 100000000";
const COUNT_FROM_0: &str = "0 (off) to 100000000";
const MOST_THINGS: usize = 100_000_000;
const MOST_WORKERS: usize = 1024;
const SECOND: Duration = Duration::from_secs(1);

/// The resolution of the timers; 0 would end every connection at once.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// A hello of curl is about 600 bytes, one with X25519MLKEM768 1.8 KB. rustls takes no handshake
/// message above 64 KiB, and a certificate has some hundred bytes at least.
const MESSAGE_BYTES: RangeInclusive<u64> = 1024..=64 * 1024;

/// The table has 64 parts, and each must have room for the longest chain.
const TABLE_BYTES: RangeInclusive<u64> = 8 * 1024 * 1024..=1024 * 1024 * 1024 * 1024;

/// At least one TLS record (RFC 8446, section 5.1), or it could never be relayed.
const TURN_BYTES: RangeInclusive<u64> = 16 * 1024..=1024 * 1024 * 1024;

/// RFC 8446, section 4.6.1: no ticket is good for more than seven days.
const TICKET_LIFETIME: Duration = Duration::from_secs(7 * 86_400);
