//! Choices that a file may name: each is one word there and one value here.

use serde::{Deserialize, Serialize};

/// What to do with a server name that no certificate covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnknownNames {
    /// Answer with the default certificate.
    #[default]
    Default,
    /// Refuse with the alert `unrecognized_name` (RFC 6066, section 3).
    Refuse,
}

/// What to do when ALPN lists do not overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AlpnMismatch {
    /// Go on as if the client had not offered ALPN.
    #[default]
    Continue,
    /// Refuse with the alert `no_application_protocol` (RFC 7301, section 3.2).
    Refuse,
}

/// What to do with a certificate, or a CA above it, of whose issuer there is no list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnknownStatus {
    /// Refuse whoever shows it.
    #[default]
    Refuse,
    /// Take the certificate for not revoked.
    Allow,
}

/// What servers are told of a client, before anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Introduction {
    /// A PROXY header, text.
    V1,
    /// A PROXY header, binary, with TLVs about the TLS connection.
    V2,
    /// Its address in bytes, behind one of its family: `write-ip` of stud and hitch.
    Ip,
    /// The header from in front, as it came.
    Received,
}

/// Whether the process that serves is confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxMode {
    /// To the files and system calls that it needs.
    #[default]
    On,
    /// Not.
    Off,
}

/// Shape of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The part of a host that messages of syslog are about (RFC 5424, table 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "each is its name")]
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

/// Who of the servers gets the next connection, by weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balance {
    /// In turn.
    #[default]
    RoundRobin,
    /// The least busy one.
    LeastConnections,
    /// The less busy one of two that are drawn.
    TwoRandomChoices,
    /// The first that has a free slot, in the order of the file.
    First,
    /// Always the same one for a client's address.
    SourceHash,
    /// Always the same one for a server name of the hello.
    SniHash,
}

/// What becomes of a server's connections when it goes out of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionsOnFailure {
    /// They go on.
    #[default]
    Drain,
    /// They are closed.
    Close,
}

/// Which clients a server gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerMode {
    /// All.
    #[default]
    Ready,
    /// Only clients that stick to it, as with `weight = 0`.
    Drain,
    /// None, and it is not checked, as with `disabled = true`.
    Maintenance,
}

impl ServerMode {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Drain => "drain",
            Self::Maintenance => "maintenance",
        }
    }
}

/// Which connections the kernel seals and opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelTls {
    /// None.
    #[default]
    Off,
    /// Those that have carried `limits.kernel-tls-after`.
    Bulk,
}

/// By what a client is known again, to be given the server that it had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StickBy {
    /// Not at all.
    #[default]
    None,
    /// By its address.
    Source,
    /// By the TLS session that it resumes.
    TlsSession,
}

/// How far a check goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckKind {
    /// There are none.
    #[default]
    None,
    /// To a connection.
    Connect,
    /// To a TLS handshake.
    Tls,
    /// To the status of an HTTP response.
    Http,
}

/// What is done with the TLS of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// It ends here.
    #[default]
    Terminate,
    /// The hello is read, and every byte passed on as it is.
    Passthrough,
}

/// Whether crypto threads sign with RSA in batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RsaBatch {
    /// Each signature is made by itself.
    #[default]
    Off,
    /// Eight at a time, where the processor can do that.
    Auto,
}

/// A part of the PROXY header that is not always sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyTlv {
    /// A name of the connection: the one that a header from in front gave it, or one of ours.
    UniqueId,
    /// The client's certificate, DER.
    ClientCertificate,
    /// The same as hitch sends it: PEM, of a type of hitch's own.
    ClientCertificatePem,
    /// The fingerprint of the client's hello, of a type of our own.
    Ja4,
}

/// Whether clients authenticate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientCertificates {
    /// No certificate is asked for.
    #[default]
    Off,
    /// A client without one is served.
    Optional,
    /// A client without one is refused.
    Required,
}

/// What the certificates of `client-ca` are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientTrust {
    /// Those of authorities, which issue the clients'.
    #[default]
    Authorities,
    /// Those of the clients themselves.
    Certificates,
}

/// The certificate for clients that send no name, or one that no certificate covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DefaultCertificate {
    /// That of the last file.
    #[default]
    Last,
    /// That of the first file.
    First,
}

/// Whether servers' certificates are verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verify {
    /// Chain, time and name.
    #[default]
    Full,
    /// Chain and time: any certificate of these authorities.
    Chain,
    /// The certificate itself, which must be in `ca`, and its time; the name, where one is given.
    Pinned,
    /// Not at all.
    None,
}
