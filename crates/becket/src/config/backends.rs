//! The part of `prepare` that makes backends: addresses are parsed and resolved.
//!
//! A name may have several addresses; all are kept in the resolver's order. A name that does not
//! resolve is an error at the start and at a reload: the reload is then discarded and what
//! runs goes on with what it knew.

use std::sync::Arc;

use super::error::Problem;
use super::file::FileBackend;
use super::prepare::Draft;
use super::read::labels;
use super::values::{self, Address};
use super::{Backend, Server, ServerAddress};

impl Draft<'_> {
    /// All backends, in the order of the file.
    pub(super) fn backends(&mut self) -> Vec<Arc<Backend>> {
        let file = self.file;
        let names = || file.backend.iter().map(|backend| backend.name.as_deref());
        let paths = labels(names())
            .into_iter()
            .map(|label| format!("backend[{label}]"));
        let paths: Vec<String> = paths.collect();
        self.check_names(paths.iter().cloned().zip(names()));
        if file.backend.is_empty() {
            self.report.error(
                Problem::new("backend", "missing").accepted("at least one backend with a server"),
            );
        }
        let sections = file.backend.iter().zip(&paths);
        sections
            .map(|(backend, path)| Arc::new(self.backend(path, backend)))
            .collect()
    }

    fn backend(&mut self, path: &str, backend: &FileBackend) -> Backend {
        if backend.server.is_empty() {
            let problem = Problem::new(format!("{path}.server"), "missing");
            self.report
                .error(problem.accepted("at least one server with an address"));
        }
        let mut servers: Vec<Server> = Vec::with_capacity(backend.server.len());
        for (index, server) in backend.server.iter().enumerate() {
            let path = format!("{path}.server[{index}].address");
            let Some(text) = server.address.as_deref() else {
                let problem = Problem::new(path, "missing");
                self.report
                    .error(problem.accepted("HOST:PORT, [V6]:PORT or /unix/path"));
                continue;
            };
            if servers.iter().any(|other| *other.name == *text) {
                let fault = "an earlier server of this backend has this address";
                self.report.error(
                    Problem::new(path, fault)
                        .text(text)
                        .accepted("each server once"),
                );
                continue;
            }
            servers.push(Server {
                name: text.into(),
                addresses: self.server_addresses(&path, text),
            });
        }
        Backend {
            name: backend.name.clone().unwrap_or_default(),
            tls: self.onward(path, backend.tls.as_ref(), &servers),
            servers,
            proxy_header: backend.proxy_header,
        }
    }

    fn server_addresses(&mut self, path: &str, text: &str) -> Vec<ServerAddress> {
        let parsed = values::server_address(text);
        match self.report.take(path, text, parsed) {
            None => Vec::new(),
            Some(Address::Unix(socket)) => vec![ServerAddress::Unix(socket)],
            Some(address) => {
                let found = self.resolve(path, text, &address).into_iter();
                found.map(ServerAddress::Tcp).collect()
            }
        }
    }
}
