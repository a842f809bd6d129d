//! From a configuration source to a running server: everything that can fail, in the order in
//! which it can still be undone, and privileges given up at the end.
//!
//! 1. load and check the configuration;
//! 2. install the log, its file opened as the run user;
//! 3. set the limits of the process;
//! 4. bind all sockets;
//! 5. check that the run user can read what a reload needs, and become it;
//! 6. start the workers.
//!
//! Until the last step nothing serves, so a start that fails has changed nothing.

use std::io;
use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;

use becket_proto::session_table::{Limits, SessionTable};
use becket_sys::clock::{Clock, Now};
use becket_sys::identity::Identity;
use becket_sys::notify::Notifier;
use becket_sys::{fd_passing, privileges, rlimit};
use rustls::pki_types::UnixTime;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::unbounded_channel;

use crate::cluster;
use crate::config::error::{Problem, Rejected};
use crate::config::prepare::ServerNames;
use crate::config::source::Source;
use crate::config::{Config, worker_count};
use crate::control::access_log::AccessWriter;
use crate::control::ebb::Ebb;
use crate::control::reload::Reloading;
use crate::control::rotation::{NotRotated, NotSaved, Rotation};
use crate::control::signals::Signals;
use crate::control::state::{Replication, State};
use crate::descriptors::{self, HOW_TO_RAISE};
use crate::log::{self, LogError, Logging};
use crate::secret::ratchet::Ratchet;
use crate::server::{Control, Server};
use crate::shared::Shared;
use crate::sockets;
use crate::worker::workers::{Common, Workers};
use becket_cluster::Bound;
use becket_cluster::Membership;
use becket_cluster::NoBoot;
use becket_cluster::stud::Reception;

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
pub fn launch(source: Source) -> Result<Server, StartError> {
    let clock = Clock::start();
    let now = clock.now();
    let (runtime, signals) = runtime().map_err(|error| system("control loop", error))?;
    let inherited =
        fd_passing::inherited_listeners().map_err(|error| system("socket activation", error))?;
    let loaded = source.load(UnixTime::since_unix_epoch(now.unix), ServerNames::Later);
    let prepared = loaded.map_err(StartError::Rejected)?;
    let config = Arc::new(prepared.config);
    let user = run_user(&config)?;
    let logging = log::install(&config.log, user.as_ref())?;
    for warning in &prepared.warnings {
        tracing::warn!("{warning}");
    }
    let count = worker_count(&config.process);
    limit_process(&config, count)?;

    let reject = |errors| rejected(&source, errors);
    let sockets = sockets::bind(&config, (&[], &[]), count, inherited).map_err(reject)?;
    let (bound, of_stud) = datagrams(&config).map_err(reject)?;
    let (admin, mut access) = outlets(&config, user.as_ref(), reject)?;
    change_identity(&config, user.as_ref(), &prepared.files)?;
    logging.start()?;

    let (table, early) = (session_table(&config), session_table(&config));
    let shared = Shared::new(count, clock, table, early);
    let shared = counting_lines(shared, &logging, access.as_ref());
    let adopted = shared.backends.adopt(&config);
    let rotation = rotation(&config, prepared.ratchets, now)?;
    let cluster = cluster::membership(bound, &config, &shared)?;
    let stud = cluster::reception(of_stud, &config, &shared);
    let (sender, ended) = unbounded_channel();
    let common = Common {
        shared: Arc::clone(&shared),
        adopted,
        secrets: Arc::clone(rotation.secrets()),
        outboxes: cluster.as_ref().map_or_else(Vec::new, Membership::outboxes),
        ended: sender,
    };
    let workers = Workers::start(&common, sockets, access.as_mut());
    let workers = workers.map_err(|error| system("starting workers", error))?;
    let access = access.map(AccessWriter::start).transpose();
    let access = access.map_err(|error| system("starting the access log", error))?;
    let (origin, connections) = (source.origin(), config.connections);
    tracing::info!(workers = count, connections, origin, "serving");
    let heard = heard(&cluster, &stud);
    let control = Control {
        state: Arc::new(State::new(shared, config, &rotation, heard)),
        source,
        workers,
        rotation,
        cluster,
        stud,
        reloading: Reloading::default(),
        logging,
        access,
        ebb: Ebb::default(),
        admin,
        ended,
        notifier: Notifier::from_env().map_err(|error| system("NOTIFY_SOCKET", error))?,
    };
    Ok(Server {
        runtime,
        signals,
        control,
    })
}

fn rejected(source: &Source, errors: Vec<Problem>) -> StartError {
    StartError::Rejected(Rejected {
        origin: source.origin(),
        errors,
        warnings: Vec::new(),
    })
}

