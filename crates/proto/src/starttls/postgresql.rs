//! PostgreSQL before TLS: an SSLRequest, or TLS without a request (since PostgreSQL 17).
//!
//! The client sends first, and the server receives nothing before the StartupMessage inside TLS. A
//! StartupMessage in clear text is refused with an ErrorResponse, as PostgreSQL does. A
//! CancelRequest in clear text starts no session: it identifies a running session by a number and a
//! secret that only the client and the server of that session know, and the server sends no
//! response. So the dialog collects the whole request for the caller, and ignores any bytes after
//! it.
//!
//! Source: PostgreSQL 18, "Message Formats" (the secret has 4 to 256 bytes since protocol 3.2, 4
//! before), "Canceling Requests in Progress" and "SSL Session Encryption".

use super::progress::{Over, Progress};

#[derive(Clone, Debug, Default)]
pub(super) struct Postgresql {
    begun: Vec<u8>,
    /// `true` if the client requested GSSAPI encryption, which the dialog declined.
    declined: bool,
}

impl Postgresql {
    pub(super) fn cancel_request(&self) -> Option<&[u8]> {
        let length = cancel_length(self.head()?)?;
        (self.begun.len() == length).then_some(&self.begun)
    }

    /// Returns the length and code fields of the client's message, or `None` if they are
    /// incomplete.
    fn head(&self) -> Option<u64> {
        let head = self.begun.first_chunk::<REQUEST_BYTES>()?;
        Some(u64::from_be_bytes(*head))
    }

    /// Returns the number of bytes needed: the whole message for a CancelRequest, otherwise only
    /// the length and code fields.
    fn wanted(&self) -> usize {
        let length = self.head().and_then(cancel_length);
        length.unwrap_or(REQUEST_BYTES)
    }

    pub(super) fn begins_with_tls(&self, first: u8) -> bool {
        self.begun.is_empty() && !self.declined && first == TLS_HANDSHAKE
    }

    pub(super) fn handle_client(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Progress {
        while !bytes.is_empty() {
            let missing = self.wanted().saturating_sub(self.begun.len());
            let (part, rest) = bytes.split_at_checked(missing).unwrap_or((bytes, &[]));
            self.begun.extend_from_slice(part);
            bytes = rest;
            if self.begun.len() < self.wanted() {
                // More bytes of the CancelRequest are needed.
                continue;
            }
            let Some(head) = self.head() else {
                return Progress::Talking;
            };
            if cancel_length(head).is_some() {
                return Progress::Over(Over::Cancel);
            }
            match head {
                SSL_REQUEST if bytes.is_empty() => {
                    out.push(b'S');
                    return Progress::Begin;
                }
                SSL_REQUEST => return Progress::Over(Over::Injected),
                GSSENC_REQUEST if !self.declined => {
                    self.declined = true;
                    self.begun.clear();
                    out.push(b'N');
                }
                GSSENC_REQUEST => return Progress::Over(Over::Broken),
                other if is_in_clear(other) => {
                    refuse(out);
                    return Progress::Over(Over::Cleartext);
                }
                _ => return Progress::Over(Over::Broken),
            }
        }
        Progress::Talking
    }
}

/// Returns `true` for the length and code of a StartupMessage of protocol version 3.
fn is_in_clear(request: u64) -> bool {
    let (length, code) = (request >> 32, request & 0xffff_ffff);
    code >> 16 == 3 && (9..=LONGEST_STARTUP).contains(&length)
}

/// Returns the length of a CancelRequest, or `None` if the length and code fields are invalid for one.
fn cancel_length(request: u64) -> Option<usize> {
    let (length, code) = ((request >> 32) as usize, request & 0xffff_ffff);
    (code == CANCEL && (SHORTEST_CANCEL..=LONGEST_CANCEL).contains(&length)).then_some(length)
}

/// Appends an ErrorResponse with severity, SQLSTATE 28000 (invalid authorization) and a message.
fn refuse(out: &mut Vec<u8>) {
    let fields =
        b"SFATAL\0VFATAL\0C28000\0Mthis server is reached through TLS only (sslmode=require)\0\0";
    out.push(b'E');
    let length = u32::try_from(4 + fields.len()).unwrap_or_default();
    out.extend(length.to_be_bytes());
    out.extend(fields);
}

const TLS_HANDSHAKE: u8 = 22;
const REQUEST_BYTES: usize = 8;
/// Length 8, code 1234.5679.
const SSL_REQUEST: u64 = 8 << 32 | 80_877_103;
/// Length 8, code 1234.5680.
const GSSENC_REQUEST: u64 = 8 << 32 | 80_877_104;
/// Code 1234.5678.
const CANCEL: u64 = 80_877_102;
/// Length, code, number, and a secret of 4 bytes.
const SHORTEST_CANCEL: usize = 16;
/// Length, code, number, and a secret of 256 bytes.
const LONGEST_CANCEL: usize = 12 + 256;
/// PostgreSQL's MAX_STARTUP_PACKET_LENGTH.
const LONGEST_STARTUP: u64 = 10_000;
