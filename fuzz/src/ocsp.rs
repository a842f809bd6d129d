//! OCSP responses, as an operator's file has them or whatever it has instead.

use becket_keys::ocsp::statuses;

/// Checks one input. Returns of how many certificates it says something.
///
/// # Panics
///
/// When what was read is not in the input, or when it is read from more than all of it.
pub fn run(data: &[u8]) -> usize {
    let Some(all) = statuses(data) else {
        return 0;
    };
    for (serial, _) in &all {
        assert_ne!(serial.first(), Some(&0));
        assert!(serial.is_empty() || data.windows(serial.len()).any(|found| found == *serial));
    }
    assert!(statuses(&[data, &[0]].concat()).is_none());
    all.len()
}
