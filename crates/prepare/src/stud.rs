//! The `[cluster]` keys for sessions received from stud and hitch.
//!
//! The key of their datagrams is the SHA-1 hash of a certificate's RSA key in PKCS#1 form. With
//! other kinds of keys, stud and hitch use a key of zeros, which Becket does not accept.
//!
//! The sessions are stored under one policy. It must be in use, must allow TLS 1.2, and must not
//! request client certificates, because the sender does not report the identity of a client.

use std::sync::Arc;

use becket_cluster::stud::StudKey;
use becket_config::check::RSA_KEY;
use becket_config::cluster::Cluster;
use becket_config::error::Problem;
use becket_config::key;
use becket_proto::session::PolicyTag;
use rustls::ProtocolVersion;

use super::ConfigBuilder;
use becket_tls::config::{Listener, Policy, Stud};

impl ConfigBuilder<'_> {
    pub(super) fn stud(&mut self, listeners: &[Arc<Listener>]) -> Option<Stud> {
        let file = self.file.cluster.as_ref()?;
        if !file.receive_stud {
            return None;
        }
        let path = key!("cluster", file.stud_listen);
        let listen = self.udp_address(&path, file.stud_listen.as_ref());
        let key = self.stud_key(file);
        let routes = listeners.iter().flat_map(|listener| &listener.routes);
        let name = self.file.stud_policy();
        let mut policies = routes.filter_map(|route| route.policy.as_ref());
        let policy = policies.find(|policy| Some(&*policy.keys.name) == name)?;
        Some(Stud {
            listen: listen?,
            key: key?,
            policy_name: policy.keys.name.to_string(),
            policy: PolicyTag::from_digest(&policy.digest),
            suites: suites(policy),
            require_ems: policy.keys.requires_ems(),
        })
    }

    /// Derives the key of the datagrams from `cluster.stud-certificate`. With
    /// `cluster.secret-from-key`, a non-RSA key is only a warning, because beckets still share
    /// sessions with each other.
    fn stud_key(&mut self, file: &Cluster) -> Option<StudKey> {
        let path = &key!("cluster", file.stud_certificate);
        let text = file.stud_certificate.as_ref()?;
        let is_needed = file.secret_from_key.is_none();
        let key = self.of_private_key(path, text, RSA_KEY, |key| {
            let key = StudKey::of(key);
            if key.is_none() && is_needed {
                Err(NO_RSA_KEY)
            } else {
                Ok(key)
            }
        })?;
        if key.is_none() {
            let fault = format!("sessions of stud and hitch are not received: {NO_RSA_KEY}");
            self.report.warn(Problem::new(path, fault).text(text));
        }
        key
    }
}

fn suites(policy: &Policy) -> Vec<u16> {
    let suites = policy.suites.iter();
    suites
        .filter(|suite| suite.version().version == ProtocolVersion::TLSv1_2)
        .map(|suite| u16::from(suite.suite()))
        .collect()
}

const NO_RSA_KEY: &str =
    "not an RSA key; with other keys, stud and hitch use a key of zeros, which is not secret";
