//! Moves the encryption and decryption of TLS records into the kernel (kernel TLS, `TCP_ULP "tls"`).
//!
//! [`attach`] adds the kernel's TLS layer to a socket, which has no effect until [`set_key`] sets a key for each
//! direction. The process then sends and receives plain text. If the next record is not application data (an alert or a
//! handshake message), receive fails with EIO and splice with EINVAL. [`receive_record`] returns such a record with its
//! type.
//!
//! [`support`] tests each cipher on a connection, because the kernel module of a cipher may be missing. Handshakes and
//! key derivation are elsewhere: the caller passes in keys, and wipes its copies.
//!
//! Sources: `Documentation/networking/tls.rst` and `include/uapi/linux/tls.h` of Linux, RFC 5288, RFC 7905, RFC 8446
//! section 5.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;
use std::time::Duration;

use zeroize::Zeroizing;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    Tls12,
    Tls13,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    Aes128Gcm,
    Aes256Gcm,
    ChaCha20Poly1305,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Send,
    Receive,
}

#[derive(Clone, Copy)]
pub struct Key<'a> {
    pub version: TlsVersion,
    pub cipher: Cipher,
    /// Key of 16 bytes for AES-128, otherwise of 32 bytes.
    pub key: &'a [u8],
    /// Nonce of record 0 as defined in RFC 8446 section 5.3 and RFC 7905. In TLS 1.2 with GCM: the salt, followed by
    /// the first explicit nonce that was used.
    pub iv: &'a [u8; 12],
    pub sequence: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedRecord {
    /// Record type, if the kernel reports it; `None` at the end of the stream.
    pub kind: Option<u8>,
    pub len: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Support {
    pub tls: bool,
    /// `true` if the kernel can replace a key (Linux 6.14), which a KeyUpdate requires.
    pub rekey: bool,
    /// `true` for each supported combination, indexed by [`TlsVersion`] and [`Cipher`].
    pub ciphers: [[bool; Cipher::ALL.len()]; TlsVersion::ALL.len()],
}

impl TlsVersion {
    pub const ALL: [Self; 2] = [Self::Tls12, Self::Tls13];

    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Tls12 => "1.2",
            Self::Tls13 => "1.3",
        }
    }
}

impl Cipher {
    pub const ALL: [Self; 3] = [Self::Aes128Gcm, Self::Aes256Gcm, Self::ChaCha20Poly1305];

    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "AES-128-GCM",
            Self::Aes256Gcm => "AES-256-GCM",
            Self::ChaCha20Poly1305 => "CHACHA20-POLY1305",
        }
    }

    const fn number(self) -> u16 {
        match self {
            Self::Aes128Gcm => libc::TLS_CIPHER_AES_GCM_128,
            Self::Aes256Gcm => libc::TLS_CIPHER_AES_GCM_256,
            Self::ChaCha20Poly1305 => CHACHA20_POLY1305,
        }
    }

    const fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }

    /// Returns the size of the `linux/tls.h` structure for this cipher, in bytes.
    const fn info_len(self) -> usize {
        4 + self.key_len() + 12 + 8
    }
}

impl Key<'_> {
    /// Encodes the key as the `linux/tls.h` structure for its cipher: version, cipher number, nonce, key, salt, and
    /// sequence number of the next record.
    fn pack(&self, direction: Direction) -> io::Result<Info> {
        if self.key.len() != self.cipher.key_len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut iv = Zeroizing::new(*self.iv);
        let (salt, nonce): (&[u8], &[u8]) = if self.cipher == Cipher::ChaCha20Poly1305 {
            (&[], &*iv)
        } else {
            if (self.version, direction) == (TlsVersion::Tls12, Direction::Send) {
                let first = u64::from_be_bytes(iv[4..].try_into().expect("eight of twelve"));
                iv[4..].copy_from_slice(&unused_nonces(first).to_be_bytes());
            }
            iv.split_at(4)
        };
        let mut info = Info::new([0; _]);
        let mut rest = &mut info[..];
        for part in [
            &version_number(self.version).to_ne_bytes(),
            &self.cipher.number().to_ne_bytes(),
            nonce,
            self.key,
            salt,
            &self.sequence.to_be_bytes(),
        ] {
            let (place, behind) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = behind;
        }
        Ok(info)
    }
}

impl Support {
    /// Returns `true` if [`Self::covers`] is `true` for at least one version and cipher.
    #[must_use]
    pub fn is_of_use(&self, without_rekey: bool) -> bool {
        let covers =
            |version| Cipher::ALL.map(|cipher| self.covers(version, cipher, without_rekey));
        TlsVersion::ALL.map(covers).as_flattened().contains(&true)
    }

