//! The status line: an answer for good, within its bound.

use becket_proto::http_status::{MAX_LINE_BYTES, Scan, scan};

/// Checks one input. Returns how many status lines were read in it: none or one.
///
/// # Panics
///
/// When an answer changes as bytes come, or a status is none.
pub fn run(data: &[u8]) -> usize {
    let answer = scan(data);
    for cut in 0..data.len().min(MAX_LINE_BYTES + 1) {
        let early = scan(&data[..cut]);
        assert!(
            early == Scan::Incomplete || early == answer,
            "{early:?} became {answer:?}"
        );
    }
    match answer {
        Scan::Status(status) => {
            assert!((100..=599).contains(&status));
            assert!(data.starts_with(b"HTTP/1."));
        }
        Scan::Incomplete => assert!(data.len() < MAX_LINE_BYTES),
        Scan::NotHttp => {}
    }
    usize::from(matches!(answer, Scan::Status(_)))
}
