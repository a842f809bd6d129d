//! PostgreSQL before TLS: SSLRequest, or TLS at once (from PostgreSQL 17 on).
//!
//! The client speaks first, and the server behind is not asked: it hears nothing before the StartupMessage that comes
//! through TLS. A StartupMessage or a CancelRequest in clear is refused as PostgreSQL itself refuses one: by an
//! ErrorResponse.
//!
//! Source: PostgreSQL 17, "Message Formats" and "SSL Session Encryption".

use super::{Over, Progress};

/// A PostgreSQL dialog.
#[derive(Clone, Debug, Default)]
pub struct Postgresql {
    begun: Vec<u8>,
    /// GSSAPI encryption was asked for and declined.
    declined: bool,
}

impl Postgresql {
    pub(super) fn begins_with_tls(&self, first: u8) -> bool {
        self.begun.is_empty() && !self.declined && first == TLS_HANDSHAKE
    }

    pub(super) fn handle_client(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Progress {
        while !bytes.is_empty() {
            let missing = REQUEST_BYTES - self.begun.len();
            let (part, rest) = bytes.split_at_checked(missing).unwrap_or((bytes, &[]));
            self.begun.extend_from_slice(part);
            bytes = rest;
            let Ok(request) = <[u8; REQUEST_BYTES]>::try_from(&self.begun[..]) else {
                return Progress::Talking;
            };
            match u64::from_be_bytes(request) {
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

/// Whether a length and a code are those of a StartupMessage of version 3 or of a CancelRequest.
fn is_in_clear(request: u64) -> bool {
    let (length, code) = (request >> 32, request & 0xffff_ffff);
    let startup = code >> 16 == 3 && (9..=LONGEST_STARTUP).contains(&length);
    startup || code == CANCEL
}

/// An ErrorResponse with severity, SQLSTATE 28000 (invalid authorization) and a sentence.
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
/// MAX_STARTUP_PACKET_LENGTH of PostgreSQL.
const LONGEST_STARTUP: u64 = 10_000;
