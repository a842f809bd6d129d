//! `[[listener]]` and its routes.

use std::time::Duration;

use becket_proto::networks::Network;
use becket_proto::proxy_header::Accept;
use becket_proto::starttls::Protocol;
use serde::{Deserialize, Deserializer, Serialize};

use crate::address::{ListenAddress, NamePattern, SectionName};
use crate::choices::{AlpnMismatch, DefaultCertificate, KernelTls, Mode, UnknownNames};
use crate::glob;
use crate::key_source::KeySource;
use crate::notation::{
    BytesOr, Off, SECOND, System, Text, Time, TimeOr, ValueError, Whole, WholeOr, as_text, list,
    maybe_list, text_or_table,
};
use crate::section::section;

section! {
/// `[[listener]]`: where clients arrive.
pub struct ListenerSection {
    /// Unique; a label of metrics and logs.
    pub name: SectionName,
    /// Addresses to bind.
    pub bind: Vec<ListenAddress>,
    /// Whether clients speak TLS.
    pub tls: bool = true,
    /// What is done with it where no route says otherwise.
    pub mode: Mode,
    /// The protocol in which clients ask for it.
    pub starttls: Option<Protocol>,
    /// Whether cancels of PostgreSQL clients in clear are passed on; absent is yes.
    pub cancel_requests: Option<bool>,
    /// Bundles, directories and pairs.
    pub certificates: Vec<Certificate>,
    /// The certificate for clients without a known name.
    pub default_certificate: DefaultCertificate,
    /// Name of a `[[policy]]`.
    pub policy: Option<String>,
    /// Name of a `[[backend]]`.
    pub backend: Option<String>,
    /// Every request is answered by a redirect to `https`; only without TLS.
    pub redirect: Option<Redirect>,
    /// Protocols, most preferred first; empty means that ALPN is not negotiated.
    #[serde(with = "list")]
    pub alpn: Vec<Vec<u8>>,
    /// What to do when no protocol is shared; absent depends on `starttls`.
    pub alpn_mismatch: Option<AlpnMismatch>,
    /// What to do with a name that no certificate covers; absent depends on `starttls`.
    pub unknown_names: Option<UnknownNames>,
    /// Networks whose clients are let in; empty is all.
    #[serde(with = "list")]
    pub allow: Vec<Network>,
    /// Networks whose clients are not let in, even if allowed.
    #[serde(with = "list")]
    pub deny: Vec<Network>,
    /// The PROXY header that every connection begins with.
    pub accept_proxy: Option<Accept>,
    /// Networks of those who may send it.
    #[serde(with = "list")]
    pub trusted_networks: Vec<Network>,
    /// `[[listener.route]]`
    pub route: Vec<Route>,
    /// Whether the kernel takes over the TLS of clients that carry bulk.
    pub kernel_tls: KernelTls,
    /// Connections that the kernel completed and we have not accepted; it cuts this to net.core.somaxconn.
    #[serde(with = "Whole::<1, 65_535>")]
    pub backlog: u32 = 4096,
    /// TCP_DEFER_ACCEPT: wake up when the ClientHello is there; 0 is off, absent is 10 s where clients speak first.
    #[serde(with = "Time::<0, { 32_767 * SECOND }>")]
    pub defer_accept: Option<Duration>,
    /// TCP_FASTOPEN queue length.
    #[serde(with = "WholeOr::<Off, 1, 65_535>")]
    pub fast_open: Option<u32>,
    /// SO_KEEPALIVE: idle time before the first probe.
    #[serde(with = "TimeOr::<Off, SECOND, { 32_767 * SECOND }>")]
    pub keepalive: Option<Duration>,
    /// SO_RCVBUF.
    #[serde(with = "BytesOr::<System, 4096, { 256 << 20 }>")]
    pub receive_buffer: Option<usize>,
    /// SO_SNDBUF.
    #[serde(with = "BytesOr::<System, 4096, { 256 << 20 }>")]
    pub send_buffer: Option<usize>,
}
}

/// Where requests without TLS are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The port of `https`.
    pub port: u16,
}

impl Text for Redirect {
    const ACCEPTED: &str = "\"https\", or \"https:PORT\"";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let port = match text.strip_prefix("https") {
            Some("") => Some(HTTPS),
            Some(rest) => rest.strip_prefix(':').and_then(|port| port.parse().ok()),
            None => None,
        };
        let port = port.filter(|port| *port > 0);
        port.map(|port| Self { port }).ok_or("not where to".into())
    }

    fn write(&self) -> String {
        match self.port {
            HTTPS => "https".to_owned(),
            port => format!("https:{port}"),
        }
    }
}

as_text!(Redirect);

/// What clients of a listener speak to us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenMode {
    /// TLS from the first byte, which ends here or passes, as the route says.
    #[default]
    Tls,
    /// Plain TCP: the client mode of stunnel where the backend has TLS.
    Plain,
    /// A protocol in which the client asks for TLS, which then ends here.
    StartTls(Protocol),
}

impl ListenMode {
    /// Returns whether becket connects the server before it reads the client, because the server may speak first. Then no name can choose it.
    pub fn connects_first(self) -> bool {
        match self {
            Self::Tls => false,
            Self::Plain => true,
            Self::StartTls(protocol) => !protocol.client_speaks_first(),
        }
    }
}

