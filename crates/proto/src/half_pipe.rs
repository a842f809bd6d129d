//! One direction of a relayed connection: selects the next step, and stores the bytes that wait to be sent.
//!
//! A [`HalfPipe`] joins a *source* to a *sink*. It owns no socket and no cipher: the relay calls [`HalfPipe::next`],
//! performs that step, and reports the result. Both directions use this type, for decrypted, encrypted and unchanged
//! bytes.
//!
//! Waiting bytes are on the heap, or in a kernel pipe (`P`) that was lent to the direction because it carries bulk
//! data: [`HalfPipe::is_bulk`], [`HalfPipe::lend`], [`HalfPipe::fill`]. The code does not depend on the type of the
//! pipe.
//!
//! Order of use, per turn: report readiness (`handle_readable`, `handle_writable`). Call `next` and perform the
//! returned step, repeatedly, until it returns [`Next::Wait`] or [`Next::Done`].
//!
//! Invariants:
//! * back-pressure: the source is not read while bytes wait for the sink;
//! * order: bytes leave in the order in which they were offered, each once;
//! * the end of the source reaches the sink once, after the last byte;
//! * held bytes ([`HalfPipe::hold`]) do not stop reading: they leave before the next bytes, or with the end;
//! * heap memory is owned only while bytes wait, and freed once they are sent;
//! * bytes wait on the heap or in a pipe, never in both.
//!
//! Readiness is edge-triggered: a direction remembers that a socket is ready until a call on it would block.

use std::{fmt, mem};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read from the source, then call [`HalfPipe::offer`], [`HalfPipe::end_source`] or
    /// [`HalfPipe::block_source`].
    Read,
    /// Send [`HalfPipe::waiting`] to the sink, then call [`HalfPipe::sent`] or [`HalfPipe::block_sink`].
    Write,
    /// Send the end of the stream to the sink, then call [`HalfPipe::finish`].
    Finish,
    Wait,
    /// The end of the source has reached the sink, or the sink is closed.
    Done,
}

/// Relay state of one direction between two sockets. `P` is the type of the kernel pipe that it may
/// borrow.
pub struct HalfPipe<P> {
    waiting: Waiting<P>,
    /// Number of recently relayed bytes. It is halved whenever the source has no more data.
    run: u32,
    source_readable: bool,
    sink_writable: bool,
    source_ended: bool,
    finished: bool,
}

enum Waiting<P> {
    /// Waiting bytes; the first `gone` bytes are already sent.
    Heap { bytes: Vec<u8>, gone: usize },
    /// Bytes to be sent together with later bytes, or before the end of the stream.
    Held(Vec<u8>),
    /// A lent pipe that contains `filled` bytes, possibly none yet.
    Pipe { pipe: P, filled: usize },
}

impl<P> fmt::Debug for HalfPipe<P> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = match &self.waiting {
            Waiting::Heap { bytes, gone } => bytes.len() - gone,
            Waiting::Held(bytes) => bytes.len(),
            Waiting::Pipe { filled, .. } => *filled,
        };
        out.debug_struct("HalfPipe")
            .field("waiting", &waiting)
            .field("next", &self.next())
            .finish_non_exhaustive()
    }
}

/// An empty direction. The sink counts as writable and the source as not readable, until the relay
/// reports otherwise.
impl<P> Default for HalfPipe<P> {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl<P> From<Vec<u8>> for HalfPipe<P> {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            waiting: Waiting::Heap { bytes, gone: 0 },
            run: 0,
            source_readable: false,
            sink_writable: true,
            source_ended: false,
            finished: false,
        }
    }
}

impl<P> HalfPipe<P> {
    /// Reports that a read from the source may return bytes or the end of the stream.
    pub fn handle_readable(&mut self) {
        self.source_readable = true;
    }

    pub fn handle_writable(&mut self) {
        self.sink_writable = true;
    }

