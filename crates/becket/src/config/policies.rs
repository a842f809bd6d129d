//! The part of `prepare` that makes policies: versions, suites, groups and client certificates.
//!
//! A listener that names no policy has the one of its own name, or else one with every default.
//! Two policies never share sessions, whatever they have in common: the digest covers the name.

use std::collections::HashMap;
use std::sync::Arc;

use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::{ALL_CIPHER_SUITES, kx_group};
use rustls::server::danger::ClientCertVerifier;
use rustls::{ProtocolVersion, SupportedCipherSuite};

use super::error::Problem;
use super::file::{FileClientCertificates, FilePolicy, FileVersion};
use super::prepare::Draft;
use super::read::labels;
use super::{ClientAuth, Policy, Revocation, Versions};
use crate::pki::keys;
use crate::tls::policy::digest;
use crate::tls::{chain, names, verifier};

impl Draft<'_> {
    /// All policies that the file names.
    pub(super) fn policies(&mut self) -> HashMap<String, Arc<Policy>> {
        let file = self.file;
        let names = || file.policy.iter().map(|policy| policy.name.as_deref());
        let paths = labels(names())
            .into_iter()
            .map(|label| format!("policy[{label}]"));
        let paths: Vec<String> = paths.collect();
        self.check_names(paths.iter().cloned().zip(names()));
        let mut policies = HashMap::new();
        for (policy, path) in file.policy.iter().zip(&paths) {
            let name = policy.name.clone().unwrap_or_default();
            let made = Arc::new(self.policy(path, &name, policy));
            policies.entry(name).or_insert(made);
        }
        policies
    }

    /// One policy; `path` is where it is, or the listener it is made for.
    pub(super) fn policy(&mut self, path: &str, name: &str, policy: &FilePolicy) -> Policy {
        let versions = self.versions(path, &policy.versions);
        let suites = self.suites(path, policy.suites.as_deref(), versions);
        let groups = self.groups(path, &policy.groups, versions);
        let client_auth = self.client_auth(path, policy);
        let revocation = self.revocation_of_clients(path, policy, &client_auth);
        let verifier = self.client_verifier(path, &client_auth, &revocation);
        let require_ems = policy
            .require_ems
            .unwrap_or(!matches!(client_auth, ClientAuth::Off));
        Policy {
            name: name.to_owned(),
            digest: digest(name, &client_auth, require_ems),
            versions,
            suites,
            groups,
            client_auth,
            revocation,
            verifier,
            require_ems,
            tls12_tickets: policy.tls12_tickets && self.tls12_tickets_allowed(),
            early_data: self.early_data(path, &policy.early_data, versions),
        }
    }

    pub(super) fn versions(&mut self, path: &str, listed: &[FileVersion]) -> Versions {
        if listed.is_empty() {
            let problem = Problem::new(format!("{path}.versions"), "empty").value("[]");
            self.report
                .error(problem.accepted("\"1.2\", \"1.3\" or both"));
        }
        Versions {
            tls12: listed.contains(&FileVersion::Tls12),
            tls13: listed.contains(&FileVersion::Tls13),
        }
    }

    fn suites(
        &mut self,
        path: &str,
        listed: Option<&[String]>,
        versions: Versions,
    ) -> Vec<SupportedCipherSuite> {
        let Some(listed) = listed else {
            return default_suites(versions);
        };
        let path = format!("{path}.suites");
        let mut suites: Vec<SupportedCipherSuite> = Vec::new();
        for (index, name) in listed.iter().enumerate() {
            let named = suites_named(name);
            let fault = match &named[..] {
                [] => "not a suite",
                named if named.iter().all(|suite| suites.contains(suite)) => "listed before",
                _ => "",
            };
            if !fault.is_empty() {
                let problem = Problem::new(format!("{path}[{index}]"), fault).text(name);
                self.report.error(problem.accepted(SUITES));
            }
            let new = named.into_iter().filter(|suite| !suites.contains(suite));
            let new: Vec<_> = new.collect();
            suites.extend(new);
        }
        for (wanted, version, name) in [
            (versions.tls12, ProtocolVersion::TLSv1_2, "1.2"),
            (versions.tls13, ProtocolVersion::TLSv1_3, "1.3"),
        ] {
            let any = suites
                .iter()
                .any(|suite| suite.version().version == version);
            if wanted && !any {
                let fault = format!("no suite for TLS {name}, which the policy allows");
                self.report
                    .error(Problem::new(&path, fault).accepted(SUITES));
            }
        }
        suites.retain(|suite| of_versions(suite, versions));
        suites
    }

    fn groups(
        &mut self,
        path: &str,
        listed: &[String],
        versions: Versions,
    ) -> Vec<&'static dyn SupportedKxGroup> {
        let path = format!("{path}.groups");
        let mut groups: Vec<&'static dyn SupportedKxGroup> = Vec::new();
        for (index, name) in listed.iter().enumerate() {
            let group = group_named(name);
            let fault = match group {
                None => "not a group",
                Some(group) if groups.iter().any(|other| other.name() == group.name()) => {
                    "listed before"
                }
                Some(group) => {
                    groups.push(group);
                    continue;
                }
            };
            let problem = Problem::new(format!("{path}[{index}]"), fault).text(name);
            self.report.error(problem.accepted(GROUPS));
        }
        for (wanted, version, name) in [
            (versions.tls12, ProtocolVersion::TLSv1_2, "1.2"),
            (versions.tls13, ProtocolVersion::TLSv1_3, "1.3"),
        ] {
            let any = groups.iter().any(|group| group.usable_for_version(version));
            if wanted && !any {
                let fault = format!("no group for TLS {name}, which the policy allows");
                self.report
                    .error(Problem::new(&path, fault).accepted(GROUPS));
            }
        }
        groups
    }

    fn client_verifier(
        &mut self,
        path: &str,
        client_auth: &ClientAuth,
        revocation: &Revocation,
    ) -> Option<Arc<dyn ClientCertVerifier>> {
        let built = verifier::of_clients(client_auth, revocation, self.most_chain);
        built.unwrap_or_else(|error| {
            let problem = Problem::new(format!("{path}.client-ca"), error.to_string());
            self.report.error(problem);
            None
        })
    }

    fn client_auth(&mut self, path: &str, policy: &FilePolicy) -> ClientAuth {
        let path = format!("{path}.client-ca");
        let asked = policy.client_certificates;
        let Some(text) = policy.client_ca.as_deref() else {
            if asked != FileClientCertificates::Off {
                let fault = "missing, though client certificates are asked for";
                self.report
                    .error(Problem::new(path, fault).accepted("a PEM file of CA certificates"));
            }
            return ClientAuth::Off;
        };
        if asked == FileClientCertificates::Off {
            // Somebody meant to lock this door.
            let fault = "given, but no client certificate is asked for";
            let problem = Problem::new(path, fault).text(text);
            self.report.error(
                problem.accepted("client-certificates = \"optional\" or \"required\" with it"),
            );
            return ClientAuth::Off;
        }
        let file = self.world.base.join(text);
        self.files.push(file.clone());
        let Some(roots) = keys::authorities(&self.world.files, &path, &file, &mut self.report)
        else {
            return ClientAuth::Off;
        };
        if roots.roots.iter().any(chain::is_useless) {
            let fault = "an authority with a key for RSASSA-PSS alone (id-RSASSA-PSS): no certificate of its is accepted";
            self.report.warn(Problem::new(path, fault).text(text));
        }
        match asked {
            FileClientCertificates::Required => ClientAuth::Required(Arc::new(roots)),
            _ => ClientAuth::Optional(Arc::new(roots)),
        }
    }
}

