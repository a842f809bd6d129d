//! Server side of the clear-text dialog before TLS on a mail or database port ("STARTTLS").
//!
//! A [`Dialog`] answers the commands of a client until the client requests TLS. The server's greeting is forwarded to
//! the client. No clear text from a client reaches the server, except for a PostgreSQL CancelRequest, which the caller
//! receives whole.
//!
//! Order of use: while [`Dialog::awaits_greeting`] returns `true`, pass bytes from the server to
//! [`Dialog::handle_server`] and do not read from the client. Then pass bytes from the client to
//! [`Dialog::handle_client`]. Each call appends the bytes for the client to `out`, and returns a [`Progress`]. Input
//! may arrive in pieces of any size.
//!
//! Invariants:
//! * The request for TLS is the last clear text. If a client sends more before it receives the answer, the connection
//!   is closed. Otherwise an attacker on the path could insert commands that appear to come from the authenticated
//!   client (CVE-2011-0411, CVE-2021-23214).
//! * A server that sends more than its greeting is refused.
//! * The length of lines and greetings and the number of commands are limited.
//!
//! Files: `progress` (protocols and outcomes), `line` (bounded lines), `smtp`, `imap`, `pop3`, `postgresql`; `request`
//! is the client side, towards servers with TLS.
//!
//! Sources: RFC 3207, RFC 9051 6.2.1, RFC 2595 4, PostgreSQL's "Frontend/Backend Protocol", section "SSL Session
//! Encryption".

mod imap;
mod line;
mod pop3;
mod postgresql;
mod progress;
mod request;
mod smtp;

use self::line::Lines;
use self::postgresql::Postgresql;
pub use self::progress::{
    LONGEST_COMMAND, LONGEST_GREETING, MOST_COMMANDS, Over, Progress, Protocol,
};
pub use self::request::{Asked, NoTls, TlsRequest};

#[derive(Clone, Debug)]
pub struct Dialog {
    protocol: Protocol,
    awaits_greeting: bool,
    /// Number of bytes received from the server so far.
    greeting: usize,
    lines: Lines,
    /// Server name in the greeting of an SMTP server.
    host: Vec<u8>,
    postgresql: Postgresql,
}

impl Dialog {
    /// Starts a dialog without allocating.
    pub fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            awaits_greeting: !protocol.client_speaks_first(),
            greeting: 0,
            lines: Lines::default(),
            host: Vec::new(),
            postgresql: Postgresql::default(),
        }
    }

    /// Returns `true` until the server's greeting is complete. Meanwhile, the caller must not read
    /// from the client.
    pub fn awaits_greeting(&self) -> bool {
        self.awaits_greeting
    }

    /// Returns `true` if the client starts TLS without a clear-text request, according to its first
    /// byte. The caller must then pass this byte to TLS and not to [`Dialog::handle_client`].
    pub fn begins_with_tls(&self, first: u8) -> bool {
        self.protocol == Protocol::Postgresql && self.postgresql.begins_with_tls(first)
    }

    /// Returns the complete request that ended the dialog with [`Over::Cancel`], at most 268 bytes.
    pub fn cancel_request(&self) -> Option<&[u8]> {
        self.postgresql.cancel_request()
    }

    pub fn handle_server(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Progress {
        self.greeting += bytes.len();
        if !self.awaits_greeting || self.greeting > LONGEST_GREETING {
            return Progress::Over(Over::BadGreeting);
        }
        while let Ok(Some(line)) = self.lines.next(&mut bytes, LONGEST_GREETING) {
            let is_last = bytes.is_empty();
            let is_whole = match self.protocol {
                Protocol::Smtp => smtp::greet(&line, &mut self.host, out),
                Protocol::Imap => imap::greet(&line, is_last, out),
                Protocol::Pop3 => pop3::greet(&line, is_last, out),
                Protocol::Postgresql => Err(Over::BadGreeting),
            };
            match is_whole {
                Ok(false) => {}
                Ok(true) if is_last => self.awaits_greeting = false,
                Ok(true) => return Progress::Over(Over::BadGreeting),
                Err(over) => return Progress::Over(over),
            }
        }
        Progress::Talking
    }

    pub fn handle_client(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Progress {
        let (lines, host) = (&mut self.lines, &self.host);
        match self.protocol {
            Protocol::Smtp => lines.each_command(bytes, |line| smtp::answer(line, host, out)),
            Protocol::Imap => lines.each_command(bytes, |line| imap::answer(line, out)),
            Protocol::Pop3 => lines.each_command(bytes, |line| pop3::answer(line, out)),
            Protocol::Postgresql => self.postgresql.handle_client(bytes, out),
        }
    }
}

#[cfg(test)]
mod tests;
