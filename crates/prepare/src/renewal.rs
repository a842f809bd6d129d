//! Reads changed files of a running configuration, and applies their changes.
//!
//! The text of the configuration is not read again, no name is resolved, and no address is bound.
//! Only objects built from certificate files are renewed: chains with their keys, policies with
//! their CAs and revocation lists, TLS to servers. Each object is replaced as a whole or not at
//! all. If a new file is faulty, the object in use is kept. An object with unchanged file contents
//! is reused.
//!
//! Only the changed files of a large folder are looked at. So a changed certificate costs the same
//! with any number of others.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use becket_config::error::Problem;
use becket_config::key;
use becket_config::listener::Certificate;

use super::changed::{ChangedFiles, Renewing};
use super::listeners::{BUNDLES, fits};
use super::{ConfigBuilder, Environment, checked_files};
use becket_keys::certificates::{CertificateMap, Listed, NewCertificate, ON_DEMAND};
use becket_keys::checked::CheckedFiles;
use becket_keys::files::SMALL_FOLDER;
use becket_keys::job::{ChainSource, Job};
use becket_keys::stamp::path_hash;
use becket_tls::config::{Backend, Config, Listener, Policy};

#[derive(Debug)]
pub struct Renewal {
    /// The renewed configuration; `None` if nothing has changed.
    pub config: Option<Config>,
    /// Errors in changed files, which were therefore rejected.
    pub kept_out: Vec<Problem>,
    pub warnings: Vec<Problem>,
    /// Files of renewed certificates, and configuration keys of other renewed objects.
    pub taken: BTreeSet<String>,
    /// Certificate files that were checked, to be saved when the configuration is used.
    pub checked: CheckedFiles,
}

pub fn renew(running: &Config, changed: &ChangedFiles, environment: &Environment<'_>) -> Renewal {
    let mut builder = ConfigBuilder::new(&running.file, environment);
    if let Some(path) = checked_files(&running.file, environment.base) {
        builder.loader.checked = CheckedFiles::append(path);
    }
    builder.renewing = Some(Renewing {
        changed,
        kept_out: Vec::new(),
    });
    let mut taken = BTreeSet::new();
    let policies = builder.renewed_policies(running, &mut taken);
    let backends = running.backends.iter().zip(running.file.backend_paths());
    let backends =
        backends.map(|(before, path)| builder.renewed_backend(&path, before, &mut taken));
    let backends = backends.collect();
    let listeners = running.listeners.iter().zip(running.file.listener_paths());
    let listeners = listeners
        .map(|(before, path)| builder.renewed_listener(&path, before, &policies, &mut taken))
        .collect();
    let mut kept_out = builder.renewing.map(|it| it.kept_out).unwrap_or_default();
    kept_out.extend(builder.report.errors);
    let config = Config {
        listeners,
        backends,
        ..running.clone()
    };
    Renewal {
        config: (!taken.is_empty()).then_some(config),
        kept_out,
        warnings: builder.report.warnings,
        taken,
        checked: builder.loader.checked,
    }
}

/// Changes of the certificates of a listener.
#[derive(Default)]
struct MapChanges {
    removed: Vec<Listed>,
    added: Vec<NewCertificate>,
}

