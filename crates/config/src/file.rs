//! The whole configuration file: one field per table.
//!
//! A key is a field of its section's struct, with a default and a notation that parses and checks
//! the value. A test compares `docs/reference/configuration.md` with these types.

use std::borrow::Cow;
use std::time::Duration;

use crate::acme::Acme;
use crate::backend::Backend;
use crate::choices::KernelTls;
use crate::cluster::Cluster;
use crate::listener::{Certificate, ListenerSection};
use crate::policy::Policy;
use crate::process::{Admin, Admission, LimitsSection, Log, Process, Sessions, Timeouts};
use crate::section::section;

section! {
pub struct File {
    pub listener: Vec<ListenerSection>,
    pub policy: Vec<Policy>,
    pub backend: Vec<Backend>,
    pub limits: LimitsSection,
    pub timeouts: Timeouts,
    pub sessions: Sessions,
    pub admission: Admission,
    pub acme: Option<Acme>,
    pub cluster: Option<Cluster>,
    pub log: Log,
    pub admin: Admin,
    pub process: Process,
}
}

impl File {
    /// Returns the interval of ticket key rotation. A ticket is valid for one to two intervals.
    pub fn ticket_rotation(&self) -> Duration {
        let shared = self.cluster.as_ref().map(|cluster| cluster.rotation);
        let written = shared.or(self.sessions.ticket_rotation);
        written.unwrap_or(TICKET_ROTATION)
    }

    pub fn session_max_age(&self) -> Duration {
        let cluster = self.cluster.as_ref();
        let shared = cluster.and_then(|cluster| cluster.session_max_age);
        shared.or(self.sessions.max_age).unwrap_or(MAX_AGE)
    }

    /// Returns whether TLS 1.2 clients receive tickets under this policy. A cluster must also set
    /// `cluster.tls12-tickets`.
    pub fn tls12_tickets(&self, policy: &Policy) -> bool {
        let cluster = self.cluster.as_ref();
        policy.tls12_tickets && cluster.is_none_or(|cluster| cluster.tls12_tickets)
    }

    /// Returns the key paths of the settings that enable kernel TLS.
    pub fn asks_for_kernel_tls(&self) -> impl Iterator<Item = String> {
        let listeners = self.listener.iter();
        let listeners = listeners.filter(|one| one.kernel_tls == KernelTls::Bulk);
        let listeners = listeners.map(|one| format!("listener[{}].kernel-tls", one.name));
        let bulk = |one: &&Backend| {
            let tls = one.tls.as_ref();
            tls.is_some_and(|tls| tls.kernel_tls == KernelTls::Bulk)
        };
        let backends = self.backend.iter().filter(bulk);
        listeners.chain(backends.map(|one| format!("backend[{}].tls.kernel-tls", one.name)))
    }

    /// Returns all configured files and folders with certificates, keys, revocation lists or OCSP
    /// responses. The files of a group are loaded together.
    pub fn files_of_certificates(&self) -> Vec<Vec<Cow<'_, str>>> {
        let listeners = self.listener.iter();
        let shown = listeners.flat_map(|listener| &listener.certificates);
        let shown = shown.map(Certificate::files);
        let backends = self.backend.iter().filter_map(|it| it.tls.as_ref());
        let of_backends = backends.map(|tls| {
            let own = tls.client_certificate.iter().flat_map(Certificate::files);
            let of_servers = tls.ca.iter().chain(&tls.crl);
            own.chain(of_servers.map(String::as_str)).collect()
        });
        let of_clients = self.policy.iter().map(|policy| {
            let files = policy.client_ca.iter().chain(&policy.crl);
            files.map(String::as_str).collect()
        });
        let groups = shown.chain(of_backends).chain(of_clients);
        let groups = groups.map(|files: Vec<_>| files.into_iter().map(Cow::Borrowed).collect());
        let managed = self
            .acme
            .iter()
            .map(|acme| vec![Cow::Owned(acme.bundles())]);
        groups.chain(managed).collect()
    }
}

/// Eight hours, so that clients can resume within a working day.
const TICKET_ROTATION: Duration = Duration::from_secs(8 * 3600);
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
