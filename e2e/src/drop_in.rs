//! Runs hitch or stunnel, and becket as their replacement, each with the same command line.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::place::Place;
use crate::program::becket_program;
use crate::run_user::open_to_all;
use crate::time::until;
use crate::tool::{Finished, Kept, Tool, finish};

/// The original program, or becket as its replacement.
#[derive(Clone, Debug)]
pub struct Either {
    program: std::path::PathBuf,
    /// `hitch` or `stunnel` as the first argument of becket; `None` for the original program.
    first: Option<&'static str>,
}

/// Running program, killed on drop.
#[derive(Debug)]
pub struct Running(Kept);

impl Either {
    /// Returns the original program and becket. Records the test as skipped if the original is not installed.
    pub fn both(name: &'static str, dialect: &'static str) -> Option<[Self; 2]> {
        let theirs = Tool::find(name)?;
        let program = theirs.path().to_owned();
        let theirs = Self {
            program,
            first: None,
        };
        let program = becket_program().to_owned();
        let ours = Self {
            program,
            first: Some(dialect),
        };
        Some([theirs, ours])
    }

    pub fn is_becket(&self) -> bool {
        self.first.is_some()
    }

    fn command(&self, place: &Place, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(self.first)
            .args(arguments)
            .current_dir(place.folder());
        command
            .env_remove("SSLKEYLOGFILE")
            .env_remove("NOTIFY_SOCKET");
        command
    }

    /// Runs the program and waits for its exit.
    #[track_caller]
    pub fn run(&self, place: &Place, arguments: &[&str]) -> Finished {
        finish(self.command(place, arguments), "")
    }

    /// Starts the program and waits until it listens on all addresses. Its output goes to a separate file.
    #[track_caller]
    pub fn start(&self, place: &Place, arguments: &[&str], all: &[SocketAddr]) -> Running {
        let log = place.path(if self.is_becket() {
            "becket.log"
        } else {
            "theirs.log"
        });
        let mut command = self.command(place, arguments);
        let file = File::create(&log).expect("a file");
        let also = file.try_clone().expect("the same file");
        command.stdin(Stdio::null()).stdout(also).stderr(file);
        let mut kept = Kept(command.spawn().expect("a program that starts"));
        until("the program listens", || {
            let ended = kept.0.try_wait().expect("a status");
            assert!(ended.is_none(), "it ended: {}", read(&log));
            all.iter()
                .all(|at| TcpStream::connect(at).is_ok())
                .then_some(())
        });
        Running(kept)
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

impl Running {
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0.0), signal).expect("a program that runs");
    }

    /// Sends a signal and waits for the exit. Returns the exit code, or `None` if the signal terminated the program.
    #[track_caller]
    pub fn end(mut self, signal: Signal) -> Option<i32> {
        self.signal(signal);
        let child: &mut Child = &mut self.0.0;
        until("the program exits", || child.try_wait().expect("a status")).code()
    }
}

/// Returns options that make a program started by root run as `nobody`, and makes the place readable for this user.
pub fn as_nobody(place: &Place) -> &'static [&'static str] {
    if !rustix::process::geteuid().is_root() {
        return &[];
    }
    open_to_all(place);
    for entry in std::fs::read_dir(place.folder())
        .expect("our folder")
        .flatten()
    {
        let all = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(entry.path(), all).expect("our file");
    }
    &["--user", "nobody"]
}
