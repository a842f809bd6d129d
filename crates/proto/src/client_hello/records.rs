//! The record layer below the ClientHello: from TLS records to one handshake message.
//!
//! Detects from the first bytes whether the peer uses TLS, then reads record after record until the message is
//! complete. Refuses a wrong type or an excessive length as soon as that byte arrives. Reads only the four-byte header
//! of the message; `parse` reads the body.
//!
//! No state is kept between calls: every call starts at the first record again. A hello that arrives byte by byte
//! therefore costs its record headers each time. Source: RFC 8446 5.1, RFC 5246 6.2.1 and E.2.

use std::borrow::Cow;

use super::not_hello::{Malformed, NotHello};
use crate::plain_http;
use crate::proxy_header;
use crate::reader::Prefix;

/// A complete ClientHello without its record headers and its handshake header.
#[derive(Debug)]
pub(super) struct Assembled<'a> {
    pub(super) body: Cow<'a, [u8]>,
    /// Bytes of the input up to the end of the hello's last record.
    pub(super) wire_len: usize,
}

/// A handshake record: the length in its header and the content received so far.
struct HelloRecord<'a> {
    content: &'a [u8],
    len: usize,
}

/// Finds the first handshake message. Returns `None` if more bytes are needed.
pub(super) fn assemble(input: &[u8]) -> Result<Option<Assembled<'_>>, NotHello> {
    if !starts_handshake(input)? {
        return Ok(None);
    }
    let mut message = MessageHeader::default();
    let mut gathered = 0;
    let mut at = 0;
    while let Some(record) = record(input, at)? {
        message.feed(record.content)?;
        let total = gathered + record.len;
        if message.len().is_some_and(|len| total > len) {
            return Err(NotHello::Malformed(Malformed::TrailingBytes));
        }
        if record.content.len() < record.len {
            return Ok(None);
        }
        at += HEADER_LEN + record.len;
        if message.len() == Some(total) {
            let body = body(input.get(..at).unwrap_or_default(), gathered == 0);
            return Ok(Some(Assembled { body, wire_len: at }));
        }
        gathered = total;
    }
    Ok(None)
}

/// Returns `true` if a TLS handshake record begins here, and `false` if more bytes are needed.
fn starts_handshake(input: &[u8]) -> Result<bool, NotHello> {
    match input {
        [] | [CHANGE_CIPHER_SPEC..=HEARTBEAT] => Ok(false),
        [HANDSHAKE, MAJOR_VERSION, ..] => Ok(true),
        [ALERT, MAJOR_VERSION, rest @ ..] => alert(rest),
        [kind @ CHANGE_CIPHER_SPEC..=HEARTBEAT, MAJOR_VERSION, ..] => {
            Err(NotHello::NotHandshake(*kind))
        }
        [CHANGE_CIPHER_SPEC..=HEARTBEAT, ..] => Err(NotHello::NotTls),
        [0x80..=0xff, _, SSLV2_CLIENT_HELLO, ..] => Err(NotHello::Sslv2),
        [0x80..=0xff] | [0x80..=0xff, _] => Ok(false),
        _ => foreign(input),
    }
}

/// Reads a plain-text alert. `rest` is the record from its third byte on.
fn alert(rest: &[u8]) -> Result<bool, NotHello> {
    match rest {
        [_, 0, 2, level, description, ..] => Err(NotHello::Alert {
            level: *level,
            description: *description,
        }),
        [] | [_] | [_, 0] | [_, 0, 2] | [_, 0, 2, _] => Ok(false),
        _ => Err(NotHello::NotHandshake(ALERT)),
    }
}

/// Detects other protocols that reach TLS ports by mistake.
fn foreign(input: &[u8]) -> Result<bool, NotHello> {
    let http = plain_http::request_start(input);
    let proxy = proxy_header::signature(input);
    match (http, proxy) {
        (Prefix::Whole, _) => Err(NotHello::PlainHttp),
        (_, Prefix::Whole) => Err(NotHello::ProxyHeader),
        (Prefix::Partial, _) | (_, Prefix::Partial) => Ok(false),
        (Prefix::Differs, Prefix::Differs) => Err(NotHello::NotTls),
    }
}