    pub fn next(&self) -> Next {
        if self.finished {
            return Next::Done;
        }
        let is_last = self.source_ended && !self.is_empty();
        if self.waits() || is_last {
            return if self.sink_writable {
                Next::Write
            } else {
                Next::Wait
            };
        }
        if self.source_ended {
            Next::Finish
        } else if self.source_readable {
            Next::Read
        } else {
            Next::Wait
        }
    }

    /// Reports that a read from the source would block.
    pub fn block_source(&mut self) {
        self.source_readable = false;
        self.run /= 2;
    }

    /// Reports the end of the source. The caller may still offer bytes that it has already read.
    pub fn end_source(&mut self) {
        self.source_ended = true;
    }

    /// Reports that a write to the sink would block.
    pub fn block_sink(&mut self) {
        self.sink_writable = false;
    }

    /// Appends bytes that the sink did not accept to the waiting bytes.
    ///
    /// # Panics
    ///
    /// Panics if a pipe is lent, because the order of its bytes and the new bytes would be unknown.
    pub fn offer(&mut self, more: &[u8]) {
        debug_assert!(!self.finished, "offered bytes after the end");
        if !more.is_empty() {
            self.release();
        }
        match &mut self.waiting {
            Waiting::Heap { bytes, .. } | Waiting::Held(bytes) => bytes.extend_from_slice(more),
            Waiting::Pipe { .. } => unreachable!("offered bytes to a direction that has a pipe"),
        }
    }

    /// Stores bytes that must be sent together with the next bytes or with the end of the stream. Appends them to the
    /// waiting bytes, if there are any.
    pub fn hold(&mut self, bytes: &[u8]) {
        match &self.waiting {
            Waiting::Heap { bytes: others, .. } if others.is_empty() && !bytes.is_empty() => {
                self.waiting = Waiting::Held(bytes.to_vec());
            }
            _ => self.offer(bytes),
        }
    }

    /// Removes the held bytes. The caller must send them before any other bytes.
    pub fn take_held(&mut self) -> Vec<u8> {
        match &mut self.waiting {
            Waiting::Held(bytes) => {
                let bytes = mem::take(bytes);
                self.waiting = Waiting::none();
                bytes
            }
            _ => Vec::new(),
        }
    }

    pub fn is_holding(&self) -> bool {
        matches!(self.waiting, Waiting::Held(_))
    }

    /// Queues the held bytes for sending now, without waiting for later bytes.
    pub fn release(&mut self) {
        let held = self.take_held();
        if !held.is_empty() {
            self.waiting = Waiting::Heap {
                bytes: held,
                gone: 0,
            };
        }
    }

    /// Returns the bytes on the heap that wait for the sink or are held, oldest first.
    pub fn waiting(&self) -> &[u8] {
        match &self.waiting {
            Waiting::Heap { bytes, gone } => &bytes[*gone..],
            Waiting::Held(bytes) => bytes,
            Waiting::Pipe { .. } => &[],
        }
    }

    /// Returns whether bytes wait for the sink, on the heap or in a pipe. Held bytes do not count.
    pub fn waits(&self) -> bool {
        !self.is_holding() && !self.is_empty()
    }

    fn is_empty(&self) -> bool {
        match &self.waiting {
            Waiting::Heap { bytes, .. } | Waiting::Held(bytes) => bytes.is_empty(),
            Waiting::Pipe { filled, .. } => *filled == 0,
        }
    }

    /// Reports that the sink accepted `n` of the waiting bytes. Frees the heap memory after the last one.
    pub fn sent(&mut self, n: usize) {
        self.release();
        match &mut self.waiting {
            Waiting::Heap { bytes, gone } => {
                *gone = (*gone + n).min(bytes.len());
                if *gone == bytes.len() {
                    self.waiting = Waiting::none();
                }
            }
            Waiting::Held(_) => {}
            Waiting::Pipe { filled, .. } => *filled = filled.saturating_sub(n),
        }
    }

