//! Why a connection ended: one value that is the metric label, the field of the access log and
//! what tests assert.
//!
//! What a peer does is an outcome, not an error. Every connection ends with exactly one reason,
//! chosen by the first thing that made its end inevitable.

use crate::labelled;

labelled! {
/// Why a connection ended.
pub enum CloseReason {
    /// Both sides sent their end of data; nothing was lost.
    Finished = "finished",
    /// The client ended its stream without close_notify; what it sent may be cut short.
    ClientTruncated = "client-truncated",
    /// The client reset the connection while relaying.
    ClientReset = "client-reset",
    /// The client sent a fatal alert or broken TLS while relaying.
    ClientTlsError = "client-tls-error",
    /// The client sent more records without data (key updates, alerts, empty ones) than its data allows.
    RecordsWithoutData = "records-without-data",
    /// Who connected is not of `trusted-networks`, and a PROXY header is expected.
    UntrustedProxy = "untrusted-proxy",
    /// The first bytes are not the PROXY header that is expected.
    ProxyHeader = "proxy-header",
    /// The client left before the handshake was done.
    HandshakeAborted = "handshake-aborted",
    /// The client left without a byte, a PROXY header aside: a check whether becket is there, and no failure.
    HealthCheck = "health-check",
    /// No whole hello came within `timeouts.hello`, the PROXY header before it included, or within
    /// `timeouts.handshake` where that is shorter.
    HelloTimeout = "hello-timeout",
    /// The handshake took longer than `timeouts.handshake`.
    HandshakeTimeout = "handshake-timeout",
    /// The handshake failed: nothing in common, bad signature, broken message.
    HandshakeFailed = "handshake-failed",
    /// The ClientHello is larger than `limits.client-hello`.
    HelloTooLarge = "hello-too-large",
    /// The client said more in clear behind its request for TLS, where somebody else could have put
    /// it (CVE-2011-0411, CVE-2021-23214).
    StarttlsInjected = "starttls-injected",
    /// The client did not ask for TLS where it should: it left politely, or went on in clear.
    Cleartext = "cleartext",
    /// A CancelRequest of PostgreSQL: it was passed on to the servers of the listener's backends.
    Cancel = "cancel",
    /// A CancelRequest of PostgreSQL that was not passed on: too many were under way.
    CancelLimit = "cancel-limit",
    /// The server's greeting refused service, or was none; the client was told.
    ServerGreeting = "server-greeting",
    /// The first bytes are not TLS.
    NotTls = "not-tls",
    /// The first bytes are an HTTP request in clear text; it was answered with status 400.
    PlainHttp = "plain-http",
    /// No certificate covers the server name and unknown names are refused.
    UnknownName = "unknown-name",
    /// No protocol in common and the route refuses that.
    AlpnMismatch = "alpn-mismatch",
    /// The client's certificate was missing, not trusted or no longer valid.
    ClientCertificate = "client-certificate",
    /// The client's chain of certificates is longer than `limits.certificate-chain`, or has more
    /// certificates than any path needs.
    ClientChain = "client-chain",
    /// The client's certificate is good and has none of the names in `policy.client-names`.
    ClientName = "client-name",
    /// `limits.handshakes` was reached, by clients with whole hellos.
    HandshakeLimit = "handshake-limit",
    /// `limits.handshakes` was reached, and it was the oldest without a whole hello: a newcomer has
    /// its place.
    HandshakeDisplaced = "handshake-displaced",
    /// More clients waited for full handshakes than could be served, and it had waited for half a second, or came when enough
    /// waited.
    Overload = "overload",
    /// It came from a network that `deny` names, or from none that `allow` names.
    DeniedNetwork = "denied-network",
    /// Its source had `admission.connections-per-source` connections.
    SourceConnections = "source-connections",
    /// Its source had `admission.half-open-per-source` unfinished handshakes.
    SourceHalfOpen = "source-half-open",
    /// A full handshake, and `admission.full-handshakes-per-second` was used up.
    AdmissionRate = "admission-rate",
    /// A full handshake, and `admission.full-handshakes-in-flight` was reached.
    AdmissionInFlight = "admission-in-flight",
    /// A full handshake, and its source had all that it may have of them.
    AdmissionSource = "admission-source",
    /// Its server name had `admission.name.connections` connections.
    NameConnections = "name-connections",
    /// A full handshake, and `admission.name.full-handshakes-per-second` of its server name was used up.
    AdmissionName = "admission-name",
    /// Clients of its server name had their share of the backend's queue (`admission.name.queue-share`).
    NameQueue = "name-queue",
    /// Its fingerprint had `admission.ja4.connections` connections.
    Ja4Connections = "ja4-connections",
    /// A full handshake, and `admission.ja4.full-handshakes-per-second` of its fingerprint was used up.
    AdmissionJa4 = "admission-ja4",
    /// `admission.ja4.refuse` names its fingerprint.
    Ja4Refused = "ja4-refused",
    /// A full handshake, and the token that has the key did not sign.
    Token = "token",
    /// `limits.connections` was reached, and its listening socket was to be closed.
    ConnectionLimit = "connection-limit",
    /// No descriptor was left for it.
    NoDescriptor = "no-descriptor",
    /// As many wait for a slot of the backend as `queue-length` allows.
    QueueFull = "queue-full",
    /// No slot became free within `queue-timeout`.
    QueueTimeout = "queue-timeout",
    /// The client left while it waited for a slot.
    LeftQueue = "left-queue",
    /// No server of the backend is in service.
    NoServer = "no-server",
    /// No server of the backend could be connected.
    ConnectFailed = "connect-failed",
    /// No server of the backend answered within `timeouts.connect`.
    ConnectTimeout = "connect-timeout",
    /// The handshake with the last server that was tried failed, or a server sent broken TLS or a
    /// fatal alert while relaying; the client saw no clean end.
    ServerTlsError = "server-tls-error",
    /// A server sent more records without data (key updates, tickets, empty ones) than its data allows;
    /// the client saw no clean end.
    ServerRecordsWithoutData = "server-records-without-data",
    /// The certificate of the last server that was tried was not trusted, not valid or not its own.
    ServerCertificate = "server-certificate",
    /// That of the last server that was tried is longer than `limits.certificate-chain`, or has more
    /// certificates than any path needs.
    ServerChain = "server-chain",
    /// The server ended its stream without close_notify; the client saw no clean end.
    ServerTruncated = "server-truncated",
    /// The server reset the connection; the client saw no clean end.
    ServerReset = "server-reset",
    /// The kernel was to take over TLS and refused a key.
    KernelTls = "kernel-tls",
    /// The kernel had TLS, a KeyUpdate came or a key was worn out, and the kernel replaces none.
    KeyUpdate = "key-update",
    /// The server went out of service, and its backend has `connections-on-failure = "close"`.
    ServerDown = "server-down",
    /// Nothing moved for `timeouts.idle`.
    IdleTimeout = "idle-timeout",
    /// Nothing moved for `timeouts.half-closed` after one side had finished.
    HalfClosedTimeout = "half-closed-timeout",
    /// No whole head of a request for a file came within `timeouts.request`.
    RequestTimeout = "request-timeout",
    /// A file became shorter while it was sent, or could not be read; the client saw no clean end.
    FileCut = "file-cut",
    /// The process drains, and nothing moved for `timeouts.drain-idle` while no answer was due.
    Drained = "drained",
    /// The client did not take the last bytes within `timeouts.linger`.
    LingerTimeout = "linger-timeout",
    /// The client went on sending behind the end of all it was to get, and was reset after 1 MiB of it.
    LingerLimit = "linger-limit",
    /// Memory was short (`limits.memory`), and it was at rest.
    MemoryRest = "memory-rest",
    /// Memory was short, and it was new.
    MemoryLimit = "memory-limit",
    /// An operator ended it.
    Killed = "killed",
    /// The process stopped.
    Stopped = "stopped",
    /// A fault of ours; the log says which.
    Internal = "internal",
}
}

