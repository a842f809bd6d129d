//! A reader for the few DER elements (X.690, section 10) in OpenSSL sessions and RSA private keys.
//!
//! Accepts only short tags, definite lengths in their shortest form, and elements of at most 64 KiB.
//! Integers must be unsigned and without superfluous zeros.

use crate::reader::Reader;

#[derive(Clone, Copy, Debug)]
pub struct Der<'a> {
    rest: Reader<'a>,
}

impl<'a> Der<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: Reader::new(bytes),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the next element of any type. Returns its tag and its contents.
    #[expect(
        clippy::should_implement_trait,
        reason = "both the end and a malformed element return `None`"
    )]
    pub fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let tag = self.rest.u8().filter(|tag| tag & LONG_TAG != LONG_TAG)?;
        let len = match self.rest.u8()? {
            short @ ..=0x7f => usize::from(short),
            0x81 => usize::from(self.rest.u8().filter(|len| *len >= 0x80)?),
            0x82 => usize::from(self.rest.u16().filter(|len| *len >= 0x100)?),
            _ => return None,
        };
        Some((tag, self.rest.take(len)?))
    }

    /// Reads the next element and returns its contents, or `None` if it has a tag other than `tag`.
    pub fn element(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next()
            .filter(|(found, _)| *found == tag)
            .map(|(_, contents)| contents)
    }

    pub fn sequence(&mut self) -> Option<Self> {
        self.element(SEQUENCE).map(Self::new)
    }

    pub fn octets(&mut self) -> Option<&'a [u8]> {
        self.element(OCTET_STRING)
    }

    /// Reads a non-negative INTEGER. Returns its bytes without a leading zero; the number zero has
    /// no bytes.
    pub fn integer(&mut self) -> Option<&'a [u8]> {
        match self.element(INTEGER)? {
            [] | [0x80..=0xff, ..] | [0, 0..=0x7f, ..] => None,
            [0, digits @ ..] | digits => Some(digits),
        }
    }

    /// Reads a non-negative INTEGER of at most 64 bits.
    pub fn unsigned(&mut self) -> Option<u64> {
        let digits = self.integer().filter(|digits| digits.len() <= 8)?;
        let join = |number: u64, digit: &u8| number << 8 | u64::from(*digit);
        Some(digits.iter().fold(0, join))
    }
}

/// Low bits of a tag that continues in the next byte (X.690, section 8.1.2.4).
const LONG_TAG: u8 = 0x1f;
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const SEQUENCE: u8 = 0x30;

#[cfg(test)]
mod tests {
    use super::*;

    fn unsigned(contents: &[u8]) -> Option<u64> {
        let bytes = [&[INTEGER, contents.len() as u8], contents].concat();
        Der::new(&bytes).unsigned()
    }

    #[test]
    fn integers_must_be_unsigned_and_minimal() {
        assert_eq!(unsigned(&[0]), Some(0));
        assert_eq!(unsigned(&[0x7f]), Some(0x7f));
        assert_eq!(unsigned(&[0, 0x80]), Some(0x80));
        let largest = [&[0][..], &[0xff; 8]].concat();
        assert_eq!(unsigned(&largest), Some(u64::MAX));
        for wrong in [&[][..], &[0x80], &[0, 0x7f], &[0, 0], &[1; 9]] {
            assert_eq!(unsigned(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn lengths_must_be_definite_and_minimal() {
        let octets = |len: &[u8], count: usize| {
            let bytes = [&[OCTET_STRING], len, &vec![1; count]].concat();
            Der::new(&bytes).octets().map(<[u8]>::len)
        };
        assert_eq!(octets(&[3], 3), Some(3));
        assert_eq!(octets(&[0x81, 0x80], 0x80), Some(0x80));
        assert_eq!(octets(&[0x82, 1, 0], 0x100), Some(0x100));
        for (len, count) in [
            (&[3][..], 2),
            (&[0x81, 3], 3),
            (&[0x82, 0, 0x80], 0x80),
            (&[0x80], 3),
            (&[0x83, 0, 1, 0], 0x100),
            (&[], 0),
        ] {
            assert_eq!(octets(len, count), None, "{len:?}");
        }
    }

    #[test]
    fn multi_byte_tags_are_rejected() {
        assert!(Der::new(&[0xbf, 0x81, 1, 0]).next().is_none());
    }
}
