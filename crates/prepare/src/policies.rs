//! Builds policies: suites, groups and client certificates.
//!
//! A listener without a policy key uses the policy with its own name, or the defaults if there is
//! none. Two policies never share sessions, even with equal contents, because the digest includes
//! the name.

use std::collections::HashMap;
use std::sync::Arc;

use becket_config::choices::{ClientCertificates, ClientTrust};
use becket_config::key;
use becket_config::notation::Text;
use becket_config::policy;
use becket_config::suites::Suites;
use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;
use rustls::server::VerifierBuilderError;
use rustls::{RootCertStore, SupportedCipherSuite};
use rustls_pki_types::CertificateDer;

use super::ConfigBuilder;
use super::crl::RevocationLists;
use becket_keys::authorities;
use becket_tls::config::Policy;
use becket_tls::policy::{contents, digest, versions};
use becket_tls::{chain, verifier};

impl ConfigBuilder<'_> {
    pub(super) fn policies(&mut self) -> HashMap<String, Arc<Policy>> {
        let file = self.file;
        let mut policies = HashMap::new();
        for (policy, path) in file.policy.iter().zip(file.policy_paths()) {
            let made = self.policy(&path, policy.clone());
            let made = self.running_policy(&made).unwrap_or_else(|| Arc::new(made));
            policies.entry(policy.name.to_string()).or_insert(made);
        }
        policies
    }

    /// Returns the policy from the running configuration, if its keys and file contents are
    /// unchanged.
    fn running_policy(&self, made: &Policy) -> Option<Arc<Policy>> {
        let running = self.environment.running?;
        let routes = running.listeners.iter().flat_map(|it| &it.routes);
        let mut policies = routes.filter_map(|route| route.policy.as_ref());
        let is_same = |it: &&Arc<Policy>| (&it.keys, it.contents) == (&made.keys, made.contents);
        let same = policies.find(is_same).cloned();
        same.filter(|_| running.file.limits == self.file.limits)
    }

    /// Builds one policy. `path` is the configuration path of the policy, or of the listener if it names no policy.
    /// Error messages start with `path`.
    pub(super) fn policy(&mut self, path: &str, keys: policy::Policy) -> Policy {
        let (pins, roots) = self.client_authorities(path, &keys).unzip();
        let pins = pins.unwrap_or_default();
        let mut lists = Vec::new();
        let verifier = roots.as_ref().and_then(|roots| {
            let asked = RevocationLists {
                files: &keys.crl,
                authorities: roots,
                key: "client-ca",
            };
            lists = self.revocation(path, &asked);
            let trusted = (roots, pins.clone());
            let verifier = verifier::of_clients(&keys, trusted, &lists, self.file.limits);
            let refused = |error: VerifierBuilderError| {
                let path = key!(path, keys.client_ca);
                self.report
                    .refuse(path, error.to_string(), "CA certificates, PEM");
            };
            verifier.map_err(refused).ok()
        });
        let roots = roots.unwrap_or_else(|| Arc::new(RootCertStore::empty()));
        Policy {
            digest: digest(
                &keys.name,
                (keys.client_certificates, keys.client_trust),
                &roots,
                keys.requires_ems(),
            ),
            contents: contents(&roots, &pins, &lists),
            suites: suites(&keys),
            trial: keys
                .tried()
                .map(|tried| self.environment.trials.of(tried.clone(), suites(&tried))),
            verifier,
            keys,
        }
    }

    /// Returns the pinned client certificates and the trust anchors. No certificate is pinned
    /// unless `client_trust` is `certificates`. Returns `None` if client certificates are off or
    /// the file is invalid.
    fn client_authorities(
        &mut self,
        path: &str,
        policy: &policy::Policy,
    ) -> Option<(Vec<CertificateDer<'static>>, Arc<RootCertStore>)> {
        if policy.client_certificates == ClientCertificates::Off {
            return None;
        }
        let path = key!(path, policy.client_ca);
        let file = self.environment.base.join(policy.client_ca.as_ref()?);
        let certificates =
            authorities::certificates(&self.environment.files, &path, &file, &mut self.report)?;
        let roots = authorities::anchors(&certificates, &path, &file, &mut self.report)?;
        if policy.client_trust == ClientTrust::Certificates {
            return Some((certificates, Arc::new(roots)));
        }
        if roots.roots.iter().any(chain::is_useless) {
            let fault =
                "a CA with an RSASSA-PSS key (id-RSASSA-PSS): its certificates are rejected";
            self.report.remark(path, fault);
        }
        Some((Vec::new(), Arc::new(roots)))
    }
}

/// Returns the configured suites, or all suites in the fastest order for this host. Omits the
/// suites of disabled TLS versions.
fn suites(policy: &policy::Policy) -> Vec<SupportedCipherSuite> {
    let default = if aes_in_hardware() {
        ["AES-128-GCM", "AES-256-GCM", "CHACHA20-POLY1305"]
    } else {
        ["CHACHA20-POLY1305", "AES-128-GCM", "AES-256-GCM"]
    };
    let default = || default.iter().filter_map(|name| Suites::parse(name).ok());
    let listed = policy.suites.clone().unwrap_or_else(|| default().collect());
    let known = |number| {
        let mut all = ALL_CIPHER_SUITES.iter().copied();
        all.find(|suite| u16::from(suite.suite()) == number)
    };
    let suites = listed
        .into_iter()
        .flat_map(Suites::numbers)
        .filter_map(known);
    let versions = versions(&policy.versions);
    suites
        .filter(|suite| versions.contains(&suite.version()))
        .collect()
}

/// Returns `true` if AES is faster than ChaCha20 on this host.
fn aes_in_hardware() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}
