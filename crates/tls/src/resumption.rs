//! Resumption in metrics and the access log: its kind and its result.

use becket_proto::labelled;

labelled! {
/// The kind of resumption that a client may use. TLS 1.2 has two, TLS 1.3 one. The words are those
/// of the access log.
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
/// The result for a session or ticket that a client offered.
pub enum Resumption {
    /// Opened, or found in the table.
    Opened = "opened",
    /// Not in the table, or not a ticket of this cluster.
    Unknown = "unknown",
    /// Expired in the table, or its key was dropped.
    Expired = "expired",
    /// Older than `sessions.max-age` since the full handshake.
    TooOld = "too-old",
    /// Created under another policy.
    OtherPolicy = "other-policy",
    /// The seal of the ticket does not verify.
    BadSeal = "bad-seal",
    /// Sealed under a secret that is not accepted here: of another cluster, of a single host, or of
    /// this host before its last restart.
    UnknownSecret = "unknown-secret",
    /// The client's chain in it does not verify any more, or it is the second chain in this
    /// ClientHello.
    ClientCertificate = "client-certificate",
}
}
