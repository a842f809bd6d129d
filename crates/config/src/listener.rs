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
/// `[[listener]]`: addresses at which clients connect, and the settings for their connections.
pub struct ListenerSection {
    /// Unique name, used as a label in metrics and logs.
    pub name: SectionName,
    pub bind: Vec<ListenAddress>,
    pub tls: bool = true,
    /// Termination or passthrough of TLS, unless a route sets its own mode.
    pub mode: Mode,
    /// Application protocol in which clients request TLS by STARTTLS.
    pub starttls: Option<Protocol>,
    /// Forward unencrypted CancelRequests of PostgreSQL to the server; absent means yes.
    pub cancel_requests: Option<bool>,
    /// Certificates with their keys: bundles, directories, or pairs of chain and key.
    pub certificates: Vec<Certificate>,
    /// Also serve the certificates of `[acme]`.
    pub acme: bool,
    /// Answer HTTP-01 challenges of `[acme]` before bytes are relayed; valid only without TLS.
    pub acme_http: bool,
    /// Certificate for clients whose server name is missing or unknown.
    pub default_certificate: DefaultCertificate,
    /// Name of a `[[policy]]`.
    pub policy: Option<String>,
    /// Name of a `[[backend]]`.
    pub backend: Option<String>,
    /// Redirect every request to `https`; valid only without TLS.
    pub redirect: Option<Redirect>,
    /// ALPN protocols, most preferred first; if empty, ALPN is not negotiated.
    #[serde(with = "list")]
    pub alpn: Vec<Vec<u8>>,
    /// Behaviour for clients that offer no ALPN protocol of this listener; the default depends on
    /// `starttls`.
    pub alpn_mismatch: Option<AlpnMismatch>,
    /// Behaviour for a server name that no certificate contains; the default depends on `starttls`.
    pub unknown_names: Option<UnknownNames>,
    /// Networks from which clients are accepted; empty means all.
    #[serde(with = "list")]
    pub allow: Vec<Network>,
    /// Networks from which clients are rejected; takes precedence over `allow`.
    #[serde(with = "list")]
    pub deny: Vec<Network>,
    /// Accepted versions of the PROXY header at the start of every connection.
    pub accept_proxy: Option<Accept>,
    /// Networks whose PROXY headers are trusted.
    #[serde(with = "list")]
    pub trusted_networks: Vec<Network>,
    pub route: Vec<Route>,
    pub kernel_tls: KernelTls,
    /// Maximum length of the accept queue; the kernel limits it to net.core.somaxconn.
    #[serde(with = "Whole::<1, 65_535>")]
    pub backlog: u32 = 4096,
    /// TCP_DEFER_ACCEPT: accept a connection only when the client has sent data. 0 is off; absent
    /// means 10 s if clients send first.
    #[serde(with = "Time::<0, { 32_767 * SECOND }>")]
    pub defer_accept: Option<Duration>,
    /// TCP_FASTOPEN queue length.
    #[serde(with = "WholeOr::<Off, 1, 65_535>")]
    pub fast_open: Option<u32>,
    /// SO_KEEPALIVE: idle time before the first probe.
    #[serde(with = "TimeOr::<Off, SECOND, { 32_767 * SECOND }>")]
    pub keepalive: Option<Duration>,
    /// SO_RCVBUF in bytes.
    #[serde(with = "BytesOr::<System, 4096, { 256 << 20 }>")]
    pub receive_buffer: Option<usize>,
    /// SO_SNDBUF in bytes.
    #[serde(with = "BytesOr::<System, 4096, { 256 << 20 }>")]
    pub send_buffer: Option<usize>,
}
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Port in the `https` URL.
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
        port.map(|port| Self { port })
            .ok_or("not a redirect target".into())
    }

    fn write(&self) -> String {
        match self.port {
            HTTPS => "https".to_owned(),
            port => format!("https:{port}"),
        }
    }
}

as_text!(Redirect);

/// Protocol of a listener's clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenMode {
    /// TLS from the first byte. The route decides whether TLS is terminated or passed through.
    #[default]
    Tls,
    /// Plain TCP. With TLS to the servers, this corresponds to stunnel's client mode.
    Plain,
    /// A STARTTLS protocol. TLS begins at the client's request and is terminated.
    StartTls(Protocol),
}

impl ListenMode {
    /// Returns whether becket connects to the server before it reads from the client, because the
    /// server may send first. The server name in the ClientHello then cannot select the server.
    pub fn connects_first(self) -> bool {
        match self {
            Self::Tls => false,
            Self::Plain => true,
            Self::StartTls(protocol) => !protocol.client_speaks_first(),
        }
    }
}

