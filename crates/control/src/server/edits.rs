//! Servers and certificates that an operator adds to the configuration, or removes from it, while becket runs.
//!
//! Workers use the configuration with each [`Edit`] applied to it in order. It is committed like the configuration of a reload, so an
//! edit is made as a whole or refused. A reload, an upgrade and a restart end all edits. Edits made with `--keep` come back with the
//! configuration, from a file of their own ([`becket_config::edits`]).

use std::sync::Arc;

use axum::http::StatusCode;
use becket_config::address::Address;
use becket_config::backend;
use becket_config::error::{Problem, Report};

use crate::api::Refused;
use becket_keys::keys::Loaded;
use becket_prepare::listeners::signing_key;
use becket_tls::config::overrides::Overrides;
use becket_tls::config::{Backend, Config, Lasts, Listener, Server, ServerAddress};

#[derive(Clone, Debug)]
pub(super) enum Edit {
    AddServer {
        backend: String,
        keys: Box<backend::ServerSection>,
    },
    RemoveServer {
        backend: String,
        server: String,
    },
    SetCertificate {
        listener: String,
        loaded: Arc<Loaded>,
    },
}

#[derive(Debug)]
pub struct RunningEdits {
    /// The configuration without edits.
    of_file: Arc<Config>,
    all: Vec<(Edit, Lasts)>,
}

/// The edits, and the configuration with them.
pub(super) type Edited = (RunningEdits, Arc<Config>);

impl RunningEdits {
    /// No edits of a configuration.
    pub fn of(of_file: Arc<Config>) -> Self {
        let all = Vec::new();
        Self { of_file, all }
    }

    /// The configuration without edits.
    pub(super) fn of_file(&self) -> &Arc<Config> {
        &self.of_file
    }

    /// Applies these edits to another configuration.
    pub(super) fn renewed(&self, of_file: Arc<Config>) -> Result<Edited, Refused> {
        made(of_file, self.all.clone())
    }

    /// Adds an edit, and removes every edit that it hides.
    pub(super) fn with(&self, edit: Edit, lasts: Lasts) -> Result<Edited, Refused> {
        let mut all = self.all.clone();
        all.retain(|(older, _)| !edit.hides(older));
        if all.len() >= MOST {
            let accepted = "the file, and a reload";
            return Err(conflict(
                "too many changes that are not in the file",
                accepted,
            ));
        }
        all.push((edit, lasts));
        made(Arc::clone(&self.of_file), all)
    }

    /// Removes a server, which may be of the file or added.
    pub(super) fn without_server(
        &self,
        backend: String,
        server: String,
        lasts: Lasts,
    ) -> Result<Edited, Refused> {
        // A kept server comes back at a reload, unless its removal is kept as well.
        let is_ended = |was: &Lasts| *was == lasts || lasts == Lasts::Removal;
        let mut all = self.all.clone();
        let added = all
            .iter()
            .rposition(|(edit, was)| edit.adds(&backend, &server) && is_ended(was));
        let Some(at) = added else {
            return self.with(Edit::RemoveServer { backend, server }, lasts);
        };
        all.remove(at);
        made(Arc::clone(&self.of_file), all)
    }

    /// Removes the certificates that were set for a name.
    pub(super) fn without_certificate(
        &self,
        listener: &str,
        name: &str,
    ) -> Result<Edited, Refused> {
        let names = |edit: &Edit| -> Vec<String> {
            let set = edit.sets_at(listener).into_iter();
            set.flat_map(|set| set.names.iter().map(ToString::to_string))
                .collect()
        };
        let mut all = self.all.clone();
        all.retain(|(edit, _)| !names(edit).iter().any(|one| one == name));
        if all.len() == self.all.len() {
            let error = "no certificate was set for this name here";
            let names: Vec<String> = all.iter().flat_map(|(edit, _)| names(edit)).collect();
            return Err(Refused::new(StatusCode::NOT_FOUND, error, names.join(", ")));
        }
        made(Arc::clone(&self.of_file), all)
    }
}

fn made(of_file: Arc<Config>, all: Vec<(Edit, Lasts)>) -> Result<Edited, Refused> {
    let mut config = Config::clone(&of_file);
    for (edit, lasts) in &all {
        match edit {
            Edit::AddServer { backend, keys } => add_server(&mut config, backend, keys, *lasts)?,
            Edit::RemoveServer { backend, server } => {
                remove_server(&mut config, backend, server, *lasts)?;
            }
            Edit::SetCertificate { listener, loaded } => {
                set_certificate(&mut config, listener, loaded, *lasts)?;
            }
        }
    }
    check(&config)?;
    Ok((RunningEdits { of_file, all }, Arc::new(config)))
}

