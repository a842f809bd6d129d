//! A limit that several processes keep together, such as the connections of one server while a process is replaced by another.
//!
//! Each process has a *lease*: so many of the limit are its own, and it counts what it uses of them by itself. Now and then it looks
//! at what the others have ([`Lease::exchange`]) and takes, or gives up, some. What it uses is one atomic operation each
//! ([`LeasedCount`]), whether there are others or not.
//!
//! Invariant: what a process has *published* is never less than its lease, nor than what it uses. A lease is raised only after the
//! higher number was published and those of all others were read once more. So of two processes that take at the same time one at least
//! sees the other (Dekker), and the leases of processes with the same limit never sum up to more. A process that dies at any
//! moment has taken nothing that is not in its cell: whoever knows that it is dead sets that to nothing.
//!
//! Where published numbers lie, and who knows of the dead, is for the terminator: `server/leases.rs`, `parent/rows.rs`.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// What one process uses of a limit, and how much it may.
#[derive(Debug)]
pub struct LeasedCount(AtomicU64);

/// No lease: the process is alone with the limit.
pub const UNLEASED: u32 = u32::MAX;

impl Default for LeasedCount {
    fn default() -> Self {
        Self(AtomicU64::new(word(UNLEASED, 0)))
    }
}

impl LeasedCount {
    /// How many are used now.
    pub fn count(&self) -> u32 {
        parts(self.0.load(SeqCst)).1
    }

    /// Whether there is room for one more under `most` and the lease.
    pub fn has_room(&self, most: u32) -> bool {
        let (lease, count) = parts(self.0.load(SeqCst));
        count < lease.min(most)
    }

    /// Uses one more, if `most` and the lease allow.
    pub fn take(&self, most: u32) -> bool {
        let more = |before| {
            let (lease, count) = parts(before);
            (count < lease.min(most)).then_some(before + 1)
        };
        self.0.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    /// Uses one more where there is no limit.
    pub fn add(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    /// Uses one less. Each call follows one that took.
    pub fn give_back(&self) {
        self.0.fetch_sub(1, SeqCst);
    }

    /// Sets the lease, which may be below what is used: then nothing more is, until enough is given back. Returns what is used.
    pub fn set_lease(&self, lease: u32) -> u32 {
        let other = |before| Some(word(lease, parts(before).1));
        let before = self.0.fetch_update(SeqCst, SeqCst, other);
        parts(before.unwrap_or_else(|same| same)).1
    }
}

/// The lease in front: the count behind it never overflows, since each one is a socket of this process.
fn word(lease: u32, count: u32) -> u64 {
    u64::from(lease) << 32 | u64::from(count)
}

fn parts(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// What a process, or several together, has said of its share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// It has so many at most.
    pub leased: u32,
    /// It would like to have so many more.
    pub wanted: u32,
}

/// Where processes see what each has published.
pub trait Cells {
    /// Replaces what this process has published.
    fn publish(&mut self, published: Published);
    /// The sum of what all others have published, read now.
    fn others(&mut self) -> Published;
}

/// What a process does with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// It serves: it has what nobody else has or wants.
    Serves,
    /// It was replaced: it has what it uses, and what those need who wait in it.
    Yields {
        /// How many wait.
        waiting: u32,
    },
}

/// One process' share of one limit.
#[derive(Debug, Default)]
pub struct Lease {
    published: u32,
}

impl Lease {
    /// Looks at what the others have, and takes or gives up. `most` is the limit as this process knows it; nothing is none, which is shared by
    /// nobody. Returns whether there is room for more than before.
    pub fn exchange(
        &mut self,
        count: &LeasedCount,
        most: Option<u32>,
        stance: Stance,
        cells: &mut impl Cells,
    ) -> bool {
        let Some(most) = most else {
            self.set(count, UNLEASED, 0, cells);
            return true;
        };
        let others = cells.others();
        let free = most.saturating_sub(others.leased);
        let used = count.count();
        let (target, wanted) = match stance {
            Stance::Serves => (free.saturating_sub(others.wanted), 0),
            Stance::Yields { waiting } => {
                let needed = used.saturating_add(waiting);
                (needed.min(free), needed.saturating_sub(free).min(waiting))
            }
        };
        if target <= self.published {
            self.set(count, target, wanted, cells);
            return false;
        }
        cells.publish(Published {
            leased: target,
            wanted,
        });
        let free = most.saturating_sub(cells.others().leased);
        self.set(count, target.min(free.max(self.published)), wanted, cells);
        true
    }

