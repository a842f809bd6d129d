//! Preparation of a configuration: turns a file into a [`Config`] or into a list of its errors.
//!
//! This crate reads keys, resolves names for `becket check`, and checks every reference between
//! sections. It changes and starts nothing, so a reload and `becket check` can run it next to a
//! running terminator. It does not stop at the first error: it replaces a faulty part with a
//! harmless value, and returns a `Config` only if there is no error. It blocks on files and name
//! lookups, and never panics.
//!
//! Main types: [`source::ConfigSource`] is the origin of a configuration, [`Environment`] contains
//! all inputs other than the file, and [`Prepared`] is the result.
//!
//! ```
//! use becket_prepare::{LoadPurpose, flags::Flags, source::ConfigSource};
//! use rustls_pki_types::UnixTime;
//! let source = ConfigSource::at(Flags::default(), "/".into());
//! let rejected = source.load(UnixTime::now(), LoadPurpose::Serve).unwrap_err();
//! assert!(rejected.errors.iter().any(|problem| problem.path == "--frontend"));
//! ```
//!
//! This file builds the sections with plain values. Each other section has its own file.

#![forbid(unsafe_code)]

pub mod descriptors;
pub mod flags;
pub mod resolver;
pub mod source;

mod backends;
pub mod changed;
mod cluster;
mod crl;
pub mod listeners;
mod names;
mod onward;
mod policies;
pub mod renewal;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use becket_config::address::Address;
use becket_config::choices::{KernelTls, RsaBatch};
use becket_config::error::{Problem, Rejected, Report};
use becket_config::file::File;
use becket_config::key;
use becket_config::notation::Text;
use becket_config::process::{Log, LogTarget, SocketPath};
use becket_config::read::Reading;
use becket_multibuffer::Multibuffer;
use becket_sys::identity::UnixIdentity;
use becket_sys::kernel_tls;
use becket_sys::privileges::effective_user;
use rustls::SupportedCipherSuite;
use rustls_pki_types::UnixTime;
use tracing_subscriber::filter::LevelFilter;

use self::changed::Renewing;
pub use self::names::LoadPurpose;
use self::resolver::{HostAddresses, HostResolver, has_ipv6};
use becket_keys::certificates::CertificateMap;
use becket_keys::checked::CheckedFiles;
use becket_keys::files::{Files, reason};
use becket_keys::issuers::IssuerTable;
use becket_keys::keys::Loader;
use becket_keys::signing::token::Tokens;
use becket_log::check_level;
use becket_tls::config::{Admin, AdminSocket, Config, Listener, worker_count};
use becket_tls::kernel::cipher_of;
use becket_tls::trial::Trials;

pub struct Environment<'a> {
    /// Folder of the configuration file. Relative paths start at this folder.
    pub base: &'a Path,
    /// Time at which certificates must be valid.
    pub now: UnixTime,
    /// `true` if this host supports IPv6. An address `:PORT` then means both families.
    pub ipv6: bool,
    /// Maximum number of open file descriptors of the process.
    pub descriptors: u64,
    pub resolver: HostResolver,
    pub purpose: LoadPurpose,
    pub files: Files,
    /// Batch signer for RSA; `None` if the processor does not support it.
    pub multibuffer: Option<Multibuffer>,
    /// Tokens of the running configuration, and the agent sockets for the configuration to load.
    pub tokens: Tokens,
    pub trials: Trials,
    /// Issuers of all loaded certificates.
    pub issuers: IssuerTable,
    /// The running configuration. Unchanged chains, policies and CAs are reused from it.
    pub running: Option<&'a Config>,
}

impl<'a> Environment<'a> {
    /// Returns the environment of this host, without tokens.
    pub fn system(base: &'a Path, now: UnixTime, purpose: LoadPurpose, files: Files) -> Self {
        Self {
            base,
            now,
            ipv6: has_ipv6(),
            descriptors: becket_sys::rlimit::most_open_files(),
            resolver: HostResolver::system(),
            purpose,
            files,
            multibuffer: Multibuffer::detect(),
            tokens: Tokens::default(),
            trials: Trials::default(),
            issuers: IssuerTable::default(),
            running: None,
        }
    }
}

#[derive(Debug)]
pub struct Prepared {
    pub config: Config,
    pub warnings: Vec<Problem>,
    /// Certificate files that were checked, to be saved when the configuration is used.
    pub checked: CheckedFiles,
}

