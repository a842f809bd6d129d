//! What goes wrong ends in a sentence and an exit code, and leaves nothing that runs or looks whole.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use becket_load::clock;
use rustix::process::{Pid, Signal, kill_process};
use support::{BENCH, becket, bench, said};

#[test]
fn an_unknown_scenario_is_answered_with_the_known_ones() {
    let output = bench(&["run", "speed"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("object-size"), "{}", said(&output));
}

#[test]
fn a_plan_says_what_would_run_and_stores_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("run");
    let build = format!("becket={BENCH}");
    let args = [
        "run",
        "all",
        "--plan",
        "--only",
        "key=rsa2048",
        "--peers",
        "becket",
    ];
    let output = bench(
        &[
            &args[..],
            &["--peer", &build, "--out", &out.display().to_string()],
        ]
        .concat(),
    );
    assert!(output.status.success(), "{}", said(&output));
    let plan = String::from_utf8_lossy(&output.stdout);
    assert!(
        plan.lines().any(
            |line| line.starts_with("implementations") && line.contains("key rsa2048, tls 1.2")
        ),
        "{plan}"
    );
    assert!(!plan.contains("p256"), "{plan}");
    assert!(!out.exists());
}

#[test]
fn a_missing_peer_is_named_with_its_remedy() {
    let output = bench(&[
        "run",
        "key",
        "--peers",
        "nginx",
        "--peer",
        "nginx=/nowhere/nginx",
    ]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        said(&output).contains("apt-get install nginx"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_peer_that_does_not_start_shows_its_log_and_no_result_is_stored() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("haproxy");
    fs::write(&program, "#!/bin/sh\necho no such directive >&2\nexit 1\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let out = directory.path().join("run");
    let build = format!("haproxy={}", program.display());
    let args = [
        "run", "pq", "--smoke", "--peers", "haproxy", "--peer", &build, "--out",
    ];
    let output = bench(&[&args[..], &[&out.display().to_string()]].concat());
    assert_eq!(output.status.code(), Some(3));
    assert!(
        said(&output).contains("no such directive"),
        "{}",
        said(&output)
    );
    assert!(!out.join("run.json").exists());
}

#[test]
fn a_peer_that_ends_during_the_run_shows_its_log() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("haproxy");
    // It lasts until somebody has seen that it listens.
    let script = "#!/usr/bin/perl\nuse IO::Socket::INET;\nexit if $ARGV[0] eq '-vv';\nopen my $file, '<', $ARGV[2];\nmy ($address) = join('', <$file>) =~ /bind (\\S+)/;\nmy $listener = IO::Socket::INET->new(LocalAddr => $address, Listen => 5);\n$listener->accept;\ndie 'no more of this';\n";
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let out = directory.path().join("run").display().to_string();
    let build = format!("haproxy={}", program.display());
    let args = [
        "run", "pq", "--smoke", "--peers", "haproxy", "--peer", &build, "--out", &out,
    ];
    let output = bench(&args);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(
        said(&output).contains("no more of this"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_directory_that_cannot_be_written_is_an_error_of_the_system() {
    let build = format!("becket={}", becket().display());
    let output = bench(&[
        "run",
        "pq",
        "--smoke",
        "--peers",
        "becket",
        "--peer",
        &build,
        "--out",
        "/proc/nowhere",
    ]);
    assert_eq!(output.status.code(), Some(4));
    assert!(said(&output).contains("/proc/nowhere"), "{}", said(&output));
}

#[test]
fn too_few_descriptors_are_answered_with_what_to_raise() {
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "ulimit -n 1000; exec {BENCH} run pq --smoke --peers becket --peer becket={} --out {}/run",
        becket().display(),
        directory.path().display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(said(&output).contains("ulimit"), "{}", said(&output));
}

#[test]
fn a_machine_where_others_are_at_work_is_refused_unless_that_will_do() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("run").display().to_string();
    // Whoever spins here is no child of the bench.
    let mut spinning = Command::new("sh")
        .args(["-c", "while :; do :; done"])
        .spawn()
        .unwrap();
    let build = format!("becket={}", becket().display());
    let args = [
        "run", "pq", "--quick", "--peers", "becket", "--peer", &build, "--out", &out,
    ];
    let output = bench(&args);
    spinning.kill().unwrap();
    spinning.wait().unwrap();
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    assert!(said(&output).contains("--busy-ok"), "{}", said(&output));
    assert!(!Path::new(&out).join("run.json").exists());
}

#[test]
fn a_report_of_nothing_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let output = bench(&["report", &directory.path().display().to_string()]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn an_interrupted_run_stops_its_peers_and_stores_nothing_whole() {
    let directory = tempfile::tempdir().unwrap();
    let mut bench = begin(directory.path());
    signal(&bench, Signal::INT);
    assert_eq!(bench.wait().unwrap().code(), Some(130));
    all_gone(directory.path());
    assert!(!directory.path().join("run/run.json").exists());
}

#[test]
fn a_killed_bench_leaves_no_peer_and_no_directory() {
    let directory = tempfile::tempdir().unwrap();
    let mut bench = begin(directory.path());
    signal(&bench, Signal::KILL);
    bench.wait().unwrap();
    all_gone(directory.path());
    let tmp = directory.path().join("tmp");
    until(|| fs::read_dir(&tmp).unwrap().next().is_none());
}

/// Starts a run whose files lie below `directory`, and returns when its first case has peers.
fn begin(directory: &Path) -> Child {
    fs::create_dir(directory.join("tmp")).unwrap();
    let mut child = Command::new(BENCH)
        .args([
            "run",
            "pq",
            "--rounds",
            "50",
            "--busy-ok",
            "--peers",
            "becket",
        ])
        .arg(format!("--peer=becket={}", becket().display()))
        .arg(format!("--out={}", directory.join("run").display()))
        .env("TMPDIR", directory.join("tmp"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.contains("pq"), "{line}");
    until(|| !running(directory).is_empty());
    child
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn all_gone(directory: &Path) {
    until(|| running(directory).is_empty());
}

/// Returns the servers that were started with a file of this run.
fn running(directory: &Path) -> Vec<String> {
    let tmp = directory.join("tmp").display().to_string();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(&tmp)).collect()
}

fn until(is_so: impl Fn() -> bool) {
    let deadline = clock::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(clock::now() < deadline, "it did not come to that");
        std::thread::sleep(Duration::from_millis(10));
    }
}
