//! Runs becket's serving process under callgrind or strace, and reads their counts.
//!
//! A supervisor starts its own program, which valgrind 3.19 cannot run. The supervisor therefore starts without a tool. An
//! upgrade then replaces the serving process by a script, which is the `argv[0]` of the supervisor.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::Process;
use crate::{Error, store};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tool {
    Callgrind,
    Strace,
}

/// Counts by what is counted.
pub(super) type Counts = BTreeMap<String, u64>;

impl Tool {
    /// Returns the value of `process.sandbox`. valgrind makes calls that the sandbox denies.
    pub(super) fn sandbox(self) -> &'static str {
        match self {
            Self::Callgrind => "off",
            Self::Strace => "on",
        }
    }

    /// Returns the tool's command line.
    fn command(self, directory: &Path) -> String {
        let out = directory.join(OUT);
        match self {
            Self::Callgrind => format!(
                "valgrind -q --tool=callgrind --separate-threads=yes --compress-strings=no --callgrind-out-file='{}'",
                out.display()
            ),
            Self::Strace => format!("strace -D -f -o '{}'", out.display()),
        }
    }
}

/// A becket whose serving process runs under a tool.
#[derive(Debug)]
pub(super) struct Serving {
    tool: Tool,
    directory: PathBuf,
    /// Process ID of the serving process, and the ID of its main thread, which is the control plane.
    pid: String,
    /// Length of the trace that has been read.
    read: usize,
    /// Stops the program on drop.
    _process: Process,
}

impl Serving {
    pub(super) fn start(
        tool: Tool,
        (becket, cpus): (&Path, &[usize]),
        directory: &Path,
        config: &str,
    ) -> Result<Self, Error> {
        let becket = fs::canonicalize(becket).map_err(|e| {
            let remedy = "build it with `cargo build --release -p becket`, or use --becket PATH";
            Error::Peer(format!("{}: {e}; {remedy}", becket.display()))
        })?;
        let file = directory.join("becket.toml");
        store::write(&file, config)?;
        let script = directory.join("script");
        let (pid, program) = (directory.join("pid"), becket.display());
        let text = format!(
            "#!/bin/sh\n[ -n \"$BECKET_CHILD\" ] || exec '{program}' \"$@\"\necho $$ >'{}'\nexec {} '{program}' \"$@\"\n",
            pid.display(),
            tool.command(directory)
        );
        store::write(&script, &text)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
            .map_err(|e| Error::os(format!("cannot change {}", script.display()), e))?;
        let mut command = Command::new(&becket);
        command.arg0(&script).args(["run", "--config"]).arg(&file);
        let log = directory.join("becket.log");
        let mut process = Process::start("becket".to_owned(), command, cpus, log)?;
        let socket = directory.join("socket");
        while !socket.exists() {
            if process.has_ended() {
                return Err(process.complain("exited during its start"));
            }
            std::thread::sleep(PAUSE);
        }
        let mut upgrade = Command::new(&becket);
        upgrade.args(["upgrade", "--socket"]).arg(&socket);
        if let Err(error) = output(upgrade) {
            return Err(process.complain(&error.to_string()));
        }
        std::thread::sleep(SETTLE);
        let pid = fs::read_to_string(&pid)
            .map_err(|e| process.complain(&format!("did not start the script: {e}")))?;
        // SCHED_IDLE lets client and backend finish each step before the server continues, so the order of all steps
        // repeats. It is set after the start, which would take too long with it on a busy machine.
        let mut chrt = Command::new("chrt");
        chrt.args(["--all-tasks", "--idle", "--pid", "0", pid.trim()]);
        output(chrt)?;
        Ok(Self {
            tool,
            directory: directory.to_owned(),
            pid: pid.trim().to_owned(),
            read: 0,
            _process: process,
        })
    }

    /// Returns the counts of all threads but the main thread since the last call.
    pub(super) fn counts(&mut self) -> Result<Counts, Error> {
        // The server closes its last connection after the client.
        std::thread::sleep(PAUSE);
        let mut counts = Counts::new();
        match self.tool {
            Tool::Callgrind => {
                let mut dump = Command::new("vgdb");
                dump.arg(format!("--pid={}", self.pid)).arg("dump");
                output(dump)?;
                for file in fs::read_dir(&self.directory)
                    .into_iter()
                    .flatten()
                    .flatten()
                {
                    let name = file.file_name().to_string_lossy().into_owned();
                    if name.starts_with(OUT) {
                        if !name.ends_with("-01") {
                            profile(&read(&file.path())?, &mut counts);
                        }
                        drop(fs::remove_file(file.path()));
                    }
                }
            }
            Tool::Strace => {
                let trace = read(&self.directory.join(OUT))?;
                calls(
                    trace.get(self.read..).unwrap_or_default(),
                    &self.pid,
                    &mut counts,
                );
                self.read = trace.len();
            }
        }
        Ok(counts)
    }
}

