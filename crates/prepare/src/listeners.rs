//! Builds listeners: addresses, the certificate map, routes.
//!
//! Certificates load in the order of the list; the files of a directory load by name. If two
//! certificates have the same name and kind of key, the later one is used. The default certificate
//! is for clients with no name or an unknown name. It is the last file (or the first, if configured
//! so), with all certificates that share a name with it, as in stud and hitch. A listener's own
//! backend is its last route, which accepts every ClientHello.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use becket_config::acme::AcmeCertificate;
use becket_config::address::NamePattern;
use becket_config::check::{HTTP, Way};
use becket_config::choices::DefaultCertificate;
use becket_config::error::Report;
use becket_config::file::File;
use becket_config::glob;
use becket_config::key;
use becket_config::key_source::KeySource;
use becket_config::listener::{self, Certificate, Pair};
use becket_config::policy;
use becket_proto::networks::Networks;

use super::ConfigBuilder;
use becket_keys::certificates::{CertificateMap, Listed, MapFaults, NewCertificate, ON_DEMAND};
use becket_keys::files::{reason, shown};
use becket_keys::job::{ChainSource, Job, LoadOutcome};
use becket_keys::loaded::Loaded;
use becket_keys::stamp::path_hash;
use becket_tls::config::{Config, Listener, Policy, Route};

