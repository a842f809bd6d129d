//! Functions that change a whole process, each case alone in a child: credentials, limits, environment,
//! inherited descriptors.
//!
//! Without a case, this program starts itself once for every case, with the name in an environment
//! variable, and expects exit status 0. Since there is no test harness, each case has its own process with
//! a single thread.
#![expect(
    clippy::unwrap_used,
    reason = "a case fails by panicking, as a test does"
)]

mod confinement;

use std::env;
use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, ExitCode};
use std::sync::mpsc::channel;

use becket_sys::clock::since_boot;
use becket_sys::fd_passing::inherited_listeners;
use becket_sys::identity::UnixIdentity;
use becket_sys::memory::open_descriptors;
use becket_sys::notify::Notifier;
use becket_sys::privileges::{drop_to, forbid_new_privileges, is_root};
use becket_sys::reserve::ReserveFd;
use becket_sys::rlimit::{forbid_core_dumps, lock_memory, raise_open_files};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, dumpable_behavior, getrlimit, setrlimit,
};

/// Name, whether it needs root, the start of its child, and the body of the child.
type Case = (&'static str, bool, fn(Command) -> bool, fn());

const CASES: [Case; 15] = [
    ("time_in_suspend_counts", true, asleep, clock),
    (
        "dropped_privileges_leave_no_capability_and_no_way_back",
        true,
        plain,
        dropping,
    ),
    (
        "a_dropped_process_can_still_measure_itself",
        true,
        plain,
        measuring_after_drop,
    ),
    (
        "new_privileges_are_forbidden_to_later_threads",
        false,
        plain,
        no_new_privileges,
    ),
    (
        "core_dumps_are_off_and_proc_stays_readable",
        false,
        plain,
        core_dumps,
    ),
    (
        "memory_is_locked_where_no_limit_can_meet_it",
        true,
        plain,
        locked_memory,
    ),
    (
        "open_files_are_raised_to_the_hard_limit_and_no_further",
        true,
        plain,
        open_files,
    ),
    (
        "the_reserve_gives_back_a_descriptor_when_none_is_left",
        false,
        plain,
        reserve,
    ),
    ("descriptors_are_counted_exactly", false, plain, counting),
    (
        "inherited_listeners_are_taken_once",
        false,
        with_listeners,
        inheriting,
    ),
    (
        "inherited_listeners_are_refused_beside_threads",
        false,
        with_listeners,
        inheriting_late,
    ),
    (
        "the_service_manager_is_found_in_the_environment",
        false,
        with_manager,
        notifying,
    ),
    (
        "a_process_that_is_confined_to_folders_opens_and_signals_nothing_else",
        false,
        plain,
        confinement::confined,
    ),
    (
        "a_process_whose_calls_are_filtered_serves_and_starts_nothing",
        false,
        plain,
        confinement::filtered,
    ),
    (
        "a_process_with_foreign_code_starts_nothing_and_touches_nobody",
        false,
        plain,
        confinement::foreign,
    ),
];

fn main() -> ExitCode {
    if let Ok(name) = env::var(CASE) {
        let case = CASES.iter().find(|case| case.0 == name);
        (case.expect("a known case").3)();
        return ExitCode::SUCCESS;
    }
    let mut failed = false;
    for (name, needs_root, start, _) in CASES {
        if needs_root && !is_root() {
            println!("skipped: needs root: {name}");
            continue;
        }
        let mut child = Command::new(env::current_exe().expect("own path"));
        child.env(CASE, name);
        let passed = start(child);
        println!("{name}: {}", if passed { "ok" } else { "FAILED" });
        failed |= !passed;
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn plain(mut child: Command) -> bool {
    child.status().expect("child starts").success()
}

// Clocks

/// Starts the child in a time namespace in which the machine has slept since it was started.
fn asleep(child: Command) -> bool {
    let slept = SLEPT_SECONDS.to_string();
    let mut unshare = Command::new("unshare");
    unshare.args(["--time", "--boottime", &slept]);
    let possible = Command::new("unshare").args(["--time", "true"]).status();
    if !possible.is_ok_and(|status| status.success()) {
        println!("skipped: no time namespaces");
        return true;
    }
    let set = child.get_envs();
    unshare.envs(set.filter_map(|(name, value)| Some((name, value?))));
    unshare.arg(child.get_program());
    plain(unshare)
}

fn clock() {
    assert!(since_boot().as_secs() >= SLEPT_SECONDS);
}

// Credentials

fn stranger(groups: &[u32]) -> UnixIdentity {
    UnixIdentity {
        uid: UID,
        gid: GID,
        groups: groups.to_vec(),
    }
}

fn dropping() {
    let user = stranger(&[GID, OTHER_GID]);
    drop_to(&user).unwrap();
    for status in ["/proc/self/status", "/proc/thread-self/status"] {
        let status = std::thread::spawn(move || fs::read_to_string(status).unwrap())
            .join()
            .unwrap();
        assert_eq!(field(&status, "Uid"), format!("{UID}\t{UID}\t{UID}\t{UID}"));
        assert_eq!(field(&status, "Gid"), format!("{GID}\t{GID}\t{GID}\t{GID}"));
        assert_eq!(field(&status, "Groups"), format!("{GID} {OTHER_GID}"));
        for set in ["CapEff", "CapPrm", "CapInh"] {
            let left = u64::from_str_radix(field(&status, set), 16);
            assert_eq!(left.unwrap(), 0, "{set}");
        }
    }
    assert!(!is_root());
    let other = UnixIdentity {
        uid: UID + 1,
        ..user
    };
    assert!(drop_to(&other).is_err(), "there is a way back");
}

fn measuring_after_drop() {
    forbid_core_dumps().unwrap();
    drop_to(&stranger(&[])).unwrap();
    assert!(open_descriptors().unwrap() >= 3);
}

fn no_new_privileges() {
    forbid_new_privileges().unwrap();
    let status = std::thread::spawn(|| fs::read_to_string("/proc/thread-self/status").unwrap())
        .join()
        .unwrap();
    assert_eq!(field(&status, "NoNewPrivs"), "1");
}

// Limits

fn limit(current: u64, maximum: u64) -> Rlimit {
    Rlimit {
        current: Some(current),
        maximum: Some(maximum),
    }
}

fn core_dumps() {
    forbid_core_dumps().unwrap();
    assert_eq!(getrlimit(Resource::Core), limit(0, 0));
    assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    assert!(open_descriptors().is_ok());
}

fn locked_memory() {
    let locked = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
        let kilobytes = line.unwrap().trim().trim_end_matches(" kB");
        kilobytes.parse::<u64>().unwrap()
    };
    assert_eq!(locked(), 0);
    lock_memory().unwrap();
    assert!(locked() > 0);
    setrlimit(Resource::Memlock, limit(1 << 20, 1 << 20)).unwrap();
    drop_to(&stranger(&[])).unwrap();
    let error = lock_memory().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("is 1048576 bytes"), "{error}");
}

fn open_files() {
    setrlimit(Resource::Nofile, limit(64, 128)).unwrap();
    drop_to(&stranger(&[])).unwrap();
    assert_eq!(raise_open_files(100).unwrap(), 100);
    assert_eq!(raise_open_files(90).unwrap(), 100);
    let error = raise_open_files(129).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert!(
        error.to_string().contains("(RLIMIT_NOFILE) is 128"),
        "{error}"
    );
    assert_eq!(getrlimit(Resource::Nofile), limit(100, 128));
    assert_eq!(raise_open_files(128).unwrap(), 128);
}

fn reserve() {
    let mut reserve = ReserveFd::new().unwrap();
    setrlimit(Resource::Nofile, limit(32, 32)).unwrap();
    let mut taken = Vec::new();
    let error = loop {
        match File::open("/dev/null") {
            Ok(file) => taken.push(file),
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
    assert!(reserve.release());
    let opened = File::open("/dev/null").unwrap();
    assert_eq!(
        reserve.restore().unwrap_err().raw_os_error(),
        Some(libc::EMFILE)
    );
    assert!(!reserve.is_held());
    drop(opened);
    reserve.restore().unwrap();
    assert!(File::open("/dev/null").is_err());
}

fn counting() {
    let before = open_descriptors().unwrap();
    let files: Vec<_> = (0..5).map(|_| File::open("/dev/null").unwrap()).collect();
    assert_eq!(open_descriptors().unwrap(), before + 5);
    drop(files);
    assert_eq!(open_descriptors().unwrap(), before);
}

// The service manager

/// Passes two listeners as descriptors 3 and 4, the way systemd does.
fn with_listeners(child: Command) -> bool {
    let [first, second] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = [&first, &second].map(|listener| listener.local_addr().unwrap().to_string());
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg("export LISTEN_PID=$$; exec \"$0\" 3<&0 4>&1 </dev/null >&2")
        .arg(child.get_program());
    shell.envs(
        child
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    shell
        .env("LISTEN_FDS", "2")
        .env("LISTEN_FDNAMES", "tls:admin")
        .env(ADDRESSES, addresses.join(" "));
    shell
        .stdin(OwnedFd::from(first))
        .stdout(OwnedFd::from(second));
    shell.status().expect("shell starts").success()
}

fn inheriting() {
    let inherited = inherited_listeners().unwrap();
    assert_eq!(inherited.len(), 2);
    let addresses = env::var(ADDRESSES).unwrap();
    for (listener, address) in inherited.iter().zip(addresses.split(' ')) {
        assert_eq!(listener.local_addr().unwrap().to_string(), address);
        assert!(
            rustix::io::fcntl_getfd(listener)
                .unwrap()
                .contains(rustix::io::FdFlags::CLOEXEC)
        );
        assert_eq!(
            listener.accept().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        let _client = TcpStream::connect(address).unwrap();
        listener.accept().unwrap();
    }
    assert!(env::vars().all(|(name, _)| !name.starts_with("LISTEN_")));
    assert!(inherited_listeners().unwrap().is_empty());
}

fn inheriting_late() {
    let (stop, stopped) = channel::<()>();
    let thread = std::thread::spawn(move || stopped.recv());
    assert_eq!(
        inherited_listeners().unwrap_err().kind(),
        io::ErrorKind::ResourceBusy
    );
    assert!(env::var("LISTEN_FDS").is_ok());
    drop(stop);
    assert!(thread.join().unwrap().is_err());
}

fn with_manager(mut child: Command) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    child.env("NOTIFY_SOCKET", &path);
    let passed = child.status().expect("child starts").success();
    let mut told = [0; 64];
    manager.set_nonblocking(true).unwrap();
    let length = manager.recv(&mut told).unwrap_or(0);
    passed && &told[..length] == b"READY=1\nSTATUS=serving\n"
}

fn notifying() {
    let notifier = Notifier::from_env().unwrap().expect("a manager");
    notifier.send("READY=1\nSTATUS=serving\n").unwrap();
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}"))
        .trim()
}

const SLEPT_SECONDS: u64 = 1_000_000_000;
const CASE: &str = "BECKET_SYS_CASE";
const ADDRESSES: &str = "BECKET_SYS_ADDRESSES";
// Numbers that are probably unused.
const UID: u32 = 54_321;
const GID: u32 = 54_322;
const OTHER_GID: u32 = 54_323;
