//! Servers and certificates that an operator adds to the configuration, or removes from it, while becket runs.
//!
//! What runs is the configuration with each [`Edit`] applied to it, one after the other, and it is committed as that of a reload
//! is: so there is one way for a configuration to workers, and an edit is whole or not at all. A reload, an upgrade and a restart end
//! all edits; those of `--keep` come back with the configuration, from a file of their own ([`becket_config::edits`]).

use std::sync::Arc;

use axum::http::StatusCode;
use becket_config::address::Address;
use becket_config::backend;
use becket_config::error::{Problem, Report};

use crate::api::{CertificateSetting, Refused, ServerAddition};
use becket_keys::keys::Loaded;
use becket_prepare::listeners::signing_key;
use becket_tls::config::overrides::Overrides;
use becket_tls::config::{Backend, Config, Lasts, Listener, Server, ServerAddress};

/// One of them.
#[derive(Clone, Debug)]
pub(super) enum Edit {
    AddServer {
        backend: String,
        keys: Box<backend::Server>,
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

/// All of them, in their order.
#[derive(Debug)]
pub struct Edits {
    /// The configuration without them.
    of_file: Arc<Config>,
    all: Vec<(Edit, Lasts)>,
}

/// Edits, and the configuration with them.
pub(super) type Edited = (Edits, Arc<Config>);

impl Edits {
    /// None yet.
    pub fn of(of_file: Arc<Config>) -> Self {
        Self {
            of_file,
            all: Vec::new(),
        }
    }

    /// The configuration without them.
    pub(super) fn of_file(&self) -> &Arc<Config> {
        &self.of_file
    }

    /// All of them, with files that have changed.
    pub(super) fn renewed(&self, of_file: Arc<Config>) -> Result<Edited, Refused> {
        let all = self.all.clone();
        Self {
            of_file,
            all: Vec::new(),
        }
        .made(all)
    }

    /// With one more, which goes before those that it hides.
    pub(super) fn with(&self, (edit, lasts): (Edit, Lasts)) -> Result<Edited, Refused> {
        let mut all = self.all.clone();
        all.retain(|(older, _)| !edit.hides(older));
        if all.len() >= MOST {
            let accepted = "the file, and a reload";
            return Err(conflict("too many changes beside the file", accepted));
        }
        all.push((edit, lasts));
        self.made(all)
    }

    /// Without a server, of the file or added.
    pub(super) fn without_server(
        &self,
        (backend, server): (String, String),
        lasts: Lasts,
    ) -> Result<Edited, Refused> {
        let mut all = self.all.clone();
        // A server that is kept comes back at a reload, unless its removal is kept as well.
        let is_ended = |was: &Lasts| *was == lasts || lasts == Lasts::Removal;
        let added = all
            .iter()
            .rposition(|(edit, was)| edit.adds(&backend, &server) && is_ended(was));
        match added {
            Some(at) => drop(all.remove(at)),
            None => return self.with((Edit::RemoveServer { backend, server }, lasts)),
        }
        self.made(all)
    }

    /// Without the certificates that were set for a name.
    pub(super) fn without_certificate(
        &self,
        listener: &str,
        name: &str,
    ) -> Result<Edited, Refused> {
        let mut all = self.all.clone();
        let mut names = Vec::new();
        all.retain(|(edit, _)| {
            let set = edit.sets_at(listener);
            let is_it = set.is_some_and(|set| set.names.iter().any(|one| one.to_string() == name));
            names.extend(
                set.into_iter()
                    .flat_map(|set| set.names.iter())
                    .map(ToString::to_string),
            );
            !is_it
        });
        if all.len() == self.all.len() {
            let error = "no certificate was set for this name here";
            return Err(Refused::new(StatusCode::NOT_FOUND, error, names.join(", ")));
        }
        self.made(all)
    }

    fn made(&self, all: Vec<(Edit, Lasts)>) -> Result<Edited, Refused> {
        let mut config = Config::clone(&self.of_file);
        for (edit, lasts) in &all {
            edit.apply(*lasts, &mut config)?;
        }
        check(&config)?;
        let of_file = Arc::clone(&self.of_file);
        Ok((Self { of_file, all }, Arc::new(config)))
    }
}

impl Edit {
    pub(super) fn of_addition(addition: ServerAddition) -> (Self, Lasts) {
        let ServerAddition {
            backend,
            server: keys,
            keep,
        } = addition;
        (Self::AddServer { backend, keys }, Lasts::of(keep))
    }

    pub(super) fn of_setting(setting: CertificateSetting, loaded: Loaded) -> (Self, Lasts) {
        let lasts = Lasts::of(setting.keep);
        let (listener, loaded) = (setting.listener, Arc::new(loaded));
        (Self::SetCertificate { listener, loaded }, lasts)
    }

    fn adds(&self, backend: &str, server: &str) -> bool {
        match self {
            Self::AddServer { backend: to, keys } => {
                let address = keys.address.as_ref();
                to == backend && address.is_some_and(|address| &*address.text == server)
            }
            Self::RemoveServer { .. } | Self::SetCertificate { .. } => false,
        }
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

    /// Whether nothing is left to see of another one: a certificate for the same names, with the same kind of key.
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

    /// Changes a configuration; one that it is refused for stays as it is.
    fn apply(&self, lasts: Lasts, config: &mut Config) -> Result<(), Refused> {
        match self {
            Self::AddServer { backend, keys } => add_server(config, backend, keys, lasts),
            Self::RemoveServer { backend, server } => remove_server(config, backend, server, lasts),
            Self::SetCertificate { listener, loaded } => {
                set_certificate(config, listener, loaded, lasts)
            }
        }
    }
}

fn add_server(
    config: &mut Config,
    backend: &str,
    keys: &backend::Server,
    lasts: Lasts,
) -> Result<(), Refused> {
    let at = place_of(config, backend)?;
    let Some(written) = &keys.address else {
        return Err(Refused::unusable("server.address is missing", ADDRESS));
    };
    if matches!(written.address, Address::Any(_)) {
        return Err(Refused::unusable("server.address has no host", ADDRESS));
    }
    // A name is looked up while becket runs.
    let addresses = ServerAddress::fixed(&written.address);
    let addresses = addresses.into_iter().collect();
    let before = &config.backends[at];
    if before
        .servers
        .iter()
        .any(|server| server.name == written.text)
    {
        return Err(conflict(
            "the server is there already",
            "another address, or becket ctl servers remove",
        ));
    }
    let mut backend = Backend::clone(before);
    backend.keys.server.push(keys.clone());
    backend.servers.push(Server {
        keys: keys.clone(),
        name: Arc::clone(&written.text),
        addresses,
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
    let is_it = |one: &Server| &*one.name == server;
    let Some(index) = backend.servers.iter().position(is_it) else {
        return Err(no_server(&backend));
    };
    let removed = backend.servers.remove(index);
    backend.keys.server.remove(index);
    backend.removed.push((removed.name, lasts));
    exchange(config, at, backend);
    Ok(())
}

/// Puts a backend in the place of another, in the file, too.
fn exchange(config: &mut Config, at: usize, backend: Backend) {
    let file = Arc::make_mut(&mut config.file);
    if let Some(section) = file.backend.get_mut(at) {
        section.server.clone_from(&backend.keys.server);
    }
    config.backends[at] = Arc::new(backend);
}

/// Whether the file could have it all so. Asked at the end: on the way, a backend may be empty.
fn check(config: &Config) -> Result<(), Refused> {
    let mut backends = config.backends.iter();
    if backends.any(|backend| backend.docroot.is_none() && backend.servers.is_empty()) {
        let accepted = "another server first, or becket ctl servers maintenance";
        return Err(conflict("it is the last server of the backend", accepted));
    }
    let mut report = Report::default();
    config.file.check(&mut report);
    match report.errors.is_empty() {
        true => Ok(()),
        false => Err(Refused::unusable(
            said(&report.errors),
            "what the file could have",
        )),
    }
}

fn set_certificate(
    config: &mut Config,
    listener: &str,
    loaded: &Loaded,
    lasts: Lasts,
) -> Result<(), Refused> {
    let mut listeners = config.listeners.iter();
    let at = listeners.position(|one| &*one.keys.name == listener);
    let at = at.ok_or_else(|| {
        let names = config.listeners.iter().map(|it| &*it.keys.name.0);
        missing("listener", names)
    })?;
    let before = &config.listeners[at];
    if !before.keys.ends_tls() {
        return Err(Refused::unusable(
            "no TLS ends at this listener",
            "one with certificates",
        ));
    }
    let key = signing_key(loaded, &config.file);
    let certificates = before
        .certificates
        .with(&loaded.names, &key, loaded.offload);
    let mut after = Listener::clone(before);
    after.certificates = Arc::new(certificates);
    after.set.push((key, lasts));
    config.listeners[at] = Arc::new(after);
    Ok(())
}

fn place_of(config: &Config, backend: &str) -> Result<usize, Refused> {
    let mut backends = config.backends.iter();
    let at = backends.position(|one| &*one.keys.name == backend);
    at.ok_or_else(|| missing("backend", config.backends.iter().map(|it| &*it.keys.name.0)))
}

/// There is no such server.
pub(super) fn no_server(backend: &Backend) -> Refused {
    missing("server", backend.servers.iter().map(|it| &*it.name))
}

/// There is no such thing; these are there.
pub(super) fn missing<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Refused {
    let error = format!("there is no such {what}");
    let names: Vec<&str> = names.collect();
    Refused::new(StatusCode::NOT_FOUND, error, names.join(", "))
}

fn conflict(error: &str, accepted: &str) -> Refused {
    Refused::new(StatusCode::CONFLICT, error, accepted)
}

/// Problems in one line.
pub(super) fn said(problems: &[Problem]) -> String {
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    problems.join("; ")
}

/// What the address of a server may be.
const ADDRESS: &str = "IP:PORT, NAME:PORT or /unix/path";
/// Each makes every later one longer. Who needs more edits the file.
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

    fn keys(address: &str) -> backend::Server {
        let address = address::ServerAddress::parse(address).unwrap();
        backend::Server {
            address: Some(address),
            ..backend::Server::default()
        }
    }

    fn add(edits: &Edits, server: &str, keep: bool) -> Result<Edited, Refused> {
        let edit = Edit::AddServer {
            backend: "app".to_owned(),
            keys: Box::new(keys(server)),
        };
        edits.with((edit, Lasts::of(keep)))
    }

    fn remove(edits: &Edits, server: &str, keep: bool) -> Result<Edited, Refused> {
        edits.without_server(("app".to_owned(), server.to_owned()), Lasts::of(keep))
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
            let mut edits = Edits::of(Arc::clone(&base));
            let mut config = Arc::clone(&base);
            let mut model = servers(&base);
            for (adds, number, keep) in steps {
                let name = format!("10.0.0.{number}:1");
                let is_there = model.contains(&name);
                let done = match adds {
                    true => add(&edits, &name, keep),
                    false => remove(&edits, &name, keep),
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
        let edits = Edits::of(base());
        let elsewhere = Edit::RemoveServer {
            backend: "else".to_owned(),
            server: "a:1".to_owned(),
        };
        let refused = edits.with((elsewhere, Lasts::Reload)).unwrap_err();
        assert_eq!((refused.code.as_u16(), &*refused.accepted), (404, "app"));
        let refused = remove(&edits, "a:1", false).unwrap_err();
        assert!(refused.accepted.contains("10.0.0.1:1"), "{refused:?}");
        let refused = add(&edits, "10.0.0.1:1", false).unwrap_err();
        assert_eq!(refused.code.as_u16(), 409);
    }
}
