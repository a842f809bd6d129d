//! POP3 before STLS (RFC 2595 4), after the server's greeting.
//!
//! The greeting is forwarded unchanged: the client needs its timestamp for APOP (RFC 1939 7) after TLS.

use super::line::{command, put};
use super::progress::{Over, Progress};

/// Handles the greeting, which is one line.
pub(super) fn greet(line: &[u8], is_last: bool, out: &mut Vec<u8>) -> Result<bool, Over> {
    if line.starts_with(b"-ERR") {
        put(line, out);
        return Err(Over::Refused);
    }
    if !line.starts_with(b"+OK") || !is_last {
        put(b"-ERR no TLS with this server", out);
        return Err(Over::BadGreeting);
    }
    put(line, out);
    Ok(true)
}

pub(super) fn answer(line: &[u8], out: &mut Vec<u8>) -> Progress {
    let (word, rest) = command(line);
    match (&word[..], rest) {
        (b"STLS", []) => {
            put(b"+OK begin TLS", out);
            return Progress::Begin;
        }
        (b"CAPA", []) => {
            for line in [&b"+OK these"[..], b"STLS", b"."] {
                put(line, out);
            }
        }
        (b"NOOP", []) => put(b"+OK", out),
        (b"QUIT", []) => {
            put(b"+OK bye", out);
            return Progress::Over(Over::Quit);
        }
        (b"USER" | b"PASS" | b"APOP" | b"AUTH", _) => {
            put(b"-ERR must issue a STLS command first", out);
        }
        _ => put(b"-ERR not before STLS", out),
    }
    Progress::Talking
}
