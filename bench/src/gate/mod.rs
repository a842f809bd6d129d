//! Counts what a transaction costs becket, and compares the counts with stored ones. Unlike CPU times they repeat, also on
//! a busy machine.
//!
//! The program serves one connection at a time: first under callgrind, which counts instructions and calls of functions in
//! user space, then under strace, which counts system calls. The difference between two loads of different lengths is the
//! cost of the additional transactions, without starts and ends of loads. [`counter`] runs the program.

mod counter;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use becket_load::plan::Load;
use serde::{Deserialize, Serialize};

use crate::load::Ask;
use crate::place::Place;
use crate::process::free_address;
use crate::{Error, guard, keys, runner, store};
use counter::{Counts, Serving, Tool};

#[derive(Debug, clap::Args)]
pub struct GateArgs {
    /// Program to count, built by `cargo build --release -p becket`
    #[arg(long, value_name = "PATH", default_value = "target/release/becket")]
    pub becket: PathBuf,
    /// Stored counts
    #[arg(long, value_name = "FILE", default_value = "bench/gate.toml")]
    pub stored: PathBuf,
    /// Store the counts instead of comparing them
    #[arg(long)]
    pub update: bool,
    /// Cases to count, comma separated [default: all]
    #[arg(long, value_name = "CASES", value_delimiter = ',', value_parser = CASES.map(|case| case.0))]
    pub only: Vec<String>,
}

/// Counts per transaction, by case and by what is counted.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    rustc: String,
    valgrind: String,
    case: BTreeMap<String, BTreeMap<String, u64>>,
}

/// Counts all cases. Returns the table and `true` if each count is as stored.
///
/// # Errors
/// [`Error::Peer`] if a program is missing or does not start, [`Error::Asked`] if a transaction fails.
pub fn run(args: &GateArgs, stop: &Arc<AtomicBool>) -> Result<(String, bool), Error> {
    let stored: Stored = match std::fs::read_to_string(&args.stored) {
        Ok(text) => toml::from_str(&text).map_err(|e| unreadable(&args.stored, e))?,
        Err(_) if args.update => Stored::default(),
        Err(error) => return Err(unreadable(&args.stored, error)),
    };
    let mut counted = Stored {
        rustc: counter::said("rustc")?,
        valgrind: counter::said("valgrind")?,
        case: BTreeMap::new(),
    };
    let directory = tempfile::tempdir().map_err(|e| Error::os("cannot create a directory", e))?;
    guard::start(directory.path())?;
    for tool in [Tool::Callgrind, Tool::Strace] {
        let directory = directory.path().join(format!("{tool:?}"));
        std::fs::create_dir(&directory)
            .map_err(|e| Error::os(format!("cannot create {}", directory.display()), e))?;
        for (case, counts) in count(tool, &directory, args, stop)? {
            counted.case.entry(case).or_default().extend(counts);
        }
    }
    if args.update {
        let mut all = if args.only.is_empty() {
            BTreeMap::new()
        } else {
            stored.case
        };
        all.extend(counted.case.clone());
        let new = Stored {
            case: all,
            ..counted
        };
        let text = toml::to_string(&new).map_err(|e| unreadable(&args.stored, e))?;
        store::write(&args.stored, &format!("{HEAD}{text}"))?;
        return Ok((format!("stored in {}\n", args.stored.display()), true));
    }
    Ok(compare(&stored, &counted))
}

/// Counts the cases with one tool.
fn count(
    tool: Tool,
    directory: &Path,
    args: &GateArgs,
    stop: &Arc<AtomicBool>,
) -> Result<BTreeMap<String, BTreeMap<String, u64>>, Error> {
    let client = Place::here()?.one().client;
    // All processes share one CPU, see `Tool::command`.
    let cpu = &client[..client.len().min(1)];
    let backend = runner::backend(directory, ("backend", runner::LOOPBACK), &[], cpu)?;
    let addresses = [free_address()?, free_address()?, free_address()?];
    let config = config(tool, directory, backend.address, &addresses)?;
    let mut serving = Serving::start(tool, (&args.becket, cpu), directory, &config)?;
    let mut all = BTreeMap::new();
    for (case, listener, path, options) in CASES {
        if !args.only.is_empty() && !args.only.iter().any(|only| only == case) {
            continue;
        }
        drop(writeln!(io::stderr(), "{tool:?}: {case}"));
        // Only plain HTTP has no options.
        let scheme = if options.is_empty() { "http" } else { "https" };
        let url = format!("{scheme}://{}/{path}", addresses[listener]);
        let ask = options
            .chunks(2)
            .fold(Ask::plain(url), |ask, pair| ask.with(pair[0], pair[1]));
        let ask = ask.on(cpu).with("-c", 1).with("--time-out", "1m");
        let mut load = |transactions| {
            let step = ask.one(Load::ClosedCount(transactions), stop)?;
            if step.succeeded != transactions {
                return Err(Error::Asked(format!("{case}: {:?}", step.failures)));
            }
            serving.counts()
        };
        load(WARM_UP)?;
        let (few, many) = (load(FEW)?, load(MANY)?);
        all.insert(case.to_owned(), each(&few, &many));
    }
    Ok(all)
}