    /// Reports that the sink received the end, or is closed: no more steps follow.
    pub fn finish(&mut self) {
        self.finished = true;
        self.waiting = Waiting::none();
    }

    /// Returns whether bytes can be sent to the sink directly: it is writable, and no bytes wait or
    /// are held.
    pub fn is_clear(&self) -> bool {
        self.is_empty() && self.sink_writable
    }

    pub fn source_ended(&self) -> bool {
        self.source_ended
    }

    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Adds `n` relayed bytes to the count that [`Self::is_bulk`] reads.
    pub fn passed(&mut self, n: usize) {
        let run = u32::try_from(n).map_or(MOST_RUN, |n| self.run.saturating_add(n));
        self.run = run.min(MOST_RUN);
    }

    /// Returns `true` if at least `bytes` were relayed recently. The count is halved whenever a
    /// read from the source would block.
    pub fn is_bulk(&self, bytes: u32) -> bool {
        self.run >= bytes
    }

    /// Lends a pipe. No bytes may wait in this direction.
    pub fn lend(&mut self, pipe: P) {
        debug_assert!(self.is_empty(), "lent a pipe to bytes on the heap");
        self.waiting = Waiting::Pipe { pipe, filled: 0 };
    }

    pub fn lent(&self) -> Option<(&P, usize)> {
        match &self.waiting {
            Waiting::Heap { .. } | Waiting::Held(_) => None,
            Waiting::Pipe { pipe, filled } => Some((pipe, *filled)),
        }
    }

    /// Reports that `n` bytes of the source were moved into the lent pipe.
    pub fn fill(&mut self, n: usize) {
        if let Waiting::Pipe { filled, .. } = &mut self.waiting {
            *filled += n;
        }
        self.passed(n);
    }

    /// Takes back the lent pipe, and queues `bytes` on the heap as a replacement for its contents.
    /// Returns `None` if no pipe is lent.
    pub fn take_pipe(&mut self, bytes: Vec<u8>) -> Option<P> {
        match mem::replace(&mut self.waiting, Waiting::none()) {
            Waiting::Pipe { pipe, .. } => {
                self.waiting = Waiting::Heap { bytes, gone: 0 };
                Some(pipe)
            }
            heap => {
                self.waiting = heap;
                None
            }
        }
    }
}

impl<P> Waiting<P> {
    fn none() -> Self {
        Self::Heap {
            bytes: Vec::new(),
            gone: 0,
        }
    }
}

