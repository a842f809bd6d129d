//! Servers that an operator adds or removes while becket runs.
//!
//! Each edit derives a new configuration from the running one. It is committed like a reload: as a
//! whole, or not at all. A reload, an upgrade and a restart end all edits.

use std::sync::Arc;

use axum::http::StatusCode;
use becket_config::address::Address;
use becket_config::backend;
use becket_config::error::{Problem, Report};

use crate::api::Refused;
use becket_tls::config::{Backend, Config, Server, ServerAddress};

pub(super) fn with_server(
    config: &Config,
    backend: &str,
    keys: &backend::ServerSection,
) -> Result<Config, Refused> {
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
        return Err(conflict("the server exists already", accepted));
    }
    backend.keys.server.push(keys.clone());
    backend.servers.push(Server {
        keys: keys.clone(),
        name: Arc::clone(&written.text),
        // A host name has no address yet; the prober resolves it later.
        addresses: ServerAddress::fixed(&written.address).into_iter().collect(),
        added: true,
    });
    exchanged(config, at, backend)
}

pub(super) fn without_server(
    config: &Config,
    backend: &str,
    server: &str,
) -> Result<Config, Refused> {
    let at = place_of(config, backend)?;
    let mut backend = Backend::clone(&config.backends[at]);
    let index = backend.servers.iter().position(|it| &*it.name == server);
    let index = index.ok_or_else(|| no_server(&backend))?;
    let removed = backend.servers.remove(index);
    backend.keys.server.remove(index);
    if !removed.added {
        backend.removed.push(removed.name);
    }
    exchanged(config, at, backend)
}

/// Replaces one backend in a copy of the configuration. Rejects a backend that would be invalid in
/// the configuration file.
fn exchanged(config: &Config, at: usize, backend: Backend) -> Result<Config, Refused> {
    if backend.docroot.is_none() && backend.servers.is_empty() {
        let accepted = "another server first, or becket ctl servers maintenance";
        return Err(conflict("it is the last server of the backend", accepted));
    }
    let mut config = Config::clone(config);
    let file = Arc::make_mut(&mut config.file);
    if let Some(section) = file.backend.get_mut(at) {
        section.server.clone_from(&backend.keys.server);
    }
    config.backends[at] = Arc::new(backend);
    let mut report = Report::default();
    config.file.check(&mut report);
    if report.errors.is_empty() {
        return Ok(config);
    }
    let faults: Vec<String> = report.errors.iter().map(Problem::to_string).collect();
    let accepted = "a server that is valid in the configuration file";
    Err(Refused::unusable(faults.join("; "), accepted))
}

pub(super) fn place_of(config: &Config, backend: &str) -> Result<usize, Refused> {
    let names = || config.backends.iter().map(|one| &*one.keys.name.0);
    let at = names().position(|name| name == backend);
    at.ok_or_else(|| missing("backend", names()))
}

pub(super) fn no_server(backend: &Backend) -> Refused {
    missing("server", backend.servers.iter().map(|it| &*it.name))
}

fn missing<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Refused {
    let error = format!("no such {what}");
    let names: Vec<&str> = names.collect();
    Refused::new(StatusCode::NOT_FOUND, error, names.join(", "))
}

fn conflict(error: &str, accepted: &str) -> Refused {
    Refused::new(StatusCode::CONFLICT, error, accepted)
}

const ADDRESS: &str = "IP:PORT, NAME:PORT or /unix/path";

#[cfg(test)]
mod tests {
    use becket_config::address;
    use becket_config::file::File;
    use becket_config::notation::Text;
    use proptest::prelude::*;

    use super::*;
    use crate::sample;

    fn base() -> Config {
        let text = "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:1']\ncertificates = ['a.pem']\nbackend = 'app'\n\
            [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '10.0.0.1:1'\n\
            [[backend.server]]\naddress = '10.0.0.2:1'\n";
        let file = File::parse(text).unwrap();
        let servers = ["10.0.0.1:1", "10.0.0.2:1"].map(|name| Server::plain(name, Vec::new()));
        let mut backend = Backend::plain("app", servers.into());
        backend.keys = file.backend[0].clone();
        Config {
            file: Arc::new(file),
            backends: vec![Arc::new(backend)],
            ..sample::config()
        }
    }

    fn keys(address: &str) -> backend::ServerSection {
        let address = address::ServerAddress::parse(address).unwrap();
        backend::ServerSection {
            address: Some(address),
            ..backend::ServerSection::default()
        }
    }

    fn add(config: &Config, server: &str) -> Result<Config, Refused> {
        with_server(config, "app", &keys(server))
    }

    fn servers(config: &Config) -> Vec<String> {
        let servers = config.backends[0].servers.iter();
        servers.map(|server| server.name.to_string()).collect()
    }

    proptest! {
        /// After any sequence of additions and removals, the configuration and the file have the
        /// servers of a list of names.
        #[test]
        fn servers_are_those_of_a_list(steps in proptest::collection::vec((any::<bool>(), 1_u8..6), 0..30)) {
            let mut config = base();
            let mut model = servers(&config);
            for (adds, number) in steps {
                let name = format!("10.0.0.{number}:1");
                let is_there = model.contains(&name);
                let done = if adds {
                    add(&config, &name)
                } else {
                    without_server(&config, "app", &name)
                };
                prop_assert_eq!(done.is_ok(), adds != is_there && (adds || model.len() > 1));
                if let Ok(edited) = done {
                    config = edited;
                    model.retain(|one| *one != name);
                    model.extend(adds.then_some(name));
                }
                prop_assert_eq!(servers(&config), &*model);
                let in_file = config.file.backend[0].server.iter();
                let in_file: Vec<_> = in_file.map(|it| it.address.as_ref().unwrap().text.to_string()).collect();
                prop_assert_eq!(in_file, &*model);
            }
        }
    }

    #[test]
    fn edits_of_unknown_names_are_rejected_with_the_existing_names() {
        let config = base();
        let refused = without_server(&config, "else", "a:1").unwrap_err();
        assert_eq!((refused.code.as_u16(), &*refused.accepted), (404, "app"));
        let refused = without_server(&config, "app", "a:1").unwrap_err();
        assert!(refused.accepted.contains("10.0.0.1:1"), "{refused:?}");
        let refused = add(&config, "10.0.0.1:1").unwrap_err();
        assert_eq!(refused.code.as_u16(), 409);
    }
}
