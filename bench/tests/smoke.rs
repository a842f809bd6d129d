//! Every scenario runs, and its stored result can be read and reported again.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::fs;
use std::path::Path;

use becket_bench::figures::{self, RELAY, ROUND_TRIP};
use becket_bench::result::Run;
use becket_bench::{catalog, report, store};
use support::{BENCH, becket, bench, peers, said};

/// Uses several parallel runs, because most of the time is spent waiting.
#[test]
#[ignore = "slow: .ci/run test"]
fn every_scenario_runs_and_its_result_is_complete() {
    let directory = tempfile::tempdir().unwrap();
    let peers = ["becket"]
        .into_iter()
        .chain(peers())
        .collect::<Vec<_>>()
        .join(",");
    let build = format!("becket={}", becket().display());
    let part = |part: usize| {
        let out = directory.path().join(format!("run-{part}"));
        let names = catalog::SUITE
            .iter()
            .map(|(id, _)| *id)
            .skip(part)
            .step_by(PARTS);
        let names: Vec<&str> = names.collect();
        let out_arg = out.display().to_string();
        let how = [
            "--smoke", "--peers", &peers, "--peer", &build, "--out", &out_arg,
        ];
        let output = bench(&[&["run"], &names[..], &how].concat());
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(sound(&out).scenarios.len(), names.len());
        out
    };
    let outs = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..PARTS)
            .map(|number| scope.spawn(move || part(number)))
            .collect();
        runs.into_iter()
            .map(|run| run.join().unwrap())
            .collect::<Vec<_>>()
    });
    let (out, run) = (&outs[0], store::read(&outs[0]).unwrap());
    let out_arg = out.display().to_string();
    let again = bench(&["report", &out_arg]);
    assert!(again.status.success(), "{}", said(&again));
    let stored = fs::read_to_string(out.join("report.md")).unwrap();
    assert_eq!(stored, report::markdown(&run));
    let pictures = stored
        .split("](")
        .filter_map(|rest| rest.split_once(".svg)"));
    for (file, _) in pictures {
        let svg = fs::read_to_string(out.join(format!("{file}.svg"))).unwrap();
        assert!(
            svg.ends_with("</svg>\n") || svg.ends_with("</svg>"),
            "{file}"
        );
    }
    assert!(!leftovers(directory.path()), "a process is still running");
}

/// Reads a stored run and checks that it is complete.
fn sound(out: &Path) -> Run {
    let run = store::read(out).unwrap();
    for outcome in run.scenarios.iter().filter(|o| o.not_available.is_none()) {
        assert!(!outcome.cases.is_empty(), "{}", outcome.id);
        for column in outcome.cases.iter().flat_map(|case| &case.columns) {
            let place = format!("{} {}", outcome.id, column.peer);
            if [RELAY, ROUND_TRIP].contains(&column.peer.as_str()) {
                let failed = column.median(figures::FAILED);
                assert!(failed.is_none_or(|share| share == 0.0), "{place}");
            }
            assert_eq!(
                column.samples.is_empty(),
                column.missing().is_some(),
                "{place}"
            );
        }
    }
    assert_eq!(run.looks, 1);
    assert!(
        run.control.len() > run.scenarios.len() / 2,
        "each round has a sample of the control"
    );
    assert!(run.conditions.others_before.is_some());
    run
}

#[test]
#[ignore = "slow: .ci/run test"]
fn another_build_and_an_old_becket_have_their_own_columns() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("run").display().to_string();
    let program = becket().display().to_string();
    let build = format!("becket={program}");
    let mut args = vec![
        "run", "key", "--smoke", "--rounds", "2", "--peers", "becket",
    ];
    args.extend(["--peer", &build, "--old", &program, "--out", &out]);
    let haproxy = "haproxy@other=/usr/sbin/haproxy";
    let has_haproxy = peers().contains(&"haproxy");
    if has_haproxy {
        args.extend(["--peer", haproxy]);
    }
    let output = bench(&args);
    assert!(output.status.success(), "{}", said(&output));
    let run = store::read(Path::new(&out)).unwrap();
    let case = run.scenarios[0].cases.first().unwrap();
    let mut wanted = vec!["becket", "becket@old"];
    wanted.extend(has_haproxy.then_some("haproxy@other"));
    for peer in wanted {
        let column = case.column(peer).unwrap();
        assert_eq!(column.samples.len(), 2, "{peer}");
    }
    let page = fs::read_to_string(Path::new(&out).join("report.md")).unwrap();
    assert!(page.contains("becket@old"), "{page}");
}

/// Returns whether a process of the bench that uses a file below `directory` is still running.
fn leftovers(directory: &Path) -> bool {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .any(|line| line.contains(BENCH) && line.contains(&directory.display().to_string()))
}

/// Number of parallel runs.
const PARTS: usize = 3;