    #[must_use]
    pub const fn has(&self, version: TlsVersion, cipher: Cipher) -> bool {
        self.ciphers[version as usize][cipher as usize]
    }

    /// Returns `true` if the kernel can encrypt connections with this version and cipher. TLS 1.3
    /// needs a kernel that can replace keys, unless `without_rekey` accepts that a KeyUpdate ends
    /// the connection.
    #[must_use]
    pub fn covers(&self, version: TlsVersion, cipher: Cipher, without_rekey: bool) -> bool {
        let lasts = self.rekey || without_rekey || version == TlsVersion::Tls12;
        lasts && self.has(version, cipher)
    }
}

impl fmt::Display for Support {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.tls {
            return out.write_str("no TLS support, or the module tls is not loaded");
        }
        for version in TlsVersion::ALL {
            let ciphers = Cipher::ALL.into_iter();
            let ciphers = ciphers.filter(|cipher| self.has(version, *cipher));
            let ciphers: Vec<_> = ciphers.map(Cipher::label).collect();
            let ciphers = match ciphers[..] {
                [] => "no cipher".to_owned(),
                _ => ciphers.join(", "),
            };
            write!(out, "TLS {} with {ciphers}; ", version.label())?;
        }
        out.write_str(if self.rekey {
            "keys can be replaced"
        } else {
            "keys cannot be replaced"
        })
    }
}

/// Adds the kernel's TLS layer to a connected socket. It does nothing until keys are set.
///
/// # Errors
/// `NotFound` if the kernel has no TLS or its module is not loaded; `NotConnected` if the socket is
/// not connected.
pub fn attach(socket: impl AsFd) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_ULP, b"tls")
}

/// Sets the key for all later records. No record may be in progress in that direction.
///
/// In TLS 1.2 with GCM, each record carries a nonce, which must never repeat under one key. The nonces before the
/// handover are the record number XOR the first nonce. So the kernel starts with the highest bit of the first nonce
/// inverted and the lower 40 bits zero, and increments from there.
///
/// # Errors
/// `NotFound` if the cipher is not loaded; `ResourceBusy` if there is a key already and the kernel cannot replace it;
/// `InvalidInput` if the key does not fit the cipher.
pub fn set_key(socket: impl AsFd, direction: Direction, key: &Key<'_>) -> io::Result<()> {
    let info = key.pack(direction)?;
    let option = match direction {
        Direction::Send => libc::TLS_TX,
        Direction::Receive => libc::TLS_RX,
    };
    set(
        socket,
        libc::SOL_TLS,
        option,
        &info[..key.cipher.info_len()],
    )
}

/// Returns the sequence number of the next record that the kernel encrypts.
///
/// # Errors
/// If there is no key of that cipher.
pub fn next_record(socket: impl AsFd, cipher: Cipher) -> io::Result<u64> {
    let mut info = Info::new([0; _]);
    let mut len = cipher.info_len() as libc::socklen_t;
    // SAFETY: the descriptor is borrowed, hence open; the pointers describe `info`, which has at least
    // `len` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_TLS,
            libc::TLS_TX,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let number = &info[cipher.info_len() - 8..cipher.info_len()];
    Ok(u64::from_be_bytes(number.try_into().expect("eight bytes")))
}

/// Receives one record of any type, and returns that type. Never blocks.
///
/// # Errors
/// `WouldBlock` if no record has arrived; EBADMSG for a record that cannot be decrypted; EKEYEXPIRED after a KeyUpdate,
/// until a new key is set.
pub fn receive_record(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<ReceivedRecord> {
    let mut control = ControlMessage([0; CONTROL]);
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut message = message(&mut part, &mut control);
    // SAFETY: the descriptor is borrowed, hence open; the message describes `buffer` and `control`, which outlive the call.
    let received = unsafe {
        libc::recvmsg(
            socket.as_fd().as_raw_fd(),
            &raw mut message,
            libc::MSG_DONTWAIT,
        )
    };
    let len = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has filled in the message; the header is in `control`, and so is the byte after it.
    let kind = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let told = !header.is_null()
            && (*header).cmsg_level == libc::SOL_TLS
            && (*header).cmsg_type == libc::TLS_GET_RECORD_TYPE;
        told.then(|| *libc::CMSG_DATA(header))
    };
    Ok(ReceivedRecord { kind, len })
}

