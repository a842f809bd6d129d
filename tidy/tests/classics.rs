//! Checks the tables of published measurements in `docs/classics.md`: each row has a state, and the files that prove it
//! exist.

/// Returns the rows without a known state or an existing proof. `has` returns whether a path of the tree exists.
pub(crate) fn faults(text: &str, has: impl Fn(&str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    let mut halves = 0;
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with(HEADING);
    let tables = text.split("\n## ").skip(1);
    for row in tables.flat_map(str::lines).filter(is_row) {
        let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let [_, _, state, proof] = *cells else {
            faults.push(format!("no row of four cells: {row}"));
            continue;
        };
        halves += usize::from(state.starts_with("half"));
        let is_known = STATES.iter().any(|known| state.starts_with(known));
        let says_what = !state.starts_with("not measured here") || state.contains("needs");
        if !is_known || !says_what {
            faults.push(format!("unknown state: {row}"));
        }
        let mut marks = proof.split('`');
        let mut named = 0;
        while let (Some(before), Some(mark)) = (marks.next(), marks.next()) {
            let path = if before.trim_end().ends_with("scenario") {
                format!("bench/scenarios/{mark}.toml")
            } else {
                mark.to_owned()
            };
            named += 1;
            if !has(&path) {
                faults.push(format!("`{path}` is not in the tree: {row}"));
            }
        }
        if named == 0 {
            faults.push(format!("nothing shows it: {row}"));
        }
    }
    if halves > MOST_HALVES {
        faults.push(format!("{halves} halves, at most {MOST_HALVES} may be"));
    }
    faults
}

const HEADING: &str = "| article | claim or figure | state | shown by |";
const STATES: [&str; 5] = [
    "works",
    "half: ",
    "out: ",
    "[out](out-of-scope.md)",
    "not measured here: ",
];
const MOST_HALVES: usize = 5;

#[test]
fn rows_with_an_invalid_state_or_a_missing_proof_are_reported() {
    let has = |path: &str| ["a/b.rs", "bench/scenarios/key.toml"].contains(&path);
    let page = |rows: &str| faults(&format!("# A\n\n| a | b |\n\n## B\n{rows}"), has);
    let sound = "| article | claim or figure | state | shown by |\n|---|---|---|---|\n\
        | B1 | a claim | works | `a/b.rs`, scenario `key` |\n";
    assert_eq!(page(sound), Vec::<String>::new());
    for row in [
        "| B1 | a claim | works | `a/c.rs` |",
        "| B1 | a claim | works | scenario `cores` |",
        "| B1 | a claim | works | by and by |",
        "| B1 | a claim | done | `a/b.rs` |",
        "| B1 | a claim | works |",
        "| B1 | a claim | not measured here: one day | `a/b.rs` |",
    ] {
        assert_eq!(page(row).len(), 1, "{row}");
    }
    let half = "| B1 | a claim | half: the rest | `a/b.rs` |\n";
    assert_eq!(page(&half.repeat(5)).len(), 0);
    assert_eq!(page(&half.repeat(6)).len(), 1);
}
