//! Tests whether the time of a batch depends on the message or on the key: a statistical test, after dudect
//! (Reparaz, Balasch and Verbauwhede, "Dude, is my code constant time?", 2017).
//!
//! Run with `cargo bench -p becket-multibuffer --bench constant_time`, on a machine that is otherwise idle.
//! Batches of two classes are timed in random order: first one fixed message and random messages, under one
//! key; then two keys. Welch's t shows whether the means differ: they do beyond 5 in either direction, and
//! without doubt beyond 10. It is computed over all times and over the fastest 50, 80 and 95 of 100, since
//! interruptions hide small differences. Nothing is asserted, since a shared machine gives no reliable
//! result. `cargo test` runs a few batches to show that the bench works.

use std::time::{Duration, Instant};

use becket_multibuffer::{LANES, Multibuffer, PrivateKey, SignRequest};

fn main() {
    let lanes = Multibuffer::detect().unwrap_or_else(|| {
        println!("no AVX-512 IFMA here: this times portable lanes, which promise nothing");
        Multibuffer::portable()
    });
    let batches = if std::env::args().any(|argument| argument == "--bench") {
        40_000
    } else {
        8
    };
    let keys = [
        PrivateKey::from_pkcs8(include_bytes!("../testdata/rsa-2048.der")),
        PrivateKey::from_pkcs8(include_bytes!("../testdata/rsa-2048-other.der")),
    ]
    .map(|key| key.expect("a key"));
    let mut random = fastrand::Rng::new();
    let fixed = message(&mut random);
    let messages = compare(batches, &mut random, |random, class| {
        let message = |random: &mut fastrand::Rng| {
            if class {
                message(random)
            } else {
                fixed.clone()
            }
        };
        let messages: Vec<_> = (0..LANES).map(|_| message(random)).collect();
        time(lanes, &keys[0], &messages)
    });
    println!("one message and random ones: {messages}");
    let keys = compare(batches, &mut random, |random, class| {
        let messages: Vec<_> = (0..LANES).map(|_| message(random)).collect();
        time(lanes, &keys[usize::from(class)], &messages)
    });
    println!("one key and another: {keys}");
}

/// Returns a number below every modulus of 2048 bits.
fn message(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut message = vec![0; 256];
    random.fill(&mut message[1..]);
    message
}

fn time(lanes: Multibuffer, key: &PrivateKey, messages: &[Vec<u8>]) -> Duration {
    let requests: Vec<_> = messages
        .iter()
        .map(|message| SignRequest { key, message })
        .collect();
    #[expect(clippy::disallowed_methods, reason = "what is measured is time")]
    let begin = Instant::now();
    let signed = lanes.sign(&requests);
    let took = begin.elapsed();
    assert!(signed.iter().all(Result::is_ok));
    took
}

/// Times `batches` batches of both classes, and describes how the times differ.
fn compare(
    batches: usize,
    random: &mut fastrand::Rng,
    mut time: impl FnMut(&mut fastrand::Rng, bool) -> Duration,
) -> String {
    let mut times = Vec::new();
    for _ in 0..batches {
        let class = random.bool();
        times.push((time(random, class).as_nanos() as f64, class));
    }
    times.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let t = [50, 80, 95, 100].map(|percent| {
        let fastest = &times[..times.len() * percent / 100];
        format!("t = {:.2} of the fastest {percent} %", welch(fastest))
    });
    format!("{batches} batches, {}", t.join(", "))
}

/// Returns Welch's t of the two classes.
fn welch(times: &[(f64, bool)]) -> f64 {
    let [(mean_a, error_a), (mean_b, error_b)] = [false, true].map(|class| {
        let of_class = || {
            times
                .iter()
                .filter(|time| time.1 == class)
                .map(|time| time.0)
        };
        let count = of_class().count() as f64;
        let mean = of_class().sum::<f64>() / count;
        let variance = of_class().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (mean, variance / count)
    });
    (mean_a - mean_b) / (error_a + error_b).sqrt()
}