/// Builds a configuration from the parsed text. Blocks.
///
/// # Errors
/// Returns all problems, each with its line, key path and value.
pub fn prepare(reading: Reading, environment: &Environment<'_>) -> Result<Prepared, Rejected> {
    let Reading {
        file,
        problems: mut errors,
        places,
    } = reading;
    let Some(file) = file else {
        return Err(Rejected::of(errors));
    };
    let (config, found, checked) = build(&file, environment);
    let placed = |mut problem| {
        places.place(&mut problem);
        problem
    };
    // An invalid value was already removed from the file. Do not report its key as missing as well.
    let news = |problem: &Problem| !places.is_cut(&problem.path);
    errors.extend(found.errors.into_iter().map(placed).filter(news));
    errors.sort_by_key(|problem| problem.line);
    let mut warnings: Vec<Problem> = found.warnings.into_iter().map(placed).collect();
    warnings.sort_by_key(|problem| problem.line);
    if errors.is_empty() {
        return Ok(Prepared {
            config,
            warnings,
            checked,
        });
    }
    Err(Rejected {
        warnings,
        ..Rejected::of(errors)
    })
}

/// Builds a configuration, which is valid only if the report contains no error. Blocks.
fn build(file: &File, environment: &Environment<'_>) -> (Config, Report, CheckedFiles) {
    let mut builder = ConfigBuilder::new(file, environment);
    if let Some(path) = checked_files(file, environment.base) {
        builder.loader.checked = match environment.purpose {
            LoadPurpose::Check => CheckedFiles::append(path),
            LoadPurpose::Serve => CheckedFiles::read(path),
        };
    }
    builder.loader.tokens = environment.tokens.open(file);
    file.check(&mut builder.report);
    if environment.purpose == LoadPurpose::Check {
        builder.names = names::look_up(file, &environment.resolver);
    }
    let backends = builder.backends();
    let policies = builder.policies();
    let cluster = builder.cluster();
    let listeners = builder.listeners(&policies);
    builder.check_identity();
    builder.kernel_tls(&listeners);
    let workers = worker_count(&file.process);
    let fixed = descriptors::fixed(&listeners, &backends, workers);
    let of_pipes = descriptors::of_pipes(&listeners, &file.limits, workers);
    let config = Config {
        file: Arc::new(file.clone()),
        listeners,
        backends,
        connections: builder.connections(fixed, of_pipes),
        cluster,
        log: builder.log(),
        admin: builder.admin(),
        batches: builder.batches(),
        tokens: builder.loader.tokens,
    };
    (config, builder.report, builder.loader.checked)
}

/// Returns the file that remembers checked certificate files.
fn checked_files(file: &File, base: &Path) -> Option<PathBuf> {
    let cache = file.process.certificate_cache.as_ref()?;
    Some(base.join(cache))
}

struct ConfigBuilder<'a> {
    file: &'a File,
    environment: &'a Environment<'a>,
    loader: Loader,
    report: Report,
    names: HashMap<String, HostAddresses>,
    /// Addresses to bind so far, each with its configuration key. A new address must not overlap
    /// with them.
    binds: Vec<(SocketAddr, String)>,
    /// Certificate maps of the listeners built so far.
    built: Vec<Arc<CertificateMap>>,
    renewing: Option<Renewing<'a>>,
}

impl<'a> ConfigBuilder<'a> {
    fn new(file: &'a File, environment: &'a Environment<'a>) -> Self {
        let mut builder = Self {
            file,
            environment,
            loader: Loader {
                provider: rustls::crypto::aws_lc_rs::default_provider(),
                now: environment.now,
                files: environment.files.clone(),
                batches: false,
                crypto_threads: file.process.has_crypto_threads(),
                tokens: environment.tokens.clone(),
                issuers: environment.issuers.clone(),
                checked: CheckedFiles::default(),
                verifies_all: environment.purpose == LoadPurpose::Check,
            },
            report: Report::default(),
            names: HashMap::new(),
            binds: Vec::new(),
            built: Vec::new(),
            renewing: None,
        };
        builder.loader.batches = builder.batches().is_some();
        builder
    }
}

