//! Protocols that begin in clear, the progress of a dialog, and its bounds.

/// A protocol that begins in clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// Mail between servers and from clients, RFC 3207.
    Smtp,
    /// Mail access, RFC 9051 6.2.1.
    Imap,
    /// Mail access, RFC 2595 4.
    Pop3,
    /// PostgreSQL's SSLRequest.
    Postgresql,
}

impl Protocol {
    /// Says whether the client speaks first, so that a client that is silent waits for nothing.
    pub fn client_speaks_first(self) -> bool {
        self == Self::Postgresql
    }
}

/// How far a dialog is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// Goes on when more bytes come.
    Talking,
    /// The client's next byte begins TLS.
    Begin,
    /// It is over; what is to be sent is the last.
    Over(Over),
}

/// Why a dialog ended without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The client said good-bye.
    Quit,
    /// The client said more behind the request for TLS.
    Injected,
    /// The client broke the protocol: a line without end, too many commands, or bytes that are none.
    Broken,
    /// The client insists on going on in clear.
    Cleartext,
    /// The client asks to cancel what another connection does; see [`Dialog::cancel_request`](super::Dialog::cancel_request).
    Cancel,
    /// The server's greeting refuses service; the client was told so.
    Refused,
    /// What the server said is no greeting, or more than one.
    BadGreeting,
}

/// Commands that a client may give before it asks for TLS; a client needs two.
pub const MOST_COMMANDS: u32 = 32;
/// The longest line of a client, its end included: RFC 5321 4.5.3.1.4 asks for 512, and before TLS nothing is longer.
pub const LONGEST_COMMAND: usize = 1024;
/// The longest greeting, all its lines together: capabilities of an IMAP server take some 500 bytes.
pub const LONGEST_GREETING: usize = 8192;
