//! A running becket: started by a test, and stopped on drop.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use rustix::process::{Pid, kill_process};
use serde_json::Value;

pub use rustix::process::Signal;

use crate::place::Place;
use crate::program::becket_program;
use crate::scrape::{Metrics, http_get};
use crate::shape::Shape;
use crate::time::until;
use crate::tool::Tool;

/// Running becket.
#[derive(Debug)]
pub struct Becket {
    child: Child,
    folder: PathBuf,
    /// Address of the admin pages.
    pub admin: SocketAddr,
    /// Address of the listener `web`.
    pub web: SocketAddr,
    /// Number of lines of the access log that the test has read.
    seen: AtomicUsize,
}

impl Becket {
    /// Writes the configuration to `becket.toml`, starts becket, and waits until it serves.
    #[track_caller]
    pub fn start(place: &Place, shape: &Shape) -> Self {
        Self::start_as(place, shape, |_| {})
    }

    /// Starts becket as [`Self::start`] does, after `change` has modified the command.
    #[track_caller]
    pub fn start_as(place: &Place, shape: &Shape, change: impl FnOnce(&mut Command)) -> Self {
        place.write("becket.toml", &shape.text());
        let mut command = Self::command(place, &["run", "--config", "becket.toml"]);
        change(&mut command);
        let becket = Self::spawn(command, place.folder(), shape.web, shape.admin);
        becket.ready();
        becket
    }

    /// Starts becket through a launcher that finally executes it. `launcher` is the program with its first arguments, followed by
    /// becket's command; if empty, becket is started directly.
    #[track_caller]
    pub fn start_by(place: &Place, shape: &Shape, launcher: &[String]) -> Self {
        place.write("becket.toml", &shape.text());
        let own = becket_program().to_string_lossy();
        let run = [&own, "run", "--config", "becket.toml"];
        let mut words = launcher.iter().map(String::as_str).chain(run);
        let program = words.next().expect("a program");
        let arguments: Vec<&str> = words.collect();
        let command = Self::command_of(Path::new(program), place, &arguments);
        let becket = Self::spawn(command, place.folder(), shape.web, shape.admin);
        becket.ready();
        becket
    }

    /// Returns a becket command in the folder of `place`. Its output goes to `stdout.log` and `stderr.log` in this folder.
    pub fn command(place: &Place, arguments: &[&str]) -> Command {
        Self::command_of(becket_program(), place, arguments)
    }

    /// Returns the command for another program that executes becket.
    pub fn command_of(program: &Path, place: &Place, arguments: &[&str]) -> Command {
        let file = |name| File::create(place.path(name)).expect("a file");
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(place.folder())
            .env_remove("SSLKEYLOGFILE")
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(file("stdout.log"))
            .stderr(file("stderr.log"));
        command
    }

    /// Starts a command of [`Self::command`] without waiting until it serves.
    pub fn spawn(mut command: Command, folder: &Path, web: SocketAddr, admin: SocketAddr) -> Self {
        // An earlier becket may have written lines.
        let seen = access_lines(folder).len();
        Self {
            child: command.spawn().expect("becket starts"),
            folder: folder.to_owned(),
            admin,
            web,
            seen: AtomicUsize::new(seen),
        }
    }

