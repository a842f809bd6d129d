//! What answers say of cases that were made up.

use super::*;
use crate::result::Sample;
use crate::result::testing::column;

fn outcome(id: &str, cases: Vec<(&str, Vec<Column>)>) -> Outcome {
    let cases = cases.into_iter().map(|(label, columns)| Case {
        label: label.to_owned(),
        columns,
        ..Case::default()
    });
    Outcome {
        id: id.to_owned(),
        measure: "Transactions".to_owned(),
        cases: cases.collect(),
        ..Outcome::default()
    }
}

#[test]
fn what_costs_what_is_answered_with_what_it_costs() {
    let becket = |cpu: f64| column("becket", &[cpu, cpu, cpu]);
    let outcome = outcome(
        "key",
        vec![
            ("P-256", vec![becket(160.0)]),
            ("RSA-2048", vec![becket(400.0)]),
        ],
    );
    assert_eq!(
        of(&Run::default(), &outcome),
        "For becket server CPU per transaction is 160.0 us (P-256) to 400.0 us (RSA-2048), 2.50 times as much."
    );
}

#[test]
fn what_a_setting_saves_is_told_against_its_first_value_and_all_else_alike() {
    let mut outcome = outcome("batches", Vec::new());
    for (key, batch, cpu) in [
        ("rsa2048", "off", 400.0),
        ("rsa2048", "auto", 200.0),
        ("rsa4096", "off", 2000.0),
        ("rsa4096", "auto", 1500.0),
    ] {
        let settings = [("key", key), ("rsa-batch", batch)];
        outcome.cases.push(Case {
            settings: settings.map(|(a, b)| (a.to_owned(), b.to_owned())).into(),
            columns: vec![column("becket", &[cpu])],
            ..Case::default()
        });
    }
    assert_eq!(
        of(&Run::default(), &outcome),
        "For becket server CPU per transaction: 0.50 to 0.75 times as much (rsa-batch auto, against rsa-batch off)."
    );
}

#[test]
fn what_passes_is_told_of_the_largest_bodies_of_each_kind() {
    let case = |kind: &str, body: &str, ours: f64| Case {
        label: format!("{kind}, {body}"),
        settings: [("passthrough", kind), ("body", body)]
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .into(),
        columns: [
            ("becket", ours),
            ("becket@copies", 1000.0),
            ("nginx", 800.0),
        ]
        .map(|(peer, mb)| sampled(peer, &[("mb_per_cpu_s", mb), ("cpu_us", 1.0)]))
        .into(),
        ..Case::default()
    };
    let cases = vec![
        case("plain", "1m", 1600.0),
        case("plain", "1g", 2000.0),
        case("on", "1g", 1500.0),
    ];
    let outcome = Outcome {
        cases,
        ..outcome("relay", Vec::new())
    };
    assert_eq!(
        of(&Run::default(), &outcome),
        "becket passes on, by the second of its CPU time, 2000 MB (plain, 1g), 2.00 (2.00 to 2.00) times that of becket@copies, 2.50 (2.50 to 2.50) times that of nginx; 1500 MB (on, 1g), 1.50 (1.50 to 1.50) times that of becket@copies, 1.88 (1.88 to 1.88) times that of nginx."
    );
}

#[test]
fn what_a_crypto_thread_costs_is_told_beside_becket_without() {
    let cpu = |peer: &str, cpu: f64| sampled(peer, &[("cpu_us", cpu)]);
    let columns = vec![cpu("becket", 110.0), cpu("becket@inline", 100.0)];
    assert_eq!(
        of(
            &Run::default(),
            &outcome("signing", vec![("P-256", columns)])
        ),
        "becket's server CPU per transaction is 1.10 (1.10 to 1.10) times that of becket@inline (P-256)."
    );
}

fn sampled(peer: &str, figures: &[(&str, f64)]) -> Column {
    let figures = figures
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value));
    let figures: BTreeMap<String, f64> = figures.collect();
    let of_round = |round| Sample {
        round,
        figures: figures.clone(),
    };
    Column {
        peer: peer.to_owned(),
        samples: (0..3).map(of_round).collect(),
        ..Column::default()
    }
}

#[test]
fn what_is_added_is_told_at_low_load_and_near_the_limit() {
    let column = |peer: &str, added: f64| {
        let at = ["added_p50_us_at_1", "added_p50_us_at_80", "p99_us_at_80"];
        sampled(peer, &at.map(|name| (name, added)))
    };
    let columns = vec![column("becket", 300.0), column("nginx", 400.0)];
    let outcome = Outcome {
        measure: "AddedLatency".to_owned(),
        ..outcome("latency", vec![("P-256", columns)])
    };
    assert_eq!(
        of(&Run::default(), &outcome),
        "becket adds 300.0 us at 1 % of its capacity, beside nginx's 400.0 us, and 300.0 us at 80 %, beside nginx's 400.0 us (median, P-256); of all its p50 and p99, 1 of 1 are lower than the best other's, 0 higher, 0 not distinguishable."
    );
}