/// Returns the configuration of listeners with a P-256 key, with an RSA key and without TLS.
fn config(
    tool: Tool,
    directory: &Path,
    backend: SocketAddr,
    addresses: &[SocketAddr; 3],
) -> Result<String, Error> {
    let certificate = |key| {
        let file = keys::file(directory, key)?;
        Ok::<_, Error>(format!("certificates = ['{}']", file.display()))
    };
    let fronts = [
        certificate("p256")?,
        certificate("rsa2048")?,
        "tls = false".to_owned(),
    ];
    let listeners = std::iter::zip(addresses, fronts).enumerate();
    let listeners = listeners.map(|(name, (address, front))| {
        format!("[[listener]]\nname = '{name}'\nbind = ['{address}']\nbackend = 'gate'\n{front}\n")
    });
    Ok(format!(
        "{}[[backend]]\nname = 'gate'\n[[backend.server]]\naddress = '{backend}'\n[timeouts]\nupgrade = '2m'\n\
         [admin]\nsocket = '{}/socket'\n[log]\nlevel = 'warn'\n[process]\nworkers = 1\nsandbox = '{}'\n",
        listeners.collect::<String>(),
        directory.display(),
        tool.sandbox(),
    ))
}

/// Returns the counts per additional transaction, rounded.
fn each(few: &Counts, many: &Counts) -> BTreeMap<String, u64> {
    let each = many.iter().map(|(what, &count)| {
        let more = count.saturating_sub(few.get(what).copied().unwrap_or(0));
        (what.clone(), (more + (MANY - FEW) / 2) / (MANY - FEW))
    });
    each.filter(|&(_, count)| count > 0).collect()
}

fn compare(stored: &Stored, counted: &Stored) -> (String, bool) {
    let same = (&stored.rustc, &stored.valgrind) == (&counted.rustc, &counted.valgrind);
    let mut text = format!("{}, {}\n", counted.rustc, counted.valgrind);
    if !same {
        text += &format!(
            "stored by {}, {}: tolerance {} %\n",
            stored.rustc,
            stored.valgrind,
            FOREIGN * 100.0
        );
    }
    text += &format!(
        "{:<20}{:<18}{:>12}{:>12}{:>9}\n",
        "case", "per transaction", "stored", "measured", "change"
    );
    let mut passes = true;
    for (case, counts) in &counted.case {
        let empty = BTreeMap::new();
        let before = stored.case.get(case).unwrap_or(&empty);
        for what in before.keys().chain(counts.keys()).collect::<BTreeSet<_>>() {
            let of = |counts: &BTreeMap<String, u64>| counts.get(what).copied().unwrap_or(0);
            let (was, is) = (of(before), of(counts));
            let allowed = match what.as_str() {
                INSTRUCTIONS if same => was as f64 * TOLERANCE + SLACK,
                INSTRUCTIONS => was as f64 * FOREIGN + SLACK,
                what if OF_WAKES.contains(&what) => (was / 20).max(1) as f64,
                "allocations" => 0.0,
                // Zero, except for the steps of a bulk transfer, whose sizes vary.
                _ => (was / 20) as f64,
            };
            let differs = is.abs_diff(was) as f64 > allowed;
            passes &= !differs;
            if differs || what == INSTRUCTIONS {
                let change = (is as f64 / was as f64 - 1.0) * 100.0;
                let mark = if differs { "  <--" } else { "" };
                text += &format!("{case:<20}{what:<18}{was:>12}{is:>12}{change:>+8.1}%{mark}\n");
            }
        }
    }
    (text, passes)
}

