//! Runs the body of the fuzz target without a fuzzer: on real inputs, mutated by a seeded generator.

#[path = "../../../fuzz/src/mutations.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod mutations;
#[path = "../../../fuzz/src/stored_value.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate, where it lives")]
mod stored_value;

use mutations::run_on_mutations;

#[test]
fn values_of_the_store_survive_mutation() {
    let mut text = 1_000_200u64.to_be_bytes().to_vec();
    text.extend([7; 8]);
    text.extend(999_990u64.to_be_bytes());
    text.extend([9; 80]);
    run_on_mutations(&[text], stored_value::run);
}
