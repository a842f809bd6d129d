//! Values of keys that accept a fixed set of words.

use becket_proto::labelled;
use serde::{Deserialize, Serialize};

/// Behaviour for a server name that no certificate contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnknownNames {
    #[default]
    Default,
    /// Reject with the alert `unrecognized_name` (RFC 6066, section 3).
    Refuse,
    /// Like [`Refuse`](Self::Refuse), but also reject clients that send no server name.
    Strict,
}

/// Behaviour if client and listener have no ALPN protocol in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AlpnMismatch {
    /// Continue as if the client had not offered ALPN.
    #[default]
    Continue,
    /// Reject with the alert `no_application_protocol` (RFC 7301, section 3.2).
    Refuse,
}

/// Behaviour for a certificate whose issuer has no revocation list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnknownStatus {
    #[default]
    Refuse,
    /// Accept the certificate as not revoked.
    Allow,
}

/// Data about the client, sent to the server before all other data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Introduction {
    /// A PROXY header of version 1 (text).
    V1,
    /// A PROXY header of version 2 (binary), with TLVs about the TLS connection.
    V2,
    /// One byte for the address family, followed by the address: `write-ip` of stud and hitch.
    Ip,
    /// The received PROXY header, unchanged.
    Received,
}

/// Sandboxing of the serving process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxMode {
    /// Restrict the process to the files and system calls that it needs.
    #[default]
    On,
    Off,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    #[default]
    Text,
    /// One JSON object per line.
    Json,
    /// Text, with shortened access log lines for file requests and failed handshakes.
    Short,
}

/// Facility of syslog messages (RFC 5424, table 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Facility {
    Kern = 0,
    User = 1,
    Mail = 2,
    #[default]
    Daemon = 3,
    Auth = 4,
    Syslog = 5,
    Lpr = 6,
    News = 7,
    Uucp = 8,
    Cron = 9,
    Authpriv = 10,
    Ftp = 11,
    Local0 = 16,
    Local1 = 17,
    Local2 = 18,
    Local3 = 19,
    Local4 = 20,
    Local5 = 21,
    Local6 = 22,
    Local7 = 23,
}

/// Load-balancing algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    #[default]
    RoundRobin,
    /// The server with the fewest connections.
    LeastConnections,
    /// The less loaded of two servers chosen at random.
    TwoRandomChoices,
    /// The first server with a free slot, in the order of the configuration.
    First,
    /// The server selected by a hash of the client's address.
    SourceHash,
    /// The server selected by a hash of the server name in the ClientHello.
    SniHash,
}

/// Treatment of a server's open connections when the server is marked down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionsOnFailure {
    /// Open connections continue until they end.
    #[default]
    Drain,
    Close,
}

labelled! {
/// Administrative mode of a server, which decides which clients are sent to it.
#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerMode {
    /// The server receives all clients.
    #[default]
    Ready = "ready",
    /// The server receives only clients that stick to it, as with `weight = 0`.
    Drain = "drain",
    /// The server receives no clients and no checks, as with `disabled = true`.
    Maintenance = "maintenance",
}
}

/// Connections whose TLS records the kernel encrypts and decrypts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelTls {
    #[default]
    Off,
    /// Connections that have transferred at least `limits.kernel-tls-after` bytes.
    Bulk,
}

/// Property by which returning clients are recognized, so that they reach the same server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StickBy {
    #[default]
    None,
    /// Address of the client.
    Source,
    /// TLS session that the client resumes.
    TlsSession,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckKind {
    #[default]
    None,
    Connect,
    /// Connect and complete a TLS handshake with the server.
    Tls,
    /// Send an HTTP request; the status code of the response decides the result.
    Http,
}

/// Termination or passthrough of the clients' TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    #[default]
    Terminate,
    /// becket only parses the ClientHello and relays all bytes unchanged.
    Passthrough,
}

/// Batching of RSA signatures in crypto threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RsaBatch {
    /// Create signatures one by one.
    #[default]
    Off,
    /// Create signatures eight at a time, if the processor supports it.
    Auto,
}

/// Optional TLV that becket adds to the PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyTlv {
    /// Unique ID of the connection, from the received PROXY header or newly generated.
    UniqueId,
    /// The client's certificate in DER.
    ClientCertificate,
    /// The client's certificate in PEM, with hitch's TLV type.
    ClientCertificatePem,
    /// JA4 fingerprint of the client's ClientHello, with a TLV type defined by becket.
    Ja4,
}

/// Authentication of clients by certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientCertificates {
    /// No certificate is requested.
    #[default]
    Off,
    /// A certificate is requested; a client without one is accepted.
    Optional,
    /// A certificate is requested; a client without one is rejected.
    Required,
}

/// Role of the certificates in `client-ca`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientTrust {
    /// Authorities that issue client certificates.
    #[default]
    Authorities,
    /// The certificates of the clients themselves.
    Certificates,
}

/// Certificate for clients that send no server name, or a name that no certificate contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DefaultCertificate {
    /// The certificate of the last file, in the order of the configuration.
    #[default]
    Last,
    /// The certificate of the first file, in the order of the configuration.
    First,
}

/// Verification of servers' certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// Certificate chain, validity period and name.
    #[default]
    Full,
    /// Certificate chain and validity period, but not the name.
    Chain,
    /// The certificate itself, which must be listed in `ca`, its validity period, and its name if
    /// one is configured.
    Pinned,
    None,
}
