//! `[backend.tls]` as written.
//!
//! `None` stands for a default that depends on something else: the system's CAs, the host of each
//! server's address. What the values mean is decided by `config/onward.rs`.

use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{FileCertificate, FileVersion};
use crate::choices::UnknownStatus;

/// `[backend.tls]`: TLS towards the servers.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileOnward {
    /// Whether certificates are verified.
    pub verify: FileVerify,
    /// A bundle of CAs; absent is the system's.
    pub ca: Option<String>,
    /// Files with revocation lists.
    pub crl: Vec<String>,
    /// What to do with certificates of which no list knows.
    pub crl_unknown: UnknownStatus,
    /// The name to verify; absent is the host of the server's address.
    pub name: Option<String>,
    /// A name, `off` or `client`; absent is the name to verify.
    pub sni: Option<String>,
    /// Chain and key to show to servers that ask.
    pub client_certificate: Option<FileCertificate>,
    /// Protocols, or `client`.
    pub alpn: FileServerAlpn,
    /// `1.2`, `1.3`.
    pub versions: Vec<FileVersion>,
}

impl Default for FileOnward {
    fn default() -> Self {
        Self {
            verify: FileVerify::default(),
            ca: None,
            crl: Vec::new(),
            crl_unknown: UnknownStatus::default(),
            name: None,
            sni: None,
            client_certificate: None,
            alpn: FileServerAlpn::List(Vec::new()),
            versions: vec![FileVersion::Tls12, FileVersion::Tls13],
        }
    }
}

/// Whether servers' certificates are verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileVerify {
    /// Chain, time and name.
    #[default]
    Full,
    /// Not at all.
    None,
}

/// `alpn` of `[backend.tls]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum FileServerAlpn {
    /// `client`: what was negotiated with the client.
    Word(String),
    /// Protocols, most preferred first.
    List(Vec<String>),
}

impl<'de> Deserialize<'de> for FileServerAlpn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl<'de> Visitor<'de> for Shapes {
            type Value = FileServerAlpn;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of protocols or \"client\"")
            }

            fn visit_str<E>(self, word: &str) -> Result<Self::Value, E> {
                Ok(FileServerAlpn::Word(word.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(FileServerAlpn::List)
            }
        }
        deserializer.deserialize_any(Shapes)
    }
}