fn unreadable(path: &Path, error: impl ToString) -> Error {
    Error::Stored {
        path: path.to_owned(),
        why: error.to_string(),
    }
}

/// Name, index of the listener, path and options of `becket-load`.
const CASES: [(&str, usize, &str, &[&str]); 9] = [
    ("p256-1.3", 0, "", &["--tls", "1.3"]),
    ("p256-1.2", 0, "", &["--tls", "1.2"]),
    ("rsa2048-1.3", 1, "", &["--tls", "1.3"]),
    (
        "resumed-1.3",
        0,
        "",
        &["--tls", "1.3", "--resume", "always"],
    ),
    (
        "resumed-1.2-ticket",
        0,
        "",
        &["--resume-kind", "ticket", "--resume", "always"],
    ),
    (
        "resumed-1.2-id",
        0,
        "",
        &["--resume-kind", "id", "--resume", "always"],
    ),
    (
        "x25519mlkem768-1.3",
        0,
        "",
        &["--tls", "1.3", "--group", "x25519mlkem768"],
    ),
    ("bulk-1MiB-1.3", 0, "bytes/1048576", &["--tls", "1.3"]),
    ("relay", 2, "", &[]),
];

const WARM_UP: u64 = 32;
const FEW: u64 = 16;
const MANY: u64 = 80;

const INSTRUCTIONS: &str = "instructions";
/// Tolerance of instructions, which differ by up to 0.4 % between runs.
const TOLERANCE: f64 = 0.015;
/// Additional tolerance: one more wake-up costs about 700 instructions, see [`OF_WAKES`].
const SLACK: f64 = 1500.0;
/// Counts with a tolerance of 1. On a busy machine, becket sometimes runs between two segments of
/// its peer, and so wakes once more.
const OF_WAKES: [&str; 4] = ["clock readings", "epoll_wait", "ppoll", "recvfrom"];
/// Tolerance with another compiler or valgrind than for the stored counts.
const FOREIGN: f64 = 0.05;

const HEAD: &str = "\
# Counts per transaction of `becket` built by `cargo build --release`, checked by `.ci/run gate`. docs/benchmarking.md explains them.
# Update: cargo run -p becket-bench -- gate --update

";

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(rustc: &str, counts: &[(&str, u64)]) -> Stored {
        let counts = counts
            .iter()
            .map(|(what, count)| ((*what).to_owned(), *count));
        Stored {
            rustc: rustc.to_owned(),
            case: [("case".to_owned(), counts.collect())].into(),
            ..Stored::default()
        }
    }

    #[test]
    fn a_higher_and_a_lower_count_fail_and_another_compiler_may_differ_more() {
        let before = stored("1", &[(INSTRUCTIONS, 1_000_000), ("accept4", 2)]);
        for (rustc, instructions, accepts, passes) in [
            ("1", 1_015_000, 2, true),
            ("1", 1_017_000, 2, false),
            ("1", 983_000, 2, false),
            ("2", 1_049_000, 2, true),
            ("2", 1_052_000, 2, false),
            ("1", 1_000_000, 3, false),
            ("1", 1_000_000, 1, false),
        ] {
            let now = stored(rustc, &[(INSTRUCTIONS, instructions), ("accept4", accepts)]);
            let (table, passed) = compare(&before, &now);
            assert_eq!(passed, passes, "{table}");
        }
    }

    #[test]
    fn one_wake_up_more_passes() {
        let with = |waits| stored("1", &[("epoll_wait", waits)]);
        assert!(compare(&with(3), &with(4)).1);
        assert!(!compare(&with(3), &with(5)).1);
    }

    #[test]
    fn costs_of_the_load_itself_are_not_counted() {
        let counts = |of_load: u64, transactions| {
            let many = ("recvfrom".to_owned(), of_load + 5 * transactions);
            Counts::from([many, ("rarely".to_owned(), transactions / 16)])
        };
        let expected = BTreeMap::from([("recvfrom".to_owned(), 5)]);
        assert_eq!(each(&counts(9, FEW), &counts(9, MANY)), expected);
    }

    #[test]
    fn the_stored_file_has_each_case() {
        let stored: Stored = toml::from_str(include_str!("../../gate.toml")).unwrap();
        let mut cases = CASES.map(|case| case.0);
        cases.sort_unstable();
        assert!(stored.case.keys().eq(&cases));
    }
}
