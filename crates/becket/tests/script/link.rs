//! A stream in memory with two ends, which behaves like a connected TCP socket pair.
//!
//! Both directions are bounded. A script decides what arrives and when: bytes and the end of a side
//! may be held *on the way* and delivered in pieces ([`Watch::hold`], [`Watch::deliver`]). Each
//! change of readiness is reported once, as an edge ([`Watch::take_edges`]), by the rules of an
//! edge-triggered epoll on Linux:
//!
//! * a short receive has emptied the socket, and a short send has filled it;
//! * the arrival of bytes, an end or a fault is an edge, even if older bytes are unread;
//! * room is an edge only for a side whose last send was short;
//! * a reset discards the bytes on the way; arrived bytes can still be received, then the fault is
//!   reported once, and then the stream has ended;
//! * dropping an end with unread bytes resets its peer.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use becket_proxy::socket::{Ready, StreamSocket};
use becket_sys::kernel_tls::Support;
use becket_sys::pipe::Pipe;

use super::kernel::{Kernel, Refused};

/// One end of a stream; dropping it closes it.
#[derive(Debug)]
pub(crate) struct End {
    pub(super) halves: Rc<RefCell<[Half; 2]>>,
    pub(super) side: usize,
    local: Option<SocketAddr>,
}

/// Observes one end, independently of its owner.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    halves: Rc<RefCell<[Half; 2]>>,
    side: usize,
}

/// State of one end, including the data on the way to it.
#[derive(Debug, Default)]
pub(super) struct Half {
    on_the_way: VecDeque<u8>,
    end_on_the_way: bool,
    held: bool,
    pub(super) arrived: VecDeque<u8>,
    pub(super) ended: bool,
    /// Fault that the next call reports.
    fault: Option<ErrorKind>,
    /// A fault has arrived; sends and receives fail.
    pub(super) broken: bool,
    /// Maximum number of bytes on the way to this end and arrived at it.
    capacity: usize,
    pub(super) edges: Ready,
    connecting: bool,
    /// The last send of this end was short.
    pub(super) starved: bool,
    /// This end has sent its FIN.
    finished: bool,
    resets: bool,
    closed: bool,
    unspliceable: bool,
    /// The last send announced that more data follows.
    promised: bool,
    /// FIN followed an announcement, so the kernel sends both in one packet.
    fin_has_data: bool,
    pub(super) kernel: Kernel,
}

/// Creates a stream that holds up to `capacity` bytes in each direction.
pub(crate) fn pair(capacity: usize) -> (End, End) {
    let half = || Half {
        capacity,
        edges: WRITABLE,
        ..Half::default()
    };
    let halves = Rc::new(RefCell::new([half(), half()]));
    let end = |side| End {
        halves: Rc::clone(&halves),
        side,
        local: None,
    };
    (end(0), end(1))
}

impl End {
    /// Sets the local address of the end.
    pub(crate) fn at(mut self, local: SocketAddr) -> Self {
        self.local = Some(local);
        self
    }

    /// Returns a watch of this end.
    pub(crate) fn watch(&self) -> Watch {
        Watch {
            halves: Rc::clone(&self.halves),
            side: self.side,
        }
    }

    /// Returns a watch of the other end.
    pub(crate) fn watch_peer(&self) -> Watch {
        Watch {
            halves: Rc::clone(&self.halves),
            side: 1 - self.side,
        }
    }

    /// Resets the stream; sends and receives fail from now on.
    #[allow(
        clippy::needless_pass_by_ref_mut,
        reason = "a socket of this kind takes it so, and it ends what others write to"
    )]
    pub(crate) fn reset(&mut self) {
        let mut halves = self.halves.borrow_mut();
        let [me, peer] = sides(&mut halves, self.side);
        me.broken = true;
        peer.fail(ErrorKind::ConnectionReset);
    }

    /// Receives all bytes that have arrived. [`Watch`] shows the state of the stream.
    pub(crate) fn receive_all(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = self.receive(&mut buffer) {
            all.extend_from_slice(buffer.get(..n).unwrap_or_default());
        }
        all
    }

    /// Returns the number of bytes that a send would accept.
    pub(super) fn room(&self) -> usize {
        let halves = self.halves.borrow();
        let (me, peer) = (&halves[self.side], &halves[1 - self.side]);
        if me.fault.is_some() || me.broken || me.finished || me.connecting {
            return 0;
        }
        if peer.closed {
            return usize::MAX;
        }
        let waiting = peer.on_the_way.len() + peer.arrived.len();
        peer.capacity.saturating_sub(waiting)
    }

    /// Returns the maximum length of one send without a copy: limited by the room and by one
    /// splice.
    fn sendable(&self, most: usize) -> io::Result<usize> {
        let sealing = if self.halves.borrow()[self.side].kernel.seals() {
            SEALING
        } else {
            0
        };
        let room = self.room().saturating_sub(sealing);
        match self.spliceable()?.min(most).min(room) {
            0 => self.blocked(),
            most => Ok(most),
        }
    }

    /// Returns the maximum length of one splice, which may end before the socket is empty or full,
    /// as in the kernel.
    fn spliceable(&self) -> io::Result<usize> {
        if self.halves.borrow()[self.side].unspliceable {
            Err(ErrorKind::InvalidInput.into())
        } else {
            Ok(MOST_SPLICED)
        }
    }

    /// Returns the error of a send that accepts nothing.
    pub(super) fn blocked(&self) -> io::Result<usize> {
        let mut halves = self.halves.borrow_mut();
        let [me, _] = sides(&mut halves, self.side);
        me.starved = true;
        if let Some(kind) = me.fault.take() {
            return Err(kind.into());
        }
        if me.broken || me.finished {
            Err(ErrorKind::BrokenPipe.into())
        } else {
            Err(ErrorKind::WouldBlock.into())
        }
    }

    /// Takes the pending fault, such as a failed connect.
    pub(crate) fn take_fault(&self) -> Option<ErrorKind> {
        let mut halves = self.halves.borrow_mut();
        let [me, _] = sides(&mut halves, self.side);
        me.fault.take()
    }
}

