//! A first-in, first-out queue of small numbers, from which any number can be removed in constant
//! time.
//!
//! The numbers are indices of a slab. They are linked through an array, so adding or removing a
//! number neither searches nor allocates. A worker uses such a queue for clients without a complete
//! ClientHello: if there are too many, it closes the first one.
//!
//! The array has eight bytes for each number up to the largest ever queued. Invariant: the queue
//! contains a number at most once. A number that was removed and is added again goes to the end.

#[derive(Debug)]
pub struct IndexQueue {
    links: Vec<Link>,
    first: u32,
    last: u32,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

impl IndexQueue {
    /// Appends a number, unless it is already queued. Ignores `u32::MAX - 1` and larger numbers.
    pub fn push(&mut self, index: usize) {
        let Some(number) = u32::try_from(index).ok().filter(|number| *number < ABSENT) else {
            return;
        };
        if self.contains(index) {
            return;
        }
        if self.links.len() <= index {
            self.links.resize(index + 1, Link::ABSENT);
        }
        let link = Link {
            before: self.last,
            after: NONE,
        };
        self.set(number, |old| *old = link);
        match self.last {
            NONE => self.first = number,
            last => self.set(last, |link| link.after = number),
        }
        self.last = number;
        self.len += 1;
    }

    pub fn remove(&mut self, index: usize) {
        let Some(link) = self.links.get_mut(index) else {
            return;
        };
        let Link { before, after } = std::mem::replace(link, Link::ABSENT);
        if before == ABSENT {
            return;
        }
        self.len -= 1;
        match before {
            NONE => self.first = after,
            before => self.set(before, |link| link.after = after),
        }
        match after {
            NONE => self.last = before,
            after => self.set(after, |link| link.before = before),
        }
    }

    pub fn contains(&self, index: usize) -> bool {
        let link = self.links.get(index);
        link.is_some_and(|link| link.before != ABSENT)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn first(&self) -> Option<usize> {
        (self.first != NONE).then_some(self.first as usize)
    }

    pub fn last(&self) -> Option<usize> {
        (self.last != NONE).then_some(self.last as usize)
    }

    fn set(&mut self, number: u32, change: impl FnOnce(&mut Link)) {
        if let Some(link) = self.links.get_mut(number as usize) {
            change(link);
        }
    }
}

impl Default for IndexQueue {
    fn default() -> Self {
        Self {
            links: Vec::new(),
            first: NONE,
            last: NONE,
            len: 0,
        }
    }
}

impl Link {
    const ABSENT: Self = Self {
        before: ABSENT,
        after: ABSENT,
    };
}

/// Link that means "no predecessor" or "no successor".
const NONE: u32 = u32::MAX;
/// Link of a number that is not in the queue.
const ABSENT: u32 = u32::MAX - 1;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Push(usize),
        Remove(usize),
        PopFirst,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0_usize..12).prop_map(Op::Push),
            2 => (0_usize..14).prop_map(Op::Remove),
            1 => Just(Op::PopFirst),
        ]
    }

    /// Contents of the queue, walked from either end.
    fn walk(queue: &IndexQueue) -> (Vec<usize>, Vec<usize>) {
        let follow = |start: u32, next: fn(&Link) -> u32| {
            let mut found = Vec::new();
            let mut at = start;
            while at != NONE {
                found.push(at as usize);
                at = next(&queue.links[at as usize]);
            }
            found
        };
        let forwards = follow(queue.first, |link| link.after);
        let mut backwards = follow(queue.last, |link| link.before);
        backwards.reverse();
        (forwards, backwards)
    }

    proptest! {
        #[test]
        fn the_index_queue_keeps_the_order_of_a_list(ops in proptest::collection::vec(op(), 1..200)) {
            let mut queue = IndexQueue::default();
            let mut naive: VecDeque<usize> = VecDeque::new();
            for op in ops {
                match op {
                    Op::Push(index) => {
                        queue.push(index);
                        if !naive.contains(&index) {
                            naive.push_back(index);
                        }
                    }
                    Op::Remove(index) => {
                        queue.remove(index);
                        naive.retain(|other| *other != index);
                    }
                    Op::PopFirst => {
                        let first = queue.first();
                        prop_assert_eq!(first, naive.pop_front());
                        if let Some(first) = first {
                            queue.remove(first);
                        }
                    }
                }
                let (forwards, backwards) = walk(&queue);
                prop_assert_eq!(&forwards, &backwards);
                prop_assert_eq!(queue.last(), naive.back().copied());
                prop_assert_eq!(forwards, Vec::from(naive.clone()));
                for index in 0..14 {
                    prop_assert_eq!(queue.contains(index), naive.contains(&index));
                }
            }
        }
    }
}
