//! Prepared addresses of the admin pages: a TCP address and a Unix socket.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use becket_config::process;
use becket_sys::identity::UnixIdentity;
use becket_sys::socket_file::SocketAccess;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admin {
    pub address: Option<SocketAddr>,
    pub socket: Option<AdminSocket>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSocket {
    pub path: PathBuf,
    /// Mode, owner and group of the socket file, which determine the users that may connect.
    pub access: SocketAccess,
}

impl AdminSocket {
    /// Returns the configured socket, or `None` if none is configured. A relative path starts at
    /// `folder`.
    ///
    /// # Errors
    /// Fails if the user or the group does not exist.
    pub fn of(keys: &process::Admin, folder: &Path) -> io::Result<Option<Self>> {
        let Some(path) = &keys.socket else {
            return Ok(None);
        };
        let (owner, group) = (keys.socket_owner.as_deref(), keys.socket_group.as_deref());
        // `find` needs a user to look up a group, so root is used if no owner is configured.
        let found = UnixIdentity::find(owner.unwrap_or("0"), group)?;
        let access = SocketAccess {
            mode: keys.socket_mode.0,
            owner: owner.map(|_| found.uid),
            group: group.map(|_| found.gid),
        };
        let path = folder.join(&path.0);
        Ok(Some(Self { path, access }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_owner_and_group_are_resolved_or_left_unset() {
        let keys = |owner: Option<&str>, group: Option<&str>| process::Admin {
            socket: Some(process::SocketPath("run/admin.sock".into())),
            socket_owner: owner.map(str::to_owned),
            socket_group: group.map(str::to_owned),
            ..Default::default()
        };
        let of = |keys: &process::Admin| AdminSocket::of(keys, Path::new("/etc/becket"));
        let socket = of(&keys(None, None)).unwrap().unwrap();
        assert_eq!(socket.path, Path::new("/etc/becket/run/admin.sock"));
        assert_eq!((socket.access.owner, socket.access.group), (None, None));
        let socket = of(&keys(Some("root"), Some("root"))).unwrap().unwrap();
        assert_eq!(
            (socket.access.owner, socket.access.group),
            (Some(0), Some(0))
        );
        assert!(of(&keys(Some("nobody-of-this-name"), None)).is_err());
        assert!(of(&process::Admin::default()).unwrap().is_none());
    }
}
