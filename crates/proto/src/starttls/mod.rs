//! Server side of the clear-text dialog before TLS on a mail or database port: "STARTTLS".
//!
//! A [`Dialog`] answers the commands of a client until the client requests TLS. The server's greeting is forwarded to
//! the client. No clear text from a client reaches the server, except for a PostgreSQL CancelRequest, which the caller
//! receives whole. Order of use: while [`Dialog::awaits_greeting`], pass bytes from the server to
//! [`Dialog::handle_server`] and do not read from the client; then pass bytes from the client to
//! [`Dialog::handle_client`]. Each call appends the bytes for the client to `out`, and returns a [`Progress`].
//!
//! Invariants: the request for TLS is the last clear text. If a client sends more after it, before it has received the
//! answer, the connection is closed: otherwise an attacker on the path could insert commands for a client that is about
//! to authenticate (CVE-2011-0411, CVE-2021-23214). A server that sends more than its greeting is refused as well.
//! Lines, greetings and the number of commands are bounded.
//! Input may arrive byte by byte, and its division into pieces does not matter.
//!
//! Files: `progress` (protocols and outcomes), `line` (bounded lines), `smtp`, `imap`, `pop3`, `postgresql`; `request`
//! is the client side, towards servers with TLS.
//! Sources: RFC 3207, RFC 9051 6.2.1, RFC 2595 4, PostgreSQL's "Frontend/Backend Protocol", section "SSL Session
//! Encryption".

mod imap;
mod line;
mod pop3;
mod postgresql;
mod progress;
mod request;
mod smtp;

use self::imap::Imap;
use self::pop3::Pop3;
use self::postgresql::Postgresql;
pub use self::progress::{
    LONGEST_COMMAND, LONGEST_GREETING, MOST_COMMANDS, Over, Progress, Protocol,
};
pub use self::request::{Asked, NoTls, TlsRequest};
use self::smtp::Smtp;

#[derive(Clone, Debug)]
pub enum Dialog {
    Smtp(Smtp),
    Imap(Imap),
    Pop3(Pop3),
    Postgresql(Postgresql),
}

impl Dialog {
    /// Starts a dialog without allocating.
    pub fn new(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Smtp => Self::Smtp(Smtp::default()),
            Protocol::Imap => Self::Imap(Imap::default()),
            Protocol::Pop3 => Self::Pop3(Pop3::default()),
            Protocol::Postgresql => Self::Postgresql(Postgresql::default()),
        }
    }

    /// Returns whether the server's greeting is incomplete. The caller must not read from the
    /// client until it is complete.
    pub fn awaits_greeting(&self) -> bool {
        match self {
            Self::Smtp(dialog) => dialog.awaits_greeting(),
            Self::Imap(dialog) => dialog.awaits_greeting(),
            Self::Pop3(dialog) => dialog.awaits_greeting(),
            Self::Postgresql(_) => false,
        }
    }

    /// Returns whether the client starts TLS at once, according to its first byte. If so, the byte
    /// must be passed to TLS and not to [`Dialog::handle_client`].
    pub fn begins_with_tls(&self, first: u8) -> bool {
        matches!(self, Self::Postgresql(dialog) if dialog.begins_with_tls(first))
    }

    /// Returns the complete request that ended the dialog with [`Over::Cancel`], at most 268 bytes.
    pub fn cancel_request(&self) -> Option<&[u8]> {
        match self {
            Self::Postgresql(dialog) => dialog.cancel_request(),
            Self::Smtp(_) | Self::Imap(_) | Self::Pop3(_) => None,
        }
    }

    pub fn handle_server(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Progress {
        match self {
            Self::Smtp(dialog) => dialog.handle_server(bytes, out),
            Self::Imap(dialog) => dialog.handle_server(bytes, out),
            Self::Pop3(dialog) => dialog.handle_server(bytes, out),
            Self::Postgresql(_) => Progress::Over(Over::BadGreeting),
        }
    }

    pub fn handle_client(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Progress {
        match self {
            Self::Smtp(dialog) => dialog.handle_client(bytes, out),
            Self::Imap(dialog) => dialog.handle_client(bytes, out),
            Self::Pop3(dialog) => dialog.handle_client(bytes, out),
            Self::Postgresql(dialog) => dialog.handle_client(bytes, out),
        }
    }
}

#[cfg(test)]
mod tests;
