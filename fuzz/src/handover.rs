//! What a process tells the one that replaces it: whatever the bytes are, they are read as records that are written the same, or not at all.

use becket_proto::handover::{FRAME, Record, frame};

/// Reads the input as frames, as far as they go, then once more with checksums that fit. Returns how many records there were.
///
/// # Panics
/// When a record is not written as it was read.
pub fn run(data: &[u8]) -> usize {
    let mut records = 0;
    let mut rest = data;
    while let Some((head, after)) = rest.split_first_chunk::<FRAME>()
        && let Some((length, sum)) = frame(*head)
        && let Some((record, after)) = after.split_at_checked(length)
    {
        // The fuzzer would not guess a checksum; it is the sum of what is there.
        for sum in [sum, checksum(record)] {
            if let Ok(read) = Record::read(record, sum) {
                let mut written = Vec::new();
                read.write(&mut written);
                assert_eq!(&written[FRAME..], record, "{read:?}");
                records += 1;
            }
        }
        rest = after;
    }
    records
}

/// FNV-1a, as the layout has it.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, step)
}
