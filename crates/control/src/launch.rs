//! The start of the serving process: all steps that can fail.
//!
//! 1. load and check the configuration;
//! 2. install the log;
//! 3. set the resource limits of the process;
//! 4. enter the sandbox ([`crate::sandbox`]);
//! 5. bind all sockets that the supervisor has not passed;
//! 6. start the workers.
//!
//! No client is accepted before the last step, so a failed start has no effect on clients. Only the
//! supervisor runs as root ([`becket_process`]).

use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use becket_config::error::{Problem, Rejected, Report};
use becket_proto::session_table::{self, SessionTable};
use becket_sys::clock::Clock;
use becket_sys::socket_file::SocketFile;
use becket_sys::{privileges, rlimit, socket};
use rustls::pki_types::UnixTime;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, channel, unbounded_channel};

use crate::admin::AdminSockets;
use crate::cluster::{self, SessionSharing};
use crate::handover::receiver;
use crate::health::prober::Prober;
use crate::memory::MemoryWatch;
use crate::reload::{Reloading, save_checked};
use crate::rotation::{NotRotated, Rotation};
use crate::sandbox::Sandbox;
use crate::server::companion_state::CompanionState;
use crate::server::outcomes::PendingOutcomes;
use crate::server::retired::RetiredMaps;
use crate::server::shared_limits::SharedLimits;
use crate::server::upgrade_state::Handover;
use crate::server::watching::Watching;
use crate::server::{
    AdminThreads, ConfigTasks, Control, LogThreads, Supervision, Terminator, WAITING_CHANGES,
    log_warnings,
};
use crate::sockets;
use crate::state::{AdminState, MainProcess};
use becket_cluster::Membership;
use becket_cluster::NoBoot;
use becket_keys::files::{Files, reason};
use becket_keys::signing::queue::SigningQueue;
use becket_keys::signing::token::Tokens;
use becket_log::access_log::{AccessThread, AccessWriter};
use becket_log::{LogError, Logging};
use becket_prepare::descriptors;
use becket_prepare::resolver::HostResolver;
use becket_prepare::source::ConfigSource;
use becket_prepare::{LoadPurpose, refused_user};
use becket_process::link::resources::{BoundSockets, ProcessResources};
use becket_process::link::{Delivered, SupervisorLink};
use becket_process::protocol::{Event, Restarts, SocketKind};
use becket_process::signals::Signals;
use becket_proxy::shared::SharedState;
use becket_proxy::worker::bound::BoundListener;
use becket_proxy::worker::start::Common;
use becket_proxy::worker::workers::WorkerEnded;
use becket_proxy::worker::workers::Workers;
use becket_store::Store;
use becket_tls::config::{Config, crypto_thread_count, worker_count};

