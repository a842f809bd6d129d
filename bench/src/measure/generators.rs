//! Compares `becket-load` with other load generators in the same case.
//!
//! A column is a generator instead of a server. Each generator runs on the client's CPUs and puts its load on the first
//! server over TLS. `ab`, `siege` and, for one connection at a time, `openssl s_time` run if each connection has one
//! request. `wrk`, `ab` and `siege` with keep-alive run if connections have more requests.

use std::process::{Command, Stdio};

use becket_load::clock;
use becket_load::plan::Load;
use becket_sys::cpu;

use super::rounds;
use super::stage::Stage;
use crate::result::Column;
use crate::{Error, figures, load, place, store};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Generator {
    BecketLoad,
    STime,
    Wrk,
    Ab,
    Siege,
}

struct Done {
    transactions: f64,
    seconds: f64,
    cpu_s: f64,
}

pub(super) fn run(stage: &mut Stage<'_>) -> Result<Vec<Column>, Error> {
    let generators = Generator::of(stage.settings.connections, stage.settings.requests);
    let columns = generators
        .iter()
        .map(|generator| Column::new(generator.name()));
    rounds::each(stage, columns.collect(), |stage, index, column, sample| {
        let generator = generators[index];
        if generator == Generator::BecketLoad {
            let ask = stage.ask(stage.servers[0].address, None);
            let ask = ask.with("-c", stage.settings.connections);
            let step = ask.one(Load::ClosedFor(stage.effort.time), stage.stop)?;
            *sample = load::sample(sample.round, &step, stage.settings.body);
            return Ok(());
        }
        match generator.run(stage)? {
            Some(done) if done.transactions > 0.0 => {
                sample.put(figures::RATE, done.transactions / done.seconds);
                let each = done.cpu_s * 1e6 / done.transactions;
                sample.put(figures::CLIENT_CPU, each);
            }
            Some(_) => column.note("no transaction succeeded in a round"),
            None => column.not_measured = Some(generator.needs()),
        }
        Ok(())
    })
}

impl Generator {
    fn of(connections: usize, requests: u64) -> Vec<Self> {
        let mut all = vec![Self::BecketLoad];
        match (connections, requests) {
            (1, 1) => all.push(Self::STime),
            (_, 1) => {}
            _ => all.push(Self::Wrk),
        }
        all.extend([Self::Ab, Self::Siege]);
        all
    }

    fn name(self) -> &'static str {
        match self {
            Self::BecketLoad => "becket-load",
            Self::STime => "openssl s_time",
            Self::Wrk => "wrk",
            Self::Ab => "ab",
            Self::Siege => "siege",
        }
    }

    fn needs(self) -> String {
        let package = match self {
            Self::Ab => "apache2-utils",
            Self::STime => "openssl",
            other => other.name(),
        };
        format!("needs {}: apt-get install {package}", self.name())
    }

    /// Runs the generator. Returns `None` if it is not installed.
    fn run(self, stage: &Stage<'_>) -> Result<Option<Done>, Error> {
        let (path, address) = (stage.path(), stage.servers[0].address.to_string());
        let url = format!("https://{address}{path}");
        let connections = stage.settings.connections.to_string();
        let seconds = stage.effort.time.as_secs().max(1).to_string();
        let threads = stage.client.len().to_string();
        let rc = stage.directory.join("siegerc").display().to_string();
        let (in_seconds, keeps) = (format!("{seconds}S"), stage.settings.requests > 1);
        let mut args: Vec<&str> = match self {
            Self::STime => vec![
                "s_time", "-new", "-tls1_2", "-connect", &address, "-time", &seconds, "-www", &path,
            ],
            Self::Wrk => vec!["-t", &threads, "-c", &connections, "-d", &seconds],
            // With `-t`, ab stops after 50 000 requests unless a later `-n` raises the number.
            Self::Ab => vec![
                "-q",
                "-t",
                &seconds,
                "-n",
                "5000000",
                "-c",
                &connections,
                "-f",
                "TLS1.2",
            ],
            Self::Siege => {
                write_siegerc(stage, keeps)?;
                vec!["-R", &rc, "-b", "-c", &connections, "-t", &in_seconds]
            }
            Self::BecketLoad => return Ok(None),
        };
        if self == Self::Ab && keeps {
            args.push("-k");
        }
        if self != Self::STime {
            args.push(&url);
        }
        let program = if self == Self::STime {
            "openssl"
        } else {
            self.name()
        };
        let Some((said, took, cpu_s)) = said(stage, program, &args)? else {
            return Ok(None);
        };
        let (transactions, seconds) = self.counted(&said).unwrap_or((0.0, took));
        Ok(Some(Done {
            transactions,
            // s_time reports whole seconds, so the elapsed time measured here is more precise.
            seconds: if self == Self::STime { took } else { seconds },
            cpu_s,
        }))
    }

    fn counted(self, said: &str) -> Option<(f64, f64)> {
        let number = |text: &str| {
            let text = text.trim_start_matches([' ', '\t', ':', '"']);
            let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
            text.get(..end.unwrap_or(text.len()))?.parse::<f64>().ok()
        };
        let after = |words: &str| number(said.split_once(words)?.1);
        match self {
            Self::BecketLoad => None,
            Self::STime => {
                let line = said.lines().find(|l| l.contains(" connections in "))?;
                Some((number(line)?, 0.0))
            }
            Self::Wrk => {
                let line = said.lines().find(|l| l.contains(" requests in "))?;
                let count = number(line)?;
                Some((count, count / after("Requests/sec:")?))
            }
            Self::Ab => Some((
                after("Complete requests:")? - after("Failed requests:")?,
                after("Time taken for tests:")?,
            )),
            Self::Siege => Some((
                after("\"successful_transactions\"")?,
                after("\"elapsed_time\"")?,
            )),
        }
    }
}

