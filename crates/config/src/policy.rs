//! `[[policy]]`: TLS parameters of a group of clients; and `[backend.tls]`, those towards servers.

use std::fmt;

use becket_proto::starttls::Protocol;
use rustls_pki_types::{DnsName, ServerName};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::address::SectionName;
use crate::choices::{ClientCertificates, ClientTrust, KernelTls, UnknownStatus, Verify};
use crate::client_name::ClientName;
use crate::listener::Certificate;
use crate::notation::{BytesOr, Off, Text, ValueError, as_text};
use crate::section::section;
use crate::suites::{KeyExchangeGroup, ServedVersion, Suites};

section! {
/// `[[policy]]`
pub struct Policy {
    /// Unique; part of the digest that no session crosses.
    pub name: SectionName,
    /// At least one.
    pub versions: Vec<ServedVersion> = vec![ServedVersion::Tls12, ServedVersion::Tls13],
    /// Most preferred first; the default depends on the machine.
    pub suites: Option<Vec<Suites>>,
    /// A set: the client's order decides.
    pub groups: Vec<KeyExchangeGroup> = vec![
        KeyExchangeGroup::X25519MlKem768,
        KeyExchangeGroup::X25519,
        KeyExchangeGroup::P256,
        KeyExchangeGroup::P384,
    ],
    /// Whether clients authenticate.
    pub client_certificates: ClientCertificates,
    /// A bundle of CAs.
    pub client_ca: Option<String>,
    /// What is in it.
    pub client_trust: ClientTrust,
    /// Names of which a client's certificate must have one; any where there is none.
    pub client_names: Vec<ClientName>,
    /// Files with certificate revocation lists, PEM or DER.
    pub crl: Vec<String>,
    /// What to do with a certificate of whose issuer there is no list.
    pub crl_unknown: UnknownStatus,
    /// Refuse TLS 1.2 without extended master secret (RFC 7627); the default follows `client-certificates`.
    pub require_ems: Option<bool>,
    /// Hand out tickets to TLS 1.2 clients; without, they resume by session ID.
    pub tls12_tickets: bool = true,
    /// Early data (0-RTT) that is taken. At least a whole record and its seal, which a client may send at once and rustls
    /// counts where a session resumes without early data; more than 64 KiB is an upload, which gains nothing.
    #[serde(with = "BytesOr::<Off, { 17 << 10 }, { 64 << 10 }>")]
    pub early_data: Option<u32>,
    /// Judges clients and refuses nobody.
    pub trial: Option<Trial>,
}
}

section! {
/// `[policy.trial]`: what would be another than in its policy. What is absent is as there.
pub struct Trial {
    /// At least one.
    pub versions: Option<Vec<ServedVersion>>,
    /// In any order.
    pub suites: Option<Vec<Suites>>,
    /// In any order.
    pub groups: Option<Vec<KeyExchangeGroup>>,
    /// Whether clients without one would be refused.
    pub client_certificates: Option<ClientCertificates>,
    /// Refuse TLS 1.2 without extended master secret; the default follows the key of the policy, then `client-certificates`.
    pub require_ems: Option<bool>,
}
}

impl Policy {
    /// One of this name with every key at its default.
    pub fn named(name: &str) -> Self {
        Self {
            name: SectionName(name.into()),
            ..Self::default()
        }
    }

    /// The policy as its trial would have it.
    pub fn tried(&self) -> Option<Self> {
        let trial = self.trial.clone()?;
        let certificates = trial.client_certificates;
        Some(Self {
            versions: trial.versions.unwrap_or_else(|| self.versions.clone()),
            suites: trial.suites.or_else(|| self.suites.clone()),
            groups: trial.groups.unwrap_or_else(|| self.groups.clone()),
            client_certificates: certificates.unwrap_or(self.client_certificates),
            require_ems: trial.require_ems.or(self.require_ems),
            trial: None,
            ..self.clone()
        })
    }

    /// Whether TLS 1.2 without extended master secret is refused.
    pub fn requires_ems(&self) -> bool {
        let asks = self.client_certificates != ClientCertificates::Off;
        self.require_ems.unwrap_or(asks)
    }
}

section! {
/// `[backend.tls]`
pub struct ServerTls {
    /// Whether certificates are verified.
    pub verify: Verify,
    /// A bundle of CAs; absent is the system's.
    pub ca: Option<String>,
    /// Files with revocation lists.
    pub crl: Vec<String>,
    /// What to do with certificates of which no list knows.
    pub crl_unknown: UnknownStatus,
    /// The name to verify; absent is the host of the server's address.
    pub name: Option<VerifiedName>,
    /// The name to send; absent is the name to verify, or none where that is an address.
    pub sni: Option<Sni>,
    /// Chain and key to show to servers that ask.
    pub client_certificate: Option<Certificate>,
    /// The protocol in which servers are asked for TLS; absent begins with TLS.
    pub starttls: Option<Protocol>,
    /// Protocols to offer.
    pub alpn: ServerAlpn = ServerAlpn::Fixed(Vec::new()),
    /// Whether the kernel takes over the TLS of connections that carry bulk.
    pub kernel_tls: KernelTls,
    /// At least one.
    pub versions: Vec<ServedVersion> = vec![ServedVersion::Tls12, ServedVersion::Tls13],
}
}

/// A name that a certificate must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedName(pub ServerName<'static>);

impl Text for VerifiedName {
    const ACCEPTED: &str = "a DNS name or an IP address";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let name = ServerName::try_from(text.to_owned());
        name.map(Self).map_err(|_| "not a name".into())
    }

    fn write(&self) -> String {
        self.0.to_str().into_owned()
    }
}

/// The server name that is sent to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sni {
    /// Always this one.
    Fixed(ServerName<'static>),
    /// The one that the client sent, or none.
    Client,
    /// None.
    Off,
}

impl Text for Sni {
    const ACCEPTED: &str = "a DNS name, \"client\" or \"off\"";

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "off" => Ok(Self::Off),
            "client" => Ok(Self::Client),
            name => match DnsName::try_from(name.to_owned()) {
                Ok(name) => Ok(Self::Fixed(ServerName::DnsName(name))),
                Err(_) => Err("not a name".into()),
            },
        }
    }

    fn write(&self) -> String {
        match self {
            Self::Fixed(name) => name.to_str().into_owned(),
            Self::Client => "client".to_owned(),
            Self::Off => "off".to_owned(),
        }
    }
}

as_text!(VerifiedName, Sni);

/// What is offered to a server by ALPN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAlpn {
    /// These protocols; none means that ALPN is not offered.
    Fixed(Vec<Vec<u8>>),
    /// The protocol that was negotiated with the client, if one was.
    Client,
}

impl Serialize for ServerAlpn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(protocols) => crate::notation::list::serialize(protocols, serializer),
            Self::Client => serializer.serialize_str("client"),
        }
    }
}

impl<'de> Deserialize<'de> for ServerAlpn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl<'de> Visitor<'de> for Shapes {
            type Value = ServerAlpn;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of protocols or \"client\"")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Self::Value, E> {
                match word {
                    "client" => Ok(ServerAlpn::Client),
                    _ => Err(crate::notation::refused(
                        "not one of the choices",
                        "a list of protocols or \"client\"",
                    )),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                let list = de::value::SeqAccessDeserializer::new(list);
                crate::notation::list::deserialize(list).map(ServerAlpn::Fixed)
            }
        }
        deserializer.deserialize_any(Shapes)
    }
}
