//! CRC32C (Castagnoli), the checksum of the PROXY protocol's version 2 header.
//!
//! One table of 256 words, made at compile time; a header has some hundred bytes, so nothing faster is called for.
//! Source: RFC 4960 appendix B.

/// A checksum of bytes that come in pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crc32c(u32);

impl Crc32c {
    pub(super) fn new() -> Self {
        Self(!0)
    }

    #[must_use]
    pub(super) fn feed(self, bytes: &[u8]) -> Self {
        Self(bytes.iter().fold(self.0, |sum, byte| {
            let [low, ..] = sum.to_le_bytes();
            let word = TABLE
                .get(usize::from(low ^ byte))
                .copied()
                .unwrap_or_default();
            (sum >> 8) ^ word
        }))
    }

    pub(super) fn finish(self) -> u32 {
        !self.0
    }
}

static TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < table.len() {
        let mut word = index as u32;
        let mut bit = 0;
        while bit < 8 {
            word = if word & 1 == 1 {
                (word >> 1) ^ POLYNOMIAL
            } else {
                word >> 1
            };
            bit += 1;
        }
        table[index] = word;
        index += 1;
    }
    table
}

/// 0x1EDC6F41 with its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_the_digits_is_the_published_one() {
        assert_eq!(Crc32c::new().feed(b"123456789").finish(), 0xe306_9283);
        assert_eq!(Crc32c::new().finish(), 0);
    }

    #[test]
    fn thirty_two_zeros_have_the_sum_of_rfc_3720() {
        assert_eq!(Crc32c::new().feed(&[0; 32]).finish(), 0x8a91_36aa);
    }

    #[test]
    fn pieces_sum_up_to_the_whole() {
        let whole = Crc32c::new().feed(b"becket").finish();
        assert_eq!(Crc32c::new().feed(b"bec").feed(b"ket").finish(), whole);
    }
}
