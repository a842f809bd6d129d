//! Messages between coordinator and agents of becket-load. Outcomes that pass the check can be merged.

use becket_load::fleet::protocol::{Answer, MOST_ANSWER, MOST_ORDER, Order, decode, encode};

/// Parses the bytes as each of the two sides would. Returns the number of valid messages.
///
/// # Panics
/// If a valid message is invalid after it was written again.
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
    usize::from(order.is_some()) + usize::from(answer.is_some())
}