/// Sends one record of type `kind`, completely or not at all. Never blocks, and raises no signal.
///
/// # Errors
/// `WouldBlock`, or the error of the socket.
pub fn send_record(socket: impl AsFd, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let mut control = ControlMessage([0; CONTROL]);
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut message = message(&mut part, &mut control);
    // SAFETY: `control` is aligned and has room for a header and one byte; the kernel only reads what the message describes.
    let sent = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_TLS;
        (*header).cmsg_type = libc::TLS_SET_RECORD_TYPE;
        (*header).cmsg_len = libc::CMSG_LEN(1) as _;
        *libc::CMSG_DATA(header) = kind;
        message.msg_controllen = libc::CMSG_SPACE(1) as _;
        libc::sendmsg(
            socket.as_fd().as_raw_fd(),
            &raw const message,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    match usize::try_from(sent) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Returns `true` if receive failed because the next record is not application data. [`receive_record`] then returns
/// that record.
pub fn holds_no_data(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EKEYEXPIRED))
}

/// Returns `true` if a record could not be decrypted or was too long.
pub fn does_not_open(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBADMSG | libc::EMSGSIZE))
}

/// Returns the TLS features of this kernel. The first call tests them with dummy keys over
/// loopback; in a process of root, it also loads the kernel module `tls`.
pub fn support() -> &'static Support {
    static SUPPORT: OnceLock<Support> = OnceLock::new();
    SUPPORT.get_or_init(probe)
}

fn probe() -> Support {
    let mut support = Support::default();
    for version in TlsVersion::ALL {
        for cipher in Cipher::ALL {
            let Ok((near, far)) = pair() else {
                return support;
            };
            support.tls |= attach(&near).is_ok();
            if try_cipher(&near, far, version, cipher).is_err() {
                continue;
            }
            support.ciphers[version as usize][cipher as usize] = true;
            if version == TlsVersion::Tls13 && !support.rekey {
                let second = of_no_value(version, cipher, &[9; 32]);
                support.rekey = set_key(&near, Direction::Send, &second).is_ok();
            }
        }
    }
    support
}

/// Sends one record from `near`, which has the kernel's TLS layer, to `far`, and one record back.
fn try_cipher(
    mut near: &TcpStream,
    mut far: TcpStream,
    version: TlsVersion,
    cipher: Cipher,
) -> io::Result<()> {
    attach(&far)?;
    let key = of_no_value(version, cipher, &[7; 32]);
    for socket in [near, &far] {
        set_key(socket, Direction::Send, &key)?;
        set_key(socket, Direction::Receive, &key)?;
    }
    let mut got = [0; 2];
    near.write_all(b"to")?;
    far.read_exact(&mut got)?;
    far.write_all(&got)?;
    near.read_exact(&mut got)
}

fn of_no_value(version: TlsVersion, cipher: Cipher, bytes: &[u8; 32]) -> Key<'_> {
    Key {
        version,
        cipher,
        key: &bytes[..cipher.key_len()],
        iv: &[1; 12],
        sequence: 0,
    }
}

fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let far = listener.accept()?.0;
    for socket in [&near, &far] {
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
    }
    Ok((near, far))
}

/// Returns the first of 2^40 unused nonces. Each used nonce is `first` XOR a number below 2^40, so its highest bit is
/// the same as in `first`.
fn unused_nonces(first: u64) -> u64 {
    (first ^ 1 << 63) & !((1 << 40) - 1)
}

fn version_number(version: TlsVersion) -> u16 {
    match version {
        TlsVersion::Tls12 => 0x0303,
        TlsVersion::Tls13 => 0x0304,
    }
}

