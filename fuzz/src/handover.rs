//! State that a process sends to its replacement: a valid record is unchanged after it is written and read again.

use becket_proto::handover::{LENGTH, Record, length};

/// Reads the input as a sequence of records. Returns the number of valid records.
///
/// # Panics
/// If a record changes when it is written and read again.
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
