//! Errors end with a message and an exit code. They leave no running process and no result that looks complete.
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

/// Runs the bench and checks its exit code and its message.
fn fails(args: &[&str], code: i32, words: &str) {
    let output = bench(args);
    assert_eq!(output.status.code(), Some(code), "{}", said(&output));
    assert!(said(&output).contains(words), "{}", said(&output));
}

/// Runs a scenario with this script as haproxy, and checks exit code and message.
fn fails_with_haproxy(script: &str, code: i32, words: &str) {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("haproxy");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let out = directory.path().join("run");
    let build = format!("--peer=haproxy={}", program.display());
    let place = format!("--out={}", out.display());
    let args = ["run", "pq", "--smoke", "--peers=haproxy", &build, &place];
    fails(&args, code, words);
    assert!(!out.join("run.json").exists());
}

fn built() -> String {
    format!("--peer=becket={}", becket().display())
}

#[test]
fn invalid_options_are_answered_with_the_accepted_ones() {
    fails(&["run", "speed"], 2, "object-size");
    let nowhere = [
        "run",
        "key",
        "--busy-ok",
        "--peers=nginx",
        "--peer=nginx=/nowhere/nginx",
    ];
    fails(&nowhere, 3, "libnginx-mod-stream");
    let mut not_built = Command::new(BENCH);
    not_built.args(["run", "key", "--busy-ok", "--peers=haproxy@awslc"]);
    // A machine may have this build.
    let output = not_built.env("PATH", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("becket-bench peers build --awslc"));
    let agents = ["--agents=127.0.0.2", "--peers=becket"];
    let by_agents = |args: &[&'static str]| [&["run"], args, &agents].concat();
    fails(&by_agents(&["key"]), 2, "--address <IP>");
    let peer = built();
    for scenario in ["idle", "sharing"] {
        let local = [&by_agents(&[scenario, "--address=127.0.0.1"])[..], &[&peer]].concat();
        fails(&local, 2, "must run on this host");
    }
    let unknown = [&by_agents(&["key", "--address=127.0.0.1"])[..], &[&peer]].concat();
    fails(&unknown, 2, "--certificate, --key and --ca");
    let directory = tempfile::tempdir().unwrap();
    fails(
        &["report", &directory.path().display().to_string()],
        2,
        "run.json",
    );
    let out = "--out=/proc/nowhere";
    fails(
        &["run", "pq", "--smoke", "--peers=becket", &built(), out],
        4,
        "/proc/nowhere",
    );
}

#[test]
fn a_build_of_peers_names_the_failed_step_its_log_and_missing_packages() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).display().to_string();
    let build = |path: &str| {
        let mut bench = Command::new(BENCH);
        bench.args(["peers", "build", "--awslc", "--out", &place("out")]);
        for sources in ["--nginx", "--haproxy", "--aws-lc"] {
            bench.args([sources, &place("sources")]);
        }
        let output = bench.env("PATH", path).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        said(&output)
    };
    fs::create_dir(place("sources")).unwrap();
    fs::create_dir(place("tools")).unwrap();
    let missing = build(&place("tools"));
    assert!(missing.contains("apt-get install cmake"), "{missing}");

    let script = "#!/bin/sh\n[ $1 = --version ] || { echo no such project; exit 1; }\n";
    for tool in ["cmake", "c++", "make"] {
        let tool = place(&format!("tools/{tool}"));
        fs::write(&tool, script).unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let failed = build(&format!("{}:/usr/bin:/bin", place("tools")));
    let log = place("out/awslc-build/build-AWS-LC.log");
    for words in ["cannot build AWS-LC", &log, "no such project"] {
        assert!(failed.contains(words), "{failed}");
    }
}

#[test]
fn a_plan_lists_the_cases_and_stores_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("run");
    let (build, place) = (
        format!("--peer=becket={BENCH}"),
        format!("--out={}", out.display()),
    );
    let output = bench(&[
        "run",
        "all",
        "--plan",
        "--only=key=rsa2048",
        "--peers=becket",
        &build,
        &place,
    ]);
    assert!(output.status.success(), "{}", said(&output));
    let plan = String::from_utf8_lossy(&output.stdout);
    let mut lines = plan.lines();
    assert!(
        lines.any(
            |line| line.starts_with("implementations") && line.contains("key rsa2048, tls 1.2")
        ),
        "{plan}"
    );
    assert!(!plan.contains("p256"), "{plan}");
    assert!(!out.exists());
}

#[test]
fn the_log_of_a_peer_that_fails_is_shown_and_no_result_is_stored() {
    let script = "#!/bin/sh\necho no such directive >&2\nexit 1\n";
    fails_with_haproxy(script, 3, "no such directive");
    // This one exits after its first connection.
    let script = "#!/usr/bin/perl\nuse IO::Socket::INET;\nexit if $ARGV[0] eq '-vv';\nopen my $file, '<', $ARGV[2];\nmy ($address) = join('', <$file>) =~ /bind (\\S+)/;\nmy $listener = IO::Socket::INET->new(LocalAddr => $address, Listen => 5);\n$listener->accept;\ndie 'no more of this';\n";
    fails_with_haproxy(script, 3, "no more of this");
}

#[test]
fn too_few_descriptors_cause_an_error_with_advice() {
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "ulimit -n 1000; exec {BENCH} run pq --smoke --peers becket {} --out {}/run",
        built(),
        directory.path().display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert!(said(&output).contains("ulimit"), "{}", said(&output));
}

#[test]
fn a_busy_machine_is_refused_without_busy_ok() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("run");
    let (built, place) = (built(), format!("--out={}", out.display()));
    // The spinning process is not a child of the bench.
    let spin = ["120", "sh", "-c", "while :; do :; done"];
    let mut spinning = Command::new("timeout").args(spin).spawn().unwrap();
    let args = ["run", "pq", "--quick", "--peers=becket", &built, &place];
    let refused = std::panic::catch_unwind(|| fails(&args, 6, "--busy-ok"));
    signal(&spinning, Signal::TERM);
    spinning.wait().unwrap();
    refused.unwrap();
    assert!(!out.join("run.json").exists());
}

#[test]
fn an_interrupted_run_stops_its_peers_and_stores_no_complete_run() {
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

/// Starts a run with its files below `directory`, and returns when its first case has running peers.
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

/// Returns the command lines of processes that were started with a file of this run.
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
        assert!(clock::now() < deadline, "the condition was not met in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}
