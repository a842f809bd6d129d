//! Messages between coordinator and agents of becket-load. Outcomes that pass the check can be merged.

use becket_load::fleet::protocol::{Answer, MOST_ANSWER, MOST_ORDER, Order, decode, encode};

/// Parses the bytes as each of the two sides would. Returns the number of valid messages.
///
/// # Panics
/// If a valid message is invalid after it was written again, or if an accepted outcome cannot be merged.
pub fn run(bytes: &[u8]) -> usize {
    let order = decode::<Order>(&mut bytes.to_vec(), MOST_ORDER)
        .ok()
        .flatten();
    if let Some(order) = &order {
        let mut again = Vec::new();
        encode(order, &mut again).expect("a message");
        assert!(matches!(
            decode::<Order>(&mut again, MOST_ORDER * 6),
            Ok(Some(_))
        ));
        assert!(again.is_empty());
    }
    let answer = decode::<Answer>(&mut bytes.to_vec(), MOST_ANSWER)
        .ok()
        .flatten();
    let valid = usize::from(order.is_some()) + usize::from(answer.is_some());
    if let Some(Answer::Done(outcome)) = answer
        && outcome.check(200).is_ok()
    {
        let mut merged = outcome.clone();
        (0..63).for_each(|_| merged.merge((*outcome).clone()));
        let summaries = merged
            .steps
            .iter()
            .map(|step| step.samples.latency.whole.summary());
        assert_eq!(summaries.count(), outcome.steps.len());
    }
    valid
}
