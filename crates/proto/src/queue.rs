//! A queue in order of arrival, from which anyone may leave, and to which anyone may return.
//!
//! Whoever waits will not have servers that have failed it: the *tried*. Those who have tried the same wait in one
//! lane. What one of them cannot use, none of them can, so a search for whom a slot serves looks at the first of each
//! lane: its cost is in the number of lanes, not of those who wait. There is almost always one lane, of those who have
//! tried nothing.
//!
//! Lanes are at most [`MOST_LANES`]. Who would need a further one waits in the lane that knows most of what it has
//! tried, and may be given what it knows to fail: that costs it a retry.
//!
//! One who is sent away again keeps its [`Arrival`], also if it had not to wait the first time. In which order they come
//! back is up to the servers that send them, so a lane is a tree: a place in its middle is found as fast as its ends.
//!
//! Whoever waits holds a [`Stay`], which names one stay for ever: a stay whose holder was served or has left is
//! simply not found.
//!
//! It knows no lock, no clock and no limit: `crates/proxy/src/backend/backend_state.rs` does, and hands out slots.

use std::collections::BTreeMap;

/// Items in order of arrival.
#[derive(Debug)]
pub struct Queue<T> {
    /// The first is for those who have tried nothing, and always there.
    lanes: Vec<Lane<T>>,
    len: usize,
    arrivals: Arrival,
    stays: u64,
}

/// When somebody first came, among all who ever came. Even numbers are of those who had to wait; who is served at once
/// comes between two of them, and has the odd one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arrival(pub u64);

/// Names one stay in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stay {
    lane: usize,
    seat: Seat,
}

/// Somebody who was taken out, with what it was taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken<T, S> {
    /// Which stay ends.
    pub stay: Stay,
    /// When it first came.
    pub arrival: Arrival,
    /// Who it is.
    pub item: T,
    /// What was found for it.
    pub found: S,
}

/// Those who have tried the same.
#[derive(Debug)]
struct Lane<T> {
    /// In order, each once.
    tried: Vec<u64>,
    waiting: BTreeMap<Seat, T>,
}

/// Who sits before whom: by arrival, then by stay. No two stays have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Seat {
    arrival: Arrival,
    stay: u64,
}

impl Arrival {
    /// Of who is served at once, when this one was the last that had to wait.
    pub fn served_at_once(self) -> Self {
        Self(self.0 | 1)
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            lanes: vec![Lane::of(Vec::new())],
            len: 0,
            arrivals: Arrival::default(),
            stays: 0,
        }
    }
}

impl<T> Queue<T> {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Of the last who came and had to wait.
    pub fn arrivals(&self) -> Arrival {
        self.arrivals
    }

    /// Whether somebody waits who has tried nothing.
    pub fn holds_novices(&self) -> bool {
        self.lanes.first().is_some_and(Lane::is_used)
    }

    /// What all who wait have tried: to none of them it is a loss when somebody else takes it. `None` when nobody waits.
    pub fn tried_by_all(&self) -> Option<Vec<u64>> {
        let mut used = self.lanes.iter().filter(|lane| lane.is_used());
        let mut tried = used.next()?.tried.clone();
        for lane in used {
            tried.retain(|one| lane.tried.contains(one));
        }
        Some(tried)
    }

