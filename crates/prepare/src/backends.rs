//! Builds backends from the configuration.
//!
//! Server names are resolved at run time (`health/prober.rs` of control). A server without an
//! address receives no connections, and a reload keeps known addresses. `becket check` resolves the
//! names here. If a name has several addresses, they keep the resolver's order.

use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;

use becket_config::address::Address;
use becket_config::backend;
use becket_config::key;

use super::ConfigBuilder;
use becket_http::docroot::Docroot;
use becket_keys::files::reason;
use becket_tls::config::{Backend, MOST_ADDRESSES, Server, ServerAddress};

impl ConfigBuilder<'_> {
    pub(super) fn backends(&mut self) -> Vec<Arc<Backend>> {
        let file = self.file;
        let sections = file.backend.iter().zip(file.backend_paths());
        sections
            .map(|(backend, path)| Arc::new(self.backend(&path, backend)))
            .collect()
    }

    fn backend(&mut self, path: &str, backend: &backend::Backend) -> Backend {
        let mut servers: Vec<Server> = Vec::with_capacity(backend.server.len());
        for (index, server) in backend.server.iter().enumerate() {
            let path = format!("{path}.server[{index}]");
            if let Some(address) = &server.address {
                let path = key!(path, server.address);
                servers.push(Server {
                    keys: server.clone(),
                    name: Arc::clone(&address.text),
                    addresses: self.server_addresses(&path, &address.address),
                    added: false,
                });
            }
        }
        self.check_sources(&key!(path, backend.source), &backend.source);
        let tls = self.onward(&key!(path, backend.tls), backend.tls.as_ref());
        Backend {
            keys: backend.clone(),
            docroot: self.docroot(&key!(path, backend.files), backend.files.as_ref()),
            servers,
            removed: Vec::new(),
            tls: tls.map(|made| self.running_tls(&made).unwrap_or(made)),
            queue_timeout: backend.queue_timeout.unwrap_or(self.file.timeouts.connect),
        }
    }

    /// Opens the document root. Reports an error if the sandbox forbids the folder or this process
    /// cannot open it.
    fn docroot(&mut self, path: &str, files: Option<&backend::Files>) -> Option<Arc<Docroot>> {
        let files = files?;
        let root = files.root.as_ref().filter(|root| !root.is_empty())?;
        let folder = self.environment.base.join(root);
        let opened = self.environment.files.check_reach(&folder);
        match opened.and_then(|()| Docroot::open(folder, files.clone())) {
            Ok(docroot) => Some(Arc::new(docroot)),
            Err(error) => {
                let fault = match error.kind() {
                    ErrorKind::Unsupported => "needs openat2(2) (Linux 5.6 or later)".to_owned(),
                    _ => reason(&error),
                };
                let accepted = "a folder that the serving user may enter";
                let path = key!(path, files.root);
                self.report
                    .refuse(path, format!("{root}: {fault}"), accepted);
                None
            }
        }
    }

    /// Returns at most [`MOST_ADDRESSES`] addresses of a server.
    fn server_addresses(&mut self, path: &str, address: &Address) -> Vec<ServerAddress> {
        if let Address::Unix(socket) = address {
            return vec![ServerAddress::Unix(socket.clone())];
        }
        let found = self.known_addresses(path, address);
        let count = found.len();
        if count > MOST_ADDRESSES {
            let fault = format!("the name has {count} addresses; {MOST_ADDRESSES} are used");
            self.report.remark(path, fault);
        }
        let used = found.into_iter().take(MOST_ADDRESSES);
        used.map(ServerAddress::Tcp).collect()
    }

    /// Checks that source addresses belong to this host, by binding a socket that sends nothing.
    fn check_sources(&mut self, path: &str, sources: &[IpAddr]) {
        for (index, source) in sources.iter().enumerate() {
            if let Err(error) = UdpSocket::bind((*source, 0)) {
                let path = format!("{path}[{index}]");
                let accepted = "an IP address of this host";
                self.report.refuse(path, reason(&error), accepted);
            }
        }
    }
}