    /// Uses less first, then says so.
    fn set(&mut self, count: &LeasedCount, lease: u32, wanted: u32, cells: &mut impl Cells) {
        let used = count.set_lease(lease);
        self.published = match lease {
            UNLEASED => used,
            _ => used.max(lease),
        };
        cells.publish(Published {
            leased: self.published,
            wanted,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Take(usize),
        Give(usize),
        Exchange(usize),
        /// It is replaced by the next one, and so many wait in it.
        Yield(usize, u32),
        Kill(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let who = 0..PROCESSES;
        prop_oneof![
            6 => who.clone().prop_map(Step::Take),
            4 => who.clone().prop_map(Step::Give),
            5 => who.clone().prop_map(Step::Exchange),
            1 => (who.clone(), 0..4_u32).prop_map(|(one, waiting)| Step::Yield(one, waiting)),
            1 => who.prop_map(Step::Kill),
        ]
    }

    struct Process {
        count: LeasedCount,
        lease: RefCell<Lease>,
        stance: Cell<Stance>,
        cell: Cell<Published>,
        is_alive: Cell<bool>,
    }

    impl Process {
        fn used(&self) -> u32 {
            self.count.count() * u32::from(self.is_alive.get())
        }
    }

    /// Some processes, and what is still to happen: also while one of them looks at the cells of the others.
    struct World {
        most: u32,
        processes: Vec<Process>,
        steps: RefCell<VecDeque<Step>>,
    }

    impl World {
        fn new(most: u32, steps: Vec<Step>) -> Self {
            let process = |_| Process {
                count: LeasedCount(AtomicU64::new(word(0, 0))),
                lease: RefCell::default(),
                stance: Cell::new(Stance::Serves),
                cell: Cell::default(),
                is_alive: Cell::new(true),
            };
            Self {
                most,
                processes: (0..PROCESSES).map(process).collect(),
                steps: RefCell::new(steps.into()),
            }
        }

        fn used(&self) -> u32 {
            self.processes.iter().map(Process::used).sum()
        }

        fn go_on(&self) -> bool {
            let Some(step) = self.steps.borrow_mut().pop_front() else {
                return false;
            };
            match step {
                Step::Take(one) => drop(self.processes[one].count.take(self.most)),
                Step::Give(one) if self.processes[one].count.count() > 0 => {
                    self.processes[one].count.give_back();
                }
                Step::Give(_) => {}
                Step::Exchange(one) => self.exchange(one),
                Step::Yield(one, waiting) => {
                    self.processes[one].stance.set(Stance::Yields { waiting })
                }
                Step::Kill(one) => {
                    self.processes[one].is_alive.set(false);
                    self.processes[one].cell.take();
                }
            }
            assert!(self.used() <= self.most, "{step:?}");
            true
        }

        fn exchange(&self, one: usize) {
            let process = &self.processes[one];
            // Each has one thread that does this.
            if let Ok(mut lease) = process.lease.try_borrow_mut()
                && process.is_alive.get()
            {
                let most = Some(self.most);
                lease.exchange(
                    &process.count,
                    most,
                    process.stance.get(),
                    &mut Seen(self, one),
                );
            }
        }
    }

    struct Seen<'a>(&'a World, usize);

    impl Cells for Seen<'_> {
        fn publish(&mut self, published: Published) {
            self.0.go_on();
            let process = &self.0.processes[self.1];
            if process.is_alive.get() {
                process.cell.set(published);
            }
            self.0.go_on();
        }

        fn others(&mut self) -> Published {
            self.0.go_on();
            let mut sum = Published::default();
            for (index, process) in self.0.processes.iter().enumerate() {
                let Published { leased, wanted } = process.cell.get();
                if index != self.1 {
                    sum.leased += leased;
                    sum.wanted += wanted;
                }
                self.0.go_on();
            }
            sum
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..Default::default() })]

        #[test]
        fn together_they_never_use_more_whatever_happens_in_between(
            most in 1..6_u32, steps in prop::collection::vec(step(), 0..200),
        ) {
            let world = World::new(most, steps);
            while world.go_on() {}
        }

        /// What the dead had, and what nobody uses any more, is the last one's.
        #[test]
        fn nothing_is_lost(most in 1..6_u32, steps in prop::collection::vec(step(), 0..200)) {
            let world = World::new(most, steps);
            while world.go_on() {}
            for process in &world.processes {
                process.stance.set(Stance::Yields { waiting: 0 });
                while process.count.count() > 0 {
                    process.count.give_back();
                }
            }
            let last = &world.processes[PROCESSES - 1];
            last.is_alive.set(true);
            last.stance.set(Stance::Serves);
            (0..PROCESSES).for_each(|one| world.exchange(one));
            prop_assert_eq!(last.cell.get(), Published { leased: most, wanted: 0 });
            while last.count.take(u32::MAX) {}
            prop_assert_eq!(last.count.count(), most);
        }
    }

    #[test]
    fn those_who_wait_in_the_old_process_come_first() {
        let world = World::new(2, Vec::new());
        let [old, new] = [&world.processes[0], &world.processes[1]];
        world.exchange(0);
        assert!(old.count.take(9) && old.count.take(9) && !old.count.take(9));
        old.stance.set(Stance::Yields { waiting: 1 });
        world.exchange(0);
        world.exchange(1);
        assert!(!new.count.take(9), "they are all in use");
        // The new one gets both, since nobody waits in the old one.
        old.stance.set(Stance::Yields { waiting: 0 });
        old.count.give_back();
        old.count.give_back();
        (0..2).for_each(|one| world.exchange(one));
        assert!(new.count.take(9) && new.count.take(9));
        // Somebody comes late in the old one, and has the next.
        old.stance.set(Stance::Yields { waiting: 1 });
        (0..2).for_each(|one| world.exchange(one));
        new.count.give_back();
        assert!(!new.count.take(9));
        [1, 0].into_iter().for_each(|one| world.exchange(one));
        assert!(old.count.take(9));
    }

    #[test]
    fn without_a_limit_there_is_no_lease() {
        let world = World::new(2, Vec::new());
        let process = &world.processes[0];
        let mut lease = process.lease.borrow_mut();
        lease.exchange(&process.count, None, Stance::Serves, &mut Seen(&world, 0));
        (0..9).for_each(|_| process.count.add());
        assert!(process.count.has_room(u32::MAX));
        lease.exchange(&process.count, None, Stance::Serves, &mut Seen(&world, 0));
        assert_eq!(process.cell.get().leased, 9);
    }

    const PROCESSES: usize = 3;
}
