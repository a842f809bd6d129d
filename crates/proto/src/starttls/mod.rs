//! The talk in clear before TLS begins on a mail or database port, as its server's side: "STARTTLS".
//!
//! A [`Dialog`] answers a client by itself until the client asks for TLS. What the server behind says first, its
//! greeting, is passed on; nothing that a client says in clear ever reaches the server, but for a CancelRequest of
//! PostgreSQL, which is handed out whole. Order of use: as long as
//! [`Dialog::awaits_greeting`], give it what the server says ([`Dialog::handle_server`]) and leave the client unread; then
//! what the client says ([`Dialog::handle_client`]). Each appends to `out` what is to be sent to the client, and answers
//! with a [`Progress`].
//!
//! Invariants: the bytes that ask for TLS are the last that came in clear. A client that says more behind them, before
//! it can know that TLS begins, is cut off: otherwise somebody between the two could put words into the mouth of a client
//! that is about to prove who it is (CVE-2011-0411, CVE-2021-23214). The same holds for a server that says more than its
//! greeting. Lines, greetings and the number of commands are bounded; input may come byte by byte, and how it is split
//! does not matter.
//!
//! Files: `progress` (protocols and outcomes), `line` (bounded lines), `smtp`, `imap`, `pop3`, `postgresql`; `request` is the client's side, towards servers that have TLS.
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

/// One client's talk in clear.
#[derive(Clone, Debug)]
pub enum Dialog {
    /// See [`Protocol::Smtp`].
    Smtp(Smtp),
    /// See [`Protocol::Imap`].
    Imap(Imap),
    /// See [`Protocol::Pop3`].
    Pop3(Pop3),
    /// See [`Protocol::Postgresql`].
    Postgresql(Postgresql),
}

impl Dialog {
    /// Starts a dialog. Allocates nothing.
    pub fn new(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Smtp => Self::Smtp(Smtp::default()),
            Protocol::Imap => Self::Imap(Imap::default()),
            Protocol::Pop3 => Self::Pop3(Pop3::default()),
            Protocol::Postgresql => Self::Postgresql(Postgresql::default()),
        }
    }

    /// Says whether the server's greeting is still to come; the client is not listened to before.
    pub fn awaits_greeting(&self) -> bool {
        match self {
            Self::Smtp(dialog) => dialog.awaits_greeting(),
            Self::Imap(dialog) => dialog.awaits_greeting(),
            Self::Pop3(dialog) => dialog.awaits_greeting(),
            Self::Postgresql(_) => false,
        }
    }

    /// Says whether the client begins with TLS at once, by the first byte that it sends: then nothing was said in clear,
    /// and the byte is for TLS and not for [`Dialog::handle_client`].
    pub fn begins_with_tls(&self, first: u8) -> bool {
        matches!(self, Self::Postgresql(dialog) if dialog.begins_with_tls(first))
    }

    /// The request that ended the dialog, where that was [`Over::Cancel`]: whole, at most 268 bytes.
    pub fn cancel_request(&self) -> Option<&[u8]> {
        match self {
            Self::Postgresql(dialog) => dialog.cancel_request(),
            Self::Smtp(_) | Self::Imap(_) | Self::Pop3(_) => None,
        }
    }

    /// Takes what the server said.
    pub fn handle_server(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Progress {
        match self {
            Self::Smtp(dialog) => dialog.handle_server(bytes, out),
            Self::Imap(dialog) => dialog.handle_server(bytes, out),
            Self::Pop3(dialog) => dialog.handle_server(bytes, out),
            Self::Postgresql(_) => Progress::Over(Over::BadGreeting),
        }
    }

    /// Takes what the client said.
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
