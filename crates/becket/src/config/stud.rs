//! The keys of `[cluster]` by which sessions of stud and hitch are received, and the part of `prepare` that checks them.
//!
//! The key that seals their datagrams comes from the RSA key of a certificate: SHA-1 of its PKCS#1 form. With a
//! certificate of another kind stud and hitch have a key of zeros, which everybody knows, so there is none here.
//!
//! The sessions come under one policy. It must be in use, must allow TLS 1.2, and must not ask clients for certificates:
//! the sender does not say who the client was.

use std::net::SocketAddr;
use std::sync::Arc;

use becket_cluster::stud::StudKey;
use becket_proto::session_table::PolicyTag;
use rustls::ProtocolVersion;

use super::error::Problem;
use super::file::FileCluster;
use super::prepare::Draft;
use super::{ClientAuth, Cluster, Config, Listener, Policy};
use crate::pki::keys::{read, shown, warn_if_readable};

/// Terms on which sessions of stud and hitch are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stud {
    /// Where their datagrams arrive.
    pub listen: SocketAddr,
    /// What seals them.
    pub key: StudKey,
    /// Configuration name of the policy.
    pub policy_name: String,
    /// The policy under which they resume.
    pub policy: PolicyTag,
    /// Numbers of its suites for TLS 1.2.
    pub suites: Vec<u16>,
    /// It refuses sessions without extended master secret.
    pub require_ems: bool,
}

impl Config {
    /// Terms on which sessions of stud and hitch are taken, if they are.
    pub fn stud(&self) -> Option<&Stud> {
        self.cluster.as_ref()?.stud.as_ref()
    }
}

impl Draft<'_> {
    /// Completes the cluster once the policies of the listeners are known.
    pub(super) fn stud(&mut self, cluster: &mut Option<Cluster>, listeners: &[Arc<Listener>]) {
        let Some(file) = self.file.cluster.as_ref() else {
            return;
        };
        if !file.receive_stud {
            return self.refuse_without_stud(file);
        }
        let listen = self.stud_listen(file);
        let key = self.stud_key(file);
        let policy = self.stud_policy(file, listeners);
        if let (Some(cluster), Some(listen), Some(key), Some(policy)) =
            (cluster, listen, key, policy)
        {
            cluster.stud = Some(Stud {
                listen,
                key,
                policy_name: policy.name.clone(),
                policy: PolicyTag::from_digest(&policy.digest),
                suites: suites(&policy),
                require_ems: policy.require_ems,
            });
        }
    }

    fn stud_listen(&mut self, file: &FileCluster) -> Option<SocketAddr> {
        let path = "cluster.stud-listen";
        let Some(text) = file.stud_listen.as_deref() else {
            let problem = Problem::new(path, "missing, though cluster.receive-stud is on");
            let accepted = "a UDP address such as \"192.0.2.1:8890\"";
            self.report.error(problem.accepted(accepted));
            return None;
        };
        if file.listen.as_deref() == Some(text) {
            let problem = Problem::new(path, "cluster.listen has this address").text(text);
            self.report.error(problem.accepted("another port"));
        }
        self.udp_address(path, text)
    }

    fn stud_key(&mut self, file: &FileCluster) -> Option<StudKey> {
        let path = "cluster.stud-certificate";
        let Some(text) = file.stud_certificate.as_deref() else {
            let problem = Problem::new(path, "missing, though cluster.receive-stud is on");
            self.report.error(problem.accepted(RSA_KEY));
            return None;
        };
        let at = self.world.base.join(text);
        self.files.push(at.clone());
        let pem = read(&self.world.files, path, &at, &mut self.report)?;
        warn_if_readable(path, &at, &pem, &mut self.report);
        let fault = match pem.keys.as_slice() {
            [key] => match StudKey::of(key) {
                Some(key) => return Some(key),
                None => {
                    "no RSA key: with another kind stud and hitch seal with zeros, which everybody can"
                }
            },
            [] if pem.encrypted => "the private key needs a password",
            [] => "no private key",
            _ => "more than one private key",
        };
        self.report.error(shown(path, &at, fault).accepted(RSA_KEY));
        None
    }

    fn stud_policy(
        &mut self,
        file: &FileCluster,
        listeners: &[Arc<Listener>],
    ) -> Option<Arc<Policy>> {
        let path = "cluster.stud-policy";
        let policies = in_use(listeners);
        let names: Vec<&str> = policies.iter().map(|policy| policy.name.as_str()).collect();
        let (problem, found) = match file.stud_policy.as_deref() {
            None => {
                let one = match policies.as_slice() {
                    [one] => Some(Arc::clone(one)),
                    _ => None,
                };
                (
                    Problem::new(path, "missing, and there is more than one"),
                    one,
                )
            }
            Some(name) => {
                let fault = "no policy in use has this name";
                let named = policies.iter().find(|policy| policy.name == name);
                (Problem::new(path, fault).text(name), named.cloned())
            }
        };
        let Some(found) = found else {
            // Without any listener that has been said.
            if !names.is_empty() {
                let accepted = format!("one of {}", names.join(", "));
                self.report.error(problem.accepted(accepted));
            }
            return None;
        };
        let fault = match found.client_auth {
            _ if !found.versions.tls12 => "without TLS 1.2, no session of which resumes by ID",
            ClientAuth::Off => return Some(found),
            _ => "asks clients for certificates, of which stud and hitch say nothing",
        };
        let problem = Problem::new(path, fault).text(&found.name);
        let accepted = "a policy with TLS 1.2 and without client certificates";
        self.report.error(problem.accepted(accepted));
        None
    }

    /// Whoever names a key wants something of it.
    fn refuse_without_stud(&mut self, file: &FileCluster) {
        let keys = [
            ("stud-listen", &file.stud_listen),
            ("stud-certificate", &file.stud_certificate),
            ("stud-policy", &file.stud_policy),
        ];
        for (key, text) in keys {
            let Some(text) = text else {
                continue;
            };
            let fault = "given, but such sessions are not received";
            let problem = Problem::new(format!("cluster.{key}"), fault).text(text);
            self.report
                .error(problem.accepted("cluster.receive-stud = true with it"));
        }
    }
}

/// The policies of all routes where TLS ends, each once.
fn in_use(listeners: &[Arc<Listener>]) -> Vec<Arc<Policy>> {
    let ending = listeners.iter().filter(|listener| listener.ends_tls());
    let mut policies: Vec<Arc<Policy>> = Vec::new();
    for route in ending.flat_map(|listener| &listener.routes) {
        if !policies
            .iter()
            .any(|other| other.digest == route.policy.digest)
        {
            policies.push(Arc::clone(&route.policy));
        }
    }
    policies
}

fn suites(policy: &Policy) -> Vec<u16> {
    let suites = policy.suites.iter();
    suites
        .filter(|suite| suite.version().version == ProtocolVersion::TLSv1_2)
        .map(|suite| u16::from(suite.suite()))
        .collect()
}

const RSA_KEY: &str = "a PEM file with the RSA key that stud or hitch has, and no other key";
