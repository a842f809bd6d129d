//! Send queue of one peer: a byte ring of encoded records.
//!
//! The ring is allocated once, when the peer becomes live, and never grows. Each record is overwritten with zeros when
//! it is sent or dropped.

use std::collections::VecDeque;

use zeroize::Zeroize;

pub(super) struct SendQueue {
    bytes: VecDeque<u8>,
    limit: usize,
}

impl SendQueue {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            bytes: VecDeque::with_capacity(limit),
            limit,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn room(&self) -> usize {
        self.limit - self.bytes.len()
    }

    /// Queues one encoded record. Returns `false` if the queue has no space for it.
    pub(super) fn push(&mut self, record: &[u8]) -> bool {
        if record.len() > self.room() {
            return false;
        }
        self.bytes.extend(record);
        true
    }

    /// Moves as many complete records as fit to `out`. Returns the numbers of bytes and records moved.
    pub(super) fn fill(&mut self, out: &mut [u8]) -> (usize, u64) {
        let (mut len, mut records) = (0, 0);
        while let Some(next) = self.next_len(len).filter(|next| len + next <= out.len()) {
            len += next;
            records += 1;
        }
        let (front, back) = self.bytes.as_mut_slices();
        let split = len.min(front.len());
        for (to, from) in [(0, &mut front[..split]), (split, &mut back[..len - split])] {
            out[to..to + from.len()].copy_from_slice(from);
            from.zeroize();
        }
        self.bytes.drain(..len);
        (len, records)
    }

    /// Returns the length of the record at offset `at`, including its header.
    fn next_len(&self, at: usize) -> Option<usize> {
        let high = *self.bytes.get(at + 1)?;
        let low = *self.bytes.get(at + 2)?;
        Some(3 + usize::from(u16::from_be_bytes([high, low])))
    }
}

impl Drop for SendQueue {
    fn drop(&mut self) {
        let (front, back) = self.bytes.as_mut_slices();
        front.zeroize();
        back.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(serial: u8, len: u8) -> Vec<u8> {
        let mut bytes = vec![serial, 0, len];
        bytes.extend(std::iter::repeat_n(serial, len.into()));
        bytes
    }

    #[test]
    fn records_stay_whole_and_ordered_when_the_ring_wraps() {
        let mut outbox = SendQueue::new(100);
        let (mut next_in, mut next_out) = (0_u8, 0_u8);
        for _ in 0..60 {
            while outbox.push(&record(next_in, next_in % 23)) {
                next_in = next_in.wrapping_add(1);
            }
            let mut out = [0; 40];
            let (len, records) = outbox.fill(&mut out);
            assert!(records > 0);
            let mut expected = Vec::new();
            for _ in 0..records {
                expected.extend(record(next_out, next_out % 23));
                next_out = next_out.wrapping_add(1);
            }
            assert_eq!(&out[..len], expected);
        }
        assert!(outbox.bytes.capacity() >= 100 && outbox.bytes.capacity() < 200);
    }

    #[test]
    fn a_full_queue_rejects_new_records_and_keeps_old_ones() {
        let mut outbox = SendQueue::new(10);
        assert!(outbox.push(&record(1, 3)));
        assert!(!outbox.push(&record(2, 2)));
        assert_eq!((outbox.len(), outbox.room()), (6, 4));
    }
}
