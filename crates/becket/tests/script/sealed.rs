//! One end of a stream whose records a [`Kernel`](super::kernel) seals and opens.

use std::io::{self, ErrorKind};

use becket_proxy::socket::KernelTlsSocket;
use becket_sys::kernel_tls::{Cipher, Direction, Key, ReceivedRecord, Support};

use super::kernel::EIO;
use super::link::{End, SEALING, sides};

impl End {
    /// Opens the next record if none is open. Returns `false` if there is no record.
    pub(super) fn open(&self) -> io::Result<bool> {
        let mut halves = self.halves.borrow_mut();
        let [me, peer] = sides(&mut halves, self.side);
        if me.kernel.front().is_none() {
            let before = me.arrived.len();
            me.kernel.open(&mut me.arrived)?;
            if me.arrived.len() < before && std::mem::take(&mut peer.starved) {
                peer.edges.writable = true;
            }
        }
        Ok(me.kernel.front().is_some())
    }

    /// Returns the result of a receive without an opened record. If a record is incomplete, the end
    /// is not reported.
    pub(super) fn nothing_opened(&self) -> io::Result<usize> {
        if self.halves.borrow()[self.side].arrived.is_empty() {
            return self.receive_sealed(&mut [0]);
        }
        let halves = self.halves.borrow();
        let me = &halves[self.side];
        if me.ended || me.broken {
            Ok(0)
        } else {
            Err(ErrorKind::WouldBlock.into())
        }
    }

    /// Receives data that the kernel has opened.
    pub(super) fn receive_opened(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        while got < buffer.len() && self.open()? {
            let mut halves = self.halves.borrow_mut();
            let [me, _] = sides(&mut halves, self.side);
            match me.kernel.front() {
                Some((23, _)) => got += me.kernel.give(&mut buffer[got..]).len,
                _ if got > 0 => break,
                _ => return Err(io::Error::from_raw_os_error(EIO)),
            }
        }
        match got {
            0 => self.nothing_opened(),
            got => Ok(got),
        }
    }

    /// Seals and sends as much data as there is room for.
    pub(super) fn send_sealed(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            let room = self.room().saturating_sub(SEALING).min(16 * 1024);
            let piece = &bytes[sent..bytes.len().min(sent + room)];
            if piece.is_empty() {
                break;
            }
            self.send_record(23, piece)?;
            sent += piece.len();
        }
        let mut halves = self.halves.borrow_mut();
        let [me, _] = sides(&mut halves, self.side);
        me.starved = sent < bytes.len();
        drop(halves);
        match sent {
            0 => self.blocked(),
            sent => Ok(sent),
        }
    }
}

impl KernelTlsSocket for End {
    fn support(&self) -> Support {
        self.halves.borrow()[self.side].kernel.support
    }

    fn attach(&mut self) -> io::Result<()> {
        let mut halves = self.halves.borrow_mut();
        let [me, _] = sides(&mut halves, self.side);
        me.kernel.attach()
    }

    fn set_key(&mut self, direction: Direction, key: &Key<'_>) -> io::Result<()> {
        let mut halves = self.halves.borrow_mut();
        let [me, _] = sides(&mut halves, self.side);
        me.kernel.set_key(direction, key)
    }

    fn next_record(&self, _: Cipher) -> io::Result<u64> {
        self.halves.borrow()[self.side].kernel.next_record()
    }

    fn receive_record(&mut self, buffer: &mut [u8]) -> io::Result<ReceivedRecord> {
        if self.open()? {
            let mut halves = self.halves.borrow_mut();
            let [me, _] = sides(&mut halves, self.side);
            return Ok(me.kernel.give(buffer));
        }
        self.nothing_opened()
            .map(|len| ReceivedRecord { kind: None, len })
    }

    fn send_record(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        if self.room() < bytes.len() + SEALING {
            return self.blocked().map(drop);
        }
        let mut halves = self.halves.borrow_mut();
        let [me, _] = sides(&mut halves, self.side);
        let record = me.kernel.seal(kind, bytes);
        drop(halves);
        self.send_clear(&record).map(drop)
    }

    fn has_room(&self) -> bool {
        let has = self.room() > 2 * SEALING;
        let mut halves = self.halves.borrow_mut();
        let [me, _] = sides(&mut halves, self.side);
        me.starved |= !has;
        has || me.broken
    }
}