impl ListenerSection {
    pub fn speaks(&self) -> ListenMode {
        match (self.tls, self.mode, self.starttls) {
            (false, ..) => ListenMode::Plain,
            (true, Mode::Terminate, Some(protocol)) => ListenMode::StartTls(protocol),
            (true, ..) => ListenMode::Tls,
        }
    }

    /// Returns the configured behaviour. By default, STARTTLS listeners reject the client and all
    /// other listeners continue without ALPN.
    pub fn alpn_mismatch(&self) -> AlpnMismatch {
        let written = self.alpn_mismatch;
        written.unwrap_or(match self.speaks() {
            ListenMode::StartTls(_) => AlpnMismatch::Refuse,
            _ => AlpnMismatch::Continue,
        })
    }

    /// Returns the configured behaviour. By default, STARTTLS listeners reject the client and all
    /// other listeners use the default certificate.
    pub fn unknown_names(&self) -> UnknownNames {
        let written = self.unknown_names;
        written.unwrap_or(match self.speaks() {
            ListenMode::StartTls(_) => UnknownNames::Refuse,
            _ => UnknownNames::Default,
        })
    }

    pub fn passes_cancels(&self) -> bool {
        let speaks = self.speaks() == ListenMode::StartTls(Protocol::Postgresql);
        speaks && self.cancel_requests.unwrap_or(true)
    }

    /// Returns the TCP_DEFER_ACCEPT time, for which the kernel delays accepting a connection
    /// without data.
    pub fn defers_accept(&self) -> Option<Duration> {
        // A client that waits for the server sends nothing, so TCP_DEFER_ACCEPT would only delay
        // it.
        let default = if self.speaks().connects_first() {
            Duration::ZERO
        } else {
            DEFER_ACCEPT
        };
        let time = self.defer_accept.unwrap_or(default);
        Some(time).filter(|time| !time.is_zero())
    }

    /// Returns the ALPN protocols to negotiate: the configured ones, or by default the names that
    /// clients of the STARTTLS protocol offer. IANA registers these names, except Exim's two for
    /// SMTP. libpq requires `postgresql` for direct TLS.
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
/// `[[listener.route]]`: settings for the clients that match a server name or an ALPN protocol.
pub struct Route {
    /// Server names, exact or `*.name`. If empty, all clients match, even without a server name.
    pub names: Vec<NamePattern>,
    /// Termination or passthrough of TLS; absent means the listener's mode.
    pub mode: Option<Mode>,
    /// ALPN protocols. Only clients that offer one of them match.
    #[serde(with = "maybe_list")]
    pub alpn: Option<Vec<Vec<u8>>>,
    /// Name of a `[[policy]]`.
    pub policy: Option<String>,
    /// Name of a `[[backend]]`.
    pub backend: Option<String>,
}
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Certificate {
    /// Path of a bundle (chain and key in one file), a directory of bundles, or a certbot
    /// directory.
    Path(String),
    /// Separate files for chain and key, with an optional OCSP response and policy. The key may be
    /// on a token.
    Pair(Pair),
}

impl Certificate {
    pub fn policy(&self) -> Option<&str> {
        match self {
            Self::Path(_) => None,
            Self::Pair(pair) => pair.policy.as_deref(),
        }
    }

    /// Returns the paths of this entry's files. Returns the folder of a glob pattern instead of the
    /// matching files.
    pub fn files(&self) -> Vec<&str> {
        match self {
            Self::Path(path) => vec![glob::split(path).map_or(path, |(folder, _)| folder)],
            Self::Pair(pair) => {
                let key = match &pair.key {
                    Some(KeySource::File(path)) => Some(path.as_str()),
                    // A token's PIN file is omitted, because only the process that uses the token
                    // reads it.
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
    /// File with the certificate chain, leaf first.
    pub chain: Option<String>,
    pub key: Option<KeySource>,
    /// File with the OCSP response in DER to staple.
    pub ocsp: Option<String>,
    /// Name of the `[[policy]]` for clients to which this certificate is sent.
    pub policy: Option<String>,
}
}

impl<'de> Deserialize<'de> for Certificate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let accepted = "a file, a directory or { chain = \"..\", key = \"..\" }";
        text_or_table(deserializer, accepted, Self::Path, Self::Pair)
    }
}

/// Default for TCP_DEFER_ACCEPT; equal to the default handshake timeout.
const DEFER_ACCEPT: Duration = Duration::from_secs(10);
/// Port of `https`, RFC 9110, section 4.2.2.
const HTTPS: u16 = 443;
