//! TLS parameters: `[[policy]]` for clients, `[backend.tls]` for servers.

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
pub struct Policy {
    /// Unique name. Sessions are bound to a policy by a digest that includes the name.
    pub name: SectionName,
    /// TLS versions; at least one.
    pub versions: Vec<ServedVersion> = vec![ServedVersion::Tls12, ServedVersion::Tls13],
    /// Cipher suites, most preferred first. The default order depends on the CPU.
    pub suites: Option<Vec<Suites>>,
    /// Accepted key exchange groups. The client's order of preference applies.
    pub groups: Vec<KeyExchangeGroup> = vec![
        KeyExchangeGroup::X25519MlKem768,
        KeyExchangeGroup::X25519,
        KeyExchangeGroup::P256,
        KeyExchangeGroup::P384,
    ],
    pub client_certificates: ClientCertificates,
    /// PEM file with the certificates against which client certificates are verified.
    pub client_ca: Option<String>,
    /// Role of the certificates in `client-ca`.
    pub client_trust: ClientTrust,
    /// Names of which a client's certificate must contain at least one. If empty, all names are
    /// accepted.
    pub client_names: Vec<ClientName>,
    /// Files with certificate revocation lists, PEM or DER.
    pub crl: Vec<String>,
    /// Behaviour for a certificate whose issuer has no revocation list.
    pub crl_unknown: UnknownStatus,
    /// Reject TLS 1.2 without extended master secret (RFC 7627). Defaults to `true` if client
    /// certificates are requested.
    pub require_ems: Option<bool>,
    /// Issue tickets to TLS 1.2 clients; otherwise they resume by session ID.
    pub tls12_tickets: bool = true,
    /// Maximum length of early data (0-RTT) in bytes, from one full TLS record to 64 KiB. Longer
    /// requests gain nothing from 0-RTT.
    #[serde(with = "BytesOr::<Off, { 17 << 10 }, { 64 << 10 }>")]
    pub early_data: Option<u32>,
    /// Stricter settings against which clients are only counted, never rejected.
    pub trial: Option<Trial>,
}
}

section! {
/// `[policy.trial]`: settings to test before they become part of the policy. Absent keys default to
/// the policy's values.
pub struct Trial {
    /// TLS versions; at least one.
    pub versions: Option<Vec<ServedVersion>>,
    /// Cipher suites in any order.
    pub suites: Option<Vec<Suites>>,
    /// Key exchange groups in any order.
    pub groups: Option<Vec<KeyExchangeGroup>>,
    pub client_certificates: Option<ClientCertificates>,
    /// Reject TLS 1.2 without extended master secret. Defaults to the policy's value; if that is
    /// unset, to `true` if client certificates are requested.
    pub require_ems: Option<bool>,
}
}

impl Policy {
    pub fn named(name: &str) -> Self {
        Self {
            name: SectionName(name.into()),
            ..Self::default()
        }
    }

    /// Returns the policy with its trial settings applied, or `None` if it has no trial.
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

    pub fn requires_ems(&self) -> bool {
        let asks = self.client_certificates != ClientCertificates::Off;
        self.require_ems.unwrap_or(asks)
    }
}

section! {
pub struct ServerTls {
    pub verify: Verify,
    /// PEM file of CA certificates; absent means the CA certificates of the system.
    pub ca: Option<String>,
    /// Files with revocation lists.
    pub crl: Vec<String>,
    /// Behaviour for certificates whose issuer has no revocation list.
    pub crl_unknown: UnknownStatus,
    /// Name that the server's certificate must contain; absent means the host of the server's
    /// address.
    pub name: Option<VerifiedName>,
    /// Server name (SNI) to send; absent means `name`, or no SNI if that is an IP address.
    pub sni: Option<Sni>,
    /// Chain and key for servers that request a client certificate.
    pub client_certificate: Option<Certificate>,
    /// STARTTLS protocol of the servers; absent means TLS from the first byte.
    pub starttls: Option<Protocol>,
    /// ALPN protocols to offer.
    pub alpn: ServerAlpn = ServerAlpn::Fixed(Vec::new()),
    pub kernel_tls: KernelTls,
    /// TLS versions; at least one.
    pub versions: Vec<ServedVersion> = vec![ServedVersion::Tls12, ServedVersion::Tls13],
}
}

/// Name that a server's certificate must contain.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sni {
    /// A configured name.
    Fixed(ServerName<'static>),
    /// The SNI of the client, if it sent one.
    Client,
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAlpn {
    /// Configured protocols; if empty, ALPN is not offered.
    Fixed(Vec<Vec<u8>>),
    /// The protocol negotiated with the client, if any.
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