    /// Joins: a newcomer the end, who was here `before` its place by that.
    pub fn join(&mut self, item: T, tried: &[u64], before: Option<Arrival>) -> Stay {
        let arrival = before.unwrap_or(Arrival((self.arrivals.0 | 1) + 1));
        self.arrivals = self.arrivals.max(Arrival(arrival.0 & !1));
        self.stays += 1;
        let seat = Seat {
            arrival,
            stay: self.stays,
        };
        let lane = self.lane_for(tried);
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.waiting.insert(seat, item);
            self.len += 1;
        }
        Stay { lane, seat }
    }

    /// Takes out the longest waiter for whom something is found. `find` is told what somebody has tried, the longest
    /// waiter of each lane first, until it finds something.
    pub fn take_first<S>(
        &mut self,
        mut find: impl FnMut(&[u64]) -> Option<S>,
    ) -> Option<Taken<T, S>> {
        let mut asked = None;
        loop {
            let lanes = self.lanes.iter().enumerate();
            let heads = lanes.filter_map(|(index, lane)| {
                let (seat, _) = lane.waiting.first_key_value()?;
                Some((*seat, index, &lane.tried))
            });
            let unasked = heads.filter(|(seat, ..)| Some(*seat) > asked);
            let (seat, lane, tried) = unasked.min_by_key(|(seat, ..)| *seat)?;
            asked = Some(seat);
            if let Some(found) = find(tried) {
                let stay = Stay { lane, seat };
                return self.cancel(stay).map(|item| Taken {
                    stay,
                    arrival: seat.arrival,
                    item,
                    found,
                });
            }
        }
    }

    /// Leaves the queue, from wherever. Nothing when the stay's holder is no longer in it.
    pub fn cancel(&mut self, stay: Stay) -> Option<T> {
        let lane = self.lanes.get_mut(stay.lane)?;
        let item = lane.waiting.remove(&stay.seat)?;
        self.len -= 1;
        Some(item)
    }

    /// The lane of those who have tried this; see the limit above.
    fn lane_for(&mut self, tried: &[u64]) -> usize {
        if tried.is_empty() {
            return 0;
        }
        let mut tried = tried.to_vec();
        tried.sort_unstable();
        tried.dedup();
        let mut lanes = self.lanes.iter();
        if let Some(same) = lanes.position(|lane| lane.is_used() && lane.tried == tried) {
            return same;
        }
        let mut lanes = self.lanes.iter();
        let free = lanes.position(|lane| !lane.is_used() && !lane.tried.is_empty());
        if let Some(lane) = free.and_then(|free| self.lanes.get_mut(free)) {
            lane.tried = tried;
        } else if self.lanes.len() < MOST_LANES {
            self.lanes.push(Lane::of(tried));
        } else {
            return self.nearest_lane(&tried);
        }
        free.unwrap_or(self.lanes.len() - 1)
    }

    /// The lane that knows most of what was tried, and nothing else.
    fn nearest_lane(&self, tried: &[u64]) -> usize {
        let knows = |lane: &Lane<T>| lane.tried.iter().all(|one| tried.contains(one));
        let lanes = self.lanes.iter().enumerate();
        let nearest = lanes
            .filter(|(_, lane)| knows(lane))
            .max_by_key(|(_, lane)| lane.tried.len());
        nearest.map_or(0, |(index, _)| index)
    }
}

impl<T> Lane<T> {
    fn of(tried: Vec<u64>) -> Self {
        Self {
            tried,
            waiting: BTreeMap::new(),
        }
    }

