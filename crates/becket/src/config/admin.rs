//! `[admin]`: where the pages are, and by which names they may be asked for.

use std::net::SocketAddr;

use super::NamePattern;
use super::error::{Mismatch, Problem};
use super::prepare::Draft;
use super::values::{self, Address};

/// Where the pages are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// What is bound.
    pub address: SocketAddr,
    /// Names that a request may give as its host, in lower case, beside addresses and `localhost`.
    pub hosts: Vec<String>,
}

impl Draft<'_> {
    pub(super) fn admin(&mut self) -> Option<Admin> {
        let hosts = self.admin_hosts();
        let text = self.file.admin.address.as_deref()?;
        let path = "admin.address";
        let address = self.report.take(path, text, values::listen_address(text))?;
        if matches!(address, Address::Any(_)) {
            self.report.error(
                Problem::new(
                    path,
                    "the admin page has no password, so the address must be explicit",
                )
                .text(text)
                .accepted("HOST:PORT or [V6]:PORT, such as 127.0.0.1:9443"),
            );
            return None;
        }
        let address = self.resolve(path, text, &address).into_iter().next()?;
        self.claim(path, text, address);
        Some(Admin { address, hosts })
    }

    fn admin_hosts(&mut self) -> Vec<String> {
        let names = self.file.admin.hosts.iter().enumerate();
        let names = names.filter_map(|(index, text)| {
            let name = match values::server_name(text) {
                Ok(NamePattern::Exact(name)) => Ok(name),
                Ok(NamePattern::Wildcard(_)) => Err(Mismatch::new("a wildcard", HOST)),
                Err(fault) => Err(fault),
            };
            let path = format!("admin.hosts[{index}]");
            self.report.take(&path, text, name)
        });
        names.collect()
    }
}

const HOST: &str = "a name without a port, such as becket.example.org";
