//! Resumption as metrics and the access log name it: the way, and the outcome.

use becket_proto::labelled;

labelled! {
/// By what a client may resume; TLS has one way for each version, and TLS 1.2 two. The words are those of the access log.
pub enum Offer {
    /// TLS 1.2, session ID.
    Id = "id",
    /// TLS 1.2, ticket.
    Ticket = "ticket",
    /// TLS 1.3, pre-shared key.
    Psk = "psk",
}
}

labelled! {
/// What became of a session or ticket that a client offered.
pub enum Resumption {
    /// Opened, or found in the table.
    Opened = "opened",
    /// Not in the table, or not a ticket of ours.
    Unknown = "unknown",
    /// Its time in the table was over, or its key is gone.
    Expired = "expired",
    /// Older than `sessions.max-age` since the full handshake.
    TooOld = "too-old",
    /// Made under another policy.
    OtherPolicy = "other-policy",
    /// The seal does not open.
    BadSeal = "bad-seal",
    /// Sealed under a secret that is not accepted here: of another cluster, of a host that is
    /// alone, or of this one before it was restarted alone.
    UnknownSecret = "unknown-secret",
    /// The client's chain in it no longer verifies, or is the second that was offered.
    ClientCertificate = "client-certificate",
}
}