    fn is_used(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// As many as there are single servers and some pairs of them in a large backend of which much fails at once; to look at
/// the first of each is a few microseconds.
pub const MOST_LANES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pop<T>(queue: &mut Queue<T>) -> Option<T> {
        queue.take_first(|_| Some(())).map(|taken| taken.item)
    }

    fn all<T>(mut queue: Queue<T>) -> Vec<T> {
        std::iter::from_fn(|| pop(&mut queue)).collect()
    }

    #[test]
    fn one_is_asked_for_each_lane_and_the_order_of_what_was_tried_is_nothing() {
        let mut queue = Queue::default();
        for _ in 0..1000 {
            queue.join('a', &[7, 8], None);
            queue.join('b', &[8, 7, 8], None);
            queue.join('c', &[8], None);
        }
        let mut asked = Vec::new();
        let taken = queue.take_first(|tried| {
            asked.push(tried.to_vec());
            None::<()>
        });
        assert_eq!(taken, None);
        assert_eq!(asked, [vec![7, 8], vec![8]]);
        let taken = queue.take_first(|tried| (!tried.contains(&7)).then_some(()));
        assert_eq!(taken.map(|taken| taken.item), Some('c'));
    }

    #[test]
    fn what_all_have_tried_nobody_minds() {
        let mut queue = Queue::default();
        assert_eq!(queue.tried_by_all(), None);
        queue.join('a', &[7, 8], None);
        let b = queue.join('b', &[8, 9], None);
        assert_eq!(queue.tried_by_all(), Some(vec![8]));
        queue.cancel(b);
        assert_eq!(queue.tried_by_all(), Some(vec![7, 8]));
        assert!(!queue.holds_novices());
        queue.join('c', &[], None);
        assert_eq!(queue.tried_by_all(), Some(vec![]));
        assert!(queue.holds_novices());
    }

    #[test]
    fn beyond_the_last_lane_one_waits_where_most_is_known() {
        let mut queue = Queue::default();
        let lanes = MOST_LANES as u64;
        for n in 1..lanes {
            queue.join(n, &[n], None);
        }
        queue.join(1000, &[2, lanes], None);
        queue.join(1001, &[lanes, lanes + 1], None);
        let mut asked = 0;
        queue.take_first(|_| {
            asked += 1;
            None::<()>
        });
        assert_eq!(asked, MOST_LANES, "and no more");
        let with = |queue: &mut Queue<u64>, set: &[u64]| {
            let taken = queue.take_first(|tried| (tried == set).then_some(()));
            taken.map(|taken| taken.item)
        };
        assert_eq!(with(&mut queue, &[]), Some(1001));
        assert_eq!(with(&mut queue, &[2]), Some(2));
        assert_eq!(with(&mut queue, &[2]), Some(1000));
        // A lane that nobody is in is there for others.
        queue.join(1002, &[lanes, lanes + 1], None);
        assert_eq!(with(&mut queue, &[lanes, lanes + 1]), Some(1002));
    }

    /// What happens; servers are the bits of a set.
    #[derive(Clone, Debug)]
    enum Step {
        Join(u8),
        /// Who was taken by that step comes again, having tried this as well.
        Return(usize, u8),
        /// One who was served at once is sent away.
        Turn(u8),
        /// These servers have slots.
        Take(u8),
        Cancel(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let set = prop_oneof![3 => Just(0_u8), 1 => 0..32_u8];
        prop_oneof![
            4 => set.clone().prop_map(Step::Join),
            2 => (0..64_usize, 0..32_u8).prop_map(|(one, tried)| Step::Return(one, tried)),
            1 => set.prop_map(Step::Turn),
            3 => (0..32_u8).prop_map(Step::Take),
            2 => (0..64_usize).prop_map(Step::Cancel),
        ]
    }

    fn servers(set: u8) -> Vec<u64> {
        let bits = (0..8).filter(|bit| set & 1 << bit != 0);
        bits.map(|bit| 100 - bit).collect()
    }

    /// The same, without lanes: everybody in a row.
    #[derive(Default)]
    struct Row {
        waiting: Vec<One>,
        arrivals: u64,
        numbers: usize,
    }

    #[derive(Clone, Debug)]
    struct One {
        arrival: u64,
        number: usize,
        tried: u8,
    }

    impl Row {
        fn join(&mut self, tried: u8, before: Option<u64>) -> usize {
            let arrival = before.unwrap_or_else(|| {
                self.arrivals += 2;
                self.arrivals
            });
            self.numbers += 1;
            let number = self.numbers;
            self.waiting.push(One {
                arrival,
                number,
                tried,
            });
            self.waiting.sort_by_key(|one| (one.arrival, one.number));
            number
        }

        fn remove(&mut self, fits: impl Fn(&One) -> bool) -> Option<One> {
            let at = self.waiting.iter().position(fits)?;
            Some(self.waiting.remove(at))
        }
    }

    proptest! {
        #[test]
        fn it_does_what_a_plain_list_does(steps in prop::collection::vec(step(), 0..200)) {
            let (mut queue, mut row) = (Queue::default(), Row::default());
            let mut stays = Vec::new();
            let mut taken: Vec<(Arrival, One)> = Vec::new();
            for step in steps {
                match step {
                    Step::Join(tried) => {
                        let number = row.join(tried, None);
                        stays.push((number, queue.join(number, &servers(tried), None)));
                    }
                    Step::Turn(tried) => {
                        let at_once = queue.arrivals().served_at_once();
                        prop_assert_eq!(at_once.0, row.arrivals + 1);
                        let number = row.join(tried, Some(row.arrivals + 1));
                        stays.push((number, queue.join(number, &servers(tried), Some(at_once))));
                    }
                    Step::Return(index, tried) => {
                        if index >= taken.len() {
                            continue;
                        }
                        let (arrival, one) = taken.swap_remove(index);
                        prop_assert_eq!(arrival.0, one.arrival);
                        let tried = tried | one.tried;
                        let number = row.join(tried, Some(one.arrival));
                        stays.push((number, queue.join(number, &servers(tried), Some(arrival))));
                    }
                    Step::Take(free) => {
                        let free_for = |tried: &[u64]| servers(free).into_iter().find(|one| !tried.contains(one));
                        let found = queue.take_first(free_for);
                        let expected = row.remove(|one| free & !one.tried != 0);
                        prop_assert_eq!(found.as_ref().map(|found| found.item), expected.as_ref().map(|one| one.number));
                        taken.extend(found.map(|found| found.arrival).zip(expected));
                    }
                    Step::Cancel(index) => {
                        let Some((number, stay)) = stays.get(index) else { continue };
                        let expected = row.remove(|one| one.number == *number);
                        prop_assert_eq!(queue.cancel(*stay), expected.map(|one| one.number));
                    }
                }
                prop_assert_eq!(queue.len(), row.waiting.len());
            }
            let rest: Vec<usize> = row.waiting.iter().map(|one| one.number).collect();
            prop_assert_eq!(all(queue), rest);
        }
    }
}
