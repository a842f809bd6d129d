//! Runs the program: what it sends, what it counts, and how it reports failures.

mod agents;
mod failures;
mod honesty;
mod offers;
mod probes;
mod server;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};

use becket_load::failure::Failure;
use becket_load::report::{LoadReport, LoadStep};

/// Runs `becket-load` with these space-separated arguments.
fn load(args: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_becket-load"))
        .args(args.split_ascii_whitespace())
        .stdin(Stdio::null())
        .output()
        .expect("becket-load starts")
}

/// Runs `becket-load` against `url` and returns the report. Panics with all output if there is no report.
fn report(url: &str, args: &str) -> LoadReport {
    let output = load(&format!("-q --json {url} {args}"));
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args}: {e}\n{}", shown(&output)))
}

/// Returns the number of transactions that a busy machine did not start in time.
fn not_started(step: &LoadStep) -> u64 {
    let count = step.failures.get(&Failure::NotStarted.to_string());
    count.copied().unwrap_or(0)
}

/// Returns exit status and both output streams, for the message of a failed assertion.
fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!(
        "{}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    )
}

/// `becket-load --serve`, stopped on drop.
struct Responder {
    child: Child,
    address: SocketAddr,
}

impl Responder {
    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_becket-load"))
            .args(["--serve", "127.0.0.1:0"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("becket-load starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on ");
        let address = address.and_then(|it| it.parse().ok());
        let address = address.expect("the address on which it listens");
        Self { child, address }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        drop((self.child.kill(), self.child.wait()));
    }
}

/// Sends a signal to a process.
fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill {name}");
}
