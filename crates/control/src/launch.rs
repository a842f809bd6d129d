//! From a configuration source to a running server: everything that can fail, in the order in
//! which it can still be undone.
//!
//! 1. load and check the configuration;
//! 2. install the log;
//! 3. set the limits of the process;
//! 4. confine the process ([`crate::sandbox`]);
//! 5. bind all sockets that were not handed over;
//! 6. start the workers.
//!
//! Until the last step nothing serves, so a start that fails has changed nothing. Rights of root are the supervisor's
//! ([`becket_process`]).

use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use becket_config::error::{Problem, Rejected};
use becket_proto::session_table::{self, SessionTable};
use becket_sys::clock::{Clock, Now};
use becket_sys::socket_file::SocketFile;
use becket_sys::{privileges, rlimit, socket};
use rustls::pki_types::UnixTime;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::unbounded_channel;

use crate::admin::AdminSockets;
use crate::cluster;
use crate::commands::Commands;
use crate::ebb::Ebb;
use crate::handover::receiver;
use crate::reload::Reloading;
use crate::rotation::{NotRotated, NotSaved, Rotation};
use crate::sandbox::Sandbox;
use crate::server::edits::Edits;
use crate::server::limits::Limits;
use crate::server::outcomes::Waiting;
use crate::server::renewal::Watching;
use crate::server::upgrade::Handover;
use crate::server::{Control, Terminator, tell_of_kernel_tls};
use crate::sockets;
use crate::state::{MainProcess, Replication, State};
use becket_cluster::Bound;
use becket_cluster::Membership;
use becket_cluster::NoBoot;
use becket_cluster::stud::Reception;
use becket_keys::files::{Files, reason};
use becket_keys::signing::queue::SigningQueue;
use becket_keys::signing::token::Tokens;
use becket_log::access_log::{AccessThread, AccessWriter};
use becket_log::{self, LogError, Logging};
use becket_prepare::descriptors;
use becket_prepare::source::Source;
use becket_prepare::{ServerNames, refused_user};
use becket_process::link::Link;
use becket_process::link::given::{BoundSockets, Given};
use becket_process::protocol::{Event, Restarts, SocketKind};
use becket_process::signals::Signals;
use becket_proxy::memory::MemoryWatch;
use becket_proxy::shared::Shared;
use becket_proxy::worker::bound::BoundListener;
use becket_proxy::worker::workers::{Common, Workers};
use becket_tls::config::{Config, crypto_thread_count, worker_count};
use becket_tls::secret::ratchet::Ratchet;

