//! The request head: an answer for good, within its bound.

use becket_proto::http_head::{MAX_HEAD_BYTES, Resemblance, Scan, resemblance, scan};

/// Checks one input. Returns how many heads were read in it: none or one.
///
/// # Panics
///
/// When an answer changes as bytes come, or a head is not where it is said to be.
pub fn run(data: &[u8]) -> usize {
    let answer = scan(data);
    for cut in [1, 2, 4, 16, data.len() / 2, data.len().saturating_sub(1)] {
        let part = data.get(..cut).unwrap_or(data);
        let early = scan(part);
        assert!(
            early == Scan::Incomplete || early == answer,
            "{early:?} became {answer:?}"
        );
        let early = resemblance(part);
        assert!(early == Resemblance::Undecided || early == resemblance(data));
    }
    match answer {
        Scan::Head(head) => {
            assert!(head.len <= data.len() && head.len <= MAX_HEAD_BYTES);
            assert_eq!(
                scan(&data[..head.len]),
                answer,
                "reads no further than it says"
            );
            assert!(!head.method.is_empty() && !head.target.is_empty() && head.minor_version <= 1);
        }
        Scan::Incomplete => assert!(data.len() < MAX_HEAD_BYTES),
        Scan::Refused(_) => {}
    }
    usize::from(matches!(answer, Scan::Head(_)))
}
