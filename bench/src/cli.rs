//! The command line of `becket-bench`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use becket_stats::units::parse_duration;
use clap::{Parser, Subcommand};

use crate::agents::AgentArgs;
use crate::build::BuildArgs;
use crate::gate::GateArgs;
use crate::order::{Effort, Order};
use crate::part::Part;
use crate::peer::Peer;
use crate::scenario::{OLD, Scenario, is_setting};
use crate::simulate::SimulateArgs;
use crate::{Error, catalog, conditions};

/// Repeat published experiments with TLS terminators side by side, and write a report.
#[derive(Debug, Parser)]
#[command(name = "becket-bench", version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommand of `becket-bench`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the scenarios and the question that each answers
    List,
    /// Run scenarios and store the result and its report in a directory
    Run(RunArgs),
    /// Write the report of a stored run again
    Report {
        /// Directory of the run
        directory: PathBuf,
        /// Write the figures into this README, between its markers, instead of the report
        #[arg(long, value_name = "FILE")]
        readme: Option<PathBuf>,
    },
    /// Build servers to measure
    #[command(subcommand)]
    Peers(Peers),
    /// Count instructions, allocations and system calls per transaction, and compare them with stored counts
    Gate(GateArgs),
    /// Simulate resumption behind ECMP and the traffic between 3 to 1000 hosts
    Simulate(SimulateArgs),
    /// Starts a child process of the bench.
    #[command(subcommand, hide = true)]
    Part(Part),
}

/// Subcommand of `becket-bench peers`.
#[derive(Debug, Subcommand)]
pub enum Peers {
    /// Build nginx and HAProxy from sources, in about three minutes
    Build(BuildArgs),
}

#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Scenario IDs (see `list`), `all`, or files that end in .toml
    #[arg(required = true, value_name = "SCENARIO")]
    pub scenarios: Vec<String>,
    /// Servers to measure, comma separated
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "becket,hitch,haproxy,nginx,stunnel"
    )]
    pub peers: Vec<String>,
    /// Use another build of a server: haproxy=/path/to/haproxy; haproxy@awslc=/path adds a second column
    #[arg(long, value_name = "NAME=PATH", value_parser = one_build)]
    pub peer: Vec<(String, PathBuf)>,
    /// Also measure an earlier build of becket (same as --peer becket@old=PATH)
    #[arg(long, value_name = "PATH")]
    pub old: Option<PathBuf>,
    /// Minimum rounds per case [default: 3, quick: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: Option<u32>,
    /// Maximum time per case for additional rounds, which run until becket differs clearly from the best peer [default:
    /// 5m, quick: 0s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub patience: Option<Duration>,
    /// Run only cases in which a setting has one of these values: key=rsa2048, or key=p256,rsa2048
    #[arg(long, value_name = "SETTING=VALUES", value_parser = one_only)]
    pub only: Vec<(String, Vec<String>)>,
    /// Use as few values per setting as --quick, but measurements of full length
    #[arg(long)]
    pub few: bool,
    /// List the cases without measuring
    #[arg(long)]
    pub plan: bool,
    /// Measure even if other processes use the CPUs; the report then contains a warning
    #[arg(long)]
    pub busy_ok: bool,
    /// Use shorter measurements and fewer values; all scenarios take half an hour
    #[arg(long)]
    pub quick: bool,
    /// Run every scenario with the shortest possible measurements; the figures are meaningless
    #[arg(long, conflicts_with = "quick", hide = true)]
    pub smoke: bool,
    /// Directory for the result [default: becket-bench/DATE]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub agents: AgentArgs,
}

/// Replaces an absolute path in a command-line argument, also after `NAME=`, with its file name, because the report
/// shows the command line.
pub fn without_folder(argument: String) -> String {
    let start = argument.find('=').map_or(0, |at| at + 1);
    let path = Path::new(&argument[start..]);
    match path.file_name() {
        Some(name) if path.is_absolute() => argument[..start].to_owned() + &name.to_string_lossy(),
        _ => argument,
    }
}

impl RunArgs {
    /// Finds all requested scenarios and peers.
    ///
    /// # Errors
    /// [`Error::Asked`] for an invalid option, [`Error::Peer`] for a missing peer.
    pub fn order(&self, command: Vec<String>) -> Result<Order, Error> {
        let mut effort = if self.quick {
            Effort::quick()
        } else if self.smoke {
            Effort::smoke()
        } else {
            Effort::full()
        };
        effort.few |= self.few;
        effort.rounds = self.rounds.unwrap_or(effort.rounds);
        effort.patience = self.patience.unwrap_or(effort.patience);
        effort.only.clone_from(&self.only);
        effort.agents = self.agents.agents();
        let stamp = conditions::stamp(becket_load::clock::unix_seconds());
        let out = self.out.clone();
        let scenarios = self.scenarios(&effort)?;
        effort.check_agents(&scenarios)?;
        Ok(Order {
            scenarios,
            peers: self.peers()?,
            effort,
            busy_ok: self.busy_ok || self.smoke,
            out: out.unwrap_or_else(|| PathBuf::from("becket-bench").join(stamp)),
            command,
        })
    }

