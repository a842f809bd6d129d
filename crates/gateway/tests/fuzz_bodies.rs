//! Runs the body of the fuzz target without a fuzzer, on seeded inputs, with any compiler.

#[path = "../../../fuzz/src/gateway_manifests.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod gateway_manifests;

use std::panic::catch_unwind;

use fastrand::Rng;

const EXAMPLE: &str = include_str!("../../../examples/kubernetes/gateway/gateway.yaml");

#[test]
fn manifests_survive_mutation() {
    let mut random = Rng::with_seed(0x243f_6a88_85a3_08d3);
    let documents: Vec<&str> = EXAMPLE.split("---\n").collect();
    let words: Vec<&str> = EXAMPLE.split_whitespace().collect();
    let mut whole = 0;
    for round in 0..600 {
        let mut kept = documents.clone();
        random.shuffle(&mut kept);
        kept.truncate(random.usize(documents.len() / 2..=documents.len()));
        let mut text = if round % 20 == 0 {
            EXAMPLE.to_owned()
        } else {
            kept.join("---\n")
        };
        for _ in 0..round.min(random.usize(..4)) {
            let word = words[random.usize(..words.len())];
            let other = words[random.usize(..words.len())];
            match random.u8(..4) {
                0 => text = text.replacen(word, other, 1),
                1 => text = text.replacen(word, "", 1),
                2 => text = text.replace(word, other),
                _ => text.insert(
                    random.usize(..text.len().min(64)),
                    random.u8(b' '..=b'~') as char,
                ),
            }
        }
        let result = catch_unwind(|| gateway_manifests::run(text.as_bytes()));
        whole += result.unwrap_or_else(|_| panic!("failed on {text}"));
    }
    assert!(whole > 10, "only {whole} were rendered as a whole");
}

/// Aliases of aliases, deep nesting and many documents end with a problem.
#[test]
fn hostile_yaml_is_rejected_with_bounded_memory() {
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..30 {
        let before = format!("*a{}", level - 1);
        let items = vec![before; 9].join(", ");
        laughs += &format!("a{level}: &a{level} [{items}]\n");
    }
    let chain = (1..2000).map(|level| format!("a{level}: &a{level} [*a{}]\n", level - 1));
    let chain = "a0: &a0 [x]\n".to_owned() + &chain.collect::<String>();
    let merges = "a: &a {b: 1}\nc: {<<: *a, <<: *a}\n".repeat(100);
    let many = vec!["*a"; 200_000].join(", ");
    let inputs = [
        laughs,
        chain,
        "[".repeat(100_000),
        "- ".repeat(100_000),
        "{a: ".repeat(100_000),
        format!("a: &a [1, 2, 3]\nb: [{many}]"),
        "--- 1\n".repeat(20_000),
        "a: &a\n  b: *a\n".to_owned(),
        "? ".repeat(50_000),
        merges,
    ];
    for input in inputs {
        assert_eq!(gateway_manifests::run(input.as_bytes()), 0);
    }
}