impl End {
    /// Receives the bytes on the wire.
    pub(super) fn receive_sealed(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut halves = self.halves.borrow_mut();
        let [me, peer] = sides(&mut halves, self.side);
        if buffer.is_empty() {
            return Ok(0);
        }
        if me.connecting {
            return Err(ErrorKind::WouldBlock.into());
        }
        let n = me.arrived.len().min(buffer.len());
        if n > 0 {
            for (into, byte) in buffer.iter_mut().zip(me.arrived.drain(..n)) {
                *into = byte;
            }
            if std::mem::take(&mut peer.starved) {
                peer.edges.writable = true;
            }
            return Ok(n);
        }
        match me.fault.take() {
            Some(kind) => Err(kind.into()),
            None if me.ended || me.broken => Ok(0),
            None => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Sends the bytes without sealing.
    pub(super) fn send_clear(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut halves = self.halves.borrow_mut();
        let [me, peer] = sides(&mut halves, self.side);
        if let Some(kind) = me.fault.take() {
            return Err(kind.into());
        }
        if me.broken || me.finished {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if me.connecting {
            return Err(ErrorKind::WouldBlock.into());
        }
        if peer.closed {
            // The kernel accepts the bytes, and the closed peer answers with a reset.
            me.fail(ErrorKind::ConnectionReset);
            return Ok(bytes.len());
        }
        let waiting = peer.on_the_way.len() + peer.arrived.len();
        let n = peer.capacity.saturating_sub(waiting).min(bytes.len());
        me.starved = n < bytes.len();
        if n == 0 && !bytes.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        peer.on_the_way.extend(bytes.iter().take(n));
        peer.deliver_unless_held();
        Ok(n)
    }
}

impl StreamSocket for End {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.halves.borrow()[self.side].kernel.opens() {
            return self.receive_sealed(buffer);
        }
        self.receive_opened(buffer)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.halves.borrow_mut()[self.side].promised = false;
        if !self.halves.borrow()[self.side].kernel.seals() {
            return self.send_clear(bytes);
        }
        self.send_sealed(bytes)
    }

    fn send_more(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.send(bytes)?;
        self.halves.borrow_mut()[self.side].promised = sent == bytes.len();
        Ok(sent)
    }

    fn send_file(&mut self, file: &File, at: u64, most: usize) -> io::Result<usize> {
        let mut bytes = vec![0; self.sendable(most)?];
        match file.read_at(&mut bytes, at)? {
            0 => Ok(0),
            read => self.send(&bytes[..read]),
        }
    }

    fn splice_in(&mut self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        let mut bytes = vec![0; self.spliceable()?.min(most)];
        if self.halves.borrow()[self.side].kernel.opens() && self.open()? {
            let mut halves = self.halves.borrow_mut();
            let [me, _] = sides(&mut halves, self.side);
            let record = match me.kernel.front() {
                Some((23, _)) => me.kernel.give(&mut bytes),
                _ => return Err(ErrorKind::InvalidInput.into()),
            };
            return (&mut &*pipe)
                .write_all(&bytes[..record.len])
                .map(|()| record.len);
        }
        let n = self.receive(&mut bytes)?;
        (&mut &*pipe).write_all(&bytes[..n]).map(|()| n)
    }

    fn splice_out(&mut self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        let mut bytes = vec![0; self.sendable(most)?];
        (&mut &*pipe).read_exact(&mut bytes)?;
        self.send(&bytes)
    }

    fn finish(&mut self) {
        let mut halves = self.halves.borrow_mut();
        let [me, peer] = sides(&mut halves, self.side);
        me.end_to(peer);
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.local
    }

    fn reset_on_close(&mut self) {
        let mut halves = self.halves.borrow_mut();
        let [me, _] = sides(&mut halves, self.side);
        me.resets = true;
    }

    fn peek(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut halves = self.halves.borrow_mut();
        let [me, _] = sides(&mut halves, self.side);
        let n = me.arrived.len().min(buffer.len());
        for (into, byte) in buffer.iter_mut().zip(&me.arrived) {
            *into = *byte;
        }
        match me.fault {
            _ if n > 0 => Ok(n),
            Some(kind) => Err(kind.into()),
            None if me.ended || me.broken => Ok(0),
            None => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn is_gone(&self) -> bool {
        let me = &self.halves.borrow()[self.side];
        me.ended || me.broken
    }

    fn is_acknowledged(&self) -> bool {
        true
    }
}

/// For peers written for blocking streams; `WouldBlock` is a possible result.
impl Read for End {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.receive(buffer)
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut halves = self.halves.borrow_mut();
        let [me, peer] = sides(&mut halves, self.side);
        let unread = !me.arrived.is_empty() || !me.on_the_way.is_empty();
        me.closed = true;
        if me.broken || peer.closed {
            return;
        }
        if me.resets || unread {
            peer.fail(ErrorKind::ConnectionReset);
        } else {
            me.end_to(peer);
        }
    }
}

impl Watch {
    /// Returns the edges since the last call.
    pub(crate) fn take_edges(&self) -> Ready {
        self.with(|me, _| std::mem::take(&mut me.edges))
    }

    /// From now on, data sent to this end is held until it is delivered.
    pub(crate) fn hold(&self) {
        self.with(|me, _| me.held = true);
    }

    /// Delivers up to `n` held bytes, and also the end after them if there is one and `n` exceeds
    /// the number of held bytes.
    pub(crate) fn deliver(&self, n: usize) {
        self.with(|me, _| me.deliver(n));
    }

    /// Puts the end into the state of a pending connect.
    pub(crate) fn begin_connecting(&self) {
        self.with(|me, _| {
            me.connecting = true;
            me.edges = Ready::default();
        });
    }

    /// Lets the connect succeed.
    pub(crate) fn establish(&self) {
        self.with(|me, _| {
            if std::mem::take(&mut me.connecting) {
                me.edges.writable = true;
            }
        });
    }

    /// From now on, splices to and from this end fail.
    pub(crate) fn refuse_to_splice(&self) {
        self.with(|me, _| me.unspliceable = true);
    }

    /// Returns `true` if bytes sent by this end wait for announced data although the link has room.
    pub(crate) fn is_kept_waiting(&self) -> bool {
        self.with(|me, _| me.promised && !me.starved && !me.broken)
    }

    /// Returns `true` if this end's FIN was in the packet of its last bytes.
    pub(crate) fn has_fin_with_data(&self) -> bool {
        self.with(|me, _| me.fin_has_data)
    }

    /// Sets the features of this end's kernel, and the call that it refuses.
    pub(crate) fn give_kernel(&self, support: Support, refuses: Option<Refused>) {
        self.with(|me, _| (me.kernel.support, me.kernel.refuses) = (support, refuses));
    }

    /// Returns `true` if the kernel seals and opens at this end.
    pub(crate) fn is_in_kernel(&self) -> bool {
        self.with(|me, _| me.kernel.seals() && me.kernel.opens())
    }

    /// Lets the connect or the network fail.
    pub(crate) fn fail(&self, kind: ErrorKind) {
        self.with(|me, _| me.fail(kind));
    }

    /// Returns the number of held bytes, plus one for a held end.
    pub(crate) fn on_the_way(&self) -> usize {
        self.with(|me, _| me.on_the_way.len() + usize::from(me.end_on_the_way))
    }

    /// Returns `true` if the peer's end has arrived without a fault.
    pub(crate) fn is_ended(&self) -> bool {
        self.with(|me, _| me.ended && !me.broken)
    }

    /// Returns `true` if the stream was reset.
    pub(crate) fn is_broken(&self) -> bool {
        self.with(|me, _| me.broken)
    }

    fn with<T>(&self, body: impl FnOnce(&mut Half, &mut Half) -> T) -> T {
        let mut halves = self.halves.borrow_mut();
        let [me, peer] = sides(&mut halves, self.side);
        body(me, peer)
    }
}

impl Half {
    fn deliver_unless_held(&mut self) {
        if !self.held {
            self.deliver(usize::MAX);
        }
    }

    fn deliver(&mut self, n: usize) {
        if self.broken {
            return;
        }
        let on_the_way = self.on_the_way.len();
        let bytes = self.on_the_way.drain(..n.min(on_the_way));
        self.arrived.extend(bytes);
        let moved = n.min(on_the_way) > 0;
        let ends = self.end_on_the_way && n > on_the_way;
        if ends {
            self.end_on_the_way = false;
            self.ended = true;
        }
        self.edges.readable |= moved || ends;
        self.edges.ended |= ends;
    }

    /// Sends FIN to the peer.
    fn end_to(&mut self, peer: &mut Self) {
        self.fin_has_data = std::mem::take(&mut self.promised);
        if std::mem::replace(&mut self.finished, true) || self.broken || peer.closed {
            return;
        }
        peer.end_on_the_way = true;
        peer.deliver_unless_held();
    }

    fn fail(&mut self, kind: ErrorKind) {
        if std::mem::replace(&mut self.broken, true) {
            return;
        }
        self.connecting = false;
        self.on_the_way.clear();
        self.end_on_the_way = false;
        self.fault = Some(kind);
        self.edges = Ready {
            readable: true,
            writable: true,
            ended: true,
            failed: kind != ErrorKind::BrokenPipe,
        };
    }
}

/// Returns this side and the other one.
pub(super) fn sides<'a>(halves: &'a mut RefMut<'_, [Half; 2]>, side: usize) -> [&'a mut Half; 2] {
    let [first, second] = &mut **halves;
    if side == 0 {
        [first, second]
    } else {
        [second, first]
    }
}

/// Maximum number of bytes that sealing adds: header, nonce, type and tag.
pub(super) const SEALING: usize = 5 + 8 + 1 + 16;
/// Maximum length of a splice: a prime, so that it divides no other size.
const MOST_SPLICED: usize = 1499;
/// Readiness of a new socket.
const WRITABLE: Ready = Ready {
    failed: false,
    readable: false,
    writable: true,
    ended: false,
};

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(end: &mut End) -> Result<Vec<u8>, ErrorKind> {
        let mut buffer = [0; 16];
        let n = end.receive(&mut buffer).map_err(|error| error.kind())?;
        Ok(buffer[..n].to_vec())
    }

    #[test]
    fn bytes_arrive_in_order_and_are_bounded() {
        let (mut a, mut b) = pair(4);
        assert_eq!(a.send(b"abcdef").unwrap(), 4);
        assert_eq!(a.send(b"ef").unwrap_err().kind(), ErrorKind::WouldBlock);
        a.watch().take_edges();
        assert_eq!(receive(&mut b).unwrap(), b"abcd");
        assert!(a.watch().take_edges().writable, "room is an edge");
        assert_eq!(a.send(b"ef").unwrap(), 2);
        assert_eq!(receive(&mut b).unwrap(), b"ef");
        assert!(!a.watch().take_edges().writable, "nobody waited for room");
    }

    #[test]
    fn held_data_arrives_on_delivery() {
        let (mut a, mut b) = pair(64);
        let at_b = b.watch();
        at_b.hold();
        at_b.take_edges();
        a.send(b"abc").unwrap();
        a.finish();
        assert_eq!(receive(&mut b), Err(ErrorKind::WouldBlock));
        at_b.deliver(3);
        assert_eq!(
            at_b.take_edges(),
            Ready {
                readable: true,
                ..Ready::default()
            }
        );
        assert_eq!(receive(&mut b).unwrap(), b"abc");
        assert_eq!(receive(&mut b), Err(ErrorKind::WouldBlock));
        at_b.deliver(1);
        assert!(at_b.take_edges().ended);
        assert_eq!(receive(&mut b).unwrap(), b"");
    }

    #[test]
    fn a_reset_is_reported_once_after_the_received_bytes() {
        let (mut a, mut b) = pair(64);
        a.send(b"abc").unwrap();
        a.reset();
        assert_eq!(receive(&mut b).unwrap(), b"abc");
        assert_eq!(receive(&mut b), Err(ErrorKind::ConnectionReset));
        assert_eq!(receive(&mut b).unwrap(), b"");
        assert_eq!(b.send(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn unread_bytes_turn_a_close_into_a_reset() {
        let (mut a, b) = pair(64);
        a.send(b"abc").unwrap();
        drop(b);
        assert_eq!(receive(&mut a), Err(ErrorKind::ConnectionReset));
        let (mut a, b) = pair(64);
        drop(b);
        assert_eq!(receive(&mut a).unwrap(), b"");
        assert_eq!(a.send(b"x").unwrap(), 1, "the kernel takes it");
        assert_eq!(a.send(b"x").unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_connecting_socket_becomes_writable_when_established() {
        let (mut a, _b) = pair(64);
        let at_a = a.watch();
        at_a.begin_connecting();
        assert_eq!(a.send(b"x").unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(at_a.take_edges(), Ready::default());
        at_a.establish();
        assert!(at_a.take_edges().writable);
        assert_eq!(a.send(b"x").unwrap(), 1);
    }
}
