//! Pipes of a worker. Directions of a connection borrow them to splice bulk data from socket to
//! socket without a copy.
//!
//! A direction without TLS on either side borrows a pipe after its source has delivered [`BULK`]
//! bytes without running dry. The direction returns the empty pipe when the source runs dry. Bytes
//! are copied instead if all pipes are lent, if the kernel provides no pipe, or if the kernel
//! cannot splice these sockets. A pipe that is dropped with bytes in it is closed; a new pipe is
//! opened when a direction needs one.
//!
//! `connection/half.rs` borrows pipes, and [`HalfPipe`](becket_proto::half_pipe::HalfPipe) holds
//! the lent pipe.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use becket_sys::pipe::{self, Pipe};

use crate::metrics::{Counters, PipeRefusal};

#[derive(Debug)]
pub struct Pipes {
    idle: RefCell<Vec<Pipe>>,
    lent: Cell<usize>,
    most: Cell<usize>,
    /// Requested size of a pipe in bytes.
    size: Cell<usize>,
    /// Number of bytes after which a direction may borrow a pipe; see [`BULK`].
    bulk: u32,
    counters: Arc<Counters>,
    /// Number of future requests for a pipe that are rejected without a system call, because the
    /// kernel has refused a pipe.
    pause: Cell<u32>,
    /// `true` if the worker has logged that the kernel provides no pipes.
    told: Cell<bool>,
}

/// A pipe that one direction uses until it returns or drops the pipe.
#[derive(Debug)]
pub struct Lent {
    pipe: Pipe,
    permit: PipePermit,
}

/// Counts one pipe as lent until the permit is dropped.
#[derive(Debug)]
struct PipePermit(Rc<Pipes>);

impl Pipes {
    /// Creates the pipes of a worker. [`Self::lend`] returns `None` until [`Self::allow`] has set a
    /// maximum.
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

    /// Sets the maximum number of pipes per worker, and their size. All workers together use about
    /// half of the pipe memory that the kernel grants one user.
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

    pub fn bulk(&self) -> u32 {
        self.bulk
    }

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
                    tracing::warn!(name: "pipes-failed", %error, "cannot create pipes; bulk data is copied instead of spliced");
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
    pub fn pipe(&self) -> &Pipe {
        &self.pipe
    }

    pub fn give_back(self) {
        let Self { pipe, permit } = self;
        let pipes = &permit.0;
        let mut idle = pipes.idle.borrow_mut();
        if idle.len() < pipes.most.get() {
            idle.push(pipe);
        }
    }

    /// Closes the pipe after the kernel refused to splice, and makes the next `PAUSE` requests for
    /// pipes fail.
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

/// Number of bytes that a source must deliver without running dry before its direction borrows a
/// pipe. A source that delivers 16 KiB at a time never reaches this number, because its count is
/// halved each time it runs dry. Splicing 16 KiB at a time is no cheaper than copying.
pub const BULK: u32 = 32 * 1024;
/// Maximum size of a pipe in bytes. This is the default of `fs.pipe-max-size`, the limit for
/// unprivileged processes.
const MOST_SIZE: usize = 1024 * 1024;
pub const PLACES: usize = MOST_SIZE / PAGE;
/// Page size in bytes. The kernel allocates pipes and sends files in pages.
pub const PAGE: usize = 4096;
/// Number of requests to reject without a system call after the kernel has refused a pipe.
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
    fn the_number_of_lent_pipes_is_limited() {
        let (pipes, counters) = pipes(2);
        let lent = [pipes.lend(), pipes.lend()];
        assert!(lent.iter().all(Option::is_some) && pipes.lend().is_none());
        let refusals = |why| counters.pipe_refusals[why as usize].value();
        assert_eq!(refusals(PipeRefusal::Exhausted), 1);
        // Dropping and returning both make room, but only a returned pipe is kept.
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
    fn splicing_pauses_after_a_kernel_refusal() {
        let (pipes, counters) = pipes(1);
        pipes.lend().unwrap().refused();
        assert!((0..PAUSE).all(|_| pipes.lend().is_none()));
        let refusals = counters.pipe_refusals[PipeRefusal::Kernel as usize].value();
        assert_eq!(refusals, u64::from(PAUSE) + 1);
        assert!(pipes.lend().is_some());
    }

    #[test]
    fn a_lower_limit_closes_excess_pipes() {
        let (pipes, _) = pipes(2);
        let lent = [pipes.lend(), pipes.lend()].map(Option::unwrap);
        pipes.allow(1, 1);
        lent.into_iter().for_each(Lent::give_back);
        assert_eq!(pipes.idle.borrow().len(), 1);
        pipes.allow(0, 1);
        assert!(pipes.lend().is_none() && pipes.idle.borrow().is_empty());
    }

    #[test]
    fn the_pipe_size_decreases_with_the_number_of_pipes() {
        let (pipes, _) = pipes(1);
        let size = |most, workers| {
            pipes.allow(most, workers);
            pipes.size.get()
        };
        assert!(size(1, 1) >= size(64, 2) && size(64, 2) >= size(64, 64));
        assert_eq!(size(100_000, 1024), pipe::DEFAULT_SIZE);
    }
}
