//! Emulates kernel TLS at one end of a stream: it seals, opens, and refuses what the script
//! chooses.
//!
//! Records are real, so the other end can open them. As on Linux, a receive stops before a record
//! without data, and fails if that record is first; a splice moves at most one record; after a
//! KeyUpdate nothing is opened before a new key is set.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use becket_sys::kernel_tls::{Cipher, Direction, Key, ReceivedRecord, Support, TlsVersion};

/// Kernel TLS of one end.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    /// Supported features.
    pub(crate) support: Support,
    /// Call that fails although the feature is supported.
    pub(crate) refuses: Option<Refused>,
    /// TLS is attached to the socket.
    pub(crate) attached: bool,
    sends: Option<Sealed>,
    receives: Option<Sealed>,
    /// Opened records that are not received yet.
    opened: VecDeque<(u8, VecDeque<u8>)>,
    /// A KeyUpdate has arrived.
    expired: bool,
}

/// Calls that a kernel may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Layer,
    Key(Direction),
}

/// Keys of one direction.
#[derive(Debug)]
struct Sealed {
    version: TlsVersion,
    cipher: Cipher,
    key: LessSafeKey,
    iv: [u8; 12],
    next: u64,
}

impl Kernel {
    pub(crate) fn attach(&mut self) -> io::Result<()> {
        if !self.support.tls || self.refuses == Some(Refused::Layer) {
            return Err(ErrorKind::NotFound.into());
        }
        self.attached = true;
        Ok(())
    }

    pub(crate) fn set_key(&mut self, direction: Direction, key: &Key<'_>) -> io::Result<()> {
        let place = match direction {
            Direction::Send => &mut self.sends,
            Direction::Receive => &mut self.receives,
        };
        let refused = self.refuses == Some(Refused::Key(direction)) || !self.attached;
        if refused || !self.support.has(key.version, key.cipher) {
            return Err(ErrorKind::NotFound.into());
        }
        if place.is_some() && !self.support.rekey {
            return Err(ErrorKind::ResourceBusy.into());
        }
        let algorithm = match key.cipher {
            Cipher::Aes128Gcm => &aead::AES_128_GCM,
            Cipher::Aes256Gcm => &aead::AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        };
        *place = Some(Sealed {
            version: key.version,
            cipher: key.cipher,
            key: LessSafeKey::new(UnboundKey::new(algorithm, key.key).expect("a key")),
            iv: *key.iv,
            next: key.sequence,
        });
        self.expired &= direction == Direction::Send;
        Ok(())
    }

    pub(crate) fn seals(&self) -> bool {
        self.sends.is_some()
    }

    pub(crate) fn opens(&self) -> bool {
        self.receives.is_some()
    }

    pub(crate) fn next_record(&self) -> io::Result<u64> {
        let sends = self.sends.as_ref();
        sends
            .map(|sends| sends.next)
            .ok_or(ErrorKind::InvalidInput.into())
    }

    /// Returns a sealed record.
    pub(crate) fn seal(&mut self, kind: u8, bytes: &[u8]) -> Vec<u8> {
        self.sends.as_mut().expect("a key").seal(kind, bytes)
    }

    /// Opens the first record if it is complete.
    pub(crate) fn open(&mut self, arrived: &mut VecDeque<u8>) -> io::Result<()> {
        let Some(receives) = &mut self.receives else {
            return Ok(());
        };
        let len = match arrived.iter().copied().take(5).collect::<Vec<_>>()[..] {
            [_, _, _, high, low] => 5 + usize::from(u16::from_be_bytes([high, low])),
            _ => return Ok(()),
        };
        if arrived.len() < len {
            return Ok(());
        }
        if self.expired {
            return Err(io::Error::from_raw_os_error(EKEYEXPIRED));
        }
        let mut record: Vec<u8> = arrived.drain(..len).collect();
        let opened = receives.open(&mut record);
        let (kind, bytes) = opened.ok_or_else(|| io::Error::from_raw_os_error(EBADMSG))?;
        self.expired = kind == 22 && bytes.first() == Some(&24) && self.support.rekey;
        self.opened.push_back((kind, bytes.into()));
        Ok(())
    }