#[test]
fn who_suffers_in_a_storm_is_told_of_those_inside() {
    let columns = vec![
        sampled("becket", &[("p99_us_at_150", 900.0)]),
        sampled("haproxy", &[("p99_us_at_150", 3000.0)]),
    ];
    let outcome = Outcome {
        measure: "Storm".to_owned(),
        ..outcome("storm", vec![("RSA-2048", columns)])
    };
    let said = of(&Run::default(), &outcome);
    assert!(said.starts_with("Under 150 % of its capacity becket's clients inside wait 900.0 us, beside haproxy's 3.00 ms (p99, RSA-2048); of all"), "{said}");
    assert!(said.ends_with("not distinguishable."), "{said}");
    let busy = [
        ("p99_us_at_150", 900.0),
        ("client_cpu_busy_share_at_150", 0.99),
    ];
    let slow = Outcome {
        measure: "Storm".to_owned(),
        ..self::outcome(
            "storm",
            vec![(
                "RSA-2048",
                vec![sampled("becket", &busy), sampled("haproxy", &busy)],
            )],
        )
    };
    assert!(of(&Run::default(), &slow).ends_with("a part of becket's is the client's own."));
}

#[test]
fn what_is_kept_in_the_largest_flood_is_told_with_its_interval() {
    let kept = |peer: &str, share: f64| {
        let at = ["goodput_kept_share_at_150", "goodput_kept_share_at_300"];
        sampled(peer, &at.map(|name| (name, share)))
    };
    let outcome = Outcome {
        measure: "Capacity".to_owned(),
        ..outcome(
            "overload",
            vec![("P-256", vec![kept("becket", 0.96), kept("nginx", 0.5)])],
        )
    };
    let alone = Outcome {
        measure: "Capacity".to_owned(),
        ..self::outcome("overload", vec![("P-256", vec![kept("becket", 0.96)])])
    };
    assert_eq!(
        of(&Run::default(), &alone),
        "Under 300 % of capacity becket still serves 96 % (95 % interval 96 % to 96 %) of what it can (P-256)."
    );
    assert_eq!(
        of(&Run::default(), &outcome),
        "Under 300 % of capacity becket still serves 96 % (95 % interval 96 % to 96 %) of what it can, nginx 50 % (P-256)."
    );
}

#[test]
fn what_scrapes_cost_is_told_against_the_same_load_without() {
    let figures = |cpu| [("cpu_us", cpu), ("p99_us", 900.0)];
    let columns = vec![
        sampled("becket", &figures(303.0)),
        sampled("becket, not scraped", &figures(300.0)),
    ];
    let outcome = Outcome {
        measure: "Scraped".to_owned(),
        ..outcome("scraped", vec![("", columns)])
    };
    assert_eq!(
        of(&Run::default(), &outcome),
        "Times what it is when nobody asks: workers' CPU per transaction 1.01 (1.01 to 1.01), worse; transactions' p99 1.00 (1.00 to 1.00), not distinguishable."
    );
}

#[test]
fn what_only_one_case_could_be_measured_of_is_said_not_to_be_known() {
    let outcome = outcome(
        "ktls",
        vec![
            ("off", vec![column("becket", &[160.0])]),
            (
                "bulk",
                vec![Column::without("becket", "the kernel has no TLS")],
            ),
        ],
    );
    assert_eq!(
        of(&Run::default(), &outcome),
        "Not measured here: bulk, because the kernel has no TLS. With off becket's server CPU per transaction is 160.0 us."
    );
}

#[test]
fn who_needs_the_least_is_answered_with_the_ratio_and_how_sure_it_is() {
    let columns = vec![
        column("becket", &[100.0, 101.0, 99.0]),
        column("nginx", &[200.0, 202.0, 198.0]),
    ];
    let said = of(
        &Run::default(),
        &outcome("implementations", vec![("", columns)]),
    );
    assert!(
        said.contains("0.50 (0.50 to 0.50) times that of the best other, nginx"),
        "{said}"
    );
}

#[test]
fn what_is_not_available_has_no_number() {
    let mut outcome = outcome(
        "key",
        vec![("x", vec![Column::without("becket", "not yet")])],
    );
    assert!(of(&Run::default(), &outcome).starts_with("No column"));
    outcome.not_available = Some("no kernel".to_owned());
    assert_eq!(of(&Run::default(), &outcome), "Not available: no kernel.");
}