/// The sockets on which other hosts tell of their sessions.
fn datagrams(config: &Config) -> Result<(Option<Bound>, Option<UdpSocket>), Vec<Problem>> {
    let bind = || Ok((cluster::bind(config)?, cluster::bind_stud(config)?));
    bind().map_err(|problem| vec![problem])
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
    shared.access_lines_dropped = access.map(AccessWriter::dropped).unwrap_or_default();
    Arc::new(shared)
}

fn session_table(config: &Config) -> Arc<SessionTable> {
    let limits = Limits {
        entries: config.sessions.table_entries,
        bytes: config.sessions.table_bytes,
        ..Limits::default()
    };
    Arc::new(SessionTable::new(limits, Default::default()))
}

/// The socket of the admin pages and the file of the access log, both opened before identity is
/// changed.
fn outlets(
    config: &Config,
    user: Option<&Identity>,
    reject: impl Fn(Vec<Problem>) -> StartError,
) -> Result<(Option<TcpListener>, Option<AccessWriter>), StartError> {
    let admin = match &config.admin {
        None => None,
        Some(admin) => {
            let address = admin.address;
            let bound = TcpListener::bind(address);
            Some(bound.map_err(|error| {
                let problem = Problem::new("admin.address", error.to_string());
                reject(vec![problem.value(address.to_string())])
            })?)
        }
    };
    let open = |log| AccessWriter::open(log, config.log.format, user);
    let access = config.log.access.as_ref().map(open).transpose();
    let access = access.map_err(|error| system("log.access", error))?;
    Ok((admin, access))
}

/// Ticket secrets, those that forget brought up to date and written: as the run user, who will
/// have to do that again.
fn rotation(config: &Config, ratchets: Vec<Ratchet>, now: Now) -> Result<Rotation, StartError> {
    let mut rotation = Rotation::of(config, ratchets, now)?;
    rotation.save(now)?;
    Ok(rotation)
}

/// The control loop's runtime, and the signals, which from now on do not end the process.
fn runtime() -> io::Result<(Runtime, Signals)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let signals = Signals::listen()?;
    drop(entered);
    Ok((runtime, signals))
}

/// Makes sure of the descriptors that the configuration needs.
///
/// # Errors
///
/// When the hard limit is too low.
pub(crate) fn raise_descriptors(config: &Config, workers: usize) -> Result<(), StartError> {
    let fixed = descriptors::fixed(&config.listeners, workers);
    let wanted = descriptors::needed(config.connections, fixed);
    let raised = rlimit::raise_open_files(wanted);
    raised.map(drop).map_err(|error| {
        let fits = descriptors::fitting(rlimit::most_open_files(), fixed);
        let what = "limits.connections (two descriptors each)";
        let text = format!("{error}; raise it ({HOW_TO_RAISE}), or set at most {fits} connections");
        system(what, io::Error::new(error.kind(), text))
    })
}

/// Descriptors for the limits, no core dumps, no privileges regained.
fn limit_process(config: &Config, workers: usize) -> Result<(), StartError> {
    raise_descriptors(config, workers)?;
    if !config.process.core_dumps {
        rlimit::forbid_core_dumps().map_err(|error| system("process.core-dumps", error))?;
    }
    privileges::forbid_new_privileges().map_err(|error| system("no_new_privs", error))
}

/// Whom becket becomes; nobody else where no user is configured.
fn run_user(config: &Config) -> Result<Option<Identity>, StartError> {
    let process = &config.process;
    let find = |user: &String| Identity::find(user, process.group.as_deref());
    let found = process.user.as_ref().map(find).transpose();
    found.map_err(|error| system("process.user", error))
}

/// Becomes the configured user, once it is sure that a reload will be able to read its files.
fn change_identity(
    config: &Config,
    user: Option<&Identity>,
    files: &[std::path::PathBuf],
) -> Result<(), StartError> {
    let (Some(identity), Some(user)) = (user, &config.process.user) else {
        if privileges::is_root() {
            tracing::warn!("running as root; process.user names the user to become");
        }
        return Ok(());
    };
    for path in files {
        let readable = privileges::readable_by(path, identity)
            .map_err(|error| system("process.user", error))?;
        if !readable {
            let text = format!("{user} cannot read {}, as a reload must", path.display());
            let error = io::Error::new(io::ErrorKind::PermissionDenied, text);
            return Err(system("process.user", error));
        }
    }
    privileges::drop_to(identity).map_err(|error| system("process.user", error))?;
    Ok(())
}

fn system(what: &'static str, error: io::Error) -> StartError {
    StartError::System { what, error }
}
