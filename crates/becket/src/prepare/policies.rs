//! Makes policies: suites, groups and client certificates.
//!
//! A listener that names no policy has the one of its own name, or else one with every default.
//! Two policies never share sessions, whatever they have in common: the digest covers the name.

use std::collections::HashMap;
use std::sync::Arc;

use becket_config::choices::ClientCertificates;
use becket_config::key;
use becket_config::notation::Text;
use becket_config::policy;
use becket_config::suites::{Group, Suites, Version};
use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::{ALL_CIPHER_SUITES, kx_group};
use rustls::{ProtocolVersion, SupportedCipherSuite};

use super::Draft;
use crate::config::{ClientAuth, Policy, Versions};
use crate::pki::keys;
use crate::tls::policy::digest;
use crate::tls::{chain, verifier};

impl Draft<'_> {
    /// All policies that the file names.
    pub(super) fn policies(&mut self) -> HashMap<String, Arc<Policy>> {
        let file = self.file;
        let mut policies = HashMap::new();
        for (policy, path) in file.policy.iter().zip(file.policy_paths()) {
            let made = Arc::new(self.policy(&path, &policy.name, policy));
            policies.entry(policy.name.to_string()).or_insert(made);
        }
        policies
    }

    /// One policy; `path` is where it is, or the listener it is made for.
    pub(super) fn policy(&mut self, path: &str, name: &str, policy: &policy::Policy) -> Policy {
        let versions = Versions::of(&policy.versions);
        let client_auth = self.client_auth(path, policy);
        let revocation = self.revocation_of_clients(path, policy, &client_auth);
        let verifier = verifier::of_clients(
            &client_auth,
            &revocation,
            (&self.file.limits).into(),
            policy.client_names.clone(),
        );
        let require_ems = policy
            .require_ems
            .unwrap_or(!matches!(client_auth, ClientAuth::Off));
        let cluster = self.file.cluster.as_ref();
        Policy {
            name: name.to_owned(),
            digest: digest(name, &client_auth, require_ems),
            versions,
            suites: suites(policy, versions),
            groups: policy.groups.iter().copied().map(group).collect(),
            client_auth,
            client_names: policy.client_names.clone(),
            revocation,
            verifier: verifier.unwrap_or_else(|error| {
                let path = key!(path, policy.client_ca);
                self.report
                    .refuse(path, error.to_string(), "CA certificates, PEM");
                None
            }),
            require_ems,
            tls12_tickets: policy.tls12_tickets
                && cluster.is_none_or(|cluster| cluster.tls12_tickets),
            early_data: policy.early_data.unwrap_or(0),
        }
    }

    fn client_auth(&mut self, path: &str, policy: &policy::Policy) -> ClientAuth {
        let path = key!(path, policy.client_ca);
        let asked = policy.client_certificates;
        let Some(text) = &policy.client_ca else {
            return ClientAuth::Off;
        };
        if asked == ClientCertificates::Off {
            return ClientAuth::Off;
        }
        let file = self.world.base.join(text);
        let Some(roots) = keys::authorities(&self.world.files, &path, &file, &mut self.report)
        else {
            return ClientAuth::Off;
        };
        if roots.roots.iter().any(chain::is_useless) {
            let fault = "an authority with a key for RSASSA-PSS alone (id-RSASSA-PSS): no certificate of its is accepted";
            self.report.remark(path, fault);
        }
        match asked {
            ClientCertificates::Required => ClientAuth::Required(Arc::new(roots)),
            _ => ClientAuth::Optional(Arc::new(roots)),
        }
    }
}

impl Versions {
    /// Those of a list.
    pub(super) fn of(listed: &[Version]) -> Self {
        Self {
            tls12: listed.contains(&Version::Tls12),
            tls13: listed.contains(&Version::Tls13),
        }
    }
}

/// The suites of the file, or all, in the order that suits this machine; as far as a version allows them.
fn suites(policy: &policy::Policy, versions: Versions) -> Vec<SupportedCipherSuite> {
    let default = match aes_in_hardware() {
        true => ["AES-128-GCM", "AES-256-GCM", "CHACHA20-POLY1305"],
        false => ["CHACHA20-POLY1305", "AES-128-GCM", "AES-256-GCM"],
    };
    let default = || {
        default
            .iter()
            .filter_map(|name| Suites::parse(name).ok())
            .collect()
    };
    let listed = policy.suites.clone().unwrap_or_else(default);
    let mut suites = Vec::new();
    for number in listed.into_iter().flat_map(|suites| suites.numbers()) {
        let all = ALL_CIPHER_SUITES.iter();
        let named = all
            .copied()
            .filter(|suite| u16::from(suite.suite()) == number);
        suites.extend(named.filter(|suite| match suite.version().version {
            ProtocolVersion::TLSv1_2 => versions.tls12,
            _ => versions.tls13,
        }));
    }
    suites
}

fn group(group: Group) -> &'static dyn SupportedKxGroup {
    match group {
        Group::X25519MlKem768 => kx_group::X25519MLKEM768,
        Group::X25519 => kx_group::X25519,
        Group::P256 => kx_group::SECP256R1,
        Group::P384 => kx_group::SECP384R1,
    }
}

/// Whether AES costs less than ChaCha20 on this machine.
fn aes_in_hardware() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}