impl Edit {
    fn adds(&self, backend: &str, server: &str) -> bool {
        let Self::AddServer { backend: to, keys } = self else {
            return false;
        };
        let address = keys.address.as_ref();
        to == backend && address.is_some_and(|address| &*address.text == server)
    }

    fn sets_at(&self, listener: &str) -> Option<&Arc<Loaded>> {
        match self {
            Self::SetCertificate {
                listener: own,
                loaded,
            } if own == listener => Some(loaded),
            _ => None,
        }
    }

    /// Returns whether an older edit has no effect with this one: it sets a certificate for the same names, with the same kind of key.
    fn hides(&self, older: &Self) -> bool {
        let Self::SetCertificate { listener, loaded } = self else {
            return false;
        };
        older.sets_at(listener).is_some_and(|older| {
            let kind = |loaded: &Loaded| loaded.key.key.algorithm();
            kind(older) == kind(loaded)
                && older.names.iter().all(|name| loaded.names.contains(name))
        })
    }
}

fn add_server(
    config: &mut Config,
    backend: &str,
    keys: &backend::ServerSection,
    lasts: Lasts,
) -> Result<(), Refused> {
    let at = place_of(config, backend)?;
    let Some(written) = &keys.address else {
        return Err(Refused::unusable("server.address is missing", ADDRESS));
    };
    if matches!(written.address, Address::Any(_)) {
        return Err(Refused::unusable("server.address has no host", ADDRESS));
    }
    let mut backend = Backend::clone(&config.backends[at]);
    if backend.servers.iter().any(|it| it.name == written.text) {
        let accepted = "another address, or becket ctl servers remove";
        return Err(conflict("the server is there already", accepted));
    }
    backend.keys.server.push(keys.clone());
    backend.servers.push(Server {
        keys: keys.clone(),
        name: Arc::clone(&written.text),
        // The prober looks a name up.
        addresses: ServerAddress::fixed(&written.address).into_iter().collect(),
        added: Some(lasts),
        kept: Overrides::default(),
    });
    exchange(config, at, backend);
    Ok(())
}

fn remove_server(
    config: &mut Config,
    backend: &str,
    server: &str,
    lasts: Lasts,
) -> Result<(), Refused> {
    let at = place_of(config, backend)?;
    let mut backend = Backend::clone(&config.backends[at]);
    let index = backend.servers.iter().position(|it| &*it.name == server);
    let index = index.ok_or_else(|| no_server(&backend))?;
    let removed = backend.servers.remove(index);
    backend.keys.server.remove(index);
    backend.removed.push((removed.name, lasts));
    exchange(config, at, backend);
    Ok(())
}

/// Replaces a backend, in the file as well.
fn exchange(config: &mut Config, at: usize, backend: Backend) {
    let file = Arc::make_mut(&mut config.file);
    if let Some(section) = file.backend.get_mut(at) {
        section.server.clone_from(&backend.keys.server);
    }
    config.backends[at] = Arc::new(backend);
}

/// Refuses a configuration that the file could not have. Called after the last edit, because a backend may be empty before.
fn check(config: &Config) -> Result<(), Refused> {
    let mut backends = config.backends.iter();
    if backends.any(|backend| backend.docroot.is_none() && backend.servers.is_empty()) {
        let accepted = "another server first, or becket ctl servers maintenance";
        return Err(conflict("it is the last server of the backend", accepted));
    }
    let mut report = Report::default();
    config.file.check(&mut report);
    if report.errors.is_empty() {
        return Ok(());
    }
    let fault = in_one_line(&report.errors);
    Err(Refused::unusable(fault, "servers that the file could have"))
}

fn set_certificate(
    config: &mut Config,
    listener: &str,
    loaded: &Loaded,
    lasts: Lasts,
) -> Result<(), Refused> {
    let listeners = || config.listeners.iter();
    let at = listeners().position(|one| &*one.keys.name == listener);
    let names = || listeners().map(|one| &*one.keys.name.0);
    let at = at.ok_or_else(|| missing("listener", names()))?;
    let mut after = Listener::clone(&config.listeners[at]);
    if !after.keys.ends_tls() {
        let fault = "no TLS ends at this listener";
        return Err(Refused::unusable(fault, "one with certificates"));
    }
    let key = signing_key(loaded, &config.file);
    let before = &after.certificates;
    after.certificates = Arc::new(before.with(&loaded.names, &key, loaded.offload));
    after.set.push((key, lasts));
    config.listeners[at] = Arc::new(after);
    Ok(())
}

/// Finds a backend by its name.
pub(super) fn place_of(config: &Config, backend: &str) -> Result<usize, Refused> {
    let names = || config.backends.iter().map(|one| &*one.keys.name.0);
    let at = names().position(|name| name == backend);
    at.ok_or_else(|| missing("backend", names()))
}

