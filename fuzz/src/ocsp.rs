//! OCSP responses: the content of a file that should hold one.

use becket_keys::ocsp::statuses;

/// Checks one input. Returns the number of certificates with a status.
///
/// # Panics
///
/// If a serial number does not occur in the input, or if trailing bytes are accepted.
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
