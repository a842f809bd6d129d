//! Reads the files of a running configuration again, and applies their changes.
//!
//! The text of the configuration is not read again, no name is resolved, and no address is bound.
//! Only objects built from certificate files are renewed: chains with their keys, policies with
//! their CAs and revocation lists, TLS to servers. Each object is replaced as a whole or not at
//! all. If a new file is faulty, the object in use is kept. An object with unchanged file contents
//! is reused.

use std::collections::{BTreeSet, HashSet};
use std::mem;
use std::path::Path;
use std::sync::Arc;

use becket_config::error::Problem;
use becket_config::key;

use super::{ConfigBuilder, Environment};
use becket_keys::keys::Loaded;
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
}

pub fn renew(running: &Config, environment: &Environment<'_>) -> Renewal {
    let mut builder = ConfigBuilder::new(&running.file, environment);
    builder.kept_out = Some(Vec::new());
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
    let mut kept_out = builder.kept_out.unwrap_or_default();
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
    }
}

impl ConfigBuilder<'_> {
    /// Returns the result of `load`. If `load` fails during a renewal, returns the running
    /// credentials that were loaded from `place`.
    pub(super) fn or_before(
        &mut self,
        place: &Path,
        load: impl FnOnce(&mut Self) -> Option<Loaded>,
    ) -> Vec<Loaded> {
        let errors = self.report.errors.len();
        let loaded = load(self);
        if !self.keep_out(errors) {
            return loaded.into_iter().collect();
        }
        let known = self.loader.known.values();
        let is_of = |known: &&Loaded| *known.file == *place || known.file.parent() == Some(place);
        let mut before: Vec<Loaded> = known.filter(is_of).cloned().collect();
        before.sort_by(|a, b| a.file.cmp(&b.file));
        before
    }

    /// Moves the errors from index `from` to `kept_out` during a renewal. Returns `true` if any
    /// error was moved.
    fn keep_out(&mut self, from: usize) -> bool {
        let Some(kept_out) = &mut self.kept_out else {
            return false;
        };
        let before = kept_out.len();
        kept_out.extend(self.report.errors.drain(from..));
        kept_out.len() > before
    }

    /// Returns each policy in use with its replacement, which may be the same policy.
    fn renewed_policies(
        &mut self,
        running: &Config,
        taken: &mut BTreeSet<String>,
    ) -> Vec<(Arc<Policy>, Arc<Policy>)> {
        let routes = running.listeners.iter().flat_map(|it| &it.routes);
        let mut policies: Vec<(Arc<Policy>, Arc<Policy>)> = Vec::new();
        for before in routes.filter_map(|route| route.policy.as_ref()) {
            if before.verifier.is_none() || policies.iter().any(|it| Arc::ptr_eq(&it.0, before)) {
                continue;
            }
            let path = format!("policy[{}]", before.keys.name);
            let (errors, warnings) = (self.report.errors.len(), self.report.warnings.len());
            let made = self.policy(&path, before.keys.clone());
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
        let keys = &before.keys;
        let mut routes = before.routes.clone();
        let mut is_new = false;
        for policy in routes.iter_mut().filter_map(|route| route.policy.as_mut()) {
            let renewed = policies.iter().find(|(old, _)| Arc::ptr_eq(old, policy));
            if let Some((_, after)) = renewed.filter(|(old, after)| !Arc::ptr_eq(old, after)) {
                *policy = Arc::clone(after);
                is_new = true;
            }
        }
        let mut after = Listener::clone(before);
        if let Some(credentials) = self.renewed_credentials(path, before) {
            let path = key!(path, keys.certificates);
            let map = self.map(&path, &credentials, keys.default_certificate);
            after.certificates = Arc::new(map);
            taken.extend(changed_files(&credentials, &before.credentials));
            taken.extend(changed_files(&before.credentials, &credentials));
            after.credentials = credentials;
            is_new = true;
        }
        if !is_new {
            return Arc::clone(before);
        }
        after.routes = routes;
        Arc::new(after)
    }

    /// Returns the chains and keys of a listener, if they have changed.
    fn renewed_credentials(&mut self, path: &str, before: &Listener) -> Option<Vec<Loaded>> {
        let keys = &before.keys;
        if !keys.ends_tls() {
            return None;
        }
        let known = before.credentials.iter();
        self.loader.known = known.map(|it| (it.digest, it.clone())).collect();
        let warnings = self.report.warnings.len();
        let credentials = self.credentials_of(path, keys);
        mem::take(&mut self.loader.known);
        let is_same = credentials.len() == before.credentials.len() && {
            credentials.iter().zip(&before.credentials)
        }
        .all(|(a, b)| a.is_same(b));
        if is_same {
            self.report.warnings.truncate(warnings);
        }
        // Keeps the credentials in use if none can be loaded, because a listener needs a
        // certificate.
        (!is_same && !credentials.is_empty()).then_some(credentials)
    }
}

/// Returns the files of certificates that are missing in `others` or have different contents there.
fn changed_files(all: &[Loaded], others: &[Loaded]) -> impl Iterator<Item = String> {
    let others: HashSet<_> = others.iter().map(|it| (it.digest, it.ocsp)).collect();
    let changed = all
        .iter()
        .filter(move |it| !others.contains(&(it.digest, it.ocsp)));
    changed.map(|it| it.file.display().to_string())
}