impl ListenerSection {
    /// What clients speak here.
    pub fn speaks(&self) -> ListenMode {
        match (self.tls, self.mode, self.starttls) {
            (false, ..) => ListenMode::Plain,
            (true, Mode::Terminate, Some(protocol)) => ListenMode::StartTls(protocol),
            (true, ..) => ListenMode::Tls,
        }
    }

    /// What to do with a client that offers other protocols only.
    pub fn alpn_mismatch(&self) -> AlpnMismatch {
        let written = self.alpn_mismatch;
        written.unwrap_or(match self.speaks() {
            ListenMode::StartTls(_) => AlpnMismatch::Refuse,
            _ => AlpnMismatch::Continue,
        })
    }

    /// What to do with a name that no certificate covers.
    pub fn unknown_names(&self) -> UnknownNames {
        let written = self.unknown_names;
        written.unwrap_or(match self.speaks() {
            ListenMode::StartTls(_) => UnknownNames::Refuse,
            _ => UnknownNames::Default,
        })
    }

    /// Whether cancels in clear are passed on.
    pub fn passes_cancels(&self) -> bool {
        let speaks = self.speaks() == ListenMode::StartTls(Protocol::Postgresql);
        speaks && self.cancel_requests.unwrap_or(true)
    }

    /// How long the kernel keeps a connection on which nothing has come.
    pub fn defers_accept(&self) -> Option<Duration> {
        // If the server may speak first, the client would wait for the server, and the kernel for the client.
        let default = if self.speaks().connects_first() {
            Duration::ZERO
        } else {
            DEFER_ACCEPT
        };
        let time = self.defer_accept.unwrap_or(default);
        Some(time).filter(|time| !time.is_zero())
    }

    /// The protocols that are negotiated: those of the file, else what clients of a protocol offer, those few that do.
    /// IANA's names, and Exim's two for SMTP, which has none there. libpq insists on its own where it begins with TLS at
    /// once.
    pub fn protocols(&self) -> Vec<Vec<u8>> {
        let names: &[&[u8]] = match (self.speaks(), &self.alpn[..]) {
            (ListenMode::StartTls(Protocol::Smtp), []) => &[b"smtp", b"esmtp"],
            (ListenMode::StartTls(Protocol::Imap), []) => &[b"imap"],
            (ListenMode::StartTls(Protocol::Pop3), []) => &[b"pop3"],
            (ListenMode::StartTls(Protocol::Postgresql), []) => &[b"postgresql"],
            (_, written) => return written.to_vec(),
        };
        names.iter().map(|name| name.to_vec()).collect()
    }
}

section! {
/// `[[listener.route]]`: where some of a listener's clients go.
pub struct Route {
    /// Server names, exact or `*.name`; empty means any, also none.
    pub names: Vec<NamePattern>,
    /// What is done with their TLS; absent is as for the listener.
    pub mode: Option<Mode>,
    /// Protocols; the route is for clients that offer one of them.
    #[serde(with = "maybe_list")]
    pub alpn: Option<Vec<Vec<u8>>>,
    /// Name of a `[[policy]]`.
    pub policy: Option<String>,
    /// Name of a `[[backend]]`.
    pub backend: Option<String>,
}
}

/// An entry of `certificates`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Certificate {
    /// A bundle of chain and key, a directory of bundles, or one of certbot's.
    Path(String),
    /// A chain, its key in another file or on a token, and what belongs to them.
    Pair(Pair),
}

impl Certificate {
    /// Name of the policy for its clients, if it has one of its own.
    pub fn policy(&self) -> Option<&str> {
        match self {
            Self::Path(_) => None,
            Self::Pair(pair) => pair.policy.as_deref(),
        }
    }

    /// The files that it names, or the folder whose files it takes.
    pub(crate) fn files(&self) -> Vec<&str> {
        match self {
            Self::Path(path) => vec![glob::split(path).map_or(path, |(folder, _)| folder)],
            Self::Pair(pair) => {
                let key = match &pair.key {
                    Some(KeySource::File(path)) => Some(path.as_str()),
                    // The file of a PIN is for the agent of the token alone.
                    Some(KeySource::Token(_)) | None => None,
                };
                let files = pair.chain.iter().chain(&pair.ocsp);
                files.map(String::as_str).chain(key).collect()
            }
        }
    }
}

section! {
/// `{ chain = "..", key = "..", ocsp = "..", policy = ".." }`
pub struct Pair {
    /// Certificates, the server's own first.
    pub chain: Option<String>,
    /// The private key.
    pub key: Option<KeySource>,
    /// A response of the authority's OCSP responder, DER, that clients get.
    pub ocsp: Option<String>,
    /// Name of the `[[policy]]` for clients that get this certificate.
    pub policy: Option<String>,
}
}

impl<'de> Deserialize<'de> for Certificate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let accepted = "a file, a directory or { chain = \"..\", key = \"..\" }";
        text_or_table(deserializer, accepted, Self::Path, Self::Pair)
    }
}

/// As long as the handshake time-out.
const DEFER_ACCEPT: Duration = Duration::from_secs(10);
/// RFC 9110, section 4.2.2.
const HTTPS: u16 = 443;
