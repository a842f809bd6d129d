//! The cost of TLS records on an established connection, and a limit on records without data.
//!
//! Each record has a weight, the estimated cost of processing it, which the caller charges to the current turn of the
//! connection. Per byte, records without application data (KeyUpdates, alerts, tickets, empty records) cost more than
//! records with data, and a peer can send any number of them. They therefore also reduce an [`Allowance`], which
//! records with data restore. When the allowance is used up, the caller closes the connection.
//!
//! The TLS engine calls this module for each record, since only the engine knows the content. This
//! module reads record headers without validating them, since TLS rejects invalid records. Source: RFC 8446
//! sections 4.6, 5.1 and 6.

/// Returns the length of the first record, header included, or `None` if the record is incomplete.
pub fn first(bytes: &[u8]) -> Option<usize> {
    let [_, _, _, high, low] = *bytes.first_chunk()?;
    let len = HEADER + usize::from(u16::from_be_bytes([high, low]));
    (bytes.len() >= len).then_some(len)
}

/// Returns the total length of the complete records in `bytes`.
pub fn whole(bytes: &[u8]) -> usize {
    let mut end = 0;
    while let Some(len) = bytes.get(end..).and_then(first) {
        end += len;
    }
    end
}

/// Limits the records without data that a peer may send before it must send data.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// Total weight of the records without data that the peer may still send.
    left: usize,
}

impl Allowance {
    /// Charges for a record of `len` bytes that contains `data` bytes of data. Returns its weight, at least `len`, or
    /// `None` if the allowance is used up.
    pub fn charge(&mut self, len: usize, data: usize) -> Option<usize> {
        if data > 0 {
            self.left = self.left.saturating_add(data).min(MOST);
            return Some(len.max(LEAST));
        }
        let weight = len.saturating_mul(DATALESS).max(LEAST_DATALESS);
        self.left = self.left.checked_sub(weight)?;
        Some(weight)
    }
}

impl Default for Allowance {
    fn default() -> Self {
        Self { left: MOST }
    }
}

pub const ALERT: u8 = 21;
/// Record type of handshake messages.
pub const HANDSHAKE: u8 = 22;
/// Record type of application data, and of every encrypted record in TLS 1.3.
pub const APPLICATION_DATA: u8 = 23;
/// Length of a record header in bytes: type, version and length.
const HEADER: usize = 5;
/// Minimum weight of a record with data. Decrypting 1024 bytes costs about as much as the fixed
/// work for a record.
const LEAST: usize = 1024;
/// Minimum weight of a record without data, above the cost of a KeyUpdate (2.5 µs). A peer that
/// follows the protocol needs few of them.
const LEAST_DATALESS: usize = 4096;
/// Weight per byte of a record without data. A record may contain many messages: 900 tickets take
/// milliseconds.
const DATALESS: usize = 16;
/// Maximum allowance: 256 KeyUpdates or 64 KiB of tickets. Each MiB of data restores it in full.
const MOST: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_a_complete_record_has_a_length() {
        assert_eq!(first(&[23, 3, 3, 0, 2, b'h', b'i', 23, 3]), Some(7));
        assert_eq!(first(&[23, 3, 3, 0, 2, b'h']), None);
    }

    #[test]
    fn records_without_data_are_limited_and_data_extends_the_limit() {
        let mut allowance = Allowance::default();
        let granted = (0..).find(|_| allowance.charge(26, 0).is_none());
        assert_eq!(granted, Some(256));
        assert!(allowance.charge(26, 0).is_none());
        assert!(allowance.charge(4100, 4096).is_some());
        assert!(allowance.charge(26, 0).is_some());
        assert!(allowance.charge(26, 0).is_none());
    }

    proptest! {
        /// Holds for any sequence of records.
        #[test]
        fn records_without_data_are_limited_by_the_received_data(
            records in prop::collection::vec((1..=16_640usize, 0..3usize, 0..=16_384usize), 0..400),
        ) {
            let mut allowance = Allowance::default();
            let (mut dataless, mut bytes, mut data) = (0, 0, 0);
            for (len, kind, most) in records {
                let held = if kind == 0 { most.min(len) } else { 0 };
                match allowance.charge(len, held) {
                    Some(weight) => prop_assert!(weight >= len.max(LEAST)),
                    None => {
                        prop_assert_eq!(held, 0, "data is never refused");
                        continue;
                    }
                }
                data += held;
                if held == 0 {
                    dataless += 1;
                    bytes += len;
                }
                prop_assert!(dataless * LEAST_DATALESS <= MOST + data);
                prop_assert!(bytes * DATALESS <= MOST + data);
            }
        }

        #[test]
        fn records_are_found_in_the_order_written(
            contents in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
            cut in 0..6000usize,
        ) {
            let mut laid = Vec::new();
            for content in &contents {
                laid.extend([23, 3, 3]);
                laid.extend((content.len() as u16).to_be_bytes());
                laid.extend(content);
            }
            laid.truncate(cut);
            let whole = whole(&laid);
            let mut rest = laid.as_slice();
            let mut found = Vec::new();
            while let Some(len) = first(rest) {
                found.push(rest[HEADER..len].to_vec());
                rest = &rest[len..];
            }
            prop_assert_eq!(whole, laid.len() - rest.len());
            prop_assert!(contents.starts_with(&found));
            prop_assert!(contents.get(found.len()).is_none_or(|next| rest.len() < HEADER + next.len()));
        }
    }
}
