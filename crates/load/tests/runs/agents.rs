//! One run on several agents: counts add up, and nothing runs that an agent does not allow.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use becket_load::report::{LoadReport, LoadStep};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use super::{Responder, not_started, shown, signal};

/// A CA with one certificate for all machines of the tests, and one of another CA.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        for name in ["known", "foreign"] {
            let mut params = CertificateParams::new(vec![]).expect("no names");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().expect("a key");
            let ca = params.self_signed(&key).expect("a certificate");
            let issuer = Issuer::new(params, key);
            let hosts = ["127.0.0.2", "127.0.0.3"].map(str::to_owned).to_vec();
            let key = KeyPair::generate().expect("a key");
            let params = CertificateParams::new(hosts).expect("names");
            let certificate = params.signed_by(&key, &issuer);
            let certificate = certificate.expect("a certificate");
            let write = |ending: &str, text: String| {
                std::fs::write(folder.path().join(format!("{name}.{ending}")), text)
                    .expect("a file");
            };
            write("pem", certificate.pem());
            write("key", key.serialize_pem());
            write("ca", ca.pem());
        }
        Self(folder)
    }

    /// Returns the options for this certificate. The accepted CA is always the same one.
    fn options(&self, name: &str) -> Vec<String> {
        let path = |file: String| self.0.path().join(file).display().to_string();
        let [certificate, key] = ["pem", "key"].map(|ending| path(format!("{name}.{ending}")));
        let ca = path("known.ca".to_owned());
        ["--certificate", &certificate, "--key", &key, "--ca", &ca]
            .map(str::to_owned)
            .to_vec()
    }

    fn coordinator(&self, agents: &[&Agent], args: &str) -> Command {
        let agents: Vec<&str> = agents.iter().map(|agent| agent.address.as_str()).collect();
        let mut command = program();
        command.args(["-q", "--json", "--agents", &agents.join(",")]);
        command.args(self.options("known"));
        command.args(args.split(' '));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

fn program() -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_becket-load")));
    command.stdin(Stdio::null());
    command
}

struct Agent {
    child: Child,
    address: String,
    log: Lines<BufReader<ChildStderr>>,
}

impl Agent {
    /// Starts an agent on this address that allows the responder.
    fn start(files: &Files, host: &str, responder: &Responder, args: &str) -> Self {
        let mut command = program();
        command.args(["agent", "--listen", &format!("{host}:0")]);
        let allowed = format!("127.0.0.0/8:{}", responder.address.port());
        command.args(["--allow", &allowed]);
        command.args(files.options("known"));
        command.args(args.split_ascii_whitespace());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("an agent");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on ").expect("ready");
        Self {
            log: BufReader::new(child.stderr.take().expect("piped")).lines(),
            address: address.to_owned(),
            child,
        }
    }

    /// Reads the log up to a line that contains `text`.
    fn wait_for(&mut self, text: &str) -> String {
        let mut lines = self.log.by_ref().map_while(Result::ok);
        let found = lines.find(|line| line.contains(text));
        found.unwrap_or_else(|| panic!("no line with {text}"))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop((self.child.kill(), self.child.wait()));
    }
}

fn report(output: &Output) -> LoadReport {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}\n{}", shown(output)))
}

fn assert_fails(output: &Output, code: i32, texts: &[&str]) {
    assert_eq!(output.status.code(), Some(code), "{}", shown(output));
    for text in texts {
        assert!(shown(output).contains(text), "{text}: {}", shown(output));
    }
}

/// Asserts that the step has the sums of the agents' parts.
fn assert_sums(report: &LoadReport, index: usize) -> &LoadStep {
    let step = &report.steps[index];
    let parts = || report.agents.iter().map(|agent| &agent.steps[index]);
    assert_eq!(
        step.attempted,
        parts().map(|part| part.attempted).sum::<u64>()
    );
    assert_eq!(
        step.succeeded,
        parts().map(|part| part.succeeded).sum::<u64>()
    );
    assert_eq!(step.latency.whole.count, step.succeeded);
    let cpu: f64 = parts().map(|part| part.generator.cpu_s).sum();
    assert!((step.generator.cpu_s - cpu).abs() < 1e-6);
    step
}

