//! Installed programs as peers of becket: openssl, curl, nginx and others.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

use crate::time::patiently;

/// Installed program.
#[derive(Clone, Debug)]
pub struct Tool(PathBuf);

/// Result of a finished program.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Exit code; 128 plus the signal number if a signal terminated the program.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Tool {
    /// Finds a program. Skips the test if it is not installed.
    #[track_caller]
    pub fn find(name: &str) -> Option<Self> {
        becket_tidy::find(name).map(Self)
    }

    /// Uses a program at a known path.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub fn path(&self) -> &std::path::Path {
        &self.0
    }

    pub fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(&self.0);
        command.args(arguments).env_remove("SSLKEYLOGFILE");
        command
    }

    /// Runs the program with `input` on its standard input and waits for its exit.
    #[track_caller]
    pub fn run<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
        input: &str,
    ) -> Finished {
        finish(self.command(arguments), input)
    }
}

impl Finished {
    pub fn all(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// Runs a command with `input` on its standard input and waits for its exit.
#[track_caller]
pub fn finish(mut command: Command, input: &str) -> Finished {
    let what = format!("{command:?}");
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = Kept(child.expect("a program that starts"));
    let mut stdin = child.0.stdin.take().expect("a pipe");
    let input = input.to_owned();
    // A program may exit before it has read all input.
    thread::spawn(move || stdin.write_all(input.as_bytes()).ok());
    let stdout = child.0.stdout.take().map(drain);
    let stderr = child.0.stderr.take().map(drain);
    let ended = patiently(|| child.0.try_wait().expect("a status"));
    // Kill a program that does not exit, so that its output can be read.
    drop(child);
    let text = |reader: Option<thread::JoinHandle<String>>| {
        reader
            .and_then(|reader| reader.join().ok())
            .unwrap_or_default()
    };
    let (stdout, stderr) = (text(stdout), text(stderr));
    let Some(status) = ended else {
        panic!("timed out: {what} does not exit; output:\n{stdout}{stderr}");
    };
    Finished {
        code: status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        stdout,
        stderr,
    }
}

fn drain(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).ok();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Child process, killed on drop.
#[derive(Debug)]
pub struct Kept(pub Child);

impl Drop for Kept {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}