impl ConfigBuilder<'_> {
    pub(super) fn listeners(
        &mut self,
        policies: &HashMap<String, Arc<Policy>>,
    ) -> Vec<Arc<Listener>> {
        let file = self.file;
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
        let certificates = if listener.ends_tls() {
            self.certificates(path, listener)
        } else {
            Arc::default()
        };
        self.built.push(Arc::clone(&certificates));
        let ways = listener.ways().into_iter();
        let networks = |list: &[_]| -> Networks { list.iter().copied().collect() };
        Listener {
            keys: listener.clone(),
            bind: self.bind(&key!(path, listener.bind), listener),
            routes: ways
                .map(|way| self.route(path, listener, way, &certificates, policies))
                .collect(),
            certificates,
            allow: (!listener.allow.is_empty()).then(|| networks(&listener.allow)),
            deny: networks(&listener.deny),
            trusted: networks(&listener.trusted_networks),
            on_demand: self
                .file
                .acme
                .as_ref()
                .filter(|_| listener.acme)
                .and_then(|acme| acme.on_demand.clone()),
        }
    }

    /// Loads the certificates of a listener. Unchanged ones are shared with the running
    /// configuration and with the listeners before.
    fn certificates(
        &mut self,
        path: &str,
        listener: &listener::ListenerSection,
    ) -> Arc<CertificateMap> {
        let of_list = key!(path, listener.certificates);
        let mut jobs = Vec::new();
        for (index, entry) in listener.certificates.iter().enumerate() {
            self.add_jobs((&of_list, index), entry, &mut jobs);
        }
        self.add_managed(path, listener, &mut jobs);
        let known = self.known();
        for job in &mut jobs {
            job.before = known.get(&path_hash(job.file())).cloned();
        }
        drop(known);
        let outcomes = self.loader.load(&jobs);
        let mut certificates = Vec::with_capacity(jobs.len());
        let most = self.report.warnings.len() + MOST_WARNINGS;
        let mut omitted = 0;
        for (job, outcome) in jobs.into_iter().zip(outcomes) {
            let outcome = self.or_temporary(&job, outcome);
            self.report.errors.extend(outcome.report.errors);
            let warnings = outcome.report.warnings.into_iter();
            for warning in warnings {
                if self.report.warnings.len() < most {
                    self.report.warn(warning);
                } else {
                    omitted += 1;
                }
            }
            certificates.extend(outcome.loaded.map(|loaded| {
                let entry = job.entry;
                (Listed { entry, loaded }, outcome.names)
            }));
        }
        if omitted > 0 {
            let fault = format!("{omitted} further warnings about certificates are not shown");
            self.report.remark(&of_list, fault);
        }
        self.map(&of_list, certificates, listener.default_certificate)
    }

    /// Returns the loaded certificates by the hash of their path.
    fn known(&self) -> HashMap<u64, Arc<Loaded>> {
        let maps = self.running_maps().chain(&self.built);
        let all = maps.flat_map(|map| map.certificates());
        all.map(|it| (path_hash(&it.loaded.file()), Arc::clone(&it.loaded)))
            .collect()
    }

    /// Returns the certificate maps of the running configuration, if its keys sign in the same way.
    fn running_maps(&self) -> impl Iterator<Item = &Arc<CertificateMap>> {
        let is_alike = |running: &&Config| sign_alike(&running.file, self.file);
        let running = self.environment.running.filter(is_alike);
        let listeners = running.into_iter().flat_map(|it| &it.listeners);
        listeners.map(|listener| &listener.certificates)
    }

    /// Returns the map of these certificates. Uses a map that has most of them, if there is one.
    fn map(
        &mut self,
        path: &str,
        certificates: Vec<NewCertificate>,
        choice: DefaultCertificate,
    ) -> Arc<CertificateMap> {
        let most = certificates.len() / 4;
        let maps = self.built.iter().chain(self.running_maps());
        let mut like = maps.filter_map(|map| {
            let (removed, added) = map.difference(&certificates);
            let changes = removed.len() + added.len();
            let is_like = changes == 0 || changes <= most;
            is_like.then(|| (Arc::clone(map), removed, added))
        });
        let found = like.next();
        drop(like);
        let (map, faults) = match found {
            Some((map, removed, added)) if removed.is_empty() && added.is_empty() => {
                if map.choice() == choice {
                    return map;
                }
                map.with_default(choice)
            }
            Some((map, removed, added)) => {
                let mut number = 0;
                let mut certificates = certificates;
                certificates.retain(|_| {
                    number += 1;
                    added.binary_search(&(number - 1)).is_ok()
                });
                let (map, faults) = map.changed(&removed, certificates);
                if map.choice() == choice {
                    (map, faults)
                } else {
                    (map.with_default(choice).0, faults)
                }
            }
            None => CertificateMap::of(certificates, choice),
        };
        self.warn_of(path, faults, choice);
        Arc::new(map)
    }

    pub(super) fn warn_of(&mut self, path: &str, faults: MapFaults, choice: DefaultCertificate) {
        let word = match choice {
            DefaultCertificate::Last => "last",
            DefaultCertificate::First => "first",
        };
        for loaded in faults.nameless {
            let fault = format!(
                "a certificate without a name is used only as the default, and the default is the {word} certificate"
            );
            self.report.warn(shown(path, &loaded.file(), fault));
        }
        for (name, yielding) in faults.yielding {
            let fault = format!("for {name} a certificate of certificates is used, not this one");
            self.report.warn(shown(path, &yielding.file(), fault));
        }
        for (name, used, hidden) in faults.hidden {
            let fault = format!(
                "for {name} this certificate is used, not {}, which has the same kind of key",
                hidden.file().display(),
            );
            self.report.warn(shown(path, &used.file(), fault));
        }
    }

    /// Adds a job for each certificate of an entry of the list `of_list`. Reports an error if a
    /// folder cannot be read.
    pub(super) fn add_jobs(
        &mut self,
        (of_list, index): (&str, usize),
        entry: &Certificate,
        jobs: &mut Vec<Job>,
    ) {
        let path: Arc<str> = format!("{of_list}[{index}]").into();
        // The file has at most 16 MiB, so there are fewer entries.
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        match entry {
            Certificate::Pair(pair) => {
                pair.check(&path, &mut self.report);
                jobs.extend(self.pair_job(number, &path, pair));
            }
            Certificate::Path(text) => {
                let Some((folder, pattern)) = self.folder_of(text) else {
                    let file = self.environment.base.join(text);
                    jobs.push(Job::of(number, &path, ChainSource::Bundle(file)));
                    return;
                };
                let listed = match self.environment.files.list_files(&folder) {
                    Ok(listed) => listed,
                    Err(error) => {
                        let problem = shown(&path, &folder, reason(&error));
                        return self.report.error(problem.accepted("a readable directory"));
                    }
                };
                if pattern.is_none() && is_lineage(&folder, &listed) {
                    jobs.push(Job::of(number, &path, lineage(&folder)));
                    return;
                }
                let pattern = pattern.unwrap_or(BUNDLES);
                let before = jobs.len();
                let files = listed.into_iter().filter(|file| fits(pattern, file));
                jobs.extend(files.map(|file| Job::of(number, &path, ChainSource::Bundle(file))));
                if jobs.len() == before && !self.orders_certificates(of_list) {
                    let fault = format!("no {pattern} in this directory");
                    let problem = shown(&path, &folder, fault);
                    self.report
                        .error(problem.accepted(format!("at least one {pattern}")));
                }
            }
        }
    }

    /// Returns `true` if the listener with this list has ordered certificates, too.
    fn orders_certificates(&self, of_list: &str) -> bool {
        let mut listeners = self.file.listener.iter().zip(self.file.listener_paths());
        self.file.acme.is_some()
            && listeners.any(|(it, path)| it.acme && key!(path, it.certificates) == of_list)
    }

    /// Adds a job for each bundle of the ACME companion, with entries after those of the list.
    pub(super) fn add_managed(
        &self,
        path: &str,
        listener: &listener::ListenerSection,
        jobs: &mut Vec<Job>,
    ) {
        let acme = self.file.acme.as_ref().filter(|_| listener.acme);
        let Some(acme) = acme else { return };
        let path: Arc<str> = key!(path, listener.acme).into();
        let first = listener.certificates.len();
        let mut add = |entry: u32, certificate: &AcmeCertificate| {
            let bundle = ChainSource::Bundle(acme.bundle(self.environment.base, certificate));
            let names = certificate.names.iter().map(|it| it.to_string().into());
            jobs.push(Job {
                managed: Some(names.collect()),
                ..Job::of(entry, &path, bundle)
            });
        };
        for (index, certificate) in acme.certificate.iter().enumerate() {
            add(
                u32::try_from(first + index).unwrap_or(ON_DEMAND - 1),
                certificate,
            );
        }
        let (Some(on_demand), Some(names)) = (&acme.on_demand, acme.on_demand_names()) else {
            return;
        };
        // Without this folder, no certificate was ordered yet.
        let folder = self.environment.base.join(acme.bundles());
        let files = self.environment.files.list_files(&folder);
        let stems = files.iter().flatten().filter_map(|file| {
            let name = file.file_name()?.to_str()?;
            names.certificate(name.strip_suffix(".pem")?)
        });
        for certificate in stems.take(on_demand.most) {
            add(ON_DEMAND, &certificate);
        }
    }

    /// Replaces a missing or faulty bundle of the ACME companion by a temporary certificate, because
    /// the companion will replace it.
    pub(super) fn or_temporary(&self, job: &Job, failed: LoadOutcome) -> LoadOutcome {
        let Some(names) = job.managed.as_ref().filter(|_| failed.loaded.is_none()) else {
            return failed;
        };
        let mut report = Report::default();
        if !self.environment.files.is_missing(job.file()) {
            report.warnings.extend(failed.report.errors);
            report.warnings.extend(failed.report.warnings);
        }
        match self.loader.temporary(job, names) {
            Ok(mut outcome) => {
                let fault =
                    "not issued yet: clients get a temporary certificate, which they reject";
                report.warn(shown(&job.path, job.file(), fault));
                outcome.report = report;
                outcome
            }
            Err(error) => {
                report.error(shown(&job.path, job.file(), error));
                LoadOutcome {
                    report,
                    ..LoadOutcome::default()
                }
            }
        }
    }

    /// Returns the folder of an entry, with its pattern if it has one. Returns `None` if the entry
    /// is a file.
    pub(super) fn folder_of<'t>(&self, text: &'t str) -> Option<(PathBuf, Option<&'t str>)> {
        if let Some((folder, pattern)) = glob::split(text) {
            return Some((self.environment.base.join(folder), Some(pattern)));
        }
        let place = self.environment.base.join(text);
        let is_folder = self.environment.files.is_folder(&place);
        is_folder.then_some((place, None))
    }

    /// Returns the job of a pair, or `None` if a key is missing.
    fn pair_job(&self, entry: u32, path: &Arc<str>, pair: &Pair) -> Option<Job> {
        let base = self.environment.base;
        let chain = base.join(pair.chain.as_ref()?);
        let source = match pair.key.as_ref()? {
            KeySource::File(key) => ChainSource::Pair {
                chain,
                key: base.join(key),
            },
            KeySource::Token(uri) => ChainSource::Token {
                chain,
                uri: Box::new(uri.clone()),
            },
        };
        Some(Job {
            ocsp: pair.ocsp.as_ref().map(|file| base.join(file)),
            policy: pair.policy.as_deref().map(Arc::from),
            ..Job::of(entry, path, source)
        })
    }

    /// Loads one chain with its key: a bundle, a pair, or a certbot folder. Returns `None` for a
    /// key on a token, which the check of `[backend.tls]` rejects.
    pub(super) fn credential(&mut self, path: &str, entry: &Certificate) -> Option<Arc<Loaded>> {
        let path: Arc<str> = path.into();
        let job = match entry {
            Certificate::Path(text) => {
                let place = self.environment.base.join(text);
                let listed = self.environment.files.list_files(&place);
                let source = match listed {
                    Ok(listed) if is_lineage(&place, &listed) => lineage(&place),
                    _ => ChainSource::Bundle(place),
                };
                Job::of(0, &path, source)
            }
            Certificate::Pair(pair) if matches!(pair.key, Some(KeySource::Token(_))) => {
                return None;
            }
            Certificate::Pair(pair) => self.pair_job(0, &path, pair)?,
        };
        let outcome = self.loader.load(&[job]).pop()?;
        self.report.errors.extend(outcome.report.errors);
        self.report.warnings.extend(outcome.report.warnings);
        outcome.loaded
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

/// Returns `true` if both configurations have equal options for signing, so that a
/// prepared key can be reused.
fn sign_alike(one: &File, other: &File) -> bool {
    let [one, other] = [one, other].map(|file| {
        let process = &file.process;
        (process.rsa_batch, process.has_crypto_threads())
    });
    one == other
}

/// Returns `true` if a folder has certbot's layout and no other `*.pem` file. `listed` contains the
/// files in it, sorted.
fn is_lineage(folder: &Path, listed: &[PathBuf]) -> bool {
    let is_certbots = |file: &PathBuf| LINEAGE.iter().any(|name| file.ends_with(name));
    let mut whole = LINEAGE[..2].iter();
    let mut bundles = listed.iter().filter(|file| fits(BUNDLES, file));
    whole.all(|name| listed.binary_search(&folder.join(name)).is_ok()) && bundles.all(is_certbots)
}

fn lineage(folder: &Path) -> ChainSource {
    ChainSource::Pair {
        chain: folder.join(LINEAGE[0]),
        key: folder.join(LINEAGE[1]),
    }
}

/// Maximum number of warnings about the certificates of a listener. All may have one issuer, which
/// expires soon.
const MOST_WARNINGS: usize = 1000;
/// Files in certbot's `live/NAME/`: the full chain, its key, and the parts of the chain.
const LINEAGE: [&str; 4] = ["fullchain.pem", "privkey.pem", "cert.pem", "chain.pem"];

pub(super) const BUNDLES: &str = "*.pem";

pub(super) fn fits(pattern: &str, file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    glob::matches(pattern, &name)
}

/// Returns `true` if a certificate matches the exact name, or any name that the wildcard covers.
fn covers(certificates: &CertificateMap, name: &NamePattern) -> bool {
    match name {
        NamePattern::Exact(name) => certificates.named(name).is_some(),
        NamePattern::Wildcard(suffix) => certificates.names().any(|keys| match keys.pattern() {
            NamePattern::Wildcard(known) => known == *suffix,
            NamePattern::Exact(known) => known
                .split_once('.')
                .is_some_and(|(_, rest)| rest == suffix),
        }),
    }
}