#[test]
fn two_agents_share_a_schedule_and_make_one_report() {
    let (files, responder) = (Files::new(), Responder::start(&[]));
    let one = Agent::start(&files, "127.0.0.2", &responder, "--most-rate 300");
    let mut two = Agent::start(&files, "127.0.0.3", &responder, "--once");
    let args = format!("{} --ramp 101..201/100,1s -c 11 -t 1", responder.url());
    let output = files.coordinator(&[&one, &two], &args).output().unwrap();
    let found = report(&output);
    assert_eq!(output.status.code(), Some(0), "{}", shown(&output));
    assert_eq!((found.steps.len(), found.agents.len()), (2, 2));
    assert_eq!((found.plan.connections, found.plan.threads), (11, 2));
    for (index, rate) in [(0, 101), (1, 201)] {
        let step = assert_sums(&found, index);
        let failed = step.failed - not_started(step);
        assert_eq!((step.attempted, failed), (rate, 0), "{step:?}");
        let parts = found
            .agents
            .iter()
            .map(|agent| agent.steps[index].attempted);
        let parts: Vec<u64> = parts.collect();
        assert!(
            parts.iter().all(|part| part.abs_diff(rate / 2) <= 1),
            "{parts:?}"
        );
    }
    for agent in &found.agents {
        assert!(agent.start_within_us > 0.0 && agent.conditions.cpus > 0);
        assert!(agent.steps[0].generator.late_start_p99_us.is_some());
        assert!(shown(&output).contains(&agent.agent), "a row of the page");
    }
    assert!(
        two.child.wait().unwrap().success(),
        "--once ends with its run"
    );

    // The coordinator runs on the host of the server, and reads its CPU time.
    let pid = responder.child.id();
    let args = format!("{} -n 101 -c 4 --pid {pid}", responder.url());
    let again = Agent::start(&files, "127.0.0.3", &responder, "");
    let three = Agent::start(&files, "127.0.0.2", &responder, "");
    let output = files
        .coordinator(&[&again, &three], &args)
        .output()
        .unwrap();
    let found = report(&output);
    assert_eq!(assert_sums(&found, 0).succeeded, 101);
    let server = found.steps[0].server.as_ref();
    assert_eq!(server.map(|it| it.pids.clone()), Some(vec![pid]));
}

#[test]
fn an_agent_refuses_what_it_does_not_allow() {
    let (files, responder) = (Files::new(), Responder::start(&[]));
    let (url, other) = (responder.url(), Responder::start(&[]).url());
    let limits = "--most-rate 100 --longest 30s";
    let mut agent = Agent::start(&files, "127.0.0.2", &responder, limits);
    for (args, reason) in [
        (format!("{other} -R 10"), "is not allowed"),
        (format!("{url} -R 101 -d 1s"), "is above --most-rate"),
        (format!("{url} -c 1"), "use -R or --ramp"),
        (format!("{url} -R 10 -d 31s"), "longer than --longest"),
        (format!("{url} -R 10 --time-out 31s"), "is above --longest"),
        (format!("{url} -R 10 -t 9999 -d 1s"), "threads"),
    ] {
        let output = files.coordinator(&[&agent], &args).output().unwrap();
        assert_fails(&output, 5, &[&agent.address, "refused", reason]);
        agent.wait_for("refused");
    }
    let output = files.coordinator(&[&agent, &agent], &format!("{url} -n 1"));
    assert_fails(&{ output }.output().unwrap(), 2, &["fewer transactions"]);
}

