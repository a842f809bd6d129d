//! The pipes that a worker lends to directions that carry bulk, so that their bytes go from socket to socket without a copy.
//!
//! A direction without TLS on either leg borrows a pipe once [`BULK`] bytes have passed and its source has not run dry, and
//! gives it back, empty, when the source does. Wherever there is none to be had, bytes are copied: all are lent, the kernel
//! grants none, or it does not splice these sockets. A pipe that is dropped with bytes in it is closed; another takes its place
//! when there is need.
//!
//! `connection/half.rs` decides when to borrow, [`HalfPipe`](becket_proto::half_pipe::HalfPipe) holds what was lent.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use becket_sys::pipe::{self, Pipe};

use crate::metrics::{Counters, PipeRefusal};

/// One worker's pipes.
#[derive(Debug)]
pub struct Pipes {
    idle: RefCell<Vec<Pipe>>,
    lent: Cell<usize>,
    /// How many there may be.
    most: Cell<usize>,
    /// Bytes that each is asked to hold.
    size: Cell<usize>,
    /// Bytes after which a direction carries bulk.
    bulk: u32,
    counters: Arc<Counters>,
    /// How often none is given, since the kernel has refused.
    pause: Cell<u32>,
    /// The log has said that it did.
    told: Cell<bool>,
}

/// A pipe that is lent; it counts as such until it is dropped or given back.
#[derive(Debug)]
pub struct Lent {
    pipe: Pipe,
    permit: PipePermit,
}

/// One of the pipes that may be lent.
#[derive(Debug)]
struct PipePermit(Rc<Pipes>);

impl Pipes {
    /// A worker's pipes, of which there may be none yet; see [`Self::allow`].
    pub fn new(bulk: u32, counters: Arc<Counters>) -> Rc<Self> {
        Rc::new(Self {
            idle: RefCell::default(),
            lent: Cell::new(0),
            most: Cell::new(0),
            size: Cell::new(pipe::DEFAULT_SIZE),
            bulk,
            counters,
            pause: Cell::new(0),
            told: Cell::new(false),
        })
    }

    /// Allows so many pipes, and as many to each of the other workers. All together ask for half of the pages that the kernel
    /// grants one user.
    pub fn allow(&self, most: usize, workers: usize) {
        let all = (most * workers).max(1);
        let share = pipe::user_pages().map_or(MOST_SIZE, |pages| pages / 2 * PAGE / all);
        let size = (share / 2 + 1).next_power_of_two();
        self.size.set(size.clamp(pipe::DEFAULT_SIZE, MOST_SIZE));
        self.most.set(most);
        let mut idle = self.idle.borrow_mut();
        idle.truncate(most);
        let room = most - idle.len();
        idle.reserve_exact(room);
    }

    /// Bytes after which a direction carries bulk.
    pub fn bulk(&self) -> u32 {
        self.bulk
    }

    /// Lends an empty pipe, if there is one to be had.
    pub fn lend(self: &Rc<Self>) -> Option<Lent> {
        let most = self.most.get();
        if most == 0 {
            return None;
        }
        if self.pause.get() > 0 {
            self.pause.set(self.pause.get() - 1);
            return self.refuse(PipeRefusal::Kernel);
        }
        if self.lent.get() >= most {
            return self.refuse(PipeRefusal::Exhausted);
        }
        let idle = self.idle.borrow_mut().pop();
        let pipe = match idle.map_or_else(|| Pipe::new(self.size.get()), Ok) {
            Ok(pipe) => pipe,
            Err(error) => {
                if !self.told.replace(true) {
                    tracing::warn!(%error, "no pipes for bulk, which is copied");
                }
                self.pause.set(PAUSE);
                return self.refuse(PipeRefusal::Kernel);
            }
        };
        self.lent.set(self.lent.get() + 1);
        self.counters.pipes_lent.add(1);
        let permit = PipePermit(Rc::clone(self));
        Some(Lent { pipe, permit })
    }

    fn refuse(&self, why: PipeRefusal) -> Option<Lent> {
        self.counters.pipe_refusals[why as usize].add(1);
        None
    }
}

