//! Looks up users and groups by name or number in the system's databases.
//!
//! Lookups go through the C library (getpwnam_r, getgrnam_r, getgrouplist) and therefore through NSS. With musl, they
//! read only `/etc/passwd` and `/etc/group`. They may read files or query a directory service, so use them only at
//! start-up. Module `privileges` switches the process to an identity.

use std::ffi::CString;
use std::io;

use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnixIdentity {
    pub uid: u32,
    pub gid: u32,
    /// IDs of the supplementary groups. The primary group may be included.
    pub groups: Vec<u32>,
}

impl UnixIdentity {
    /// Looks up a user and a group. Each is a name; if no entry has this name, it is parsed as a number. Without
    /// `group`, uses the user's primary group.
    ///
    /// The supplementary groups come from the group database. If `group` is set, a numeric user need not be in the user
    /// database; it then has no supplementary groups.
    ///
    /// # Errors
    /// `NotFound`, with a message that contains the unknown name; otherwise the error of the database.
    pub fn find(user: &str, group: Option<&str>) -> io::Result<Self> {
        let gid = group.map(find_group).transpose()?;
        let Some(entry) = find_user(user)? else {
            return match (number(user), gid) {
                (Some(uid), Some(gid)) => Ok(Self {
                    uid,
                    gid,
                    groups: Vec::new(),
                }),
                (Some(uid), None) => Err(not_found(format!(
                    "user {uid} is not in the user database, so its group must be given"
                ))),
                (None, _) => Err(not_found(format!("there is no user {user:?}"))),
            };
        };
        let gid = gid.unwrap_or(entry.gid.as_raw());
        let groups = getgrouplist(&CString::new(entry.name)?, Gid::from_raw(gid))?;
        Ok(Self {
            uid: entry.uid.as_raw(),
            gid,
            groups: groups.into_iter().map(Gid::as_raw).collect(),
        })
    }
}

/// Returns the name of a user, or its number if the database has no name.
#[must_use]
pub fn user_name(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(entry)) => entry.name,
        Ok(None) | Err(_) => uid.to_string(),
    }
}

fn find_user(user: &str) -> io::Result<Option<User>> {
    let named = found(User::from_name(user))?;
    match number(user) {
        Some(uid) if named.is_none() => found(User::from_uid(Uid::from_raw(uid))),
        _ => Ok(named),
    }
}

fn find_group(group: &str) -> io::Result<u32> {
    let named = found(Group::from_name(group))?.map(|entry| entry.gid.as_raw());
    // A numeric ID needs no database entry, because the kernel does not require one.
    named
        .or_else(|| number(group))
        .ok_or_else(|| not_found(format!("there is no group {group:?}")))
}

/// Returns `None` for the errors with which some databases report a missing entry; see getpwnam(3).
fn found<T>(entry: nix::Result<Option<T>>) -> io::Result<Option<T>> {
    match entry {
        Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
        entry => Ok(entry?),
    }
}

/// Parses a user or group ID. Rejects `u32::MAX`, which means "unchanged" to the kernel.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&number| number != u32::MAX)
}

fn not_found(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_found_by_name_and_by_number() {
        let root = UnixIdentity::find("root", None).unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        assert_eq!(UnixIdentity::find("0", None).unwrap(), root);
        for (group, gid) in [("4711", 4711), ("root", 0)] {
            assert_eq!(UnixIdentity::find("root", Some(group)).unwrap().gid, gid);
        }
        assert_eq!(user_name(0), "root");
        assert_eq!(user_name(987_654), "987654");
    }

    #[test]
    fn a_numeric_user_without_an_entry_needs_a_group() {
        let stranger = UnixIdentity::find("987654", Some("987655")).unwrap();
        assert_eq!((stranger.uid, stranger.gid), (987_654, 987_655));
        assert!(stranger.groups.is_empty());
        let error = UnixIdentity::find("987654", None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("group"), "{error}");
    }

    #[test]
    fn errors_name_the_unknown_user_or_group() {
        for (user, group, named) in [
            ("no-such-user", None, "user \"no-such-user\""),
            ("root", Some("no-such-group"), "group \"no-such-group\""),
            ("ro\0ot", None, "user"),
            ("4294967295", Some("0"), "user"),
        ] {
            let error = UnixIdentity::find(user, group).unwrap_err();
            assert!(error.to_string().contains(named), "{error}");
        }
    }
}