    /// Returns the requested scenarios that still have a case after `--only` is applied.
    fn scenarios(&self, effort: &Effort) -> Result<Vec<Scenario>, Error> {
        let mut left = Vec::new();
        for scenario in catalog::find(&self.scenarios)? {
            let has_cases = !effort.cases(&scenario)?.is_empty();
            if has_cases || scenario.not_available.is_some() {
                left.push(scenario);
            }
        }
        if left.is_empty() {
            let only = self.only.iter();
            let only = only.map(|(name, values)| format!("--only {name}={}", values.join(",")));
            let only = only.collect::<Vec<_>>().join(" ");
            return Err(Error::Asked(format!("{only}: no case matches")));
        }
        Ok(left)
    }

    fn peers(&self) -> Result<Vec<Peer>, Error> {
        let mut asked: Vec<(String, Option<PathBuf>)> =
            self.peers.iter().map(|name| (name.clone(), None)).collect();
        let old = self.old.iter().map(|path| (OLD.to_owned(), path.clone()));
        for (name, path) in self.peer.iter().cloned().chain(old) {
            asked.retain(|(known, _)| *known != name);
            asked.push((name, Some(path)));
        }
        let peers = asked.into_iter();
        let peers = peers.map(|(name, program)| Peer::find(&name, program));
        let mut peers = peers.collect::<Result<Vec<Peer>, Error>>()?;
        peers.sort_by_key(|peer| (peer.kind as usize, peer.name.clone()));
        peers.dedup();
        Ok(peers)
    }
}

/// Parses a `--peer` option.
fn one_build(text: &str) -> Result<(String, PathBuf), &'static str> {
    let parts = text.split_once('=');
    let parts = parts.map(|(name, path)| (name.to_owned(), PathBuf::from(path)));
    parts.ok_or("not NAME=PATH, for example haproxy=/opt/haproxy/sbin/haproxy")
}

/// Parses an `--only` option.
fn one_only(text: &str) -> Result<(String, Vec<String>), &'static str> {
    let parts = text.split_once('=').filter(|(name, _)| is_setting(name));
    let (setting, values) = parts.ok_or(
        "not SETTING=VALUES, for example key=rsa2048; docs/benchmarking.md lists the settings",
    )?;
    let values = values.split(',').map(str::to_owned);
    Ok((setting.to_owned(), values.collect()))
}

const EXIT_CODES: &str = "\
Exit codes:
  0 done; 1 the gate's counts differ; 2 invalid command line, scenario or stored run; 3 a peer is missing or does not start;
  4 operating system error (limits, ports, disk); 5 peers negotiated different parameters, or an agent failed;
  6 other processes use the CPUs of this machine; 130 interrupted.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    fn args(args: &[&str]) -> RunArgs {
        let program = std::env::current_exe().unwrap().display().to_string();
        let today = format!("--peer=becket={program}");
        let fixed = ["becket-bench", "run", "--peers=becket", &today];
        match Cli::try_parse_from(fixed.iter().chain(args))
            .unwrap()
            .command
        {
            Command::Run(args) => args,
            other => panic!("{other:?} is no run"),
        }
    }

    #[test]
    fn an_old_build_is_a_separate_peer_after_the_current_one() {
        let program = std::env::current_exe().unwrap().display().to_string();
        let peers = args(&["key", "--old", &program]).peers().unwrap();
        let names: Vec<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
        assert_eq!(names, ["becket", OLD]);
    }

    #[test]
    fn absolute_paths_are_reduced_to_file_names() {
        for (argument, repeated) in [
            ("/opt/a b/becket-bench", "becket-bench"),
            ("becket@old=/opt/becket", "becket@old=becket"),
            ("key=p256,rsa2048", "key=p256,rsa2048"),
            ("bench/results/1", "bench/results/1"),
            ("/", "/"),
        ] {
            assert_eq!(without_folder(argument.to_owned()), repeated);
        }
    }

    #[test]
    fn cases_are_limited_by_the_values_of_settings() {
        let only = ["--only=key=rsa2048", "--only=tls=1.2,1.3"];
        let args = args(&[&["implementations", "pq"][..], &only].concat());
        let order = args.order(Vec::new()).unwrap();
        let ids: Vec<&str> = order.scenarios.iter().map(|s| s.id.as_str()).collect();
        assert_eq!(ids, ["implementations"]);
        let cases = order.effort.cases(&order.scenarios[0]).unwrap();
        assert!(cases.iter().all(|(_, case)| case.text["key"] == "rsa2048"));
        assert_eq!(cases.len(), 3);
    }

    #[test]
    fn a_limit_must_name_a_setting_and_match_a_case() {
        for only in ["keys=rsa2048", "key"] {
            let parsed = Cli::try_parse_from(["becket-bench", "run", "pq", "--only", only]);
            let error = parsed.unwrap_err().to_string();
            assert!(error.contains(&format!("'{only}'")), "{error}");
        }
        let order = args(&["implementations", "--only", "key=rsa1024"]).order(Vec::new());
        let error = order.unwrap_err().to_string();
        assert!(error.contains("--only key=rsa1024"), "{error}");
    }
}
