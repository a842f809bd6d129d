//! Kinds and results of resumption, for metrics and the access log.

use becket_proto::labelled;

labelled! {
/// The kind of resumption that a client may use: two kinds in TLS 1.2, one in TLS 1.3. The access
/// log contains these labels.
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
pub enum Resumption {
    /// The ticket was decrypted, or the session was found in the table.
    Opened = "opened",
    /// The session is not in the table, or the ticket does not have the format of becket.
    Unknown = "unknown",
    /// The session has expired, or the ticket's key was already dropped.
    Expired = "expired",
    /// The full handshake is older than `sessions.max-age`.
    TooOld = "too-old",
    OtherPolicy = "other-policy",
    /// Decryption of the ticket failed: its authentication tag is invalid.
    BadSeal = "bad-seal",
    /// The ticket was sealed with a secret that this process does not have. The secret may belong
    /// to another cluster or host, or to this host before its last restart.
    UnknownSecret = "unknown-secret",
    /// The client certificate chain in the session is missing or invalid. Also used if the chain of
    /// another session was already verified for this ClientHello.
    ClientCertificate = "client-certificate",
}
}
