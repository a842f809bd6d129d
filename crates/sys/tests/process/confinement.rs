//! Permanent restrictions of a process: files, programs, other processes and system calls.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::process::Command;
use std::sync::mpsc::channel;

use becket_sys::affinity::{allowed_cpus, pin_current_thread};
use becket_sys::priority::{give_way, only_computes};
use becket_sys::privileges::forbid_new_privileges;
use becket_sys::rlimit::forbid_core_dumps;
use becket_sys::{call_filter, file_reach};
use rustix::process::{getppid, test_kill_process};

pub(super) fn confined() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    for folder in ["read", "write", "other"] {
        fs::create_dir(at(folder)).unwrap();
        fs::write(at(folder).join("file"), "text").unwrap();
    }
    fs::write(at("other/permitted"), "text").unwrap();
    let open = File::open(at("other/file")).unwrap();
    let name = root.path().as_os_str().as_encoded_bytes();
    let name = SocketAddr::from_abstract_name(name).unwrap();
    let _outside = UnixListener::bind_addr(&name).unwrap();
    forbid_new_privileges().unwrap();
    let (read, write) = (
        [at("read"), at("nowhere"), at("other/permitted")],
        [at("write")],
    );
    let Some(version) = file_reach::confine(&read, &write).unwrap() else {
        println!("NOT CHECKED: this kernel has no Landlock");
        return;
    };
    let denied = |done: io::Result<()>| {
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    };
    assert_eq!(fs::read(at("read/file")).unwrap(), b"text");
    assert_eq!(fs::read(at("other/permitted")).unwrap(), b"text");
    assert_eq!(fs::read_dir(at("read")).unwrap().count(), 1);
    fs::write(at("write/new"), "text").unwrap();
    fs::rename(at("write/new"), at("write/file")).unwrap();
    fs::remove_file(at("write/file")).unwrap();
    assert_eq!(
        io::read_to_string(open).unwrap(),
        "text",
        "what was open stays so"
    );
    for path in [
        at("other/file"),
        "/etc/shadow".into(),
        "/proc/1/environ".into(),
    ] {
        denied(File::open(path).map(drop));
    }
    denied(fs::read_dir(at("other")).map(drop));
    denied(fs::write(at("read/file"), ""));
    denied(fs::write(at("read/new"), ""));
    denied(fs::remove_file(at("read/file")));
    denied(fs::create_dir(at("write/folder")));
    denied(std::os::unix::fs::symlink("file", at("write/link")));
    denied(Command::new("/bin/true").status().map(drop));
    std::thread::scope(|scope| {
        let later = scope.spawn(|| File::open(at("other/file")).map(drop));
        denied(later.join().unwrap());
    });
    let signalled = test_kill_process(getppid().unwrap());
    assert_eq!(signalled.is_err(), version >= 6, "since Linux 6.12");
    let connected = UnixStream::connect_addr(&name);
    assert_eq!(connected.is_err(), version >= 6, "since Linux 6.12");
}

pub(super) fn filtered() {
    let (ask, asked) = channel::<()>();
    let early = std::thread::spawn(move || {
        asked.recv().unwrap();
        call(libc::SYS_personality, [u64::from(u32::MAX), 0, 0])
    });
    forbid_new_privileges().unwrap();
    call_filter::restrict().unwrap();
    ask.send(()).unwrap();
    assert_eq!(early.join().unwrap(), Err(libc::ENOSYS), "from before");
    let null = File::open("/dev/null").unwrap();
    let executed = becket_sys::process::become_program("/bin/true".as_ref(), ("A", "b"), &null);
    assert_eq!(executed.raw_os_error(), Some(libc::ENOSYS));
    assert_eq!(call(libc::SYS_ptrace, [0, 0, 0]), Err(libc::ENOSYS));
    assert_eq!(call(libc::SYS_clone, [17, 0, 0]), Err(libc::EPERM));
    assert_eq!(call(libc::SYS_clone3, [0, 0, 0]), Err(libc::ENOSYS));
    let socket = |family: i32| call(libc::SYS_socket, [family as u64, libc::SOCK_RAW as u64, 0]);
    assert_eq!(socket(libc::AF_PACKET), Err(libc::EPERM));
    assert_eq!(socket(libc::AF_NETLINK), Err(libc::EAFNOSUPPORT));
    let protection = (libc::PROT_WRITE | libc::PROT_EXEC) as u64;
    assert_eq!(
        call(libc::SYS_mmap, [0, 4096, protection]),
        Err(libc::EPERM)
    );
    assert_eq!(call(libc::SYS_kill, [0, 0, 0]), Err(libc::ENOSYS));
    let file = tempfile::NamedTempFile::new().unwrap();
    let set_mode = |mode| fs::set_permissions(file.path(), Permissions::from_mode(mode));
    set_mode(0o660).unwrap();
    for mode in [0o4755, 0o2755] {
        let refused = set_mode(mode).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM), "{mode:o}");
    }
    touches_only_itself();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || TcpStream::connect(address).unwrap());
    drop((listener.accept().unwrap(), client.join().unwrap()));
    assert!(("localhost", 80).to_socket_addrs().is_ok());
    let refused = call_filter::refused().into_iter();
    let refused = refused.map(|(number, count)| (call_filter::name(number).unwrap(), count));
    let counts = [
        ("chmod", 2),
        ("clone", 1),
        ("execve", 1),
        ("fcntl", 1),
        ("kill", 1),
        ("mmap", 1),
        ("personality", 1),
        ("ptrace", 1),
        ("sched_setaffinity", 1),
        ("sched_setattr", 1),
        ("sched_setscheduler", 1),
        ("setpriority", 2),
        ("socket", 1),
        ("tgkill", 1),
    ];
    assert_eq!(refused.collect::<BTreeMap<_, u64>>(), counts.into());
}

