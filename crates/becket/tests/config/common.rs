//! Certificates and files for the tests of the configuration.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use becket_config::error::{Problem, Rejected};
use becket_config::read::read;
use becket_prepare::changed::ChangedFiles;
use becket_prepare::renewal::{Renewal, renew};
use becket_prepare::resolver::HostResolver;
use becket_prepare::{Environment, LoadPurpose, Prepared, prepare};
use becket_tls::config::Config;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_RSA_SHA256, SignatureAlgorithm, date_time_ymd,
};
use rustls_pki_types::UnixTime;

/// 2024-06-01, in the middle of the certificates' year.
pub(crate) const NOW: u64 = 1_717_200_000;

/// Contents of a cluster's secret file.
pub(crate) const SECRET: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";

/// A temporary folder, removed at the end.
pub(crate) struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file that only the owner can read.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Writes a self-signed bundle.
    pub(crate) fn bundle(&self, name: &str, names: &[&str]) -> PathBuf {
        let made = Made::new(names, &PKCS_ECDSA_P256_SHA256);
        self.write(name, &made.bundle())
    }

    /// Prepares a configuration at [`NOW`], with names that resolve only if they are known.
    pub(crate) fn prepare(&self, text: &str) -> Result<Prepared, Rejected> {
        self.prepare_at(text, NOW)
    }

    pub(crate) fn prepare_at(&self, text: &str, now: u64) -> Result<Prepared, Rejected> {
        self.prepare_next(None, text, now)
    }

    /// Prepares a configuration that replaces `running`.
    pub(crate) fn reload(
        &self,
        running: &Config,
        text: &str,
        now: u64,
    ) -> Result<Prepared, Rejected> {
        self.prepare_next(Some(running), text, now)
    }

    /// Returns the errors of a configuration.
    pub(crate) fn faults(&self, text: &str) -> Vec<String> {
        lines(&self.prepare(text).unwrap_err().errors)
    }

    /// Asserts that the errors of a configuration begin like `starts`, in any order, and that there
    /// are no others.
    #[track_caller]
    pub(crate) fn refuses(&self, text: &str, starts: &[&str]) {
        assert_faults(&self.faults(text), starts);
    }

    /// Loads changed files of a running configuration.
    pub(crate) fn renew(&self, running: &Config, changed: &ChangedFiles) -> Renewal {
        renew(running, changed, &self.environment(None, NOW))
    }

    fn environment<'a>(&'a self, running: Option<&'a Config>, now: u64) -> Environment<'a> {
        Environment {
            base: self.path(),
            now: UnixTime::since_unix_epoch(Duration::from_secs(now)),
            ipv6: true,
            descriptors: 1 << 20,
            resolver: HostResolver::by(resolve),
            purpose: LoadPurpose::Check,
            files: becket_keys::files::Files::default(),
            multibuffer: None,
            tokens: Default::default(),
            trials: Default::default(),
            issuers: Default::default(),
            running,
        }
    }

    fn prepare_next(
        &self,
        running: Option<&Config>,
        text: &str,
        now: u64,
    ) -> Result<Prepared, Rejected> {
        let environment = self.environment(running, now);
        let prepared = prepare(read(text, &toml::Table::new()), &environment);
        // Most tests ignore the line numbers of problems.
        let unplaced = |problems: &mut Vec<Problem>| {
            problems.iter_mut().for_each(|problem| problem.line = None);
        };
        prepared
            .map(|mut prepared| {
                unplaced(&mut prepared.warnings);
                prepared
            })
            .map_err(|mut rejected| {
                unplaced(&mut rejected.errors);
                unplaced(&mut rejected.warnings);
                rejected
            })
    }
}

fn resolve(host: &str) -> io::Result<Vec<IpAddr>> {
    match host {
        "app.test" => Ok(vec![
            "192.0.2.1".parse().unwrap(),
            "2001:db8::1".parse().unwrap(),
        ]),
        "empty.test" => Ok(Vec::new()),
        "many.test" => Ok((0..1000).map(|n| Ipv4Addr::from_bits(n).into()).collect()),
        _ => Err(io::Error::other("name not known")),
    }
}

/// A certificate and its key.
pub(crate) struct Made {
    pub(crate) certificate: rcgen::Certificate,
    pub(crate) params: CertificateParams,
    pub(crate) key: KeyPair,
}

impl Made {
    pub(crate) fn new(names: &[&str], algorithm: &'static SignatureAlgorithm) -> Self {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let params = params(names);
        Self {
            certificate: params.self_signed(&key).unwrap(),
            params,
            key,
        }
    }

    pub(crate) fn rsa(names: &[&str]) -> Self {
        Self::new(names, &PKCS_RSA_SHA256)
    }

    pub(crate) fn authority(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let params = authority_params(name);
        Self {
            certificate: params.self_signed(&key).unwrap(),
            params,
            key,
        }
    }

    pub(crate) fn issue(&self, names: &[&str]) -> Self {
        self.sign(params(names))
    }

    pub(crate) fn issue_authority(&self, name: &str) -> Self {
        self.sign(authority_params(name))
    }

    fn sign(&self, params: CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::from_params(&self.params, &self.key);
        Self {
            certificate: params.signed_by(&key, &issuer).unwrap(),
            params,
            key,
        }
    }

    pub(crate) fn pem(&self) -> String {
        self.certificate.pem()
    }

    pub(crate) fn bundle(&self) -> String {
        self.certificate.pem() + &self.key.serialize_pem()
    }
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    let common = names.first().cloned().unwrap_or_else(|| "nobody".into());
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, common);
    params.not_before = date_time_ymd(2024, 1, 1);
    params.not_after = date_time_ymd(2025, 1, 1);
    params
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = params(&[]);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

/// Formats the problems as lines.
pub(crate) fn lines(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

/// Returns a configuration with one site and these certificates, in TOML.
pub(crate) fn site(certificates: &str) -> String {
    format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:8443']\nbackend = 'app'\n\
         certificates = {certificates}\n\
         [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '127.0.0.1:8080'\n"
    )
}

/// Asserts that the errors begin like `starts`, in any order, and that there are no others.
#[track_caller]
pub(crate) fn assert_faults(found: &[String], starts: &[&str]) {
    for start in starts {
        let is_there = found.iter().any(|fault| fault.starts_with(start));
        assert!(is_there, "{start} is not in {found:#?}");
    }
    assert_eq!(found.len(), starts.len(), "{found:#?}");
}