    /// Returns the path of the admin socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("admin.sock")
    }

    /// Waits until becket serves.
    #[track_caller]
    pub fn ready(&self) {
        until("becket serves", || {
            let healthy = matches!(http_get(self.admin, "/healthz"), Ok((200, _)));
            assert!(healthy || self.is_alive(), "becket ended:\n{}", self.logs());
            healthy.then_some(())
        });
        // The page responds before the workers have opened all descriptors.
        until("every worker has made its first turn", || {
            let metrics = self.metrics();
            let sum = |name| metrics.sum(name, &[]);
            (sum("becket_event_loop_iterations_total") >= sum("becket_workers")).then_some(())
        });
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the PID of the worker process: the oldest child of the supervisor that is not a token agent. During an
    /// upgrade, this is the old process.
    ///
    /// # Panics
    /// Panics if there is none before the deadline.
    #[track_caller]
    pub fn child(&self) -> u32 {
        until("the supervisor has a child", || {
            serving_children(self.pid()).first().copied()
        })
    }

    /// Returns the running processes of this name that the supervisor has started, oldest first.
    pub fn children_named(&self, name: &str) -> Vec<u32> {
        let comm = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm"));
        let mut children = children(self.pid());
        children.retain(|pid| comm(pid).is_ok_and(|comm| comm.trim_end() == name));
        children.retain(|pid| is_alive(*pid));
        children
    }

    /// Returns whether the process exists and is not a zombie.
    pub fn is_alive(&self) -> bool {
        is_alive(self.pid())
    }

    /// Sends a signal to the supervisor, or SIGSTOP and SIGCONT to the worker process.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        let pid = match signal {
            Signal::STOP | Signal::CONT => self.child(),
            _ => self.pid(),
        };
        let pid = Pid::from_raw(pid.cast_signed()).expect("a number");
        kill_process(pid, signal).expect("becket is there");
    }

    /// Kills the supervisor and every process that it has started.
    pub fn kill_all(&self) {
        let serving = children(self.pid());
        self.signal(Signal::KILL);
        for pid in serving
            .into_iter()
            .filter_map(|pid| Pid::from_raw(pid.cast_signed()))
        {
            let _gone = kill_process(pid, Signal::KILL);
        }
    }

    /// Sends SIGHUP and waits for the end of the reload. Returns whether it succeeded.
    #[track_caller]
    pub fn reload(&self) -> bool {
        let before = self.status()["reload"].clone();
        self.signal(Signal::HUP);
        let reload = until("a reload is tried", || {
            let reload = self.status()["reload"].clone();
            (reload != before).then_some(reload)
        });
        reload["errors"].as_array().is_some_and(Vec::is_empty)
    }

    /// Waits for the process to exit. Returns its exit code, or `None` if a signal terminated it.
    #[track_caller]
    pub fn ended(&mut self) -> Option<i32> {
        let status = until("becket ends", || self.child.try_wait().expect("a status"));
        status.code()
    }

    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        let page = http_get(self.admin, "/metrics");
        let (status, text) = page.expect("metrics are served");
        assert_eq!(status, 200);
        Metrics(text)
    }

    #[track_caller]
    pub fn status(&self) -> Value {
        let (status, text) = http_get(self.admin, "/status").expect("status is served");
        assert_eq!(status, 200);
        serde_json::from_str(&text).expect("JSON")
    }

    /// Returns all complete lines of the access log.
    pub fn access(&self) -> Vec<Value> {
        let lines = access_lines(&self.folder).into_iter();
        lines
            .map(|line| serde_json::from_str(&line).expect("JSON lines"))
            .collect()
    }

    /// Waits for the next line of the access log that the test has not read: a connection that has ended.
    #[track_caller]
    pub fn next_access(&self) -> Value {
        let seen = self.seen.load(SeqCst);
        let line = until("a line in the access log", || {
            self.access().into_iter().nth(seen)
        });
        self.seen.store(seen + 1, SeqCst);
        line
    }

    /// Returns the close reason in the next line of the access log.
    #[track_caller]
    pub fn next_reason(&self) -> String {
        let line = self.next_access();
        line["reason"].as_str().expect("a reason").to_owned()
    }

    /// Waits until no connection is open.
    #[track_caller]
    pub fn idle(&self) {
        until("no connection is open", || {
            let metrics = self.metrics();
            let handshakes = metrics.sum("becket_handshakes_in_flight", &[]) as u64;
            (metrics.open() == 0 && handshakes == 0).then_some(())
        });
    }

    /// Waits until the kernel's accept queues have their configured length. Becket shortens them while clients wait too long, so that
    /// connections to a stopped becket might be dropped.
    #[track_caller]
    pub fn queues_are_whole(&self) {
        let Some(ss) = Tool::find("ss") else { return };
        let most = fs::read_to_string("/proc/sys/net/core/somaxconn").expect("a bound");
        let most = most.trim().parse().map_or(0, |most: u32| most.min(4096));
        until("the accept queues have their configured length", || {
            let sockets = ss.run(["-Hltn", "src", &self.web.to_string()], "").stdout;
            let mut lengths = sockets.lines().map(|line| line.split_whitespace().nth(2));
            let whole = lengths.all(|length| length.and_then(|it| it.parse().ok()) == Some(most));
            (whole && !sockets.is_empty()).then_some(())
        });
    }

    /// Returns the number of open file descriptors, including the one of the admin connection.
    pub fn descriptors(&self) -> usize {
        self.metrics().sum("process_open_fds", &[]) as usize
    }

    /// Waits until the log contains `text`. A thread may write it after the effect is visible.
    #[track_caller]
    pub fn says(&self, text: &str) {
        until(&format!("the log says {text}"), || {
            self.log().contains(text).then_some(())
        });
    }

    /// Returns the log.
    pub fn log(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        read("becket.log") + &read("stderr.log")
    }

    /// Returns all logs, the open files and the state of all processes.
    pub fn logs(&self) -> String {
        let names = [
            "becket.toml",
            "stdout.log",
            "stderr.log",
            "becket.log",
            "access.log",
        ];
        let texts = names.map(|name| {
            // Reading a FIFO could block forever.
            let path = Some(self.folder.join(name)).filter(|path| path.is_file());
            let text = path
                .and_then(|path| fs::read_to_string(path).ok())
                .unwrap_or_default();
            format!("--- {name}\n{}", tail(&text))
        });
        let files = self.open_files().join(" ");
        let texts = texts.concat();
        let processes = [self.pid()].into_iter().chain(children(self.pid()));
        let processes: String = processes.map(threads).collect();
        format!("{texts}--- descriptors\n{files}\n--- processes\n{processes}")
    }

    fn open_files(&self) -> Vec<String> {
        let serving = serving_children(self.pid());
        let serving = serving.first().copied().unwrap_or(self.pid());
        let open = fs::read_dir(format!("/proc/{serving}/fd"));
        let links = open.into_iter().flatten().flatten();
        links
            .filter_map(|link| fs::read_link(link.path()).ok())
            .map(|target| target.display().to_string())
            .collect()
    }
}

