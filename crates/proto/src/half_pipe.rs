//! One direction of a relayed connection: what to do next, and the bytes that had to wait.
//!
//! A [`HalfPipe`] joins a *source* to a *sink*. It owns no socket and no cipher: the relay asks
//! [`HalfPipe::next`], does that one thing, and reports what happened. The same core serves both
//! directions, whatever is done to the bytes on the way (decrypting, encrypting, nothing).
//!
//! Order of use, per turn: report readiness (`handle_readable`, `handle_writable`), then repeat
//! `next` and the call that it asks for until it says [`Next::Wait`] or [`Next::Done`].
//!
//! Invariants:
//! * back-pressure: the source is not read while bytes wait for the sink;
//! * order: bytes leave in the order in which they were offered, each once;
//! * the end of the source reaches the sink after the last byte, once;
//! * heap is owned only while bytes wait, and given back when they are gone.
//!
//! Readiness is edge-triggered: it is remembered until a call reports that it would block.

use std::fmt;

/// What the relay should do now for this direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read from the source and offer what came: [`HalfPipe::offer`], [`HalfPipe::end_source`]
    /// or [`HalfPipe::block_source`].
    Read,
    /// Send [`HalfPipe::waiting`] to the sink: [`HalfPipe::sent`] or [`HalfPipe::block_sink`].
    Write,
    /// Tell the sink that no more bytes come, then [`HalfPipe::finish`].
    Finish,
    /// Nothing until the next readiness.
    Wait,
    /// The end of the source has reached the sink, or the sink is gone.
    Done,
}

/// One direction between two sockets.
pub struct HalfPipe {
    waiting: Vec<u8>,
    /// Bytes of `waiting` that are sent already.
    gone: usize,
    source_readable: bool,
    sink_writable: bool,
    source_ended: bool,
    finished: bool,
}

/// Shows nothing of the bytes.
impl fmt::Debug for HalfPipe {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("HalfPipe")
            .field("waiting", &self.waiting().len())
            .field("next", &self.next())
            .finish_non_exhaustive()
    }
}

/// A direction of whose source nothing is known yet, and whose sink is worth trying at once.
impl Default for HalfPipe {
    fn default() -> Self {
        Vec::new().into()
    }
}

/// A direction in which these bytes wait.
impl From<Vec<u8>> for HalfPipe {
    fn from(waiting: Vec<u8>) -> Self {
        Self {
            waiting,
            gone: 0,
            source_readable: false,
            sink_writable: true,
            source_ended: false,
            finished: false,
        }
    }
}

impl HalfPipe {
    /// The source may have bytes, or its end.
    pub fn handle_readable(&mut self) {
        self.source_readable = true;
    }

    /// The sink may take bytes.
    pub fn handle_writable(&mut self) {
        self.sink_writable = true;
    }

    /// What to do now.
    pub fn next(&self) -> Next {
        if self.finished {
            return Next::Done;
        }
        if !self.waiting.is_empty() {
            return if self.sink_writable {
                Next::Write
            } else {
                Next::Wait
            };
        }
        match (self.source_ended, self.source_readable) {
            (true, _) => Next::Finish,
            (false, true) => Next::Read,
            (false, false) => Next::Wait,
        }
    }

    /// The source gave all it had for now.
    pub fn block_source(&mut self) {
        self.source_readable = false;
    }

    /// The source ended: what waits, and what is offered in this turn, is the last.
    pub fn end_source(&mut self) {
        self.source_ended = true;
    }

    /// The sink takes nothing for now.
    pub fn block_sink(&mut self) {
        self.sink_writable = false;
    }

    /// Keeps bytes that the sink did not take. Copies them once; they wait behind what waits
    /// already. Bytes that the sink took directly are never offered.
    pub fn offer(&mut self, bytes: &[u8]) {
        debug_assert!(!self.finished, "offered bytes after the end");
        self.waiting.extend_from_slice(bytes);
    }

    /// The bytes that wait for the sink, oldest first.
    pub fn waiting(&self) -> &[u8] {
        &self.waiting[self.gone..]
    }

    /// The sink took `n` of [`Self::waiting`]. Gives the heap back when nothing waits any more.
    pub fn sent(&mut self, n: usize) {
        self.gone = (self.gone + n).min(self.waiting.len());
        if self.gone == self.waiting.len() {
            self.waiting = Vec::new();
            self.gone = 0;
        }
    }

    /// The sink has been told of the end, or is gone: nothing more will be done.
    pub fn finish(&mut self) {
        self.finished = true;
        self.waiting = Vec::new();
        self.gone = 0;
    }

    /// Whether bytes may go to the sink directly, with nothing before them.
    pub fn is_clear(&self) -> bool {
        self.waiting.is_empty() && self.sink_writable
    }

    /// Whether the source has ended.
    pub fn source_ended(&self) -> bool {
        self.source_ended
    }

    /// Whether [`Self::finish`] was called.
    pub fn is_finished(&self) -> bool {
        self.finished
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// What the world does next.
    #[derive(Clone, Debug)]
    enum Event {
        /// Bytes arrive at the source.
        Arrive(u8),
        /// The source's peer ends its stream.
        End,
        /// The sink's window opens by so many bytes.
        Open(u8),
        /// The relay gets a turn of so many steps.
        Turn(u8),
    }

    /// A relay over a naive source and sink, driven by [`Event`]s.
    struct World {
        pipe: HalfPipe,
        arriving: VecDeque<u8>,
        ended: bool,
        window: usize,
        received: Vec<u8>,
        told_end: u32,
        sent_total: usize,
    }

    impl World {
        fn new() -> Self {
            Self {
                pipe: HalfPipe::default(),
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
                        let waiting = self.pipe.waiting().to_vec();
                        let taken = self.take(&waiting);
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
            let chunk: Vec<u8> = self.arriving.drain(..self.arriving.len().min(7)).collect();
            if chunk.is_empty() {
                if self.ended {
                    self.pipe.end_source();
                } else {
                    self.pipe.block_source();
                }
                return;
            }
            let taken = if self.pipe.is_clear() {
                self.take(&chunk)
            } else {
                0
            };
            self.pipe.offer(&chunk[taken..]);
        }

        /// A sink that takes what its window allows and reports when it is full.
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
        fn no_byte_is_lost_doubled_or_moved_under_any_interleaving(
            events in prop::collection::vec(event(), 0..200)
        ) {
            let mut world = World::new();
            for event in &events {
                world.apply(event);
                let expected: Vec<u8> = (0..world.received.len()).map(|i| i as u8).collect();
                prop_assert_eq!(&world.received, &expected);
                prop_assert!(world.told_end == 0 || world.received.len() == world.sent_total);
            }
            // With the end told and the window open, all must arrive.
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
    fn the_source_is_not_read_while_bytes_wait() {
        let mut pipe = HalfPipe::default();
        pipe.offer(b"x");
        pipe.block_sink();
        pipe.handle_readable();
        assert_eq!(pipe.next(), Next::Wait);
    }

    #[test]
    fn heap_is_given_back_when_nothing_waits() {
        let mut pipe = HalfPipe::default();
        pipe.offer(&[0; 4096]);
        pipe.sent(4096);
        assert_eq!(pipe.waiting.capacity(), 0);
    }
}
