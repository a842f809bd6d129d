//! Builds listeners: addresses, the certificate map, routes.
//!
//! Certificates load in the order of the list; the files of a directory load by name. If two
//! certificates have the same name and kind of key, the later one is used. The default certificate
//! is for clients with no name or an unknown name. It is the last file (or the first, if configured
//! so), with all certificates that share a name with it, as in stud and hitch. A listener's own
//! backend is its last route, which accepts every ClientHello.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use becket_config::address::NamePattern;
use becket_config::check::{HTTP, Way};
use becket_config::choices::DefaultCertificate;
use becket_config::error::Problem;
use becket_config::file::File;
use becket_config::glob;
use becket_config::key;
use becket_config::key_source::KeySource;
use becket_config::listener::{self, Certificate, Pair};
use becket_config::policy;
use becket_proto::networks::Networks;

use super::ConfigBuilder;
use becket_keys::certificates::{CertificateMap, KeySet};
use becket_keys::keys::{Loaded, shown};
use becket_tls::config::{Listener, Policy, Route};
use becket_tls::served_key::served_key;

impl ConfigBuilder<'_> {
    pub(super) fn listeners(
        &mut self,
        policies: &HashMap<String, Arc<Policy>>,
    ) -> Vec<Arc<Listener>> {
        let file = self.file;
        let running = self
            .environment
            .running
            .filter(|it| sign_alike(&it.file, file));
        if let Some(running) = running {
            let chains = running.listeners.iter().flat_map(|it| &it.credentials);
            // Keys on tokens are loaded again, because a PIN may have changed.
            let known = chains.filter(|it| it.token.is_none());
            self.loader.known = known.map(|it| (it.digest, it.clone())).collect();
        }
        let sections = file.listener.iter().zip(file.listener_paths());
        sections
            .map(|(listener, path)| Arc::new(self.listener(&path, listener, policies)))
            .collect()
    }

    fn listener(
        &mut self,
        path: &str,
        listener: &listener::ListenerSection,
        policies: &HashMap<String, Arc<Policy>>,
    ) -> Listener {
        let credentials = if listener.ends_tls() {
            self.credentials_of(path, listener)
        } else {
            Vec::new()
        };
        let path_of_certificates = key!(path, listener.certificates);
        let default = listener.default_certificate;
        let mut running = self.environment.running.iter().flat_map(|it| &it.listeners);
        let before = running.find(|it| {
            it.keys.default_certificate == default && are_one(&it.credentials, &credentials)
        });
        let certificates = match before {
            Some(before) => Arc::clone(&before.certificates),
            None => Arc::new(self.map(&path_of_certificates, &credentials, default)),
        };
        let ways = listener.ways().into_iter();
        let networks = |list: &[_]| -> Networks { list.iter().copied().collect() };
        Listener {
            keys: listener.clone(),
            bind: self.bind(&key!(path, listener.bind), listener),
            routes: ways
                .map(|way| self.route(path, listener, way, &certificates, policies))
                .collect(),
            certificates,
            credentials,
            allow: (!listener.allow.is_empty()).then(|| networks(&listener.allow)),
            deny: networks(&listener.deny),
            trusted: networks(&listener.trusted_networks),
        }
    }

    fn bind(
        &mut self,
        path: &str,
        listener: &listener::ListenerSection,
    ) -> Vec<std::net::SocketAddr> {
        let mut bind = Vec::new();
        for (index, listed) in listener.bind.iter().enumerate() {
            let path = format!("{path}[{index}]");
            for address in self.resolve(&path, &listed.address) {
                self.claim(&path, address);
                bind.push(address);
            }
        }
        bind
    }

    /// Loads every chain of a listener with its key, in the order of the list.
    pub(super) fn credentials_of(
        &mut self,
        path: &str,
        listener: &listener::ListenerSection,
    ) -> Vec<Loaded> {
        let of_list = key!(path, listener.certificates);
        let mut loaded = Vec::new();
        for (index, entry) in listener.certificates.iter().enumerate() {
            let path = format!("{of_list}[{index}]");
            match entry {
                Certificate::Path(text) => {
                    let place = self.environment.base.join(text);
                    if let Some((folder, pattern)) = glob::split(text) {
                        let folder = self.environment.base.join(folder);
                        self.directory(&path, &folder, pattern, &mut loaded);
                    } else if self.environment.files.is_folder(&place)
                        && self.lineage(&place).is_none()
                    {
                        self.directory(&path, &place, BUNDLES, &mut loaded);
                    } else {
                        let load = |builder: &mut Self| builder.credential(&path, entry);
                        loaded.extend(self.or_before(&place, load));
                    }
                }
                Certificate::Pair(pair) => {
                    pair.check(&path, &mut self.report);
                    let chain = self
                        .environment
                        .base
                        .join(pair.chain.as_deref().unwrap_or_default());
                    loaded.extend(self.or_before(&chain, |builder| builder.pair(&path, pair)));
                }
            }
        }
        if listener.acme {
            self.managed(&key!(path, listener.acme), &mut loaded);
        }
        let each = loaded.into_iter();
        let loaded: Vec<_> = each.map(|one| self.signing(&of_list, one)).collect();
        let known = loaded.iter().map(|it| (it.digest, it.clone()));
        self.loader.known.extend(known);
        loaded
    }

    /// Loads the bundles of the ACME companion. A bundle serves only the names of its section. A
    /// missing bundle is replaced by a temporary certificate.
    fn managed(&mut self, path: &str, loaded: &mut Vec<Loaded>) {
        let file = self.file;
        let Some(acme) = &file.acme else { return };
        for certificate in &acme.certificate {
            let place = acme.bundle(self.environment.base, certificate);
            let names: Vec<NamePattern> = certificate.names.iter().map(|it| it.0.clone()).collect();
            let load = |builder: &mut Self| match builder.environment.files.open(&place) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    builder.temporary(path, &place, &names)
                }
                _ => builder.bundle_or_temporary(path, &place, &names),
            };
            for mut one in self.or_before(&place, load) {
                if !one.is_managed {
                    let asked = one.names.iter().filter(|name| names.contains(name));
                    one.names = asked.cloned().collect();
                    one.is_managed = true;
                }
                loaded.push(one);
            }
        }
    }

    /// Loads a bundle of the ACME companion. A faulty bundle does not prevent a start, because the
    /// companion replaces it.
    fn bundle_or_temporary(
        &mut self,
        path: &str,
        file: &Path,
        names: &[NamePattern],
    ) -> Option<Loaded> {
        let errors = self.report.errors.len();
        let loaded = self.loader.bundle(path, file, &mut self.report);
        if loaded.is_some() || self.kept_out.is_some() {
            return loaded;
        }
        let faults: Vec<Problem> = self.report.errors.drain(errors..).collect();
        faults.into_iter().for_each(|fault| self.report.warn(fault));
        self.temporary(path, file, names)
    }

    fn temporary(&mut self, path: &str, file: &Path, names: &[NamePattern]) -> Option<Loaded> {
        match self.loader.temporary(file, names) {
            Ok(loaded) => {
                let fault =
                    "not issued yet: clients get a temporary certificate, which they reject";
                self.report.warn(shown(path, file, fault));
                Some(loaded)
            }
            Err(error) => {
                self.report.error(shown(path, file, error));
                None
            }
        }
    }

    fn signing(&mut self, path: &str, mut loaded: Loaded) -> Loaded {
        if !self.loader.known.contains_key(&loaded.digest) {
            loaded.key = served_key(&loaded, self.file);
        } else if self.kept_out.is_none() {
            self.loader.check_known(path, &loaded, &mut self.report);
        }
        loaded
    }

    fn pair(&mut self, path: &str, pair: &Pair) -> Option<Loaded> {
        let chain = self.environment.base.join(pair.chain.as_ref()?);
        let mut loaded = match pair.key.as_ref()? {
            KeySource::File(key) => {
                let key = self.environment.base.join(key);
                self.loader.pair(path, &chain, &key, &mut self.report)?
            }
            KeySource::Token(uri) => self.loader.on_token(path, &chain, uri, &mut self.report)?,
        };
        if let Some(file) = &pair.ocsp {
            let (path, file) = (key!(path, pair.ocsp), self.environment.base.join(file));
            self.loader
                .staple(&path, &file, &mut loaded, &mut self.report);
        } else {
            loaded.unstaple();
        }
        loaded.policy = pair.policy.as_deref().map(Arc::from);
        Some(loaded)
    }

    /// Returns the paths of the chain and the key if `folder` has certbot's layout and no other
    /// `*.pem` file.
    fn lineage(&self, folder: &Path) -> Option<(PathBuf, PathBuf)> {
        let files = self.environment.files.list(folder).ok()?;
        let is_certbots = |file: &PathBuf| LINEAGE.iter().any(|name| file.ends_with(name));
        let whole = LINEAGE[..2]
            .iter()
            .all(|name| files.contains(&folder.join(name)));
        let alone = files
            .iter()
            .filter(|file| fits(BUNDLES, file))
            .all(is_certbots);
        (whole && alone).then(|| (folder.join(LINEAGE[0]), folder.join(LINEAGE[1])))
    }

    /// Loads one chain with its key: a bundle, a pair, or a certbot folder. Returns `None` for a
    /// key on a token, which the check of `[backend.tls]` rejects.
    pub(super) fn credential(&mut self, path: &str, entry: &Certificate) -> Option<Loaded> {
        match entry {
            Certificate::Path(text) => {
                let place = self.environment.base.join(text);
                match self.lineage(&place) {
                    Some((chain, key)) => {
                        let mut loaded = self.loader.pair(path, &chain, &key, &mut self.report)?;
                        // The loader may return an object that belongs to a configured pair of the
                        // same files. The staple and policy of that pair do not apply to this
                        // directory.
                        loaded.unstaple();
                        loaded.policy = None;
                        Some(loaded)
                    }
                    None => self.loader.bundle(path, &place, &mut self.report),
                }
            }
            Certificate::Pair(pair) if matches!(pair.key, Some(KeySource::Token(_))) => None,
            Certificate::Pair(pair) => self.pair(path, pair),
        }
    }

    /// Loads every file of a directory that matches a pattern, sorted by name.
    fn directory(&mut self, path: &str, folder: &Path, pattern: &str, loaded: &mut Vec<Loaded>) {
        match self.matching(path, folder, pattern) {
            Ok(files) => {
                for file in files {
                    let load = |builder: &mut Self| {
                        builder.loader.bundle(path, &file, &mut builder.report)
                    };
                    loaded.extend(self.or_before(&file, load));
                }
            }
            Err(problem) => loaded.extend(self.or_before(folder, |builder| {
                builder.report.error(problem);
                None
            })),
        }
    }

    /// Returns the files of a directory that match a pattern; at least one.
    fn matching(&self, path: &str, folder: &Path, pattern: &str) -> Result<Vec<PathBuf>, Problem> {
        let listed = self.environment.files.list(folder);
        let mut files = listed.map_err(|error| {
            let problem = shown(path, folder, becket_keys::files::reason(&error));
            problem.accepted("a readable directory")
        })?;
        files.retain(|file| fits(pattern, file) && !self.environment.files.is_folder(file));
        if files.is_empty() {
            let problem = shown(path, folder, format!("no {pattern} in this directory"));
            return Err(problem.accepted(format!("at least one {pattern}")));
        }
        Ok(files)
    }

    pub(super) fn map(
        &mut self,
        path: &str,
        loaded: &[Loaded],
        default: DefaultCertificate,
    ) -> CertificateMap {
        let mut own = loaded.iter().filter(|one| !one.is_managed);
        let (chosen, word) = match default {
            DefaultCertificate::Last => (own.next_back().or(loaded.last()), "last"),
            DefaultCertificate::First => (own.next().or(loaded.first()), "first"),
        };
        let Some(chosen) = chosen else {
            return CertificateMap::new(KeySet::default());
        };
        let names: HashSet<&NamePattern> = chosen.names.iter().collect();
        let mut default = KeySet::default();
        for one in loaded {
            if one.names.iter().any(|name| names.contains(name)) {
                default.insert(one.key.clone(), one.offload, one.policy.as_ref());
            }
        }
        default.insert(chosen.key.clone(), chosen.offload, chosen.policy.as_ref());
        let mut map = CertificateMap::new(default);
        for one in loaded {
            if one.names.is_empty() && !Arc::ptr_eq(&one.key, &chosen.key) {
                let fault = format!(
                    "a certificate without a name is used only as the default, and the default is the {word} certificate"
                );
                self.report.warn(shown(path, &one.file, fault));
            }
            for name in one.names.iter() {
                let keys = map.keys_mut(name.clone());
                if one.is_managed && !keys.is_empty() {
                    let fault =
                        format!("for {name} a certificate of certificates is used, not this one");
                    self.report.warn(shown(path, &one.file, fault));
                    continue;
                }
                let hidden = keys.insert(one.key.clone(), one.offload, one.policy.as_ref());
                let Some(hidden) = hidden else {
                    continue;
                };
                let earlier = loaded.iter().find(|other| Arc::ptr_eq(&other.key, &hidden));
                let earlier = earlier.map(|other| other.file.display().to_string());
                let fault = format!(
                    "for {name} this certificate is used, not {}, which has the same kind of key",
                    earlier.unwrap_or_default(),
                );
                self.report.warn(shown(path, &one.file, fault));
            }
        }
        map
    }

    fn route(
        &mut self,
        path: &str,
        listener: &listener::ListenerSection,
        way: Way<'_>,
        certificates: &CertificateMap,
        policies: &HashMap<String, Arc<Policy>>,
    ) -> Route {
        if let Some((index, route)) = way.route
            && way.ends_tls
        {
            let names = key!(format!("{path}.route[{index}]"), route.names);
            for (index, name) in route.names.iter().enumerate() {
                if !covers(certificates, name) {
                    let fault = "no certificate of this listener covers this name";
                    self.report.remark(format!("{names}[{index}]"), fault);
                }
            }
        }
        let mut backends = self.file.backend.iter();
        let backend = backends.position(|backend| Some(&*backend.name) == way.backend);
        let chosen = backend.and_then(|index| self.file.backend.get(index));
        let files = chosen.is_some_and(|backend| backend.files.is_some());
        let is_of_certificate = way.certificate.is_some();
        let keys = match way.route {
            Some((_, route)) => Some(route.clone()),
            None => is_of_certificate.then(|| listener::Route {
                policy: Some(way.policy.to_owned()),
                ..listener::Route::default()
            }),
        };
        Route {
            is_of_certificate,
            alpn: match &keys {
                _ if files && way.ends_tls => vec![HTTP.to_vec()],
                Some(route) if route.is_for_alpn() || !way.ends_tls => {
                    route.alpn.clone().unwrap_or_default()
                }
                Some(route) => route.alpn.clone().unwrap_or_else(|| listener.alpn.clone()),
                None if way.ends_tls => listener.protocols(),
                None => Vec::new(),
            },
            keys: keys.unwrap_or_default(),
            policy: way.ends_tls.then(|| match policies.get(way.policy) {
                Some(policy) => Arc::clone(policy),
                None => Arc::new(self.policy(path, policy::Policy::named(way.policy))),
            }),
            // A missing backend is reported as an error elsewhere.
            backend: backend.unwrap_or_default(),
        }
    }
}