/// Returns the complete lines of the access log.
fn access_lines(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("access.log")).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines = whole.lines().filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

impl Drop for Becket {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.logs());
        }
        // An orphaned child would continue to serve its clients. The PID of a process that was waited for may belong to another process.
        let runs = matches!(self.child.try_wait(), Ok(None));
        let children = runs.then(|| children(self.pid()));
        let _gone: io::Result<()> = self.child.kill();
        for child in children.into_iter().flatten() {
            let pid = Pid::from_raw(child.cast_signed());
            let _gone = pid.map(|pid| kill_process(pid, Signal::KILL));
            if !thread::panicking() {
                until("the child exits", || (!is_alive(child)).then_some(()));
            }
        }
        let _gone = self.child.wait();
        if !thread::panicking() {
            assert!(!self.log().contains(REFUSED), "{}", self.logs());
        }
    }
}

/// Log text that no test may cause: a system call that the sandbox does not allow.
const REFUSED: &str = "refused by process.sandbox";

/// Returns `true` until every thread has exited: the main thread may be first, and the others keep the sockets open.
fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = status.rsplit(')').next().unwrap_or_default();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    !state.is_empty() && (!state.starts_with(" Z") || threads > 1)
}

/// Returns the child processes except token agents.
fn serving_children(pid: u32) -> Vec<u32> {
    let name = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm"));
    let mut children = children(pid);
    children.retain(|pid| name(pid).is_ok_and(|name| name != "becket-token\n"));
    children
}

/// Returns the processes that the main thread of `pid` has started, oldest first, regardless of their PIDs.
fn children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let numbers = children.split_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// Describes a process: each thread with its state and the kernel function in which it waits.
fn threads(pid: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten().map(|task| {
        let read = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let (name, stat, waits_in) = (read("comm"), read("stat"), read("wchan"));
        let state = stat.rsplit(") ").next().and_then(|rest| rest.get(..1));
        format!(" {} {} {waits_in},", name.trim_end(), state.unwrap_or("?"))
    });
    format!("{pid}:{}\n", tasks.collect::<String>())
}

/// Returns the end of a long text, because a soak test writes megabytes.
fn tail(text: &str) -> &str {
    let start = text.len().saturating_sub(16 * 1024);
    let start = (start..=text.len()).find(|at| text.is_char_boundary(*at));
    &text[start.unwrap_or(0)..]
}
