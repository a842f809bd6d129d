//! Resources that a configuration needs from the supervisor: files to read, addresses to bind, logs
//! to create.
//!
//! The supervisor reads only these keys. The serving process reads the whole configuration and
//! reports its errors.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use becket_config::address::Address;
use becket_config::file::File;

use crate::protocol::SocketKind;
use becket_keys::signing::token::wire::{TokenSpec, tokens};
use becket_prepare::resolver::has_ipv6;
use becket_tls::config::{AdminSocket, worker_count};

#[derive(Debug, Default)]
pub(super) struct Needs {
    /// Files, and folders that contain needed files.
    pub(super) files: Vec<PathBuf>,
    /// Subset of `files` whose changes are applied without a reload, in groups of files that are
    /// loaded together.
    pub(super) watched: Vec<Vec<PathBuf>>,
    /// Subset of `files` whose changes cause a reload.
    pub(super) reloaded: Vec<PathBuf>,
    pub(super) logs: Vec<PathBuf>,
    /// Tokens that hold configured private keys.
    pub(super) tokens: Vec<TokenSpec>,
    /// Addresses to bind, each with its purpose.
    pub(super) addresses: BTreeSet<(SocketKind, SocketAddr)>,
    pub(super) admin_socket: Option<AdminSocket>,
    /// Number of worker threads; each has its own socket per address.
    pub(super) workers: usize,
}

impl Needs {
    /// Collects the resources that a configuration needs. Relative paths start at `folder`; host
    /// names are not resolved.
    pub(super) fn by(file: &File, folder: &Path) -> Self {
        if file.asks_for_kernel_tls().next().is_some() {
            // Loads the kernel's TLS module, which only root can do.
            becket_sys::kernel_tls::support();
        }
        let has_ipv6 = has_ipv6();
        let addresses = |at: &Address| at.to_bind(has_ipv6).unwrap_or_default();
        let listeners = file.listener.iter();
        let binds = listeners.flat_map(|listener| &listener.bind);
        let clients = binds.flat_map(|bind| addresses(&bind.address));
        let admin = file.admin.address.as_ref();
        let admin = admin.and_then(|admin| addresses(&admin.address).pop());
        let cluster = file.cluster.as_ref();
        let datagrams = cluster.and_then(|cluster| cluster.listen.as_ref());
        let datagrams = datagrams.and_then(|at| addresses(&at.address).pop());
        let clients = clients.map(|address| (SocketKind::Clients, address));
        let admin = admin.map(|address| (SocketKind::Admin, address));
        let datagrams = datagrams.map(|address| (SocketKind::Datagrams, address));
        let logs = [&file.log.file, &file.log.access].into_iter();
        let files = files(file).into_iter();
        let watched = file.files_of_certificates().into_iter();
        let watched = watched.filter(|_| file.process.watch);
        Self {
            watched: watched
                .map(|group| group.iter().map(|text| folder.join(&**text)).collect())
                .collect(),
            files: files.map(|text| folder.join(&*text)).collect(),
            reloaded: secrets(file)
                .filter(|_| file.process.watch_config)
                .map(|text| folder.join(text))
                .collect(),
            logs: logs
                .filter_map(|log| Some(folder.join(log.file()?)))
                .collect(),
            tokens: tokens(file),
            addresses: clients.chain(admin).chain(datagrams).collect(),
            // An unknown owner of the socket is ignored here; the serving process reports it.
            admin_socket: AdminSocket::of(&file.admin, folder).ok().flatten(),
            workers: worker_count(&file.process),
        }
    }
}

/// Returns the value of every key that names a file to read.
fn files(file: &File) -> Vec<Cow<'_, str>> {
    let mut files = file.files_of_certificates().concat();
    files.extend(secrets(file).map(Cow::Borrowed));
    let cluster = file.cluster.as_ref();
    let store = cluster.map(|it| [&it.store_password_file, &it.store_ca]);
    let store = store.into_iter().flatten().flatten();
    files.extend(store.map(|path| Cow::Borrowed(path.as_str())));
    files
}

fn secrets(file: &File) -> impl Iterator<Item = &str> {
    file.cluster.iter().flat_map(|cluster| {
        let secrets = cluster.secret.iter().chain(&cluster.accept_secrets);
        secrets.chain(&cluster.secret_from_key).map(String::as_str)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_needs_list_every_file_of_the_configuration() {
        let text = "[[listener]]\nname = 'web'\ncertificates = ['1/*.crt', { chain = '2', key = '3', ocsp = '14' },\
            { chain = '2', key = 'pkcs11:id=a?module-path=/x&pin-source=/etc/becket/pin' }]\n\
            [[backend]]\nname = 'app'\ntls = { client-certificate = '4', ca = '5', crl = ['6'] }\n\
            [[policy]]\nname = 'own'\nclient-ca = '7'\ncrl = ['8', '9']\n\
            [cluster]\nsecret = '10'\naccept-secrets = ['11', '12']\nsecret-from-key = '13'\n\
            store-password-file = '15'\nstore-ca = '16'";
        let needs = Needs::by(&File::parse(text).unwrap(), Path::new("/etc/becket"));
        assert_eq!(needs.tokens.len(), 1);
        let files: BTreeSet<PathBuf> = needs.files.into_iter().collect();
        let all = (1..=16).map(|file: u32| PathBuf::from(format!("/etc/becket/{file}")));
        assert_eq!(files, all.collect());
    }
}