/// Writes a configuration for siege, which otherwise reads one from the user's home directory.
fn write_siegerc(stage: &Stage<'_>, keeps: bool) -> Result<(), Error> {
    let connection = if keeps { "keep-alive" } else { "close" };
    let text = format!(
        "verbose = false\nquiet = true\njson_output = true\nlogging = false\nparser = false\nlimit = 10000\n\
         protocol = HTTP/1.1\nconnection = {connection}\ntimeout = 30\nfailures = 1000000\n"
    );
    store::write(&stage.directory.join("siegerc"), &text)
}

/// Runs a generator under timeout(1) on the client's CPUs, because siege sometimes hangs. Returns its output, the
/// elapsed seconds and its CPU seconds, or `None` if it is not installed.
fn said(
    stage: &Stage<'_>,
    program: &str,
    args: &[&str],
) -> Result<Option<(String, f64, f64)>, Error> {
    let (begin, before) = (clock::now(), cpu::of_ended_children());
    let limit = (stage.effort.time.as_secs() + PATIENCE).to_string();
    let output = place::on(stage.client, || {
        let output = Command::new("timeout")
            .args(["-s", "KILL", &limit, program])
            .args(args)
            // siege creates a directory in `HOME`, so `HOME` is the directory of the run.
            .env("HOME", stage.directory)
            .stdin(Stdio::null())
            .output();
        let output = output.ok();
        Ok(output.filter(|output| output.status.code() != Some(NOT_FOUND)))
    })?;
    let took = (clock::now() - begin).as_secs_f64();
    let cpu = cpu::of_ended_children().saturating_sub(before);
    Ok(output.map(|output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (text, took, cpu.as_secs_f64())
    }))
}

/// Seconds after the planned end at which a generator is killed.
const PATIENCE: u64 = 20;
/// Exit code of timeout(1) for a program that does not exist.
const NOT_FOUND: i32 = 127;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_each_generator_is_parsed() {
        let ab = "Time taken for tests:   1.020 seconds\nComplete requests:      650\nFailed requests:        5\n";
        let siege = "{\t\"transactions\":\t\t\t 109,\n\t\"elapsed_time\":\t\t 0.34,\n\t\"successful_transactions\":\t 108,\n";
        let s_time = "Collecting connection statistics for 1 seconds\n\n42 connections in 0.06s; 700.00 connections/user sec\n43 connections in 2 real seconds\n";
        for (generator, said, counted) in [
            (Generator::Ab, ab, Some((645.0, 1.02))),
            (Generator::Siege, siege, Some((108.0, 0.34))),
            (Generator::STime, s_time, Some((42.0, 0.0))),
            (
                Generator::Wrk,
                "  500 requests in 2.10s, 0.66MB read\nRequests/sec:  250.00\n",
                Some((500.0, 2.0)),
            ),
            (Generator::Wrk, "unable to connect", None),
        ] {
            assert_eq!(generator.counted(said), counted, "{generator:?}");
        }
    }
}
