//! The buffers that a worker lends to whichever connection it serves.
//!
//! Ciphertext and plaintext are only ever in transit here: what a connection must keep (a partial
//! record, output that the socket did not take) it copies to heap bytes of its own. So ten
//! thousand idle connections share one set of buffers.

use std::fmt;

/// Bytes being filled from the front; grows on demand and is reused.
#[derive(Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    /// Where the buffer begins in `bytes`; see [`Buffer::at`].
    start: usize,
    filled: usize,
}

impl Buffer {
    /// A buffer with room for `capacity` bytes that begins `offset` bytes into a memory page.
    ///
    /// Copies between two places whose addresses differ by a few bytes modulo a page run at a
    /// twentieth of the speed where the C library copies with `rep movsb` on Zen 3 and 4
    /// (glibc bug 30994). rustls copies every record to and from blocks that begin with a page,
    /// so no buffer of ours does.
    pub fn at(offset: usize, capacity: usize) -> Self {
        let bytes = vec![0; capacity + PAGE];
        let misplaced = bytes.as_ptr().addr() % PAGE;
        Self {
            start: (PAGE + offset - misplaced) % PAGE,
            bytes,
            filled: 0,
        }
    }

    /// What was filled in.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.filled]
    }

    /// What was filled in, to be changed in place.
    pub fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.filled]
    }

    /// Room behind what is filled, at least `least` bytes: grows when there is less.
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        let end = self.start + self.filled;
        if self.bytes.len() - end < least {
            self.bytes.resize(end + least, 0);
        }
        &mut self.bytes[end..]
    }

    /// The next `n` bytes behind what is filled.
    pub fn next(&mut self, n: usize) -> &mut [u8] {
        &mut self.room(n)[..n]
    }

    /// `n` bytes of the room were filled.
    pub fn advance(&mut self, n: usize) {
        self.filled = (self.filled + n).min(self.bytes.len() - self.start);
    }

    /// Copies bytes behind what is filled.
    pub fn push(&mut self, bytes: &[u8]) {
        self.next(bytes.len()).copy_from_slice(bytes);
        self.advance(bytes.len());
    }

    /// Forgets what is filled in behind the first `n` bytes.
    pub fn truncate(&mut self, n: usize) {
        self.filled = self.filled.min(n);
    }

    /// Forgets what was filled in; keeps the memory.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Returns the number of bytes that are filled in.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Returns `true` if nothing is filled in.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }
}

/// Shows nothing of what passes through.
impl fmt::Debug for Buffer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Buffer({} bytes)", self.filled)
    }
}

/// One worker's buffers.
#[derive(Debug)]
pub struct Scratch {
    /// Ciphertext from a client.
    pub sealed_in: Buffer,
    /// Plaintext, in either direction.
    pub plain: Buffer,
    /// Ciphertext to a client.
    pub sealed_out: Buffer,
}

impl Scratch {
    /// Empties all buffers.
    pub fn clear(&mut self) {
        self.sealed_in.clear();
        self.plain.clear();
        self.sealed_out.clear();
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            sealed_in: Buffer::at(SEALED_IN_OFFSET, READ + LARGEST_RECORD),
            plain: Buffer::at(PLAIN_OFFSET, READ + LARGEST_RECORD),
            sealed_out: Buffer::at(SEALED_OUT_OFFSET, READ + READ / 16),
        }
    }
}

/// Bytes taken from a socket at once. Bulk throughput stops growing at four records.
pub const READ: usize = 64 * 1024;
/// A record with all that encryption may add (RFC 8446 section 5.2, RFC 5246 section 6.2.3).
pub const LARGEST_RECORD: usize = 5 + (1 << 14) + 2048;
/// Memory page.
const PAGE: usize = 4096;
/// Offsets into a page, far from each other and from its beginning.
const SEALED_IN_OFFSET: usize = 3072;
const PLAIN_OFFSET: usize = 2048;
const SEALED_OUT_OFFSET: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_begins_where_it_was_told_to() {
        for offset in [0, 1, 1024, 4095] {
            let mut buffer = Buffer::at(offset, 100);
            assert_eq!(buffer.room(100).as_ptr().addr() % PAGE, offset);
            assert!(buffer.room(100).len() >= 100);
        }
    }

    #[test]
    fn what_is_pushed_is_filled_in_and_growing_keeps_it() {
        let mut buffer = Buffer::at(1024, 4);
        let bytes: Vec<u8> = (0..100_000).map(|i| i as u8).collect();
        for chunk in bytes.chunks(977) {
            buffer.push(chunk);
        }
        assert_eq!(buffer.filled(), bytes);
        buffer.clear();
        assert_eq!(buffer.len(), 0);
    }
}