/// Reads the header of the record at `at`. Returns `None` if it is not complete yet.
fn record(input: &[u8], at: usize) -> Result<Option<HelloRecord<'_>>, NotHello> {
    let rest = input.get(at..).unwrap_or_default();
    if let [kind, ..] = rest
        && *kind != HANDSHAKE
    {
        return Err(NotHello::Malformed(Malformed::Interleaved(*kind)));
    }
    if let [_, major, ..] = rest
        && *major != MAJOR_VERSION
    {
        return Err(NotHello::Malformed(Malformed::RecordVersion));
    }
    let [_, _, _, high, low, content @ ..] = rest else {
        return Ok(None);
    };
    let len = usize::from(u16::from_be_bytes([*high, *low]));
    match len {
        0 => Err(NotHello::Malformed(Malformed::EmptyRecord)),
        1..=MAX_RECORD_BYTES => Ok(Some(HelloRecord {
            content: content.get(..len).unwrap_or(content),
            len,
        })),
        _ => Err(NotHello::Malformed(Malformed::OversizedRecord)),
    }
}

/// Returns the message without its header from complete records, borrowed if there is only one.
fn body(records: &[u8], is_single: bool) -> Cow<'_, [u8]> {
    if is_single {
        return Cow::Borrowed(
            records
                .get(HEADER_LEN + MESSAGE_HEADER_LEN..)
                .unwrap_or_default(),
        );
    }
    let mut message = Vec::with_capacity(records.len());
    let mut rest = records;
    while let [_, _, _, high, low, after @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(after.len());
        let (content, next) = after.split_at(len);
        message.extend_from_slice(content);
        rest = next;
    }
    message.drain(..MESSAGE_HEADER_LEN.min(message.len()));
    Cow::Owned(message)
}

/// Type and length before a handshake message. The header may be spread over several records.
#[derive(Default)]
struct MessageHeader {
    bytes: [u8; MESSAGE_HEADER_LEN],
    filled: usize,
}

impl MessageHeader {
    /// Copies the missing bytes from the next record's content. Fails if the message is not a
    /// ClientHello.
    fn feed(&mut self, content: &[u8]) -> Result<(), NotHello> {
        let missing = self.bytes.iter_mut().skip(self.filled);
        for (slot, byte) in missing.zip(content) {
            *slot = *byte;
            self.filled += 1;
        }
        let [kind, size_high, ..] = self.bytes;
        if self.filled >= 1 && kind != CLIENT_HELLO {
            return Err(NotHello::NotClientHello(kind));
        }
        if self.filled >= 2 && size_high != 0 {
            return Err(NotHello::Malformed(Malformed::OversizedHello));
        }
        Ok(())
    }

    /// Returns the length of the whole message including its header, once known.
    fn len(&self) -> Option<usize> {
        let [_, _, high, low] = self.bytes;
        (self.filled == MESSAGE_HEADER_LEN)
            .then(|| MESSAGE_HEADER_LEN + usize::from(u16::from_be_bytes([high, low])))
    }
}

/// Maximum content of a plain-text record, in bytes (RFC 8446 5.1).
pub const MAX_RECORD_BYTES: usize = 1 << 14;

/// Maximum hello without its headers, in bytes, as in rustls. `MessageHeader::feed` enforces it: the
/// first of the three length bytes must be zero.
pub const MAX_HELLO_BYTES: usize = 0xffff;

const HEADER_LEN: usize = 5;
const MESSAGE_HEADER_LEN: usize = 4;
const MAJOR_VERSION: u8 = 0x03;
const CLIENT_HELLO: u8 = 0x01;
const SSLV2_CLIENT_HELLO: u8 = 0x01;

// Content types, RFC 8446 5.1 and RFC 6520.
const CHANGE_CIPHER_SPEC: u8 = 0x14;
const ALERT: u8 = 0x15;
const HANDSHAKE: u8 = 0x16;
const HEARTBEAT: u8 = 0x18;
