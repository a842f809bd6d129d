//! `[[policy]]` as written.

use serde::{Deserialize, Serialize};

use super::Scalar;
use crate::choices::UnknownStatus;

/// `[[policy]]`: TLS parameters of a group of clients.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FilePolicy {
    /// Unique.
    pub name: Option<String>,
    /// `1.2`, `1.3`.
    pub versions: Vec<FileVersion>,
    /// Most preferred first; the default depends on the machine.
    pub suites: Option<Vec<String>>,
    /// A set.
    pub groups: Vec<String>,
    /// Whether clients authenticate.
    pub client_certificates: FileClientCertificates,
    /// A bundle of CAs.
    pub client_ca: Option<String>,
    /// Files with certificate revocation lists, PEM or DER.
    pub crl: Vec<String>,
    /// What to do with a certificate of whose issuer there is no list.
    pub crl_unknown: UnknownStatus,
    /// Refuse TLS 1.2 without extended master secret; the default follows `client-certificates`.
    pub require_ems: Option<bool>,
    /// Hand out tickets to TLS 1.2 clients.
    pub tls12_tickets: bool,
    /// `off` or a size.
    pub early_data: Scalar,
}

impl Default for FilePolicy {
    fn default() -> Self {
        Self {
            name: None,
            versions: vec![FileVersion::Tls12, FileVersion::Tls13],
            suites: None,
            groups: ["X25519MLKEM768", "X25519", "P-256", "P-384"]
                .map(String::from)
                .to_vec(),
            client_certificates: FileClientCertificates::default(),
            client_ca: None,
            crl: Vec::new(),
            crl_unknown: UnknownStatus::default(),
            require_ems: None,
            tls12_tickets: true,
            early_data: "off".into(),
        }
    }
}

/// A TLS version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum FileVersion {
    /// RFC 5246.
    #[serde(rename = "1.2")]
    Tls12,
    /// RFC 8446.
    #[serde(rename = "1.3")]
    Tls13,
}

/// Whether clients authenticate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileClientCertificates {
    /// No certificate is asked for.
    #[default]
    Off,
    /// A client without one is served.
    Optional,
    /// A client without one is refused.
    Required,
}