pub(super) fn no_server(backend: &Backend) -> Refused {
    missing("server", backend.servers.iter().map(|it| &*it.name))
}

/// Refuses a name, and lists the names that there are.
fn missing<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Refused {
    let error = format!("there is no such {what}");
    let names: Vec<&str> = names.collect();
    Refused::new(StatusCode::NOT_FOUND, error, names.join(", "))
}

fn conflict(error: &str, accepted: &str) -> Refused {
    Refused::new(StatusCode::CONFLICT, error, accepted)
}

pub(super) fn in_one_line(problems: &[Problem]) -> String {
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    problems.join("; ")
}

/// Accepted addresses of a server.
const ADDRESS: &str = "IP:PORT, NAME:PORT or /unix/path";
/// Maximum number of edits, because each of them makes every later one slower.
const MOST: usize = 1000;

#[cfg(test)]
mod tests {
    use becket_config::address;
    use becket_config::file::File;
    use becket_config::notation::Text;
    use proptest::prelude::*;

    use super::*;
    use crate::sample;

    fn base() -> Arc<Config> {
        let text = "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:1']\ncertificates = ['a.pem']\nbackend = 'app'\n\
            [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '10.0.0.1:1'\n\
            [[backend.server]]\naddress = '10.0.0.2:1'\n";
        let file = File::parse(text).unwrap();
        let servers = ["10.0.0.1:1", "10.0.0.2:1"].map(|name| Server::plain(name, Vec::new()));
        let mut backend = Backend::plain("app", servers.into());
        backend.keys = file.backend[0].clone();
        Arc::new(Config {
            file: Arc::new(file),
            backends: vec![Arc::new(backend)],
            ..sample::config()
        })
    }

    fn keys(address: &str) -> backend::ServerSection {
        let address = address::ServerAddress::parse(address).unwrap();
        backend::ServerSection {
            address: Some(address),
            ..backend::ServerSection::default()
        }
    }

    fn add(edits: &RunningEdits, server: &str, keep: bool) -> Result<Edited, Refused> {
        let edit = Edit::AddServer {
            backend: "app".to_owned(),
            keys: Box::new(keys(server)),
        };
        edits.with(edit, Lasts::of(keep))
    }

    fn remove(edits: &RunningEdits, server: &str, keep: bool) -> Result<Edited, Refused> {
        edits.without_server("app".to_owned(), server.to_owned(), Lasts::of(keep))
    }

    fn servers(config: &Config) -> Vec<String> {
        let servers = config.backends[0].servers.iter();
        servers.map(|server| server.name.to_string()).collect()
    }

    proptest! {
        /// Any row of additions and removals leaves the servers that a list of names would have, in the file, too.
        #[test]
        fn servers_are_those_of_a_list(steps in proptest::collection::vec((any::<bool>(), 1_u8..6, any::<bool>()), 0..30)) {
            let base = base();
            let mut edits = RunningEdits::of(Arc::clone(&base));
            let mut config = Arc::clone(&base);
            let mut model = servers(&base);
            for (adds, number, keep) in steps {
                let name = format!("10.0.0.{number}:1");
                let is_there = model.contains(&name);
                let done = if adds {
                    add(&edits, &name, keep)
                } else {
                    remove(&edits, &name, keep)
                };
                prop_assert_eq!(done.is_ok(), adds != is_there && (adds || model.len() > 1));
                if let Ok(edited) = done {
                    (edits, config) = edited;
                    model.retain(|one| *one != name);
                    model.extend(adds.then_some(name));
                }
                let (mut now, mut expected) = (servers(&config), model.clone());
                now.sort();
                expected.sort();
                prop_assert_eq!(now, expected);
                let in_file = config.file.backend[0].server.iter();
                let in_file: Vec<_> = in_file.map(|it| it.address.as_ref().unwrap().text.to_string()).collect();
                prop_assert_eq!(in_file, servers(&config));
            }
        }
    }

    #[test]
    fn what_is_refused_says_what_there_is() {
        let edits = RunningEdits::of(base());
        let elsewhere = Edit::RemoveServer {
            backend: "else".to_owned(),
            server: "a:1".to_owned(),
        };
        let refused = edits.with(elsewhere, Lasts::Reload).unwrap_err();
        assert_eq!((refused.code.as_u16(), &*refused.accepted), (404, "app"));
        let refused = remove(&edits, "a:1", false).unwrap_err();
        assert!(refused.accepted.contains("10.0.0.1:1"), "{refused:?}");
        let refused = add(&edits, "10.0.0.1:1", false).unwrap_err();
        assert_eq!(refused.code.as_u16(), 409);
    }
}
