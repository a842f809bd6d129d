//! Protocols that begin in clear text, the progress of a dialog, and its limits.

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// Mail transfer and submission (RFC 3207).
    Smtp,
    /// Mail access, RFC 9051 6.2.1.
    Imap,
    /// Mail access, RFC 2595 4.
    Pop3,
    /// PostgreSQL's SSLRequest.
    Postgresql,
}

impl Protocol {
    /// Returns whether the client sends first, so that no greeting is needed before its first byte.
    pub fn client_speaks_first(self) -> bool {
        self == Self::Postgresql
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// More input is needed.
    Talking,
    /// TLS begins with the client's next byte.
    Begin,
    /// The dialog has ended. The caller must close the connection after sending the output.
    Over(Over),
}

/// Reason for a dialog's end without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The client ended the session.
    Quit,
    /// The client sent more clear text after its request for TLS.
    Injected,
    /// The client violated the protocol, for example by a line that is too long, too many commands,
    /// or invalid bytes.
    Broken,
    /// The client continues in clear text instead of requesting TLS.
    Cleartext,
    /// The client cancels a query of another connection; see
    /// [`Dialog::cancel_request`](super::Dialog::cancel_request).
    Cancel,
    /// The server's greeting refuses service, and was forwarded to the client.
    Refused,
    /// The server sent no valid greeting, or more than one.
    BadGreeting,
}

/// Maximum number of commands before the request for TLS; a client needs two.
pub const MOST_COMMANDS: u32 = 32;
/// Maximum length of a client's line in bytes, including the line ending. RFC 5321 4.5.3.1.4
/// requires 512, and no other command before TLS is longer.
pub const LONGEST_COMMAND: usize = 1024;
/// Maximum length of a greeting in bytes, all lines together: an IMAP server's capabilities take
/// about 500.
pub const LONGEST_GREETING: usize = 8192;
