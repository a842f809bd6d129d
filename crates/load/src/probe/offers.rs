//! The offers of a server, as a row has them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use becket_keys::facts;
use becket_keys::keys::names_of;
use becket_keys::presented::Presented;
use rustls_pki_types::CertificateDer;
use serde::Serialize;

use crate::clock;

/// The offers of a server.
#[derive(Debug, Default, Serialize)]
pub(super) struct Offers {
    pub server: String,
    pub address: Option<SocketAddr>,
    /// Such as `TLSv1.2`, the newest first.
    pub versions: Vec<&'static str>,
    /// The error of the handshake in each version that the server does not offer.
    pub refused: BTreeMap<&'static str, String>,
    /// The suite that the server chose in each version.
    pub suites: BTreeMap<&'static str, String>,
    /// The group that it chose in its newest version.
    pub group: Option<String>,
    /// `psk`, `ticket` and `id`: by what it resumed a session.
    pub resumes_by: Vec<&'static str>,
    /// Lifetime of its tickets in seconds, by kind; 604800 means a week or more.
    pub ticket_lifetime_s: BTreeMap<&'static str, u32>,
    /// Bytes of early data that its tickets allow.
    pub early_data_bytes: Option<u32>,
    pub certificate: Option<ServerCertificate>,
    /// Why there is nothing above.
    pub error: Option<String>,
}

/// The certificate that a server presents; it is not verified.
#[derive(Debug, Serialize)]
pub(super) struct ServerCertificate {
    /// Such as `RSA2048` or `EC256`.
    pub key: Option<String>,
    pub names: Vec<String>,
    /// Negative where it has expired.
    pub days_left: Option<i64>,
    /// Certificates that the server sends, this one included.
    pub chain: usize,
}

impl ServerCertificate {
    pub(super) fn of(chain: &[CertificateDer<'_>]) -> Option<Self> {
        let leaf = chain.first()?;
        let read = facts::certificate(leaf);
        let names = read.map(|read| {
            let (names, others) = names_of(&read);
            let names = names.iter().map(ToString::to_string);
            names.chain(others).collect()
        });
        let now = clock::unix_seconds() as i64;
        Some(Self {
            key: Presented::of(leaf).key.map(String::from),
            names: names.unwrap_or_default(),
            days_left: facts::not_after(leaf).map(|end| (end.0 as i64 - now).div_euclid(86_400)),
            chain: chain.len(),
        })
    }
}