/// Reason why the process did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is invalid, or an address in it cannot be bound.
    #[error("{0}")]
    Rejected(Rejected),
    #[error(transparent)]
    Log(#[from] LogError),
    /// The ticket secrets cannot be created.
    #[error(transparent)]
    Rotation(#[from] NotRotated),
    /// Replication cannot start.
    #[error(transparent)]
    Cluster(#[from] NoBoot),
    #[error("{what}: {error}")]
    System {
        /// The failed action, such as `cannot start the workers`.
        what: &'static str,
        error: io::Error,
    },
}

/// Starts the serving process. Must be called before any other thread exists, because the sandbox
/// applies only to the calling thread and to threads that it starts later.
///
/// # Errors
///
/// Returns all errors of the configuration, or the first failed system call.
pub fn launch(
    source: ConfigSource,
    given: ProcessResources,
    link: Option<SupervisorLink>,
) -> Result<Terminator, StartError> {
    let supervisor = link.as_ref().map(|link| Arc::clone(&link.opener));
    let launched = launch_parts(source, given, link);
    if let (Some(supervisor), Err(error)) = (supervisor, &launched) {
        // Sending fails only if the supervisor has exited; the reason is then not needed.
        let _ended = supervisor.send(&Event::Failed(shortened(error.to_string())));
    }
    launched
}

/// Truncates a reason to the maximum length of an event.
fn shortened(mut reason: String) -> String {
    let end = (0..=reason.len().min(LONGEST_REASON)).rfind(|end| reason.is_char_boundary(*end));
    // `end` is always set, because index 0 is a character boundary.
    reason.truncate(end.unwrap_or(0));
    reason
}

fn launch_parts(
    source: ConfigSource,
    given: ProcessResources,
    mut link: Option<SupervisorLink>,
) -> Result<Terminator, StartError> {
    let clock = Clock::start();
    let now = clock.now();
    let (runtime, signals) = runtime().map_err(system("cannot start the control loop"))?;
    let (unix, files) = (UnixTime::since_unix_epoch(now.unix), given.files);
    let tokens = Tokens::adopt(given.tokens, &Tokens::default());
    let loading = source.with(files.clone(), tokens);
    let loaded = loading.load(unix, LoadPurpose::Serve);
    let prepared = loaded.map_err(StartError::Rejected)?;
    let config = Arc::new(prepared.config);
    let logging = becket_log::install(&config.log, &files)?;
    log_warnings(&prepared.warnings);
    save_checked(prepared.checked);
    let count = worker_count(&config.file.process);
    let (memory, sandbox) = confine(&loading, &config, &files, count)?;
    let given = (given.sockets, given.admin_socket);
    let sockets = bind(&config, count, given).map_err(|e| rejected(&loading, e))?;
    let access = AccessWriter::open(&config.log, &files).map_err(system("log.access"))?;
    logging.start()?;
    let shared = shared(&config, clock, count, (&logging, access.as_ref()));
    let rotation = Rotation::of(&config, now)?;
    let companion = CompanionState::default();
    let mut cluster = SessionSharing::default();
    cluster.store = cluster
        .store_for(&config, &shared, &companion.sharing())
        .map_err(system("cannot start the thread of the store"))?;
    cluster.peers = cluster::membership(sockets.peers, &config, &shared, companion.sharing())?;
    let (sender, ended) = unbounded_channel();
    let common = Common {
        adopted: shared.backends.adopt(&config),
        shared: Arc::clone(&shared),
        secrets: Arc::clone(rotation.secrets()),
        outboxes: cluster.outboxes(),
        is_parked: link.is_some(),
    };
    let handover = handover(link.as_mut(), &common)?;
    let (workers, access) = start_workers(&common, sockets.listeners, access, sender)?;
    let node = cluster.peers.as_ref().map(Membership::node);
    let store = cluster.store.as_ref().map(Store::view);
    let main = main_process(&link);
    let state = AdminState::new(main, shared, Arc::clone(&config), &rotation, node);
    state.change(|it| it.store = store);
    let control = Control {
        state: Arc::new(state.sandboxed(&sandbox)),
        workers,
        ended,
        prober: Prober::new(HostResolver::system()),
        rotation,
        config: ConfigTasks {
            source,
            reloading: Reloading::default(),
            watching: Watching::of(loading.watched(&config.file)),
            retired: RetiredMaps::default(),
            waiting: PendingOutcomes::default(),
        },
        cluster,
        companion,
        logs: LogThreads { logging, access },
        admin: AdminThreads {
            sockets: sockets.admin,
            pages: None,
            changes: channel(WAITING_CHANGES),
        },
        handover,
        memory,
        supervision: Supervision {
            signals,
            commands: commands(&link).map_err(system("cannot receive commands"))?,
            link,
        },
        sandbox,
        drain_until: None,
    };
    Ok(Terminator { runtime, control })
}

/// Checks the user of this process, sets its resource limits and enters the sandbox. Runs before
/// sockets are bound and threads are started. [`MemoryWatch`] opens its files before the sandbox is
/// entered; the threads of tokens start inside it.
fn confine(
    source: &ConfigSource,
    config: &Config,
    files: &Files,
    workers: usize,
) -> Result<(MemoryWatch, Sandbox), StartError> {
    check_user(source, config)?;
    limit_process(config, workers)?;
    let memory = MemoryWatch::open(config.file.limits.memory);
    let sandbox = Sandbox::enter(config, files, &source.folder());
    let served = config.tokens.serve();
    served.map_err(system("cannot start the threads of tokens"))?;
    Ok((memory, sandbox))
}

/// Starts the workers, and the thread that writes the access log.
fn start_workers(
    common: &Common,
    sockets: Vec<Vec<BoundListener>>,
    mut access: Option<AccessWriter>,
    ended: UnboundedSender<WorkerEnded>,
) -> Result<(Workers, Option<AccessThread>), StartError> {
    let workers = Workers::start(common, sockets, access.as_mut(), move |worker| {
        // Sending fails only if the control loop has ended; the process then exits.
        ended.send(worker).ok();
    });
    let workers = workers.map_err(system("cannot start the workers"))?;
    let access = access.map(AccessWriter::start).transpose();
    Ok((
        workers,
        access.map_err(system("cannot start the access log"))?,
    ))
}

/// Starts to receive the state of the old process, if there is one. Under a supervisor, this
/// process cannot use shared limits until it serves clients.
fn handover(link: Option<&mut SupervisorLink>, common: &Common) -> Result<Handover, StartError> {
    let replaced = link.and_then(|link| {
        SharedLimits::wait(&common.shared);
        link.replaced.take()
    });
    let outbox = common.outboxes.first().cloned();
    let before = replaced.map(|stream| receiver::start(stream, &common.shared, outbox));
    let before = before.transpose();
    let before = before.map_err(system("cannot receive the state of the old process"))?;
    Ok(Handover::new(before))
}

/// Starts to receive commands from the supervisor. Returns a closed channel if there is no
/// supervisor.
fn commands(link: &Option<SupervisorLink>) -> io::Result<UnboundedReceiver<Delivered>> {
    let Some(link) = link else {
        return Ok(unbounded_channel().1);
    };
    if link.follows_a_death {
        let deaths = link.restarts.deaths;
        tracing::warn!(name: "process-restarted", restarts = deaths, "serving process started again: the previous one died");
    }
    link.listen()
}

/// Returns the process to which an operator sends signals: the supervisor, or this process if there
/// is none.
fn main_process(link: &Option<SupervisorLink>) -> MainProcess {
    let (pid, restarts) = match link {
        Some(link) => (std::os::unix::process::parent_id(), link.restarts),
        None => (std::process::id(), Restarts::default()),
    };
    MainProcess { pid, restarts }
}

fn rejected(source: &ConfigSource, errors: Vec<Problem>) -> StartError {
    let mut report = Report {
        errors,
        ..Report::default()
    };
    source.place(&mut report);
    StartError::Rejected(Rejected {
        origin: source.origin(),
        ..Rejected::of(report.errors)
    })
}

struct AllSockets {
    listeners: Vec<Vec<BoundListener>>,
    peers: Option<UdpSocket>,
    admin: AdminSockets,
}

/// Binds the sockets that the supervisor has not passed.
fn bind(
    config: &Config,
    workers: usize,
    (mut given, given_admin): (BoundSockets, Option<io::Result<OwnedFd>>),
) -> Result<AllSockets, Vec<Problem>> {
    let listeners = sockets::bind(config, (&[], &[]), workers, &mut given)?;
    let peers = config.peers_arrive_at();
    let peers = peers.and_then(|address| given.take_datagrams(address));
    let peers = cluster::bind(config, peers).map_err(|problem| vec![problem])?;
    let tcp = config.admin.address.map(|address| {
        let bound = match given.take_one(SocketKind::Admin, address) {
            Some(given) => given.map(TcpListener::from),
            None => socket::succeed(address),
        };
        bound.map_err(|error| {
            let fault = sockets::fault(address, &error);
            let problem = Problem::new("admin.address", fault);
            vec![problem.value(address.to_string())]
        })
    });
    // The path of the admin socket belongs to the old process while that process serves clients.
    let is_free = given_admin.is_some() || !given.listen_later;
    let unix = config.admin.socket.as_ref().filter(|_| is_free);
    let unix = unix.map(|wanted| {
        let bound = match given_admin {
            Some(given) => given.map(SocketFile::from),
            None => SocketFile::bind(&wanted.path, &wanted.access),
        };
        bound.map_err(|error| {
            let problem = Problem::new("admin.socket", reason(&error));
            let problem = problem.value(wanted.path.display().to_string());
            let accepted = "a path without a file, or a socket that no process listens on";
            vec![problem.accepted(accepted)]
        })
    });
    let admin = AdminSockets {
        tcp: tcp.transpose()?,
        unix: unix.transpose()?,
    };
    for address in given.unused() {
        tracing::warn!(name: "socket-unused", %address, "inherited socket matches no listener");
    }
    Ok(AllSockets {
        listeners,
        peers,
        admin,
    })
}

fn shared(
    config: &Config,
    clock: Clock,
    workers: usize,
    (log, access): (&Logging, Option<&AccessWriter>),
) -> Arc<SharedState> {
    let limits = session_table::Limits {
        entries: config.file.sessions.table_entries,
        bytes: config.file.sessions.table_size,
        ..session_table::Limits::default()
    };
    let table = || Arc::new(SessionTable::new(limits, Default::default()));
    let mut shared = SharedState::new(workers, clock, table(), table());
    let threads = crypto_thread_count(&config.file.process, workers);
    shared.signatures = Arc::new(SigningQueue::new(threads, config.batches));
    shared.lost_lines.log = log.dropped();
    shared.lost_lines.syslog = log.syslog_dropped();
    shared.lost_lines.access = access.map(AccessWriter::dropped).unwrap_or_default();
    Arc::new(shared)
}

/// Creates the runtime of the control loop and the signal handlers. Sets no_new_privs first, so
/// that it applies to all threads.
fn runtime() -> io::Result<(Runtime, Signals)> {
    privileges::forbid_new_privileges()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let signals = runtime.block_on(async { Signals::listen() })?;
    Ok((runtime, signals))
}

fn limit_process(config: &Config, workers: usize) -> Result<(), StartError> {
    let raised = descriptors::raise(config, workers);
    raised.map_err(system("limits.connections (two descriptors each)"))?;
    if !config.file.process.core_dumps {
        rlimit::forbid_core_dumps().map_err(system("process.core-dumps"))?;
    }
    if config.file.process.lock_memory {
        rlimit::lock_memory().map_err(system("process.lock-memory"))?;
    }
    Ok(())
}

/// Fails if the process runs as a user other than the configured one.
fn check_user(source: &ConfigSource, config: &Config) -> Result<(), StartError> {
    if config.file.process.user.is_none() && privileges::is_root() {
        tracing::warn!(name: "running-as-root", "running as root; set process.user to drop privileges");
    }
    let refused = refused_user(config);
    refused.map_or(Ok(()), |problem| Err(rejected(source, vec![problem])))
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |error| StartError::System { what, error }
}

/// Maximum length in bytes of the reason for a failed start; enough for hundreds of errors.
const LONGEST_REASON: usize = 64 * 1024;
