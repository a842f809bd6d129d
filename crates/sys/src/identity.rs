//! Users and groups, looked up by name or number in the system's databases.
//!
//! The look-ups go through the C library (getpwnam_r, getgrnam_r, getgrouplist), hence through NSS, and may read files or ask a
//! directory service: for start-up only. What is done with an identity is in `privileges`.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;

/// The credentials that a process or thread can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixIdentity {
    /// User number.
    pub uid: u32,
    /// Primary group number.
    pub gid: u32,
    /// Supplementary groups, with or without the primary one.
    pub groups: Vec<u32>,
}

impl UnixIdentity {
    /// Looks up a user and, unless it is to be the user's own, a group; each by name or else by number.
    ///
    /// The supplementary groups are those that the group database gives to the user. A number need not be in the user
    /// database if a group is given; there are no supplementary groups then.
    ///
    /// # Errors
    /// `NotFound`, with a message that says which name is unknown; `InvalidInput` for a name with a NUL in it; or what the
    /// database returned.
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
        let gid = gid.unwrap_or(entry.gid);
        Ok(Self {
            uid: entry.uid,
            gid,
            groups: supplementary_groups(&entry.name, gid),
        })
    }
}

/// Returns the name of a user, or its number where the database has none.
#[must_use]
pub fn user_name(uid: u32) -> String {
    let number = uid.to_string();
    match find_user(&number) {
        Ok(Some(entry)) => entry.name.to_string_lossy().into_owned(),
        Ok(None) | Err(_) => number,
    }
}

struct UserEntry {
    name: CString,
    uid: u32,
    gid: u32,
}

fn find_user(user: &str) -> io::Result<Option<UserEntry>> {
    let name = CString::new(user)?;
    let convert = |entry: &libc::passwd| UserEntry {
        // SAFETY: the C library filled the entry in; its name is a string in the buffer that outlives this call.
        name: unsafe { CStr::from_ptr(entry.pw_name) }.to_owned(),
        uid: entry.pw_uid,
        gid: entry.pw_gid,
    };
    let by_name = |record: &mut MaybeUninit<libc::passwd>,
                   buffer: &mut [libc::c_char],
                   found: &mut *mut libc::passwd| {
        // SAFETY: the name ends in NUL, the record and the buffer are writable for their whole length.
        unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                record.as_mut_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
                found,
            )
        }
    };
    if let Some(entry) = entry(by_name, convert)? {
        return Ok(Some(entry));
    }
    let Some(uid) = number(user) else {
        return Ok(None);
    };
    let by_number = |record: &mut MaybeUninit<libc::passwd>,
                     buffer: &mut [libc::c_char],
                     found: &mut *mut libc::passwd| {
        // SAFETY: the record and the buffer are writable for their whole length.
        unsafe {
            libc::getpwuid_r(
                uid,
                record.as_mut_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
                found,
            )
        }
    };
    entry(by_number, convert)
}

fn find_group(group: &str) -> io::Result<u32> {
    let name = CString::new(group)?;
    let by_name = |record: &mut MaybeUninit<libc::group>,
                   buffer: &mut [libc::c_char],
                   found: &mut *mut libc::group| {
        // SAFETY: the name ends in NUL, the record and the buffer are writable for their whole length.
        unsafe {
            libc::getgrnam_r(
                name.as_ptr(),
                record.as_mut_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
                found,
            )
        }
    };
    // A number needs no entry: the kernel does not ask for one.
    entry(by_name, |entry| entry.gr_gid)?
        .or_else(|| number(group))
        .ok_or_else(|| not_found(format!("there is no group {group:?}")))
}

/// Calls one of the `get*_r` family with a buffer that grows until the entry fits.
fn entry<Record, Found>(
    call: impl Fn(&mut MaybeUninit<Record>, &mut [libc::c_char], &mut *mut Record) -> libc::c_int,
    convert: impl Fn(&Record) -> Found,
) -> io::Result<Option<Found>> {
    let mut buffer = vec![0; FIRST_BUFFER];
    loop {
        let mut record = MaybeUninit::uninit();
        let mut found = std::ptr::null_mut();
        match call(&mut record, &mut buffer, &mut found) {
            0 => {
                // SAFETY: null, or a pointer to `record`, which is then filled in; its strings lie in `buffer`. Both live on.
                return Ok(unsafe { found.as_ref() }.map(convert));
            }
            libc::ERANGE if buffer.len() < LAST_BUFFER => buffer.resize(buffer.len() * 2, 0),
            libc::EINTR => {}
            // Some databases say so instead of returning a null pointer: see getpwnam(3).
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

fn supplementary_groups(user: &CStr, gid: u32) -> Vec<u32> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut count = libc::c_int::try_from(groups.len()).unwrap_or(libc::c_int::MAX);
        // SAFETY: the name ends in NUL; the pointer and count describe a writable array.
        let result =
            unsafe { libc::getgrouplist(user.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        let count = usize::try_from(count).unwrap_or(0);
        if result >= 0 || groups.len() >= LAST_BUFFER {
            groups.truncate(count);
            return groups;
        }
        // Not all C libraries say how many there are.
        groups.resize(count.max(groups.len() * 2), 0);
    }
}

/// Reads a user or group number; the greatest one means "unchanged" to the kernel and is none.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&number| number != u32::MAX)
}

fn not_found(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, message)
}

/// Enough for any entry of a local file.
const FIRST_BUFFER: usize = 1024;
/// An entry that does not fit here (a group of many thousands) is an error.
const LAST_BUFFER: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_by_name_and_by_number() {
        let root = UnixIdentity::find("root", None).unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        assert_eq!(UnixIdentity::find("0", None).unwrap(), root);
    }

    #[test]
    fn a_user_has_a_name_or_else_a_number() {
        assert_eq!(user_name(0), "root");
        assert_eq!(user_name(987_654), "987654");
    }

    #[test]
    fn a_given_group_replaces_the_users_own() {
        let root = UnixIdentity::find("root", Some("4711")).unwrap();
        assert_eq!((root.uid, root.gid), (0, 4711));
        assert_eq!(UnixIdentity::find("root", Some("root")).unwrap().gid, 0);
    }

    #[test]
    fn a_number_without_an_entry_needs_a_group() {
        let stranger = UnixIdentity::find("987654", Some("987655")).unwrap();
        assert_eq!(
            stranger,
            UnixIdentity {
                uid: 987_654,
                gid: 987_655,
                groups: Vec::new()
            }
        );
        let error = UnixIdentity::find("987654", None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("group"), "{error}");
    }

    #[test]
    fn unknown_names_are_errors_that_name_them() {
        let error = UnixIdentity::find("no-such-user", None).unwrap_err();
        assert!(
            error.to_string().contains("user \"no-such-user\""),
            "{error}"
        );
        let error = UnixIdentity::find("root", Some("no-such-group")).unwrap_err();
        assert!(
            error.to_string().contains("group \"no-such-group\""),
            "{error}"
        );
        assert_eq!(
            UnixIdentity::find("ro\0ot", None).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert!(UnixIdentity::find("4294967295", Some("0")).is_err());
    }
}
