//! The buffers that a worker lends to whichever connection it serves.
//!
//! Ciphertext and plaintext are only ever in transit here: what a connection must keep (a partial
//! record, output that the socket did not take) it copies to heap bytes of its own. So ten
//! thousand idle connections share one set of buffers.

/// Bytes being filled from the front; grows on demand and is reused.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    filled: usize,
}

impl Buffer {
    /// A buffer with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            bytes: vec![0; capacity],
            filled: 0,
        }
    }

    /// What was filled in.
    pub fn filled(&self) -> &[u8] {
        self.bytes.get(..self.filled).unwrap_or_default()
    }

    /// What was filled in, to be changed in place.
    pub fn filled_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(..self.filled).unwrap_or_default()
    }

    /// Room behind what is filled, at least `least` bytes: grows when there is less.
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        if self.bytes.len() - self.filled < least {
            self.bytes.resize(self.filled + least, 0);
        }
        self.bytes.get_mut(self.filled..).unwrap_or_default()
    }

    /// `n` bytes of the room were filled.
    pub fn advance(&mut self, n: usize) {
        self.filled = (self.filled + n).min(self.bytes.len());
    }

    /// Copies bytes behind what is filled.
    pub fn push(&mut self, bytes: &[u8]) {
        if let Some(room) = self.room(bytes.len()).get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
        }
        self.advance(bytes.len());
    }

    /// Forgets what was filled in; keeps the memory.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// How much is filled in.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Whether nothing is filled in.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
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
    /// Allocates the buffers.
    pub fn new() -> Self {
        Self {
            sealed_in: Buffer::with_capacity(READ + LARGEST_RECORD),
            plain: Buffer::with_capacity(READ + LARGEST_RECORD),
            sealed_out: Buffer::with_capacity(READ + READ / 16),
        }
    }

    /// Empties all buffers.
    pub fn clear(&mut self) {
        self.sealed_in.clear();
        self.plain.clear();
        self.sealed_out.clear();
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

/// Bytes taken from a socket at once. Bulk throughput stops growing at four records.
pub const READ: usize = 64 * 1024;
/// A record with all that encryption may add (RFC 8446 section 5.2, RFC 5246 section 6.2.3).
pub const LARGEST_RECORD: usize = 5 + (1 << 14) + 2048;
