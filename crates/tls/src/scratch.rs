//! Buffers that a worker lends to the connection that it is processing.
//!
//! Data stays in these buffers only during one call. If a connection needs bytes later (a partial
//! record, output that the socket did not accept), it copies them to heap memory. So idle
//! connections need no buffers.

use std::fmt;

/// A reusable byte buffer that is filled from the front and grows on demand.
#[derive(Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    /// Index in `bytes` at which the contents start; see [`Buffer::at`].
    start: usize,
    filled: usize,
}

impl Buffer {
    /// Returns a buffer with room for `capacity` bytes that starts `offset` bytes after the start
    /// of a memory page.
    ///
    /// On Zen 3 and 4, `rep movsb` is 20 times slower between addresses that differ by a few bytes
    /// modulo the page size (glibc bug 30994). rustls copies every record to and from blocks that
    /// start at a page boundary, so these buffers must not start there.
    pub fn at(offset: usize, capacity: usize) -> Self {
        let bytes = vec![0; capacity + PAGE];
        let misplaced = bytes.as_ptr().addr() % PAGE;
        Self {
            start: (PAGE + offset - misplaced) % PAGE,
            bytes,
            filled: 0,
        }
    }

    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.filled]
    }

    pub fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.filled]
    }

    /// Returns the free space after the filled part. Grows the buffer if fewer than `least` bytes
    /// are free.
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        let end = self.start + self.filled;
        if self.bytes.len() - end < least {
            self.bytes.resize(end + least, 0);
        }
        &mut self.bytes[end..]
    }

    /// Returns the first `n` bytes of the free space, which [`Self::advance`] then marks as filled.
    pub fn next(&mut self, n: usize) -> &mut [u8] {
        &mut self.room(n)[..n]
    }

    /// Marks `n` more bytes as filled.
    pub fn advance(&mut self, n: usize) {
        self.filled = (self.filled + n).min(self.bytes.len() - self.start);
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.next(bytes.len()).copy_from_slice(bytes);
        self.advance(bytes.len());
    }

    /// Shortens the filled part to `n` bytes, if it is longer.
    pub fn truncate(&mut self, n: usize) {
        self.filled = self.filled.min(n);
    }

    /// Empties the buffer without freeing its memory.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    pub fn len(&self) -> usize {
        self.filled
    }

    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }
}

/// Omits the contents from the output.
impl fmt::Debug for Buffer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Buffer({} bytes)", self.filled)
    }
}

#[derive(Debug)]
pub struct Scratch {
    pub sealed_in: Buffer,
    /// Plaintext, either received or to be sent.
    pub plain: Buffer,
    pub sealed_out: Buffer,
}

impl Scratch {
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

/// Maximum bytes per read from a socket: four full-sized records. A larger value does not increase
/// bulk throughput.
pub const READ: usize = 64 * 1024;
/// Maximum size of a record on the wire, with header and encryption overhead (RFC 8446 section 5.2,
/// RFC 5246 section 6.2.3).
pub const LARGEST_RECORD: usize = 5 + (1 << 14) + 2048;
const PAGE: usize = 4096;
/// Offsets of the buffers from the start of a page. They are far from each other and from the page
/// boundary; see [`Buffer::at`].
const SEALED_IN_OFFSET: usize = 3072;
const PLAIN_OFFSET: usize = 2048;
const SEALED_OUT_OFFSET: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_starts_at_the_requested_page_offset() {
        for offset in [0, 1, 1024, 4095] {
            let mut buffer = Buffer::at(offset, 100);
            assert_eq!(buffer.room(100).as_ptr().addr() % PAGE, offset);
            assert!(buffer.room(100).len() >= 100);
        }
    }

    #[test]
    fn a_growing_buffer_keeps_the_pushed_bytes() {
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