fn default_suites(versions: Versions) -> Vec<SupportedCipherSuite> {
    let order = match aes_in_hardware() {
        true => ["AES-128-GCM", "AES-256-GCM", "CHACHA20-POLY1305"],
        false => ["CHACHA20-POLY1305", "AES-128-GCM", "AES-256-GCM"],
    };
    let suites = order.into_iter().flat_map(suites_named);
    suites
        .filter(|suite| of_versions(suite, versions))
        .collect()
}

fn of_versions(suite: &SupportedCipherSuite, versions: Versions) -> bool {
    match suite.version().version {
        ProtocolVersion::TLSv1_2 => versions.tls12,
        _ => versions.tls13,
    }
}

/// The suites that a name stands for: one by its IANA name, three by the name of a cipher.
fn suites_named(name: &str) -> Vec<SupportedCipherSuite> {
    let cipher = name.replace('-', "_").to_ascii_uppercase();
    let short = CIPHERS.contains(&cipher.as_str());
    let all = ALL_CIPHER_SUITES.iter().copied();
    all.filter(|suite| {
        let iana = names::suite(suite.suite());
        iana == name || short && iana.contains(&cipher)
    })
    .collect()
}

fn group_named(name: &str) -> Option<&'static dyn SupportedKxGroup> {
    Some(match name.to_ascii_lowercase().as_str() {
        "x25519mlkem768" => kx_group::X25519MLKEM768,
        "x25519" => kx_group::X25519,
        "p-256" | "secp256r1" | "prime256v1" => kx_group::SECP256R1,
        "p-384" | "secp384r1" => kx_group::SECP384R1,
        _ => return None,
    })
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

const CIPHERS: [&str; 3] = ["AES_128_GCM", "AES_256_GCM", "CHACHA20_POLY1305"];
const SUITES: &str = "\"AES-128-GCM\", \"AES-256-GCM\", \"CHACHA20-POLY1305\", or names such as \"TLS_AES_128_GCM_SHA256\" and \"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256\"";
const GROUPS: &str = "\"X25519MLKEM768\" (TLS 1.3 only), \"X25519\", \"P-256\", \"P-384\"";