/// Returns `true` if two lists share the same key objects and have equal policies, in the same
/// order.
fn are_one(one: &[Loaded], other: &[Loaded]) -> bool {
    let mut pairs = one.iter().zip(other);
    let is_one = |(a, b): (&Loaded, &Loaded)| Arc::ptr_eq(&a.key, &b.key) && a.policy == b.policy;
    one.len() == other.len() && pairs.all(is_one)
}

/// Returns `true` if both configurations have equal options for signing, so that a
/// prepared key can be reused.
fn sign_alike(one: &File, other: &File) -> bool {
    let [one, other] = [one, other].map(|file| {
        let process = &file.process;
        let limits = file.admission.limits_handshakes();
        (process.rsa_batch, process.has_crypto_threads(), limits)
    });
    one == other
}

/// Files in certbot's `live/NAME/`: the full chain, its key, and the parts of the chain.
const LINEAGE: [&str; 4] = ["fullchain.pem", "privkey.pem", "cert.pem", "chain.pem"];

const BUNDLES: &str = "*.pem";

fn fits(pattern: &str, file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    glob::matches(pattern, &name)
}

/// Returns `true` if a certificate matches the exact name, or any name that the wildcard covers.
fn covers(certificates: &CertificateMap, name: &NamePattern) -> bool {
    match name {
        NamePattern::Exact(name) => certificates.named(name).is_some(),
        NamePattern::Wildcard(suffix) => certificates.names().any(|(known, _)| match known {
            NamePattern::Wildcard(known) => known == *suffix,
            NamePattern::Exact(known) => known
                .split_once('.')
                .is_some_and(|(_, rest)| rest == suffix),
        }),
    }
}
