//! The alerts and the dashboard in `examples/monitoring` use only existing metrics and labels, and `promtool` tests that the alerts
//! fire.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use becket_e2e::{Tool, finish};
use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const RULES: &str = "examples/monitoring/becket.rules.yml";

/// Labels that Prometheus itself adds.
const OF_PROMETHEUS: [&str; 3] = ["instance", "job", "le"];

fn read(path: &str) -> String {
    fs::read_to_string(format!("{ROOT}/{path}")).unwrap()
}

/// Returns the metrics in `docs/reference/metrics.md` with their labels. A unit test compares this page with the served metrics.
fn metrics() -> BTreeMap<String, BTreeSet<String>> {
    let page = read("docs/reference/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let rows = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let rows = rows.filter(|row| matches!(row[2], "counter" | "gauge" | "histogram"));
    rows.map(|row| {
        let name = row[1].trim_matches('`').to_owned();
        let labels = row[4].split(", ").map(|label| label.trim_matches('`'));
        (name, labels.map(str::to_owned).collect())
    })
    .collect()
}

fn words(expression: &str) -> impl Iterator<Item = &str> {
    expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
}

/// Returns the labels by which an expression selects, groups or joins: `label="value"`, `by (a, b)`, `on (a)`.
fn labels(expression: &str) -> BTreeSet<String> {
    let mut labels = BTreeSet::new();
    for operator in ["=\"", "=~\"", "!=\"", "!~\""] {
        for (at, _) in expression.match_indices(operator) {
            labels.extend(words(&expression[..at]).last().map(str::to_owned));
        }
    }
    for keyword in [" by (", " on ("] {
        for part in expression.split(keyword).skip(1) {
            let list = part.split(')').next().unwrap();
            labels.extend(list.split(',').map(|label| label.trim().to_owned()));
        }
    }
    // `!="` also ends with `="`, in which case no word precedes the operator.
    labels.retain(|label| !label.is_empty());
    labels
}

/// Checks that all metrics and labels in these expressions exist.
fn all_exist(expressions: &[String]) {
    let metrics = metrics();
    for expression in expressions {
        let asked: Vec<_> = words(expression)
            .filter(|word| word.starts_with("becket_") || word.starts_with("process_"))
            .collect();
        let asked: Vec<_> = asked
            .iter()
            .map(|name| name.strip_suffix("_bucket").unwrap_or(name))
            .collect();
        assert!(
            !asked.is_empty() || expression.starts_with("up{"),
            "{expression}"
        );
        let mut known: BTreeSet<_> = OF_PROMETHEUS.map(str::to_owned).into();
        for name in asked {
            let labels = metrics.get(name);
            known.extend(
                labels
                    .unwrap_or_else(|| panic!("no metric {name}: {expression}"))
                    .clone(),
            );
        }
        let unknown: Vec<_> = labels(expression).difference(&known).cloned().collect();
        assert!(unknown.is_empty(), "no label {unknown:?}: {expression}");
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn alerts_use_existing_metrics_and_labels() {
    let rules = read(RULES);
    let lines: Vec<_> = rules.lines().collect();
    let expressions: Vec<String> = lines
        .iter()
        .enumerate()
        .filter_map(|(at, line)| Some((at, line.trim().strip_prefix("expr: ")?)))
        .map(|(at, first)| {
            if first != ">" {
                return first.to_owned();
            }
            let folded = lines[at + 1..].iter().map(|line| line.trim());
            let folded =
                folded.take_while(|line| !line.starts_with("for:") && !line.starts_with("labels:"));
            folded.collect::<Vec<_>>().join(" ")
        })
        .collect();
    assert_eq!(expressions.len(), rules.matches("alert:").count());
    all_exist(&expressions);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_dashboard_uses_existing_metrics_and_labels() {
    let dashboard: Value =
        serde_json::from_str(&read("examples/monitoring/becket.dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let expressions: Vec<String> = targets
        .flatten()
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .collect();
    assert!(expressions.len() > panels.len() / 2);
    all_exist(&expressions);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn each_alert_fires_as_its_test_expects() {
    let Some(promtool) = Tool::find("promtool") else {
        return;
    };
    let run = |arguments: &[&str]| {
        let mut command: Command = promtool.command(arguments);
        command.current_dir(format!("{ROOT}/examples/monitoring"));
        let done = finish(command, "");
        assert_eq!(done.code, 0, "{}", done.all());
    };
    run(&["check", "rules", "becket.rules.yml"]);
    run(&["test", "rules", "becket.rules.test.yml"]);
    // The test expects each alert at least once.
    let (rules, tests) = (
        read(RULES),
        read("examples/monitoring/becket.rules.test.yml"),
    );
    for alert in rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
    {
        assert!(tests.contains(&format!("alertname=\"{alert}\"")), "{alert}");
    }
}
