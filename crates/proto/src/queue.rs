//! A bounded queue, first in, first out, from which anyone may leave.
//!
//! Places in a vector, joined in order of arrival, so that push, pop and cancel cost the same however many wait, and
//! nothing is allocated once the vector has grown. Whoever waits holds a [`Ticket`], which names one arrival for ever:
//! a ticket whose holder was served or has left is simply not found.
//!
//! It knows no lock and no clock: the terminator's `backend/state.rs` puts it behind one and hands out slots.
//!
//! Invariants: never more than the limit, but for those who came before it was lowered; the order of those who stay
//! does not change.

/// Items in order of arrival.
#[derive(Debug)]
pub struct Queue<T> {
    places: Vec<Place<T>>,
    first: u32,
    last: u32,
    /// The first free place; the others follow through `next`.
    free: u32,
    len: usize,
    limit: usize,
    arrivals: u64,
}

/// Names one arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    place: u32,
    arrival: u64,
}

/// What [`Queue::take_first`] is to do with an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Take it out.
    Take,
    /// Look at the next one.
    Skip,
    /// Take nothing.
    Stop,
}

#[derive(Debug)]
struct Place<T> {
    item: Option<T>,
    arrival: u64,
    previous: u32,
    next: u32,
}

impl<T> Queue<T> {
    /// An empty queue for at most `limit` items; nothing is allocated yet.
    pub fn new(limit: usize) -> Self {
        Self {
            places: Vec::new(),
            first: NONE,
            last: NONE,
            free: NONE,
            len: 0,
            limit: limit.min(MOST),
            arrivals: 0,
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many may wait.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Changes how many may wait; those who wait already stay.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.min(MOST);
    }

    /// Joins the end. Constant time, but for the growth of the vector.
    ///
    /// # Errors
    ///
    /// Gives the item back when as many wait as may.
    pub fn push(&mut self, item: T) -> Result<Ticket, T> {
        if self.len >= self.limit {
            return Err(item);
        }
        self.arrivals += 1;
        let place = Place {
            item: Some(item),
            arrival: self.arrivals,
            previous: self.last,
            next: NONE,
        };
        let at = self.free;
        let at = match self.places.get_mut(at as usize) {
            Some(free) => {
                self.free = free.next;
                *free = place;
                at
            }
            None => {
                self.places.push(place);
                // Below `MOST`, which fits.
                (self.places.len() - 1) as u32
            }
        };
        match self.places.get_mut(self.last as usize) {
            Some(last) => last.next = at,
            None => self.first = at,
        }
        self.last = at;
        self.len += 1;
        Ok(Ticket {
            place: at,
            arrival: self.arrivals,
        })
    }

    /// Takes out who has waited longest. Constant time.
    pub fn pop(&mut self) -> Option<(Ticket, T)> {
        self.take_first(|_| Verdict::Take)
    }

    /// Looks at the items in order until one is taken or the search is stopped. Constant time for each look.
    pub fn take_first(&mut self, mut judge: impl FnMut(&T) -> Verdict) -> Option<(Ticket, T)> {
        let mut at = self.first;
        while let Some(place) = self.places.get(at as usize) {
            let verdict = place.item.as_ref().map_or(Verdict::Stop, &mut judge);
            match verdict {
                Verdict::Skip => at = place.next,
                Verdict::Stop => return None,
                Verdict::Take => {
                    let ticket = Ticket {
                        place: at,
                        arrival: place.arrival,
                    };
                    return self.detach(at).map(|item| (ticket, item));
                }
            }
        }
        None
    }

    /// Leaves the queue, from wherever. Nothing when the ticket's holder is no longer in it. Constant time.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<T> {
        let place = self.places.get(ticket.place as usize)?;
        if place.arrival != ticket.arrival {
            return None;
        }
        self.detach(ticket.place)
    }

    fn detach(&mut self, at: u32) -> Option<T> {
        let free = self.free;
        let place = self.places.get_mut(at as usize)?;
        let item = place.item.take()?;
        let (previous, next) = (place.previous, place.next);
        place.next = free;
        self.free = at;
        match self.places.get_mut(previous as usize) {
            Some(place) => place.next = next,
            None => self.first = next,
        }
        match self.places.get_mut(next as usize) {
            Some(place) => place.previous = previous,
            None => self.last = previous,
        }
        self.len -= 1;
        Some(item)
    }
}