impl ConfigBuilder<'_> {
    /// Moves the errors from index `from` to `kept_out` during a renewal. Returns `true` if any
    /// error was moved.
    fn keep_out(&mut self, from: usize) -> bool {
        let Some(renewing) = &mut self.renewing else {
            return false;
        };
        let before = renewing.kept_out.len();
        renewing.kept_out.extend(self.report.errors.drain(from..));
        renewing.kept_out.len() > before
    }

    /// Returns `true` if one of these files, or a file in one of these folders, may have changed.
    fn are_touched<'t>(&self, mut files: impl Iterator<Item = &'t str>) -> bool {
        let changed = self.renewing.as_ref().map(|it| it.changed);
        changed.is_none_or(|changed| {
            files.any(|file| changed.touches(&self.environment.base.join(file)))
        })
    }

    /// Returns each touched policy in use with its replacement, which may be the same policy.
    fn renewed_policies(
        &mut self,
        running: &Config,
        taken: &mut BTreeSet<String>,
    ) -> Vec<(Arc<Policy>, Arc<Policy>)> {
        let routes = running.listeners.iter().flat_map(|it| &it.routes);
        let mut policies: Vec<(Arc<Policy>, Arc<Policy>)> = Vec::new();
        for before in routes.filter_map(|route| route.policy.as_ref()) {
            let keys = &before.keys;
            let files = keys.client_ca.iter().chain(&keys.crl).map(String::as_str);
            if before.verifier.is_none()
                || policies.iter().any(|it| Arc::ptr_eq(&it.0, before))
                || !self.are_touched(files)
            {
                continue;
            }
            let path = format!("policy[{}]", keys.name);
            let (errors, warnings) = (self.report.errors.len(), self.report.warnings.len());
            let made = self.policy(&path, keys.clone());
            let is_same = self.keep_out(errors) || made.contents == before.contents;
            let after = if is_same {
                self.report.warnings.truncate(warnings);
                Arc::clone(before)
            } else {
                taken.insert(path);
                Arc::new(made)
            };
            policies.push((Arc::clone(before), after));
        }
        policies
    }

    fn renewed_backend(
        &mut self,
        path: &str,
        before: &Arc<Backend>,
        taken: &mut BTreeSet<String>,
    ) -> Arc<Backend> {
        let Some(tls) = &before.tls else {
            return Arc::clone(before);
        };
        let own = tls
            .keys
            .client_certificate
            .iter()
            .flat_map(Certificate::files);
        let of_servers = tls.keys.ca.iter().chain(&tls.keys.crl);
        if !self.are_touched(own.chain(of_servers.map(String::as_str))) {
            return Arc::clone(before);
        }
        let keys = &before.keys;
        let path = key!(path, keys.tls);
        let (errors, warnings) = (self.report.errors.len(), self.report.warnings.len());
        let made = self.onward(&path, Some(&tls.keys));
        let is_kept_out = self.keep_out(errors);
        let new = made.filter(|made| !is_kept_out && made.contents != tls.contents);
        let Some(new) = new else {
            self.report.warnings.truncate(warnings);
            return Arc::clone(before);
        };
        taken.insert(path);
        Arc::new(Backend {
            tls: Some(new),
            ..Backend::clone(before)
        })
    }

    fn renewed_listener(
        &mut self,
        path: &str,
        before: &Arc<Listener>,
        policies: &[(Arc<Policy>, Arc<Policy>)],
        taken: &mut BTreeSet<String>,
    ) -> Arc<Listener> {
        let mut routes = before.routes.clone();
        let mut is_new = false;
        for policy in routes.iter_mut().filter_map(|route| route.policy.as_mut()) {
            let renewed = policies.iter().find(|(old, _)| Arc::ptr_eq(old, policy));
            if let Some((_, after)) = renewed.filter(|(old, after)| !Arc::ptr_eq(old, after)) {
                *policy = Arc::clone(after);
                is_new = true;
            }
        }
        let certificates = self.renewed_certificates(path, before, taken);
        if certificates.is_none() && !is_new {
            return Arc::clone(before);
        }
        Arc::new(Listener {
            certificates: certificates.unwrap_or_else(|| Arc::clone(&before.certificates)),
            routes,
            ..Listener::clone(before)
        })
    }

    /// Returns the certificates of a listener, if they have changed.
    fn renewed_certificates(
        &mut self,
        path: &str,
        before: &Listener,
        taken: &mut BTreeSet<String>,
    ) -> Option<Arc<CertificateMap>> {
        let keys = &before.keys;
        if !keys.ends_tls() {
            return None;
        }
        let of_list = key!(path, keys.certificates);
        let mut changes = MapChanges::default();
        for (index, entry) in keys.certificates.iter().enumerate() {
            if !self.are_touched(entry.files().into_iter()) {
                continue;
            }
            match self.large_folder(index, entry, &before.certificates) {
                Some((folder, pattern)) => {
                    let at = (&*of_list, index);
                    let of = (&*folder, pattern);
                    self.renew_files(at, of, &before.certificates, &mut changes);
                }
                None => {
                    let at = (&*of_list, index);
                    self.renew_entry(at, entry, &before.certificates, &mut changes);
                }
            }
        }
        let mut managed = Vec::new();
        self.add_managed(path, keys, &mut managed);
        changes.removed.extend(self.removed_on_demand(before));
        managed.retain(|job| {
            let changed = self.renewing.as_ref().map(|it| it.changed);
            changed.is_none_or(|changed| changed.touches(job.file()))
        });
        for job in &mut managed {
            let known = before.certificates.certificate(job.entry, job.file());
            job.before = known.map(|it| Arc::clone(&it.loaded));
        }
        self.load_changes(managed, &mut changes);
        let MapChanges { removed, added } = changes;
        if removed.is_empty() && added.is_empty() {
            return None;
        }
        let new = added.iter().map(|(listed, _)| listed);
        let files = removed.iter().chain(new);
        let files: Vec<String> = files
            .map(|it| it.loaded.file().display().to_string())
            .collect();
        let (map, faults) = before.certificates.changed(&removed, added);
        // A listener needs a certificate.
        if map.is_empty() {
            return None;
        }
        self.warn_of(&of_list, faults, keys.default_certificate);
        taken.extend(files);
        Some(Arc::new(map))
    }

    /// Returns the on-demand certificates whose files the ACME companion has removed.
    fn removed_on_demand(&self, before: &Listener) -> Vec<Listed> {
        let acme = self.file.acme.as_ref();
        let acme = acme.filter(|_| before.on_demand.is_some());
        let (Some(acme), Some(renewing)) = (acme, &self.renewing) else {
            return Vec::new();
        };
        let folder = self.environment.base.join(acme.bundles());
        if !renewing.changed.touches(&folder) {
            return Vec::new();
        }
        let Ok(files) = self.environment.files.list_files(&folder) else {
            return Vec::new();
        };
        let is_part = self.environment.files.is_part(&folder);
        let is_gone = |file: &Path| {
            let is_known = !is_part || renewing.changed.changes.gone.contains(&path_hash(file));
            is_known
                && files
                    .binary_search_by(|it| it.as_os_str().cmp(file.as_os_str()))
                    .is_err()
        };
        let held = before.certificates.entry(ON_DEMAND);
        held.filter(|it| is_gone(&it.loaded.file()))
            .cloned()
            .collect()
    }

    /// Returns the folder and pattern of an entry of which only the changed files are looked at: a
    /// folder with many certificates.
    fn large_folder<'t>(
        &self,
        index: usize,
        entry: &'t Certificate,
        before: &CertificateMap,
    ) -> Option<(PathBuf, &'t str)> {
        let Certificate::Path(text) = entry else {
            return None;
        };
        let (folder, pattern) = self.folder_of(text)?;
        let files = &self.environment.files;
        let pattern = pattern.unwrap_or(BUNDLES);
        if files.is_part(&folder) {
            return Some((folder, pattern));
        }
        let changed = self.renewing.as_ref()?.changed;
        let is_large = || {
            let mut certificates = before.entry(u32::try_from(index).unwrap_or(u32::MAX));
            certificates.nth(SMALL_FOLDER).is_some()
        };
        let is_known = !changed.is_unknown(&folder) && files.is_own(&folder);
        (is_known && folder.is_dir() && is_large()).then_some((folder, pattern))
    }

    /// Renews the changed files of a folder.
    fn renew_files(
        &mut self,
        (of_list, index): (&str, usize),
        (folder, pattern): (&Path, &str),
        before: &CertificateMap,
        changes: &mut MapChanges,
    ) {
        let Some(changed) = self.renewing.as_ref().map(|it| &it.changed.changes) else {
            return;
        };
        let path: Arc<str> = format!("{of_list}[{index}]").into();
        let entry = u32::try_from(index).unwrap_or(u32::MAX);
        let files = &self.environment.files;
        let paths = changed.below(folder);
        let paths = paths.filter(|path| path.parent() == Some(folder) && fits(pattern, path));
        let mut jobs = Vec::new();
        for file in paths.filter(|path| !files.is_folder(path)) {
            let known = before.certificate(entry, file);
            if files.is_missing(file) {
                changes.removed.extend(known.cloned());
                continue;
            }
            jobs.push(Job {
                before: known.map(|it| Arc::clone(&it.loaded)),
                ..Job::of(entry, &path, ChainSource::Bundle(file.clone()))
            });
        }
        if !changed.gone.is_empty() {
            let is_gone = |it: &&Listed| changed.gone.contains(&path_hash(&it.loaded.file()));
            let gone = before.entry(entry).filter(is_gone);
            // A file that has returned is loaded again.
            let is_back = |it: &Listed| jobs.iter().any(|job| *job.file() == it.loaded.file());
            changes
                .removed
                .extend(gone.filter(|it| !is_back(it)).cloned());
        }
        self.load_changes(jobs, changes);
    }

    /// Renews all files of an entry.
    fn renew_entry(
        &mut self,
        (of_list, index): (&str, usize),
        entry: &Certificate,
        before: &CertificateMap,
        changes: &mut MapChanges,
    ) {
        let errors = self.report.errors.len();
        let mut jobs = Vec::new();
        self.add_jobs((of_list, index), entry, &mut jobs);
        if self.keep_out(errors) {
            return;
        }
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        for job in &mut jobs {
            let known = before.certificate(number, job.file());
            job.before = known.map(|it| Arc::clone(&it.loaded));
        }
        let is_gone = |it: &&Listed| {
            let file = it.loaded.file();
            // The jobs of a folder are sorted.
            let found = jobs.binary_search_by(|job| job.file().as_os_str().cmp(file.as_os_str()));
            found.is_err()
        };
        let gone: Vec<Listed> = before.entry(number).filter(is_gone).cloned().collect();
        jobs.retain(|job| !self.loader.is_unchanged(job));
        let failed = self.load_changes(jobs, changes);
        // The files of a folder stay in use while the folder is missing.
        let has_folder = |it: &Listed| {
            let file = it.loaded.file();
            file.parent().is_none_or(|folder| !failed.contains(folder))
        };
        changes.removed.extend(gone.into_iter().filter(has_folder));
    }

    /// Loads certificates, and adds the changed ones. Returns the files with errors, whose
    /// certificates stay as they are.
    fn load_changes(&mut self, jobs: Vec<Job>, changes: &mut MapChanges) -> BTreeSet<PathBuf> {
        let mut failed = BTreeSet::new();
        let outcomes = self.loader.load(&jobs);
        for (job, mut outcome) in jobs.into_iter().zip(outcomes) {
            if job.managed.is_some() && self.environment.files.is_missing(job.file()) {
                outcome = self.or_temporary(&job, outcome);
            }
            let errors = self.report.errors.len();
            self.report.errors.extend(outcome.report.errors);
            if self.keep_out(errors) {
                failed.insert(job.file().to_owned());
                continue;
            }
            if let (Some(loaded), Some(names)) = (outcome.loaded, outcome.names) {
                self.report.warnings.extend(outcome.report.warnings);
                let entry = job.entry;
                changes.added.push((Listed { entry, loaded }, Some(names)));
            }
        }
        failed
    }
}