#[test]
fn certificates_are_required_and_verified_on_both_sides() {
    let (files, responder) = (Files::new(), Responder::start(&[]));
    let agent = Agent::start(&files, "127.0.0.2", &responder, "");
    let url = responder.url();
    let mut command = program();
    command.args(["--agents", &agent.address, &url]);
    let output = command.output().unwrap();
    assert_fails(&output, 2, &["--certificate, --key and --ca"]);
    let mut command = program();
    let output = command.args(["agent", "--listen", "127.0.0.2:0"]).output();
    assert_fails(&output.unwrap(), 2, &["--certificate, --key and --ca"]);

    let mut command = program();
    command.args(["--agents", &agent.address, &url]);
    let output = command.args(files.options("foreign")).output().unwrap();
    assert_fails(&output, 5, &[&agent.address, "alert"]);
    // An agent with another name than the one in --agents.
    let elsewhere = Agent::start(&files, "127.0.0.4", &responder, "");
    let output = files.coordinator(&[&elsewhere], &url).output().unwrap();
    assert_fails(&output, 5, &[&elsewhere.address, "certificate"]);
    let output = files.coordinator(&[&agent], &format!("{url} -n 3 -c 1"));
    assert_eq!(report(&{ output }.output().unwrap()).steps[0].succeeded, 3);
}

#[test]
fn a_run_ends_with_its_coordinator_and_another_one_waits_for_that() {
    let (files, responder) = (Files::new(), Responder::start(&[]));
    let mut agent = Agent::start(&files, "127.0.0.2", &responder, "");
    let url = responder.url();
    let mut first = files
        .coordinator(&[&agent], &format!("{url} -R 50 -d 5m"))
        .spawn()
        .unwrap();
    agent.wait_for("begins");
    let short = format!("{url} -R 50 -d 500ms");
    let second = files.coordinator(&[&agent], &short).output().unwrap();
    assert_fails(&second, 5, &[&agent.address, "another run is in progress"]);
    first.kill().unwrap();
    first.wait().unwrap();
    agent.wait_for("aborted: lost the coordinator");
    let mut third = files.coordinator(&[&agent], &short);
    let found = report(&third.output().unwrap());
    let step = assert_sums(&found, 0);
    assert_eq!(step.failed, not_started(step));
    agent.wait_for("complete");

    let interrupted = files
        .coordinator(&[&agent], &format!("{url} -R 50 -d 5m"))
        .spawn()
        .unwrap();
    agent.wait_for("begins");
    signal("-INT", interrupted.id());
    let output = interrupted.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", shown(&output));
    assert!(report(&output).interrupted);
    agent.wait_for("complete");
}

#[test]
fn a_killed_agent_is_named_and_the_others_stop() {
    let (files, responder) = (Files::new(), Responder::start(&[]));
    let mut kept = Agent::start(&files, "127.0.0.2", &responder, "");
    let mut killed = Agent::start(&files, "127.0.0.3", &responder, "");
    let args = format!("{} -R 50 -d 5m", responder.url());
    let run = files.coordinator(&[&kept, &killed], &args).spawn().unwrap();
    kept.wait_for("begins");
    killed.wait_for("begins");
    killed.child.kill().unwrap();
    let output = run.wait_with_output().unwrap();
    assert_fails(&output, 5, &[&format!("agent {}: ", killed.address)]);
    assert!(output.stdout.is_empty(), "no report of a part");
    kept.wait_for("aborted: lost the coordinator");

    let mut stopped = Agent::start(&files, "127.0.0.3", &responder, "--once");
    let run = files
        .coordinator(&[&kept, &stopped], &args)
        .spawn()
        .unwrap();
    stopped.wait_for("begins");
    signal("-TERM", stopped.child.id());
    let output = run.wait_with_output().unwrap();
    assert_fails(&output, 5, &[&stopped.address, "the agent was stopped"]);
    assert!(stopped.child.wait().unwrap().success());
}
