//! Reasons for the end of a connection: the metric label, the field in the access log, and the
//! value that tests assert.
//!
//! Behaviour of a peer is an outcome, not an error. Every connection ends with exactly one reason:
//! the first event that made its end inevitable.

use crate::labelled;

labelled! {
pub enum CloseReason {
    /// Client and server both ended their streams; no data was lost.
    Finished = "finished",
    /// The client ended its stream without close_notify; its data may be cut short.
    ClientTruncated = "client-truncated",
    /// The client reset the connection while relaying.
    ClientReset = "client-reset",
    /// The client sent a fatal alert or malformed TLS while relaying.
    ClientTlsError = "client-tls-error",
    /// The client sent too many records without data (key updates, alerts, empty records) in proportion to its data.
    RecordsWithoutData = "records-without-data",
    /// The client's address is not in `trusted-networks`, and a PROXY header is expected.
    UntrustedProxy = "untrusted-proxy",
    /// The first bytes are not the expected PROXY header.
    ProxyHeader = "proxy-header",
    /// The client closed the connection before the end of the handshake.
    HandshakeAborted = "handshake-aborted",
    /// The client closed the connection without sending a byte, or only a PROXY header. This counts
    /// as a health check, not as a failure.
    HealthCheck = "health-check",
    /// No complete ClientHello arrived within `timeouts.hello` or `timeouts.handshake`, whichever is shorter. The time
    /// for a PROXY header is included.
    HelloTimeout = "hello-timeout",
    /// The handshake took longer than `timeouts.handshake`.
    HandshakeTimeout = "handshake-timeout",
    /// The handshake failed: no common parameters, bad signature, malformed message.
    HandshakeFailed = "handshake-failed",
    /// The ClientHello is larger than `limits.client-hello`.
    HelloTooLarge = "hello-too-large",
    /// The client sent more plaintext after its request to start TLS. An attacker could have inserted it
    /// (CVE-2011-0411, CVE-2021-23214).
    StarttlsInjected = "starttls-injected",
    /// The client did not request TLS as required: it ended the dialog, or continued in clear text.
    Cleartext = "cleartext",
    /// A PostgreSQL CancelRequest was forwarded to the servers of the listener's backends.
    Cancel = "cancel",
    /// A PostgreSQL CancelRequest was not forwarded, since too many were in progress.
    CancelLimit = "cancel-limit",
    /// The server's greeting refused service or was invalid; the client received an error.
    ServerGreeting = "server-greeting",
    NotTls = "not-tls",
    /// The first bytes are an HTTP request in clear text; it was answered with status 400.
    PlainHttp = "plain-http",
    /// No certificate covers the server name, and unknown names are refused.
    UnknownName = "unknown-name",
    /// Client and server have no ALPN protocol in common, and the route refuses that.
    AlpnMismatch = "alpn-mismatch",
    /// An ACME authority got the answer to its challenge.
    AcmeChallenge = "acme-challenge",
    /// The client's certificate was missing, not trusted or no longer valid.
    ClientCertificate = "client-certificate",
    /// The client's chain of certificates is longer than `limits.certificate-chain`, or has more
    /// certificates than any path needs.
    ClientChain = "client-chain",
    /// The client's certificate is valid, but has none of the names in `policy.client-names`.
    ClientName = "client-name",
    /// `limits.handshakes` was reached, and all clients in a handshake had already sent a complete
    /// ClientHello.
    HandshakeLimit = "handshake-limit",
    /// `limits.handshakes` was reached: a new client replaced this one, the oldest without a complete
    /// hello.
    HandshakeDisplaced = "handshake-displaced",
    /// The client waited longer than half a second for accept or for a signature, or was dropped because too many
    /// clients waited for signatures.
    Overload = "overload",
    /// The client's network is in `deny`, or is missing in `allow`.
    DeniedNetwork = "denied-network",
    /// The client's network had reached `admission.connections-per-source`.
    SourceConnections = "source-connections",
    /// The client's network had reached `admission.half-open-per-source` unfinished handshakes.
    SourceHalfOpen = "source-half-open",
    /// A full handshake was needed, but the rate `admission.full-handshakes-per-second` was
    /// exhausted.
    AdmissionRate = "admission-rate",
    /// A full handshake was needed, and `admission.full-handshakes-in-flight` was reached.
    AdmissionInFlight = "admission-in-flight",
    /// A full handshake was needed, and the client's network had reached its limits on full
    /// handshakes.
    AdmissionSource = "admission-source",
    /// Connections with this server name had reached `admission.name.connections`.
    NameConnections = "name-connections",
    /// A full handshake was needed, but the rate `admission.name.full-handshakes-per-second` was
    /// exhausted.
    AdmissionName = "admission-name",
    /// Clients of this server name had used their share of the backend's queue
    /// (`admission.name.queue-share`).
    NameQueue = "name-queue",
    /// Connections with this JA4 fingerprint had reached `admission.ja4.connections`.
    Ja4Connections = "ja4-connections",
    /// A full handshake was needed, but the rate `admission.ja4.full-handshakes-per-second` was
    /// exhausted.
    AdmissionJa4 = "admission-ja4",
    /// The client's JA4 fingerprint is in `admission.ja4.refuse`.
    Ja4Refused = "ja4-refused",
    /// A full handshake was needed, and the token with the private key did not sign.
    Token = "token",
    /// `limits.connections` was reached, and the client's listening socket was about to be closed.
    ConnectionLimit = "connection-limit",
    NoDescriptor = "no-descriptor",
    /// The queue of the backend was full: `queue-length` clients waited for a slot.
    QueueFull = "queue-full",
    /// No server had a free slot within `queue-timeout`.
    QueueTimeout = "queue-timeout",
    /// The client closed the connection while it waited for a slot.
    LeftQueue = "left-queue",
    /// No server of the backend is in service.
    NoServer = "no-server",
    /// No server of the backend could be reached.
    ConnectFailed = "connect-failed",
    /// No server of the backend answered within `timeouts.connect`.
    ConnectTimeout = "connect-timeout",
    /// The TLS handshake with the last server tried failed, or a server sent malformed TLS or a fatal
    /// alert while relaying; the client saw no clean end.
    ServerTlsError = "server-tls-error",
    /// A server sent too many records without data (key updates, tickets, empty records) in proportion to its data; the
    /// client saw no clean end.
    ServerRecordsWithoutData = "server-records-without-data",
    /// The certificate of the last server tried was not trusted, not valid, or for another name.
    ServerCertificate = "server-certificate",
    /// The certificate chain of the last server tried is longer than `limits.certificate-chain`, or has
    /// more certificates than any path needs.
    ServerChain = "server-chain",
    /// The server ended its stream without close_notify; the client saw no clean end.
    ServerTruncated = "server-truncated",
    /// The server reset the connection; the client saw no clean end.
    ServerReset = "server-reset",
    /// The kernel rejected a key when the connection switched to kernel TLS.
    KernelTls = "kernel-tls",
    /// With kernel TLS, a KeyUpdate arrived or a key reached its usage limit, but the kernel cannot
    /// replace keys.
    KeyUpdate = "key-update",
    /// The server went out of service, and its backend has `connections-on-failure = "close"`.
    ServerDown = "server-down",
    /// No data moved for `timeouts.idle`.
    IdleTimeout = "idle-timeout",
    /// No data moved for `timeouts.half-closed` after one side had finished.
    HalfClosedTimeout = "half-closed-timeout",
    /// The header of an HTTP request for a static file was not complete within `timeouts.request`.
    RequestTimeout = "request-timeout",
    /// A file shrank while it was sent, or could not be read; the client saw no clean end.
    FileCut = "file-cut",
    /// The process was draining, no data moved for `timeouts.drain-idle`, and no response was due.
    Drained = "drained",
    /// The client did not accept the last bytes within `timeouts.linger`.
    LingerTimeout = "linger-timeout",
    /// The client kept sending after the end of the response, and was reset after 1 MiB.
    LingerLimit = "linger-limit",
    /// Memory usage exceeded `limits.memory`, and the connection was idle.
    MemoryRest = "memory-rest",
    /// Memory usage was well above `limits.memory`, and the connection was new.
    MemoryLimit = "memory-limit",
    /// An operator closed the connection.
    Killed = "killed",
    Stopped = "stopped",
    /// Internal error of becket; the log has the details.
    Internal = "internal",
}
}

impl CloseReason {
    /// Returns `true` if the handshake failed because of the client. Health checks, and clients rejected by admission
    /// control or under overload, do not count.
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

    /// Returns `true` if the configuration (certificate, versions or suites) may have caused this
    /// failure, provided that the client requested a configured name.
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

    /// Returns `true` if the end is expected: a peer or an operator ended the connection, or no
    /// data moved until a timeout.
    pub const fn is_expected(self) -> bool {
        matches!(
            self,
            Self::Finished
                | Self::ClientTruncated
                | Self::ClientReset
                | Self::HealthCheck
                | Self::Cancel
                | Self::AcmeChallenge
                | Self::IdleTimeout
                | Self::HalfClosedTimeout
                | Self::Drained
                | Self::Killed
                | Self::Stopped
        )
    }

    /// Returns `true` if a server, or the path to it, is at fault and needs repair.
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
    fn reasons_are_ordered_by_discriminant_and_labels_are_unique() {
        let labels: BTreeSet<_> = CloseReason::ALL.map(CloseReason::label).into();
        assert_eq!(labels.len(), CloseReason::ALL.len());
        for (i, reason) in CloseReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, i);
        }
    }
}