/// Signals, priority and CPUs can be changed for this process, and for no other.
fn touches_only_itself() {
    let own = u64::from(std::process::id());
    let other = u64::from(std::os::unix::process::parent_id());
    let socket = UnixStream::pair().unwrap().0;
    let of_socket = [socket.as_raw_fd() as u64, libc::F_SETOWN as u64, other];
    let process = libc::PRIO_PROCESS as u64;
    let refused = [
        (libc::SYS_tgkill, [other, other, 0]),
        (libc::SYS_fcntl, of_socket),
        (libc::SYS_setpriority, [process, other, 19]),
        (libc::SYS_setpriority, [libc::PRIO_USER as u64, 0, 19]),
        (libc::SYS_sched_setaffinity, [other, 0, 0]),
        (libc::SYS_sched_setscheduler, [other, 0, 0]),
        (libc::SYS_sched_setattr, [other, 0, 0]),
    ];
    for (of, arguments) in refused {
        assert_eq!(call(of, arguments), Err(libc::EPERM), "{of} {arguments:?}");
    }
    call(libc::SYS_tgkill, [own, own, 0]).unwrap();
    give_way(1).unwrap();
    only_computes().unwrap();
    pin_current_thread(allowed_cpus().unwrap()[0]).unwrap();
}

pub(super) fn foreign() {
    forbid_core_dumps().unwrap();
    forbid_new_privileges().unwrap();
    file_reach::forbid_programs().unwrap();
    call_filter::restrict_foreign_code().unwrap();
    let own = u64::from(std::process::id());
    let parent = u64::from(std::os::unix::process::parent_id());
    let number = |value: libc::c_int| value as u64;
    let denied = [
        (libc::SYS_clone, [number(libc::SIGCHLD), 0, 0]),
        (libc::SYS_ptrace, [0, 0, 0]),
        (libc::SYS_process_vm_readv, [parent, 0, 0]),
        (libc::SYS_pidfd_open, [parent, 0, 0]),
        (libc::SYS_kill, [parent, 0, 0]),
        (libc::SYS_tgkill, [parent, parent, 0]),
        (libc::SYS_fcntl, [0, number(libc::F_SETOWN), parent]),
        (libc::SYS_setpriority, [0, parent, 19]),
        (libc::SYS_sched_setaffinity, [parent, 0, 0]),
        (libc::SYS_ioprio_set, [1, parent, 0]),
        (libc::SYS_prlimit64, [parent, 0, 0]),
        (libc::SYS_prctl, [number(libc::PR_SET_DUMPABLE), 1, 0]),
        (libc::SYS_unshare, [number(libc::CLONE_NEWUSER), 0, 0]),
        (libc::SYS_bpf, [0, 0, 0]),
        (libc::SYS_socket, [number(libc::AF_PACKET), 3, 0]),
        (libc::SYS_socket, [number(libc::AF_ALG), 5, 0]),
    ];
    for (of, arguments) in denied {
        assert_eq!(call(of, arguments), Err(libc::EPERM), "{of} {arguments:?}");
    }
    assert!(Command::new("/bin/true").status().is_err());
    assert_eq!(call(libc::SYS_clone3, [0, 0, 0]), Err(libc::ENOSYS));
    if cfg!(target_arch = "x86_64") {
        let x32 = 0x4000_0000 + libc::SYS_getpid;
        assert_eq!(call(x32, [0, 0, 0]), Err(libc::ENOSYS));
    }
    // Calls that a module needs.
    call(libc::SYS_kill, [own, 0, 0]).unwrap();
    let own_limits = call(libc::SYS_prlimit64, [own, 0, 0]);
    assert_ne!(own_limits, Err(libc::EPERM));
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "text").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || TcpStream::connect(address).unwrap());
    drop((listener.accept().unwrap(), client.join().unwrap()));
    let (mut one, mut two) = UnixStream::pair().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    UnixStream::connect(&path).unwrap();
    call_filter::forbid_unix_sockets().unwrap();
    let unsupported = |done: io::Result<()>| {
        assert_eq!(done.unwrap_err().raw_os_error(), Some(libc::EAFNOSUPPORT));
    };
    unsupported(UnixStream::connect(&path).map(drop));
    unsupported(UnixStream::pair().map(drop));
    unsupported(UnixDatagram::unbound().map(drop));
    one.write_all(b"1").unwrap();
    two.read_exact(&mut [0]).unwrap();
    listener.accept().unwrap();
    assert!(("localhost", 80).to_socket_addrs().is_ok());
}

/// Makes a system call by its number.
fn call(number: libc::c_long, [first, second, third]: [u64; 3]) -> Result<i64, i32> {
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: calls that the filter lets through take only numbers, or map new memory.
    match unsafe { libc::syscall(number, first, second, third, anonymous, -1, 0) } {
        -1 => Err(io::Error::last_os_error().raw_os_error().unwrap()),
        result => Ok(result),
    }
}
