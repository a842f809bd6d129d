//! POP3 before STLS (RFC 2595 4), after the server's greeting.
//!
//! The greeting is forwarded unchanged: the client needs its timestamp for APOP (RFC 1939 7) after TLS.

use super::line::{Lines, command, put};
use super::progress::{LONGEST_GREETING, Over, Progress};

#[derive(Clone, Debug, Default)]
pub struct Pop3 {
    lines: Lines,
    greeted: bool,
}

impl Pop3 {
    pub(super) fn awaits_greeting(&self) -> bool {
        !self.greeted
    }

    pub(super) fn handle_server(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Progress {
        if self.greeted {
            return Progress::Over(Over::BadGreeting);
        }
        let line = match self.lines.next(&mut bytes, LONGEST_GREETING) {
            Ok(Some(line)) => line,
            Ok(None) => return Progress::Talking,
            Err(()) => return Progress::Over(Over::BadGreeting),
        };
        if line.starts_with(b"-ERR") {
            put(&line, out);
            return Progress::Over(Over::Refused);
        }
        if !line.starts_with(b"+OK") || !bytes.is_empty() {
            put(b"-ERR no TLS with this server", out);
            return Progress::Over(Over::BadGreeting);
        }
        put(&line, out);
        self.greeted = true;
        Progress::Talking
    }

    pub(super) fn handle_client(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Progress {
        self.lines.each_command(bytes, |line| {
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
        })
    }
}
