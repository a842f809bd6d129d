//! A bounds-checked cursor over bytes that a peer sent.
//!
//! Every step returns `None` when too few bytes are left, and nothing in this module panics. The codecs of this crate
//! and of the replication protocol rely on that: they never index a slice by a number that a peer sent. A [`Span`] is a
//! range of the bytes that does not borrow them, for structures that own their bytes. [`prefix`] compares the partially
//! received start of a stream with a fixed token.

#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

/// Range in a byte string of at most 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    start: u16,
    end: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prefix {
    /// The stream cannot start with the token.
    Differs,
    /// The bytes so far are a proper prefix of the token; more bytes are needed.
    Partial,
    Whole,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            end: bytes.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.at >= self.end
    }

    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let next = self
            .at
            .checked_add(count)
            .filter(|next| *next <= self.end)?;
        let taken = self.bytes.get(self.at..next)?;
        self.at = next;
        Some(taken)
    }

    /// Takes the next `count` bytes as a nested reader. Its spans are relative to the outermost input.
    pub fn sub(&mut self, count: usize) -> Option<Self> {
        let at = self.at;
        self.take(count)?;
        Some(Self {
            bytes: self.bytes,
            at,
            end: self.at,
        })
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// Takes a vector with a one-byte length prefix.
    pub fn vec8(&mut self) -> Option<Self> {
        let len = self.u8()?;
        self.sub(len.into())
    }

    /// Takes a vector with a two-byte length prefix.
    pub fn vec16(&mut self) -> Option<Self> {
        let len = self.u16()?;
        self.sub(len.into())
    }

    /// Returns all remaining bytes without consuming them.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..self.end).unwrap_or_default()
    }

    /// Returns the range of all remaining bytes, or `None` if it lies beyond 64 KiB.
    pub(crate) fn span(&self) -> Option<Span> {
        Some(Span {
            start: self.at.try_into().ok()?,
            end: self.end.try_into().ok()?,
        })
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
}

impl Span {
    /// Returns the bytes of this range. `bytes` must be the input from which the span was created.
    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        bytes
            .get(self.start.into()..self.end.into())
            .unwrap_or_default()
    }
}

pub(crate) fn prefix(input: &[u8], token: &[u8]) -> Prefix {
    if input.starts_with(token) {
        Prefix::Whole
    } else if token.starts_with(input) {
        Prefix::Partial
    } else {
        Prefix::Differs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_never_returns_more_bytes_than_available() {
        let mut reader = Reader::new(&[0, 3, 1, 2]);
        assert!(reader.take(5).is_none());
        assert!(reader.take(usize::MAX).is_none());
        assert!(reader.vec16().is_none(), "the length says 3, there are 2");
        assert_eq!(reader.rest(), [1, 2]);
        assert!(reader.u32().is_none());
        assert_eq!(reader.u16(), Some(0x0102));
        assert!(reader.is_empty());
        assert!(reader.u8().is_none());
    }

    #[test]
    fn the_span_of_a_nested_reader_is_relative_to_the_outermost_start() {
        let bytes = [9, 0, 4, 2, 7, 8, 1];
        let mut outer = Reader::new(&bytes);
        outer.u8().unwrap();
        let mut middle = outer.vec16().unwrap();
        let inner = middle.vec8().unwrap();
        assert_eq!(inner.span().unwrap().of(&bytes), [7, 8]);
        assert_eq!(middle.rest(), [1]);
        assert!(outer.is_empty());
    }

    #[test]
    fn a_prefix_is_partial_until_it_matches_or_differs() {
        assert_eq!(prefix(b"", b"GET "), Prefix::Partial);
        assert_eq!(prefix(b"GE", b"GET "), Prefix::Partial);
        assert_eq!(prefix(b"GET /", b"GET "), Prefix::Whole);
        assert_eq!(prefix(b"GES", b"GET "), Prefix::Differs);
    }
}
