//! A value that shares no cache line with other memory.
//!
//! A write by one thread takes the whole line from the caches of all other threads. So a value that
//! several threads write must not be next to values that they only read, or that other threads write.

use std::ops::Deref;

/// A value in cache lines of its own: two lines are 128 bytes, because x86 processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct OwnLine<T>(pub T);

impl<T> Deref for OwnLine<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_two_lines_apart() {
        let all = [OwnLine(0_u8), OwnLine(1)];
        let [first, second] = [&all[0], &all[1]].map(|one| std::ptr::from_ref(one).addr());
        assert_eq!((first % 128, second - first), (0, 128));
    }
}
