//! Runs a target's body on real inputs and on mutations of them from a seeded generator. The ordinary tests include this
//! file by its path.

use std::panic::catch_unwind;

use fastrand::Rng;

const ROUNDS: usize = 6_000;

/// Runs a target's body. The body must accept more than 1 % of the inputs, otherwise the test covers only invalid input.
///
/// # Panics
///
/// If the body panics; the message contains the input.
pub fn run_on_mutations(inputs: &[Vec<u8>], body: fn(&[u8]) -> usize) {
    let mut accepted: usize = inputs.iter().map(|input| check(body, input)).sum();
    let mut random = Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    for _ in 0..ROUNDS {
        let mut input = inputs[random.usize(..inputs.len())].clone();
        for _ in 0..=random.usize(..4) {
            mutate(&mut input, &mut random);
        }
        accepted += check(body, &input);
    }

    assert!(
        accepted > ROUNDS / 100,
        "only {accepted} of {ROUNDS} inputs were accepted"
    );
}

fn check(body: fn(&[u8]) -> usize, input: &[u8]) -> usize {
    catch_unwind(|| body(input)).unwrap_or_else(|_| panic!("failed on {}", input.escape_ascii()))
}

/// Changes an input in a way that often breaks parsers: flips a bit, replaces a byte, truncates, removes, doubles or moves a part.
fn mutate(input: &mut Vec<u8>, random: &mut Rng) {
    if input.is_empty() {
        input.push(random.u8(..));
        return;
    }
    let at = random.usize(..input.len());
    let end = at + random.usize(..(input.len() - at).min(24) + 1);
    match random.usize(..7) {
        0 => input[at] ^= 1 << random.usize(..8),
        1 => input[at] = random.u8(..),
        2 => {
            input[at] = [
                0,
                1,
                0x7f,
                0x80,
                0xff,
                input[at].wrapping_add(1),
                input[at].wrapping_sub(1),
            ][random.usize(..7)]
        }
        3 => input.truncate(at),
        4 => drop(input.drain(at..end)),
        5 => input.extend_from_within(at..end),
        _ => {
            let part = input[at..end].to_vec();
            let to = random.usize(..input.len());
            input.splice(to..to, part);
        }
    }
}