/// Why a server did not start. Nothing was left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration, or an address in it, cannot be used.
    #[error("{0}")]
    Rejected(Rejected),
    /// The log cannot be set up.
    #[error(transparent)]
    Log(#[from] LogError),
    /// There are no ticket secrets.
    #[error(transparent)]
    Rotation(#[from] NotRotated),
    /// The state of a secret cannot be kept: its folder must be writable for the run user.
    #[error(
        "cluster.secret-state: {0}; the folder must be writable for the user that becket runs as"
    )]
    State(#[from] NotSaved),
    /// Peers cannot be met.
    #[error(transparent)]
    Cluster(#[from] NoBoot),
    /// The system refused something; the text says what.
    #[error("{what}: {error}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

/// Brings a server up. Call it before any other thread exists: it changes limits and identity.
///
/// # Errors
///
/// All that is wrong with the configuration, or the first thing that the system refused.
pub fn launch(source: Source, given: Given, link: Option<Link>) -> Result<Terminator, StartError> {
    let supervisor = link.as_ref().map(|link| Arc::clone(&link.opener));
    let launched = launch_parts(source, given, link);
    if let (Some(supervisor), Err(error)) = (supervisor, &launched) {
        // A supervisor that has ended asks for no reason.
        let _ended = supervisor.send(&Event::Failed(shortened(error.to_string())));
    }
    launched
}

/// A reason that fits into an event.
fn shortened(mut reason: String) -> String {
    let end = (0..=reason.len().min(LONGEST_REASON)).rfind(|end| reason.is_char_boundary(*end));
    // The start is a boundary.
    reason.truncate(end.unwrap_or(0));
    reason
}

fn launch_parts(
    source: Source,
    given: Given,
    mut link: Option<Link>,
) -> Result<Terminator, StartError> {
    let clock = Clock::start();
    let now = clock.now();
    let (runtime, signals) = runtime().map_err(|error| system("control loop", error))?;
    let (unix, files) = (UnixTime::since_unix_epoch(now.unix), given.files);
    let tokens = Tokens::adopt(given.tokens, &Tokens::default());
    let loading = source.with(files.clone(), tokens);
    let loaded = loading.load(unix, ServerNames::Later);
    let prepared = loaded.map_err(StartError::Rejected)?;
    let config = Arc::new(prepared.config);
    let logging = becket_log::install(&config.log, &files)?;
    tell_warnings(&prepared.warnings);
    let count = worker_count(&config.file.process);
    let (memory, sandbox) = confine(&source, &config, &files, count)?;
    let given = (given.sockets, given.admin_socket);
    let sockets = bind(&config, count, given).map_err(|e| rejected(&source, e))?;
    let access = open_access(&config, &files)?;
    logging.start()?;
    let shared = counting_lines(shared(&config, clock, count), &logging, access.as_ref());
    let rotation = rotation(&config, prepared.ratchets, now)?;
    let cluster = cluster::membership(sockets.peers, &config, &shared)?;
    let stud = cluster::reception(sockets.stud, &config, &shared);
    let (sender, ended) = unbounded_channel();
    let common = Common {
        adopted: shared.backends.adopt(&config),
        shared: Arc::clone(&shared),
        secrets: Arc::clone(rotation.secrets()),
        outboxes: cluster.as_ref().map_or_else(Vec::new, Membership::outboxes),
        ended: sender,
        is_parked: link.is_some(),
    };
    let handover = handover(link.as_mut(), &common)?;
    let (workers, access) = start_workers(&common, sockets.listeners, access)?;
    tell_of_kernel_tls(&config);
    let (main, heard) = (main_process(&link), heard(&cluster, &stud));
    let state = State::new(main, shared, Arc::clone(&config), &rotation, heard);
    let control = Control {
        edits: Edits::of(config),
        state: Arc::new(state.sandboxed(&sandbox)),
        sandbox,
        source,
        workers,
        rotation,
        cluster,
        stud,
        reloading: Reloading::default(),
        watching: Watching::default(),
        logging,
        access,
        memory,
        ebb: Ebb::default(),
        admin: sockets.admin,
        changes: None,
        pages: None,
        waiting: Waiting::default(),
        handover,
        ended,
        sockets: BoundSockets::default(),
        commands: Commands::new(signals, link).map_err(|error| system("taking commands", error))?,
    };
    Ok(Terminator { runtime, control })
}

/// Checks who this process is, sets its limits and confines it, before it binds and has threads. Files that it still reads are opened before.
/// Threads of tokens are the first ones inside of the sandbox.
fn confine(
    source: &Source,
    config: &Config,
    files: &Files,
    workers: usize,
) -> Result<(MemoryWatch, Sandbox), StartError> {
    check_user(source, config, files.is_confined())?;
    limit_process(config, workers)?;
    let memory = MemoryWatch::open(config.file.limits.memory);
    let sandbox = Sandbox::enter(config, files, &source.folder());
    let served = config.tokens.serve();
    served.map_err(|error| system("threads of tokens", error))?;
    Ok((memory, sandbox))
}

fn open_access(config: &Config, files: &Files) -> Result<Option<AccessWriter>, StartError> {
    let access = AccessWriter::open(&config.log, files);
    access.map_err(|error| system("log.access", error))
}

fn tell_warnings(warnings: &[Problem]) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

/// Starts the workers, and who writes the access log for them.
fn start_workers(
    common: &Common,
    sockets: Vec<Vec<BoundListener>>,
    mut access: Option<AccessWriter>,
) -> Result<(Workers, Option<AccessThread>), StartError> {
    let workers = Workers::start(common, sockets, access.as_mut());
    let workers = workers.map_err(|error| system("starting workers", error))?;
    let access = access.map(AccessWriter::start).transpose();
    let access = access.map_err(|error| system("starting the access log", error))?;
    Ok((workers, access))
}

/// Receives the state of the process that this one replaces, if there is one. Under a supervisor this process takes no place of a limit
/// before it serves.
fn handover(link: Option<&mut Link>, common: &Common) -> Result<Handover, StartError> {
    let Some(link) = link else {
        return Ok(Handover::default());
    };
    Limits::wait(&common.shared);
    let start = |stream: UnixStream| {
        receiver::start(stream, &common.shared, common.outboxes.first().cloned())
    };
    let before = link.replaced.take().map(start).transpose();
    let before = before.map_err(|error| system("receiving the state of the old process", error))?;
    Ok(Handover::of(before))
}

/// The process to signal.
fn main_process(link: &Option<Link>) -> MainProcess {
    match link {
        Some(link) => MainProcess {
            pid: std::os::unix::process::parent_id(),
            restarts: link.restarts,
        },
        None => MainProcess {
            pid: std::process::id(),
            restarts: Restarts::default(),
        },
    }
}

fn rejected(source: &Source, errors: Vec<Problem>) -> StartError {
    StartError::Rejected(Rejected {
        origin: source.origin(),
        errors,
        warnings: Vec::new(),
    })
}

/// Every socket of a configuration.
struct AllSockets {
    listeners: Vec<Vec<BoundListener>>,
    peers: Option<Bound>,
    stud: Option<UdpSocket>,
    admin: AdminSockets,
}

/// Binds what was not handed over.
fn bind(
    config: &Config,
    workers: usize,
    (mut given, given_admin): (BoundSockets, Option<io::Result<OwnedFd>>),
) -> Result<AllSockets, Vec<Problem>> {
    let listeners = sockets::bind(config, (&[], &[]), workers, &mut given)?;
    let mut datagrams = |address: Option<_>| given.take_datagrams(address?);
    let peers = datagrams(config.peers_arrive_at());
    let peers = cluster::bind(config, peers).map_err(|problem| vec![problem])?;
    let stud = datagrams(config.stud().map(|stud| stud.listen));
    let stud = cluster::bind_stud(config, stud).map_err(|problem| vec![problem])?;
    let admin = config.admin.address.map(|address| {
        let bound = match given.take_one(SocketKind::Admin, address) {
            Some(given) => given.map(TcpListener::from),
            None => socket::succeed(address),
        };
        bound.map_err(|error| {
            let problem = Problem::new("admin.address", error.to_string());
            vec![problem.value(address.to_string())]
        })
    });
    let admin = admin.transpose()?;
    // Where another process serves still, the file is its own for as long as it does.
    let is_free = given_admin.is_some() || !given.listen_later;
    let admin_socket = config.admin.socket.as_ref().filter(|_| is_free);
    let admin_socket = admin_socket.map(|wanted| {
        let bound = match given_admin {
            Some(given) => given.map(SocketFile::from),
            None => SocketFile::bind(&wanted.path, &wanted.access),
        };
        bound.map_err(|error| {
            let problem = Problem::new("admin.socket", reason(&error));
            let problem = problem.value(wanted.path.display().to_string());
            let accepted = "a path where nothing is, or a socket on which nobody listens";
            vec![problem.accepted(accepted)]
        })
    });
    let admin = AdminSockets {
        tcp: admin,
        unix: admin_socket.transpose()?,
    };
    for address in given.unused() {
        tracing::warn!(%address, "a socket was passed that no listener has");
    }
    Ok(AllSockets {
        listeners,
        peers,
        stud,
        admin,
    })
}

/// What pages show of these.
fn heard(cluster: &Option<Membership>, stud: &Option<Reception>) -> Replication {
    Replication {
        node: cluster.as_ref().map(Membership::node),
        stud: stud.as_ref().map(Reception::watch),
    }
}

/// Has pages show how many lines were dropped.
fn counting_lines(mut shared: Shared, log: &Logging, access: Option<&AccessWriter>) -> Arc<Shared> {
    shared.log_lines_dropped = log.dropped();
    shared.syslog_lines_dropped = log.syslog_dropped();
    shared.access_lines_dropped = access.map(AccessWriter::dropped).unwrap_or_default();
    Arc::new(shared)
}

fn shared(config: &Config, clock: Clock, workers: usize) -> Shared {
    let (table, early) = (session_table(config), session_table(config));
    let mut shared = Shared::new(workers, clock, table, early);
    let threads = crypto_thread_count(&config.file.process, workers);
    shared.signatures = Arc::new(SigningQueue::new(threads, config.batches));
    shared
}

fn session_table(config: &Config) -> Arc<SessionTable> {
    let limits = session_table::Limits {
        entries: config.file.sessions.table_entries,
        bytes: config.file.sessions.table_size,
        ..session_table::Limits::default()
    };
    Arc::new(SessionTable::new(limits, Default::default()))
}

/// Ticket secrets, those that forget brought up to date and written: as the run user, who will
/// have to do that again.
fn rotation(config: &Config, ratchets: Vec<Ratchet>, now: Now) -> Result<Rotation, StartError> {
    let mut rotation = Rotation::of(config, ratchets, now)?;
    rotation.save(now)?;
    Ok(rotation)
}

/// The control loop's runtime, and the signals, which from now on do not end the process. No thread that is started later gains
/// privileges: the configuration may start those that speak with tokens.
fn runtime() -> io::Result<(Runtime, Signals)> {
    privileges::forbid_new_privileges()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let signals = Signals::listen()?;
    drop(entered);
    Ok((runtime, signals))
}

/// Descriptors for the limits, and no core dumps.
fn limit_process(config: &Config, workers: usize) -> Result<(), StartError> {
    descriptors::raise(config, workers)
        .map_err(|error| system("limits.connections (two descriptors each)", error))?;
    if !config.file.process.core_dumps {
        rlimit::forbid_core_dumps().map_err(|error| system("process.core-dumps", error))?;
    }
    if config.file.process.lock_memory {
        rlimit::lock_memory().map_err(|error| system("process.lock-memory", error))?;
    }
    Ok(())
}

/// Refuses a configured user that this process is not.
fn check_user(source: &Source, config: &Config, is_confined: bool) -> Result<(), StartError> {
    if !is_confined && config.file.process.user.is_none() && privileges::is_root() {
        tracing::warn!("running as root; process.user names the user to become");
    }
    match refused_user(config, is_confined) {
        Some(problem) => Err(rejected(source, vec![problem])),
        None => Ok(()),
    }
}

fn system(what: &'static str, error: io::Error) -> StartError {
    StartError::System { what, error }
}

/// Bytes of the reason why this process does not start: hundreds of faults.
const LONGEST_REASON: usize = 64 * 1024;