    /// Returns type and length of the first opened record.
    pub(crate) fn front(&self) -> Option<(u8, usize)> {
        self.opened
            .front()
            .map(|(kind, bytes)| (*kind, bytes.len()))
    }

    /// Copies data of the first opened record into `buffer`.
    pub(crate) fn give(&mut self, buffer: &mut [u8]) -> ReceivedRecord {
        let Some((kind, bytes)) = self.opened.front_mut() else {
            return ReceivedRecord { kind: None, len: 0 };
        };
        let (kind, len) = (Some(*kind), bytes.len().min(buffer.len()));
        for (into, byte) in buffer.iter_mut().zip(bytes.drain(..len)) {
            *into = byte;
        }
        if bytes.is_empty() {
            self.opened.pop_front();
        }
        ReceivedRecord { kind, len }
    }
}

impl Sealed {
    /// Returns the nonce of the next record; `explicit` is the part that the record carries.
    fn nonce(&self, explicit: Option<u64>) -> Nonce {
        let mut iv = self.iv;
        let number = match explicit {
            Some(explicit) => {
                iv[4..].fill(0);
                explicit
            }
            None => self.next,
        };
        for (byte, number) in iv[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        Nonce::assume_unique_for_key(iv)
    }

    fn has_explicit(&self) -> bool {
        self.version == TlsVersion::Tls12 && self.cipher != Cipher::ChaCha20Poly1305
    }

    fn aad(&self, kind: u8, plain: usize, sealed: usize) -> Vec<u8> {
        match self.version {
            TlsVersion::Tls13 => [&[23, 3, 3][..], &(sealed as u16).to_be_bytes()].concat(),
            TlsVersion::Tls12 => [
                &self.next.to_be_bytes()[..],
                &[kind, 3, 3],
                &(plain as u16).to_be_bytes(),
            ]
            .concat(),
        }
    }

    fn seal(&mut self, kind: u8, bytes: &[u8]) -> Vec<u8> {
        let mut inner = bytes.to_vec();
        let tls13 = self.version == TlsVersion::Tls13;
        if tls13 {
            inner.push(kind);
        }
        let aad = self.aad(kind, bytes.len(), inner.len() + TAG);
        let explicit = self.has_explicit().then_some(self.next | 1 << 63);
        let nonce = self.nonce(explicit);
        self.key
            .seal_in_place_append_tag(nonce, Aad::from(aad), &mut inner)
            .expect("short enough");
        self.next += 1;
        let explicit = explicit.map(u64::to_be_bytes);
        let explicit = explicit.as_ref().map_or(&[][..], |bytes| bytes);
        let outer = if tls13 { 23 } else { kind };
        let len = (explicit.len() + inner.len()) as u16;
        [&[outer, 3, 3], &len.to_be_bytes()[..], explicit, &inner].concat()
    }

    fn open(&mut self, record: &mut [u8]) -> Option<(u8, Vec<u8>)> {
        let (header, mut body) = record.split_at_mut_checked(5)?;
        let explicit = if self.has_explicit() {
            let (explicit, rest) = body.split_at_mut_checked(8)?;
            body = rest;
            Some(u64::from_be_bytes((&*explicit).try_into().ok()?))
        } else {
            None
        };
        let plain = body.len().checked_sub(TAG)?;
        let aad = self.aad(header[0], plain, body.len());
        let nonce = self.nonce(explicit);
        let opened = self.key.open_in_place(nonce, Aad::from(aad), body).ok()?;
        self.next += 1;
        if self.version == TlsVersion::Tls12 {
            return Some((header[0], opened.to_vec()));
        }
        let end = opened.iter().rposition(|byte| *byte != 0)?;
        Some((opened[end], opened[..end].to_vec()))
    }
}

/// Bytes that sealing adds.
const TAG: usize = 16;
/// A record cannot be opened.
const EBADMSG: i32 = 74;
/// There is no key for the next record.
const EKEYEXPIRED: i32 = 127;
/// Receive failed because the next record is not data.
pub(crate) const EIO: i32 = 5;