/// Maximum of `run`, low enough that [`HalfPipe::is_bulk`] returns `false` after the source has run
/// dry a few times.
const MOST_RUN: u32 = 256 * 1024;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// Event in the outside world.
    #[derive(Clone, Debug)]
    enum Event {
        /// Bytes arrive at the source.
        Arrive(u8),
        /// The source's peer ends its stream.
        End,
        /// The sink's window opens by this many bytes.
        Open(u8),
        /// The relay runs for this many steps.
        Turn(u8),
    }

    /// A kernel pipe as the core sees it: storage for bytes.
    #[derive(Default)]
    struct Kernel(RefCell<VecDeque<u8>>);

    /// A relay over a naive source and sink, driven by [`Event`]s.
    struct World {
        pipe: HalfPipe<Kernel>,
        /// Bytes after which a pipe is lent.
        bulk: u32,
        arriving: VecDeque<u8>,
        ended: bool,
        window: usize,
        received: Vec<u8>,
        told_end: u32,
        sent_total: usize,
    }

    impl World {
        fn new(bulk: u32) -> Self {
            Self {
                pipe: HalfPipe::default(),
                bulk,
                arriving: VecDeque::new(),
                ended: false,
                window: 0,
                received: Vec::new(),
                told_end: 0,
                sent_total: 0,
            }
        }

        fn apply(&mut self, event: &Event) {
            match *event {
                Event::Arrive(n) if !self.ended => {
                    for _ in 0..n {
                        self.arriving.push_back(self.sent_total as u8);
                        self.sent_total += 1;
                    }
                    self.pipe.handle_readable();
                }
                Event::Arrive(_) => {}
                Event::End => {
                    self.ended = true;
                    self.pipe.handle_readable();
                }
                Event::Open(n) => {
                    self.window += usize::from(n);
                    self.pipe.handle_writable();
                }
                Event::Turn(steps) => self.turn(usize::from(steps)),
            }
        }

        fn turn(&mut self, steps: usize) {
            for _ in 0..steps {
                match self.pipe.next() {
                    Next::Read => self.read(),
                    Next::Write => {
                        let waiting = match self.pipe.lent() {
                            None => self.pipe.waiting().to_vec(),
                            Some((kernel, filled)) => {
                                let bytes: Vec<u8> = kernel.0.borrow().iter().copied().collect();
                                assert_eq!(bytes.len(), filled);
                                bytes
                            }
                        };
                        let taken = self.take(&waiting);
                        if let Some((kernel, _)) = self.pipe.lent() {
                            kernel.0.borrow_mut().drain(..taken);
                        }
                        self.pipe.sent(taken);
                    }
                    Next::Finish => {
                        self.told_end += 1;
                        self.pipe.finish();
                    }
                    Next::Wait | Next::Done => return,
                }
            }
        }

        fn read(&mut self) {
            if self.pipe.lent().is_none() && self.pipe.is_bulk(self.bulk) {
                self.pipe.lend(Kernel::default());
            }
            let chunk: Vec<u8> = self.arriving.drain(..self.arriving.len().min(7)).collect();
            if chunk.is_empty() {
                if self.ended {
                    self.pipe.end_source();
                } else {
                    self.pipe.block_source();
                }
                self.pipe.take_pipe(Vec::new());
                return;
            }
            if let Some((kernel, _)) = self.pipe.lent() {
                kernel.0.borrow_mut().extend(&chunk);
                self.pipe.fill(chunk.len());
                return;
            }
            self.pipe.passed(chunk.len());
            let taken = if self.pipe.is_clear() {
                self.take(&chunk)
            } else {
                0
            };
            self.pipe.offer(&chunk[taken..]);
        }

        /// A sink that accepts what its window allows and reports when it is full.
        fn take(&mut self, bytes: &[u8]) -> usize {
            let n = bytes.len().min(self.window);
            self.received.extend_from_slice(&bytes[..n]);
            self.window -= n;
            if n < bytes.len() {
                self.pipe.block_sink();
            }
            n
        }
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => any::<u8>().prop_map(Event::Arrive),
            1 => Just(Event::End),
            4 => any::<u8>().prop_map(Event::Open),
            8 => (1u8..20).prop_map(Event::Turn),
        ]
    }

    proptest! {
        #[test]
        fn no_byte_is_lost_duplicated_or_reordered_under_any_interleaving(
            bulk in prop_oneof![Just(0), 1..100_u32, Just(u32::MAX)],
            held in prop::option::of(1..9_usize),
            events in prop::collection::vec(event(), 0..200)
        ) {
            // Held bytes never occur in a direction that carries bulk from its first byte on.
            let mut world = World::new(if held.is_some() { u32::MAX } else { bulk });
            if let Some(held) = held {
                let bytes: Vec<u8> = (0..held).map(|i| i as u8).collect();
                world.pipe.hold(&bytes);
                world.sent_total = held;
            }
            for event in &events {
                world.apply(event);
                let expected: Vec<u8> = (0..world.received.len()).map(|i| i as u8).collect();
                prop_assert_eq!(&world.received, &expected);
                prop_assert!(world.told_end == 0 || world.received.len() == world.sent_total);
            }
            // After the end and with an open window, all bytes must arrive.
            world.apply(&Event::End);
            while world.told_end == 0 {
                let before = world.received.len();
                world.apply(&Event::Open(255));
                world.apply(&Event::Turn(200));
                prop_assert!(world.told_end == 1 || world.received.len() > before);
            }
            prop_assert_eq!(world.received.len(), world.sent_total);
            prop_assert_eq!(world.told_end, 1);
            prop_assert_eq!(world.pipe.next(), Next::Done);
        }
    }

    #[test]
    fn held_bytes_are_sent_with_new_data_at_the_end_or_on_release() {
        let holding = || {
            let mut pipe = HalfPipe::<Kernel>::default();
            pipe.hold(b"ticket");
            pipe.handle_readable();
            assert_eq!((pipe.next(), pipe.waits()), (Next::Read, false));
            assert!(pipe.is_holding());
            assert!(!pipe.is_clear(), "nothing goes in front of it");
            pipe
        };
        let mut pipe = holding();
        pipe.offer(b" and answer");
        assert_eq!(
            (pipe.next(), pipe.waiting()),
            (Next::Write, &b"ticket and answer"[..])
        );
        let mut pipe = holding();
        pipe.end_source();
        assert_eq!(pipe.next(), Next::Write);
        pipe.sent(6);
        assert_eq!(pipe.next(), Next::Finish);
        let mut pipe = holding();
        pipe.release();
        assert_eq!(pipe.next(), Next::Write);
        let mut pipe = holding();
        assert_eq!(
            (pipe.take_held(), pipe.next()),
            (b"ticket".to_vec(), Next::Read)
        );
        assert!(pipe.is_clear() && pipe.take_held().is_empty());
        // If other bytes wait, held bytes wait with them.
        let mut pipe = HalfPipe::<Kernel>::default();
        pipe.offer(b"x");
        pipe.hold(b"y");
        assert_eq!((pipe.next(), pipe.take_held()), (Next::Write, Vec::new()));
    }

    #[test]
    fn bulk_is_detected_from_uninterrupted_transfers() {
        const BULK: u32 = 32 * 1024;
        let mut pipe = HalfPipe::<Kernel>::default();
        // 16 KiB at a time are not bulk, however often.
        for _ in 0..100 {
            pipe.passed(16 * 1024);
            pipe.block_source();
            assert!(!pipe.is_bulk(BULK));
        }
        pipe.passed(BULK as usize);
        assert!(pipe.is_bulk(BULK));
        // Bursts are bulk; a few small reads after them are not.
        for _ in 0..100 {
            pipe.passed(BULK as usize);
            assert!(pipe.is_bulk(BULK));
            pipe.block_source();
        }
        for _ in 0..2 {
            pipe.passed(1024);
            pipe.block_source();
        }
        assert!(!pipe.is_bulk(BULK));
        pipe.passed(usize::MAX);
        assert!(pipe.is_bulk(MOST_RUN) && !pipe.is_bulk(MOST_RUN + 1));
    }

    #[test]
    fn bytes_of_a_pipe_can_be_moved_to_the_heap() {
        let mut pipe = HalfPipe::default();
        pipe.lend("pipe");
        assert!(!pipe.waits());
        pipe.fill(3);
        assert_eq!(pipe.lent(), Some((&"pipe", 3)));
        pipe.sent(1);
        assert_eq!((pipe.waits(), pipe.waiting()), (true, &b""[..]));
        assert_eq!(pipe.take_pipe(b"yz".to_vec()), Some("pipe"));
        assert_eq!(pipe.waiting(), b"yz");
        assert_eq!(pipe.take_pipe(Vec::new()), None);
        assert_eq!(pipe.waiting(), b"yz");
    }

    #[test]
    fn pipe_support_does_not_enlarge_connections_without_a_pipe() {
        let without = size_of::<Vec<u8>>() + size_of::<usize>() + size_of::<u64>();
        assert_eq!(size_of::<HalfPipe<[u64; 2]>>(), without);
    }
}