impl ConfigBuilder<'_> {
    fn batches(&self) -> Option<Multibuffer> {
        let asks = self.file.process.rsa_batch == RsaBatch::Auto;
        self.environment.multibuffer.filter(|_| asks)
    }

    /// Returns the configured number of connections. Without one, derives it from the limit of open
    /// files after the `fixed` descriptors, and reports an error if this limit is too low.
    fn connections(&mut self, fixed: u64, of_pipes: u64) -> usize {
        if let Some(connections) = self.file.limits.connections {
            return connections;
        }
        let limit = self.environment.descriptors;
        let for_pipes = descriptors::spared_for_pipes(limit, of_pipes);
        let fits = descriptors::fitting(limit - for_pipes, fixed);
        if fits < LEAST_CONNECTIONS {
            let needed = descriptors::needed(LEAST_CONNECTIONS, fixed);
            let fault = format!(
                "the hard limit of open files (RLIMIT_NOFILE) is {limit}, which has room for {fits} connections"
            );
            let accepted = format!(
                "at least {needed} open files ({}), or the key with a smaller number",
                descriptors::HOW_TO_RAISE
            );
            self.report.refuse("limits.connections", fault, accepted);
        }
        fits.clamp(1, DEFAULT_CONNECTIONS)
    }

    fn log(&mut self) -> Log {
        let file = self.file;
        let log = &file.log;
        if !is_filter(&log.level) {
            let accepted =
                "error, warn, info, debug, trace, or a list such as \"info,becket_tls=debug\"";
            self.report
                .refuse(key!("log", log.level), "not a filter", accepted);
        }
        Log {
            file: self.log_target(&key!("log", log.file), &log.file),
            access: self.log_target(&key!("log", log.access), &log.access),
            ..log.clone()
        }
    }

    /// Checks the output of a log. The folder of a file must exist.
    fn log_target(&mut self, path: &str, target: &LogTarget) -> LogTarget {
        let target = target.below(self.environment.base);
        let fault = match target.file().map(|file| (file, file.parent())) {
            Some((file, _)) if file.is_dir() => "a directory",
            Some((_, Some(folder))) if !folder.is_dir() => "the folder does not exist",
            _ => return target,
        };
        self.report.refuse(path, fault, LogTarget::ACCEPTED);
        target
    }

    fn check_identity(&mut self) {
        let process = &self.file.process;
        let Some(user) = &process.user else { return };
        let (at, of_group) = (
            key!("process", process.user),
            key!("process", process.group),
        );
        match UnixIdentity::find(user, process.group.as_deref()) {
            Err(error) if UnixIdentity::find(user, None).is_ok() => {
                let accepted = "a group of this machine";
                self.report.refuse(of_group, reason(&error), accepted);
            }
            Err(error) => {
                let accepted = "a user, and perhaps a group, of this machine";
                self.report.refuse(at, reason(&error), accepted);
            }
            Ok(identity) if identity.uid != 0 => {}
            Ok(identity) => {
                let fault = "becket keeps all rights of root";
                self.report.remark(at, fault);
                if identity.gid != 0 {
                    let fault = "root keeps its own group";
                    self.report
                        .refuse(of_group, fault, "\"root\", or another user");
                }
            }
        }
    }

    /// Warns about each key that requests kernel TLS if the kernel does not support it. Connections
    /// then use TLS in user space.
    fn kernel_tls(&mut self, listeners: &[Arc<Listener>]) {
        let bears = self.file.limits.kernel_tls_without_rekey;
        for path in self.file.asks_for_kernel_tls() {
            let support = kernel_tls::support();
            if !support.is_of_use(bears) {
                let fault = format!("the kernel cannot take over TLS: {support}");
                self.report.remark(path, fault);
            }
        }
        for listener in listeners {
            if listener.keys.kernel_tls == KernelTls::Off {
                continue;
            }
            let support = kernel_tls::support();
            let policies = listener.routes.iter().filter_map(|it| it.policy.as_ref());
            let is_served = |suite: &SupportedCipherSuite| {
                cipher_of(*suite)
                    .is_some_and(|(version, cipher)| support.covers(version, cipher, bears))
            };
            if support.is_of_use(bears) && !policies.flat_map(|it| &it.suites).any(is_served) {
                let path = format!("listener[{}].kernel-tls", listener.keys.name);
                let fault =
                    format!("the kernel takes over none of the suites of this listener: {support}");
                self.report.remark(path, fault);
            }
        }
    }

    fn admin(&mut self) -> Admin {
        Admin {
            address: self.admin_address(),
            socket: self.admin_socket(),
        }
    }

    fn admin_address(&mut self) -> Option<SocketAddr> {
        let admin = &self.file.admin;
        let path = key!("admin", admin.address);
        let at = &admin.address.as_ref()?.address;
        let address = self.resolve(&path, at).into_iter().next()?;
        self.claim(&path, address);
        Some(address)
    }

    fn admin_socket(&mut self) -> Option<AdminSocket> {
        let admin = &self.file.admin;
        let socket = match AdminSocket::of(admin, self.environment.base) {
            Ok(socket) => socket?,
            Err(error) => {
                let path = if admin.socket_owner.is_some() {
                    key!("admin", admin.socket_owner)
                } else {
                    key!("admin", admin.socket_group)
                };
                let accepted = "a user or a group of this machine";
                self.report.refuse(path, reason(&error), accepted);
                return None;
            }
        };
        let path = key!("admin", admin.socket);
        if !socket.path.parent().is_some_and(Path::is_dir) {
            let fault = "the folder does not exist";
            self.report.refuse(path, fault, SocketPath::ACCEPTED);
        }
        Some(socket)
    }

    /// Returns the socket addresses to bind. A host name is an error.
    fn resolve(&mut self, path: &str, address: &Address) -> Vec<SocketAddr> {
        address.to_bind(self.environment.ipv6).unwrap_or_else(|| {
            let fault = "cannot bind a host name";
            let accepted = "an IP address, localhost, or no host for all addresses";
            self.report.refuse(path, fault, accepted);
            Vec::new()
        })
    }

    /// Returns the addresses of a server or a peer. Resolves a host name only with
    /// [`LoadPurpose::Check`], and otherwise returns no address for it. A failed lookup is a warning.
    fn known_addresses(&mut self, path: &str, address: &Address) -> Vec<SocketAddr> {
        let is_name = matches!(address, Address::Name(..));
        if is_name && self.environment.purpose == LoadPurpose::Serve {
            return Vec::new();
        }
        let look_up = |name: &str| {
            let unknown = || Err("not looked up".to_owned());
            self.names.get(name).cloned().unwrap_or_else(unknown)
        };
        let found = address.expand(self.environment.ipv6, look_up);
        found.unwrap_or_else(|error| {
            let fault = format!("the name does not resolve: {error}");
            self.report.remark(path, fault);
            Vec::new()
        })
    }

    /// Records an address to bind. Reports an error if it overlaps with an earlier address.
    fn claim(&mut self, path: &str, address: SocketAddr) {
        let overlaps = |other: &SocketAddr| {
            let (a, b) = (address.ip(), other.ip());
            let covers = a == b || a.is_unspecified() || b.is_unspecified();
            address.port() == other.port() && a.is_ipv4() == b.is_ipv4() && covers
        };
        let taken = self.binds.iter().find(|(other, _)| overlaps(other));
        if address.port() == 0 {
            let fault = "port 0 is not a fixed port";
            self.report.refuse(path, fault, "a port from 1 to 65535");
        } else if let Some((other, by)) = taken {
            let fault = if *other == address {
                format!("{address} is bound by {by} already")
            } else {
                format!("{address} overlaps with {other} of {by}")
            };
            self.report.refuse(path, fault, "each address once");
        }
        self.binds.push((address, path.to_owned()));
    }
}

