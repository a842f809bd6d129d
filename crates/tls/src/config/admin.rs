//! Where the admin pages are, and who may change something there.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use becket_config::process;
use becket_sys::identity::UnixIdentity;
use becket_sys::socket_file::SocketAccess;

/// Where the admin pages are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Admin {
    /// Over TCP; nothing listens when absent.
    pub address: Option<SocketAddr>,
    /// At a path; nothing listens when absent.
    pub socket: Option<AdminSocket>,
    /// By which changes are made over TCP; without it there are none.
    pub token: Option<Token>,
}

/// A unix socket for the admin pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSocket {
    /// Its path, absolute.
    pub path: PathBuf,
    /// Who may connect.
    pub access: SocketAccess,
}

impl AdminSocket {
    /// The socket that a file asks for, whose relative paths start at `folder`.
    ///
    /// # Errors
    /// There is no such user, or no such group.
    pub fn of(keys: &process::Admin, folder: &Path) -> io::Result<Option<Self>> {
        let Some(path) = &keys.socket else {
            return Ok(None);
        };
        let (owner, group) = (keys.socket_owner.as_deref(), keys.socket_group.as_deref());
        // A group is looked up with a user; root is one everywhere.
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

/// A token, of which nothing but the digest is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Token([u8; 32]);

impl Token {
    /// The token of a file: its text without the white space around it. None where it is too short not to be guessed.
    pub fn of(file: &[u8]) -> Option<Self> {
        let token = file.trim_ascii();
        (token.len() >= Self::LEAST).then(|| Self(digest_of(token)))
    }

    /// Whether this is the token. Takes the same time whatever is said.
    pub fn is(&self, said: &[u8]) -> bool {
        verify_slices_are_equal(&self.0, &digest_of(said)).is_ok()
    }

    /// Bytes that it has at least.
    pub const LEAST: usize = 16;
}

fn digest_of(text: &[u8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, text).as_ref());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_itself_without_the_line_end_and_nothing_else() {
        let token = Token::of(b"0123456789abcdef\n").unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for other in [
            "",
            "0123456789abcde",
            "0123456789abcdef0",
            "0123456789ABCDEF",
        ] {
            assert!(!token.is(other.as_bytes()), "{other}");
        }
        assert!(Token::of(b"  0123456789abcde  ").is_none());
    }

    #[test]
    fn who_owns_the_socket_is_looked_up_and_else_left_to_the_process() {
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