impl Lent {
    /// The pipe.
    pub fn pipe(&self) -> &Pipe {
        &self.pipe
    }

    /// Puts the pipe, which is empty, where the next will take it.
    pub fn give_back(self) {
        let Self { pipe, permit } = self;
        let pipes = &permit.0;
        let mut idle = pipes.idle.borrow_mut();
        if idle.len() < pipes.most.get() {
            idle.push(pipe);
        }
    }

    /// Closes the pipe: the kernel does not splice where it was to be used, and is not asked again for a while.
    pub fn refused(self) {
        let pipes = &self.permit.0;
        pipes.pause.set(PAUSE);
        pipes.refuse(PipeRefusal::Kernel);
    }
}

impl Drop for PipePermit {
    fn drop(&mut self) {
        self.0.lent.set(self.0.lent.get() - 1);
        self.0.counters.pipes_returned.add(1);
    }
}

/// Bytes after which splicing is worth a pipe: with 16 KiB at a time it costs as much as copying, with 64 KiB it saves a fifth. A source of
/// 16 KiB at a time never comes to it, since its run is halved each time.
pub const BULK: u32 = 32 * 1024;
/// Size that an unprivileged process may ask for (`fs.pipe-max-size`), and more than goes through in one turn.
const MOST_SIZE: usize = 1024 * 1024;
/// Stretches of memory to which a pipe of that size refers.
pub const PLACES: usize = MOST_SIZE / PAGE;
/// The kernel counts the size of a pipe by pages, and sends files by them.
pub const PAGE: usize = 4096;
/// After a refusal so many wishes are not even brought to the kernel: a mebibyte is copied for each four to sixteen.
const PAUSE: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn pipes(most: usize) -> (Rc<Pipes>, Arc<Counters>) {
        let counters = Arc::<Counters>::default();
        let pipes = Pipes::new(BULK, Arc::clone(&counters));
        pipes.allow(most, 1);
        (pipes, counters)
    }

    #[test]
    fn no_more_are_lent_than_there_may_be() {
        let (pipes, counters) = pipes(2);
        let lent = [pipes.lend(), pipes.lend()];
        assert!(lent.iter().all(Option::is_some) && pipes.lend().is_none());
        let refusals = |why| counters.pipe_refusals[why as usize].value();
        assert_eq!(refusals(PipeRefusal::Exhausted), 1);
        // Dropped or given back, both make room, and only one is kept.
        let [dropped, given] = lent.map(Option::unwrap);
        drop(dropped);
        given.give_back();
        assert_eq!(pipes.idle.borrow().len(), 1);
        assert!(pipes.lend().is_some());
        assert_eq!(counters.pipes_lent.value(), 3);
        assert_eq!(counters.pipes_returned.value(), 3);
        assert_eq!(refusals(PipeRefusal::Kernel), 0);
    }

    #[test]
    fn a_kernel_that_refused_is_not_asked_again_at_once() {
        let (pipes, counters) = pipes(1);
        pipes.lend().unwrap().refused();
        assert!((0..PAUSE).all(|_| pipes.lend().is_none()));
        let refusals = counters.pipe_refusals[PipeRefusal::Kernel as usize].value();
        assert_eq!(refusals, u64::from(PAUSE) + 1);
        assert!(pipes.lend().is_some());
    }

    #[test]
    fn a_reload_takes_pipes_away() {
        let (pipes, _) = pipes(2);
        let lent = [pipes.lend(), pipes.lend()].map(Option::unwrap);
        pipes.allow(1, 1);
        lent.into_iter().for_each(Lent::give_back);
        assert_eq!(pipes.idle.borrow().len(), 1);
        pipes.allow(0, 1);
        assert!(pipes.lend().is_none() && pipes.idle.borrow().is_empty());
    }

    #[test]
    fn the_more_there_may_be_the_less_each_asks_for() {
        let (pipes, _) = pipes(1);
        let size = |most, workers| {
            pipes.allow(most, workers);
            pipes.size.get()
        };
        assert!(size(1, 1) >= size(64, 2) && size(64, 2) >= size(64, 64));
        assert_eq!(size(100_000, 1024), pipe::DEFAULT_SIZE);
    }
}