impl CloseReason {
    /// Whether a handshake came to nothing by what the client did or did not do. Who was turned away so that others could be
    /// served, or looked whether becket is there, is not among them.
    pub const fn is_failed_handshake(self) -> bool {
        matches!(
            self,
            Self::HandshakeAborted
                | Self::HelloTimeout
                | Self::HandshakeTimeout
                | Self::HandshakeFailed
                | Self::HelloTooLarge
                | Self::StarttlsInjected
                | Self::NotTls
                | Self::PlainHttp
                | Self::UnknownName
                | Self::AlpnMismatch
                | Self::ClientCertificate
                | Self::ClientChain
                | Self::ClientName
        )
    }

    /// Whether a handshake failed that a client which asks for the right name makes well: then our certificate, versions or
    /// suites may be wrong.
    pub const fn may_be_our_fault(self) -> bool {
        matches!(
            self,
            Self::HandshakeAborted
                | Self::HandshakeTimeout
                | Self::HandshakeFailed
                | Self::AlpnMismatch
                | Self::Token
        )
    }

    /// Whether a server, or the way to it, is at fault: somebody has to mend that.
    pub const fn is_fault_of_servers(self) -> bool {
        matches!(
            self,
            Self::NoServer
                | Self::ConnectFailed
                | Self::ConnectTimeout
                | Self::ServerGreeting
                | Self::ServerTlsError
                | Self::ServerRecordsWithoutData
                | Self::ServerCertificate
                | Self::ServerChain
                | Self::ServerTruncated
                | Self::ServerReset
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_is_indexed_by_the_discriminant_and_labels_are_unique() {
        let labels: BTreeSet<_> = CloseReason::ALL.map(CloseReason::label).into();
        assert_eq!(labels.len(), CloseReason::ALL.len());
        for (i, reason) in CloseReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, i);
        }
    }
}