/// Returns a problem if this process cannot serve as the configured user, because only root can
/// change the user.
pub fn refused_user(config: &Config) -> Option<Problem> {
    let process = &config.file.process;
    let user = process.user.as_ref()?;
    let fault = match UnixIdentity::find(user, process.group.as_deref()) {
        Ok(identity) if identity.uid == effective_user() => return None,
        Ok(_) => format!("only root can change to user {user}"),
        Err(error) => reason(&error),
    };
    Some(Problem::new(key!("process", process.user), fault).accepted("a start as root"))
}

/// Returns `true` if `tracing` accepts `level` as a filter. A single word must be a level, because
/// it would otherwise be a target and turn off all logs.
pub fn is_filter(level: &str) -> bool {
    let parts = level.split(',').map(str::trim);
    let lone = parts.filter(|part| !part.contains(['=', '[']));
    !level.trim().is_empty()
        && check_level(level).is_ok()
        && lone
            .into_iter()
            .all(|word| word.parse::<LevelFilter>().is_ok())
}

/// Default maximum number of connections. They take 400 MB when idle (4 KiB each), which most hosts
/// can spare.
const DEFAULT_CONNECTIONS: usize = 100_000;
/// Minimum number of connections that is derived from the limit of open files. Operators can
/// configure a lower number explicitly.
const LEAST_CONNECTIONS: usize = 16;
