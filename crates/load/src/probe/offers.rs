//! The TLS features that a server offers, as printed in its row.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use becket_keys::facts::{self, names_of};
use becket_keys::presented::Presented;
use rustls_pki_types::CertificateDer;
use serde::Serialize;

use crate::clock;

#[derive(Debug, Default, Serialize)]
pub(super) struct Offers {
    pub server: String,
    pub address: Option<SocketAddr>,
    /// Supported versions such as `TLSv1.2`, newest first.
    pub versions: Vec<&'static str>,
    /// Handshake failure for each version that the server rejects.
    pub refused: BTreeMap<&'static str, String>,
    /// Cipher suite that the server selected in each version.
    pub suites: BTreeMap<&'static str, String>,
    /// Key exchange group that the server selected in its newest version.
    pub group: Option<String>,
    /// Methods that resumed a session successfully: `psk`, `ticket` and `id`.
    pub resumes_by: Vec<&'static str>,
    /// Ticket lifetime in seconds by method; 604800 means a week or more.
    pub ticket_lifetime_s: BTreeMap<&'static str, u32>,
    /// Maximum early data in bytes, from the server's tickets.
    pub early_data_bytes: Option<u32>,
    pub certificate: Option<ServerCertificate>,
    /// Reason why the probe failed; the other fields are then empty.
    pub error: Option<String>,
}

/// Certificate that a server presents. It is not verified.
#[derive(Debug, Serialize)]
pub(super) struct ServerCertificate {
    /// Key type and size, such as `RSA2048` or `EC256`.
    pub key: Option<String>,
    pub names: Vec<String>,
    /// Days until expiry; negative after expiry.
    pub days_left: Option<i64>,
    /// Number of certificates that the server sends, including this one.
    pub chain: usize,
}

impl ServerCertificate {
    pub(super) fn of(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let leaf = chain.first()?;
        let read = facts::certificate(leaf);
        let names = read.as_ref().map(|read| {
            let (names, others) = names_of(read);
            let names = names.iter().map(ToString::to_string);
            names.chain(others).collect()
        });
        let now = clock::unix_seconds() as i64;
        Some(Self {
            key: read.as_ref().and_then(|read| Presented::of(read).key()),
            names: names.unwrap_or_default(),
            days_left: facts::not_after(leaf).map(|end| (end.0 as i64 - now).div_euclid(86_400)),
            chain: chain.len(),
        })
    }
}
