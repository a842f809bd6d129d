//! Kept edits: changes by `becket ctl --keep`, in a TOML file that is read with the configuration.
//!
//! `apply_edits` reads the file and applies it to the configuration.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::address::{FixedAddress, SectionName, ServerAddress};
use crate::choices::ServerMode;
use crate::notation::Whole;
use crate::section::section;

section! {
/// The file of `admin.edits`.
pub struct Edits {
    /// A filter, as `log.level`.
    pub log_level: Option<String>,
    /// `[[server]]`
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub server: Vec<ServerEdit>,
    /// `[[certificate]]`
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub certificate: Vec<CertificateEdit>,
    /// Path of the file; absent where there is no configuration file.
    #[serde(skip)]
    pub path: Option<PathBuf>,
}
}

section! {
/// `[[server]]`: one server, by its backend and its address in the configuration.
pub struct ServerEdit {
    /// Name of the backend.
    pub backend: SectionName,
    /// The server's address in the configuration, or that of the new server; absent is a fault.
    pub address: Option<ServerAddress>,
    /// Adds, removes or changes the server.
    #[serde(skip_serializing_if = "is_default")]
    pub action: ServerAction,
    /// Clients that it gets.
    pub mode: Option<ServerMode>,
    /// Share of new clients.
    #[serde(with = "Whole::<0, 256>")]
    pub weight: Option<u32>,
    /// Maximum number of connections; 0 is no limit.
    #[serde(with = "Whole::<0, 100_000_000>")]
    pub maxconn: Option<u32>,
    /// Addresses that replace its own, tried in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<FixedAddress>,
    /// Serves only when no other server can; for a new server.
    #[serde(skip_serializing_if = "is_default")]
    pub backup: bool,
}
}

section! {
/// `[[certificate]]`: a certificate that hides those of the listener with the same names.
pub struct CertificateEdit {
    /// Name of the listener.
    pub listener: SectionName,
    /// PEM file with the chain.
    pub chain: String,
    /// PEM file with the key.
    pub key: String,
}
}

/// Action of an edit on a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerAction {
    /// Adds it, or replaces the one of the configuration.
    Add,
    /// Removes it.
    Remove,
    /// Changes it.
    #[default]
    Change,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Edits {
    /// Returns the edit of a server, if there is one.
    pub fn server(&self, backend: &str, address: &str) -> Option<&ServerEdit> {
        self.server.iter().find(|edit| edit.is_of(backend, address))
    }

    /// Returns the removed servers of a backend.
    pub fn removed(&self, backend: &str) -> impl Iterator<Item = &ServerAddress> {
        let removed = self.server.iter();
        let removed = removed
            .filter(move |edit| edit.action == ServerAction::Remove && *edit.backend == *backend);
        removed.filter_map(|edit| edit.address.as_ref())
    }

    /// Shows each edit in a line.
    pub fn lines(&self) -> Vec<String> {
        let servers = self.server.iter().map(ToString::to_string);
        let certificates = self.certificate.iter().map(ToString::to_string);
        let level = self
            .log_level
            .iter()
            .map(|level| format!("log level: {level}"));
        servers.chain(certificates).chain(level).collect()
    }
}

impl ServerEdit {
    /// Returns whether the edit is about this server.
    pub fn is_of(&self, backend: &str, address: &str) -> bool {
        let own = self.address.as_ref().map(|address| &*address.text);
        *self.backend == *backend && own == Some(address)
    }
}

impl Display for ServerEdit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let address = self.address.as_ref().map_or("", |address| &address.text);
        write!(f, "server {}/{address}:", self.backend)?;
        let action = match self.action {
            ServerAction::Add => Some("added".to_owned()),
            ServerAction::Remove => Some("removed".to_owned()),
            ServerAction::Change => None,
        };
        let addresses: Vec<&str> = self.addresses.iter().map(|it| &*it.text).collect();
        let addresses = addresses.join(" ");
        let parts = [
            action,
            self.mode.map(|mode| format!("mode {}", mode.word())),
            self.weight.map(|weight| format!("weight {weight}")),
            self.maxconn.map(|most| format!("maxconn {most}")),
            (!addresses.is_empty()).then(|| format!("addresses {addresses}")),
            self.backup.then(|| "backup".to_owned()),
        ];
        for (index, part) in parts.into_iter().flatten().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma} {part}")?;
        }
        Ok(())
    }
}

impl Display for CertificateEdit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "certificate of {}: {}", self.listener, self.chain)
    }
}