/// Adds up the profile of one thread, in callgrind's format.
fn profile(text: &str, counts: &mut Counts) {
    let (mut caller, mut called) = ("", "");
    let mut add = |what: &str, more| *counts.entry(what.to_owned()).or_default() += more;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            caller = name;
        } else if let Some(name) = line.strip_prefix("cfn=") {
            called = name;
        } else if let Some(total) = line.strip_prefix("totals: ") {
            add("instructions", total.parse().unwrap_or(0));
        } else if let Some(rest) = line.strip_prefix("calls=") {
            let times = rest
                .split(' ')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(0);
            if allocates(called) && !allocates(caller) {
                add("allocations", times);
            } else if called.contains("clock_gettime") && !caller.contains("clock_gettime") {
                add("clock readings", times);
            }
        }
    }
}

/// Returns `true` for the entry points of glibc's and of mimalloc's allocators.
fn allocates(function: &str) -> bool {
    let name = function.strip_prefix("mi_").unwrap_or(function);
    let name = name.split(['@', '\'']).next().unwrap_or(name);
    let name = name.strip_suffix("_aligned").unwrap_or(name);
    matches!(
        name,
        "malloc"
            | "calloc"
            | "zalloc"
            | "realloc"
            | "posix_memalign"
            | "aligned_alloc"
            | "memalign"
    )
}

/// Counts the system calls of a trace. Excludes the thread `main`, signals, and the ends of calls that another line begins.
fn calls(trace: &str, main: &str, counts: &mut Counts) {
    for line in trace.lines() {
        let (thread, rest) = line.split_once(char::is_whitespace).unwrap_or_default();
        let (name, _) = rest.trim_start().split_once('(').unwrap_or_default();
        if thread != main && !name.is_empty() && !name.contains(' ') {
            *counts.entry(name.to_owned()).or_default() += 1;
        }
    }
}

/// Returns the first line of `program --version`.
pub(super) fn said(program: &str) -> Result<String, Error> {
    let mut command = Command::new(program);
    command.arg("--version");
    let said = output(command)?;
    Ok(said.lines().next().unwrap_or_default().to_owned())
}

/// Runs a program to its end, and returns its output.
fn output(mut command: Command) -> Result<String, Error> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|e| {
        Error::Peer(format!(
            "cannot run {name}: {e}; the gate needs rustc, valgrind and strace"
        ))
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Peer(format!(
        "{name} failed ({}): {said}",
        output.status
    )))
}

fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|e| Error::os(format!("cannot read {}", path.display()), e))
}

/// First part of the names of a tool's files.
const OUT: &str = "counts";
const PAUSE: Duration = Duration::from_millis(200);
/// Time in which the new process finishes its start.
const SETTLE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_within_the_allocator_is_not_counted_again() {
        let text = "fn=becket::serve\n1 5\ncfn=mi_malloc_aligned'2\ncalls=3 0 0\n1 90\ncfn=memcpy\ncalls=7 0 0\n1 9\n\
                    cfn=clock_gettime@@GLIBC_2.17\ncalls=2 0 0\nfn=mi_malloc_aligned\ncfn=mi_malloc\ncalls=3 0 0\n\
                    fn=EVP_PKEY_new\ncfn=calloc\ncalls=4 0 0\ntotals: 104\n";
        let mut counts = Counts::new();
        profile(text, &mut counts);
        let expected = [
            ("allocations", 7),
            ("clock readings", 2),
            ("instructions", 104),
        ];
        assert_eq!(
            counts,
            expected.map(|(what, n)| (what.to_owned(), n)).into()
        );
    }

    #[test]
    fn each_call_of_other_threads_is_counted_once() {
        let trace = "10 write(3, \"x\", 1) = 1\n12 accept4(4, <unfinished ...>\n12 <... accept4 resumed>) = 5\n\
                     12 --- SIGUSR2 {si_signo=SIGUSR2} ---\n12    recvfrom(5, \"a (b\", 9, 0) = 5\n12 +++ exited with 0 +++\n";
        let mut counts = Counts::new();
        calls(trace, "10", &mut counts);
        let expected = ["accept4", "recvfrom"].map(|name| (name.to_owned(), 1));
        assert_eq!(counts, expected.into());
    }
}