fn set(socket: impl AsFd, level: i32, option: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed, hence open; the pointer and length describe `value`, which the kernel only reads.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Creates the header of a message with one buffer. The casts are needed because the types of its
/// lengths differ between C libraries.
fn message(part: &mut libc::iovec, control: &mut ControlMessage) -> libc::msghdr {
    // SAFETY: all fields are integers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    message
}

#[repr(align(8))]
struct ControlMessage([u8; CONTROL]);

/// Buffer for the largest key structure of the kernel; wiped on drop.
type Info = Zeroizing<[u8; Cipher::Aes256Gcm.info_len()]>;

/// Size of a control message in bytes: a header of 16 bytes, and one byte padded to eight.
const CONTROL: usize = 24;
/// `TLS_CIPHER_CHACHA20_POLY1305` of linux/tls.h.
const CHACHA20_POLY1305: u16 = 54;
/// Read timeout of the trials in `support`. Over loopback, a record arrives immediately or never.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn key(version: TlsVersion, cipher: Cipher) -> Vec<u8> {
        let key: Vec<u8> = (1..=cipher.key_len() as u8).collect();
        let key = Key {
            version,
            cipher,
            key: &key,
            iv: &[101, 102, 103, 104, 5, 6, 7, 8, 9, 10, 11, 12],
            sequence: 0x0102_0304,
        };
        let info = key.pack(Direction::Receive).unwrap();
        info[..cipher.info_len()].to_vec()
    }

    #[test]
    fn keys_have_the_memory_layout_of_the_kernel() {
        let info = key(TlsVersion::Tls12, Cipher::Aes128Gcm);
        assert_eq!(info.len(), size_of::<libc::tls12_crypto_info_aes_gcm_128>());
        assert_eq!(info[..4], [3, 3, 51, 0]);
        assert_eq!(info[4..12], [5, 6, 7, 8, 9, 10, 11, 12]);
        assert_eq!(info[12..28], (1..=16).collect::<Vec<u8>>());
        assert_eq!(info[28..32], [101, 102, 103, 104]);
        assert_eq!(info[32..], [0, 0, 0, 0, 1, 2, 3, 4]);
        let info = key(TlsVersion::Tls13, Cipher::Aes256Gcm);
        assert_eq!(info.len(), size_of::<libc::tls12_crypto_info_aes_gcm_256>());
        assert_eq!(info[..4], [4, 3, 52, 0]);
        let info = key(TlsVersion::Tls13, Cipher::ChaCha20Poly1305);
        assert_eq!((info.len(), info[2], info[15]), (56, 54, 12));
        let short = Key {
            key: &[0; 16],
            ..of_no_value(TlsVersion::Tls13, Cipher::Aes256Gcm, &[0; 32])
        };
        let error = short.pack(Direction::Send).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_kernel_without_rekey_supports_tls_1_2_and_tls_1_3_without_rekey() {
        let mut support = Support::default();
        assert!(!support.is_of_use(true));
        assert!(support.to_string().starts_with("no TLS support"));
        support.tls = true;
        support.ciphers[1][0] = true;
        assert!(support.is_of_use(true) && !support.is_of_use(false));
        support.ciphers[0][1] = true;
        assert!(support.covers(TlsVersion::Tls12, Cipher::Aes256Gcm, false));
        assert_eq!(
            support.to_string(),
            "TLS 1.2 with AES-256-GCM; TLS 1.3 with AES-128-GCM; keys cannot be replaced"
        );
        support.rekey = true;
        assert!(support.covers(TlsVersion::Tls13, Cipher::Aes128Gcm, false));
        assert!(!support.covers(TlsVersion::Tls13, Cipher::Aes256Gcm, true));
    }

    #[test]
    fn kernel_nonces_never_repeat_used_nonces() {
        for first in [0, 1, u64::MAX, 1 << 63, (1 << 63) - 1] {
            let start = unused_nonces(first);
            for used in [0, 1, (1 << 24) - 1, (1 << 40) - 1] {
                for counted in [0, 1, (1 << 24) - 1, (1 << 40) - 1] {
                    assert_ne!(start.checked_add(counted).unwrap(), first ^ used);
                }
            }
        }
    }

    #[test]
    fn a_socket_without_keys_still_transfers_plaintext() {
        let (mut near, mut far) = pair().unwrap();
        let key = of_no_value(TlsVersion::Tls13, Cipher::Aes128Gcm, &[7; 32]);
        assert!(set_key(&near, Direction::Send, &key).is_err());
        assert!(next_record(&near, Cipher::Aes128Gcm).is_err());
        assert_eq!(attach(&near).is_ok(), support().tls);
        near.write_all(b"x").unwrap();
        far.read_exact(&mut [0]).unwrap();
    }

    #[test]
    fn records_without_data_arrive_with_their_type() {
        let (version, cipher) = (TlsVersion::Tls12, Cipher::Aes128Gcm);
        if !support().has(version, cipher) {
            becket_tidy::lacks("needs a kernel with TLS; the guest of the e2e tests has one");
            return;
        }
        let (mut near, far) = pair().unwrap();
        let key = of_no_value(version, cipher, &[7; 32]);
        for socket in [&near, &far] {
            attach(socket).unwrap();
            set_key(socket, Direction::Send, &key).unwrap();
            set_key(socket, Direction::Receive, &key).unwrap();
        }
        send_record(&near, 21, &[1, 0]).unwrap();
        assert_eq!(next_record(&near, cipher).unwrap(), 1);
        let mut buffer = [0; 16];
        let error = (&far).read(&mut buffer).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        let record = receive_record(&far, &mut buffer).unwrap();
        assert_eq!((record.kind, record.len), (Some(21), 2));
        let error = receive_record(&far, &mut buffer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        near.write_all(b"data").unwrap();
        let record = receive_record(&far, &mut buffer).unwrap();
        assert_eq!((record.kind, record.len), (Some(23), 4));
        drop(near);
        let record = receive_record(&far, &mut buffer).unwrap();
        assert_eq!((record.kind, record.len), (None, 0));
    }
}
