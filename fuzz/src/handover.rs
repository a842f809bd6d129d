//! State that a process sends to its replacement: each record that is read is written and read the same, or it is none.

use becket_proto::handover::{LENGTH, Record, length};

/// Reads the input as records, as far as they go. Returns how many there were.
///
/// # Panics
/// When a record is not read as it was written.
pub fn run(data: &[u8]) -> usize {
    let mut records = 0;
    let mut rest = data;
    while let Some((head, after)) = rest.split_first_chunk::<LENGTH>()
        && let Some(length) = length(*head)
        && let Some((record, after)) = after.split_at_checked(length)
    {
        if let Some(read) = Record::read(record) {
            let mut written = Vec::new();
            read.write(&mut written);
            assert_eq!(Record::read(&written[LENGTH..]), Some(read));
            records += 1;
        }
        rest = after;
    }
    records
}