/// No place.
const NONE: u32 = u32::MAX;
/// More than a process has descriptors, and place numbers fit in 32 bits.
const MOST: usize = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn first_in_first_out_and_full_is_full() {
        let mut queue = Queue::new(2);
        assert!(queue.push('a').is_ok() && queue.push('b').is_ok());
        assert_eq!(queue.push('c'), Err('c'));
        assert_eq!(queue.pop().map(|(_, item)| item), Some('a'));
        assert!(queue.push('c').is_ok());
        let rest: Vec<char> = std::iter::from_fn(|| queue.pop().map(|(_, item)| item)).collect();
        assert_eq!(rest, ['b', 'c']);
    }

    #[test]
    fn a_ticket_is_good_once_also_when_its_place_is_taken_again() {
        let mut queue = Queue::new(4);
        let ticket = queue.push('a').unwrap();
        assert_eq!(queue.pop(), Some((ticket, 'a')));
        let other = queue.push('b').unwrap();
        assert_eq!(queue.cancel(ticket), None);
        assert_eq!(queue.cancel(other), Some('b'));
        assert_eq!(queue.cancel(other), None);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_search_passes_over_and_stops() {
        let mut queue = Queue::new(4);
        let tickets: Vec<Ticket> = (0..4).map(|n| queue.push(n).unwrap()).collect();
        let judge = |n: &i32| match n {
            2 => Verdict::Take,
            3 => Verdict::Stop,
            _ => Verdict::Skip,
        };
        assert_eq!(queue.take_first(judge), Some((tickets[2], 2)));
        assert_eq!(queue.take_first(judge), None);
        assert_eq!(queue.len(), 3);
    }

    #[test]
    fn a_queue_of_none_takes_none() {
        let mut queue = Queue::new(0);
        assert_eq!(queue.push(1), Err(1));
        assert_eq!(queue.pop(), None);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push,
        Pop,
        Cancel(usize),
        /// Takes the first number that this one divides.
        Find(u32),
        Limit(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Push),
            2 => Just(Step::Pop),
            2 => (0..64_usize).prop_map(Step::Cancel),
            1 => (1..6_u32).prop_map(Step::Find),
            1 => (0..12_usize).prop_map(Step::Limit),
        ]
    }

    proptest! {
        #[test]
        fn it_does_what_a_plain_list_does(steps in prop::collection::vec(step(), 0..200)) {
            let mut queue = Queue::new(8);
            let mut limit = 8;
            let mut model: VecDeque<u32> = VecDeque::new();
            let mut tickets = Vec::new();
            for step in steps {
                match step {
                    Step::Push => {
                        let number = tickets.len() as u32;
                        let pushed = queue.push(number);
                        prop_assert_eq!(pushed.is_ok(), model.len() < limit);
                        if let Ok(ticket) = pushed {
                            model.push_back(number);
                            tickets.push(ticket);
                        }
                    }
                    Step::Pop => {
                        let popped = queue.pop().map(|(_, number)| number);
                        prop_assert_eq!(popped, model.pop_front());
                    }
                    Step::Cancel(index) => {
                        let Some(ticket) = tickets.get(index) else { continue };
                        let at = model.iter().position(|number| *number == index as u32);
                        let expected = at.and_then(|at| model.remove(at));
                        prop_assert_eq!(queue.cancel(*ticket), expected);
                    }
                    Step::Find(divisor) => {
                        let fits = |number: &u32| number.is_multiple_of(divisor);
                        let found = queue.take_first(|number| match fits(number) {
                            true => Verdict::Take,
                            false => Verdict::Skip,
                        });
                        let at = model.iter().position(fits);
                        let expected = at.and_then(|at| model.remove(at));
                        prop_assert_eq!(found.map(|(_, number)| number), expected);
                    }
                    Step::Limit(other) => {
                        limit = other;
                        queue.set_limit(limit);
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
            }
            let rest: Vec<u32> = std::iter::from_fn(|| queue.pop().map(|(_, n)| n)).collect();
            prop_assert_eq!(rest, Vec::from(model));
        }
    }
}
