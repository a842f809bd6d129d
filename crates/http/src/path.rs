//! Converts the path in a request target to a path below a folder.
//!
//! Each segment is decoded once (RFC 3986, section 2.4). Nothing is resolved or merged: clients resolve `.` and `..`
//! before they send a request, and `//` is a different resource than `/`. Therefore each file has only one path, no
//! path leaves the folder, and a redirect cannot lead to another host.

use crate::status::StatusCode;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RelativePath {
    /// Path segments joined by slashes, without a slash at either end. Empty for the folder itself.
    pub bytes: Vec<u8>,
    /// `true` if the path ended with a slash, and so names a folder.
    pub is_folder: bool,
}

/// Decodes the path of a target, which must begin with a slash.
///
/// # Errors
/// `BadRequest` for an invalid path, or one that tries to leave the folder; `NotFound` for a name that no
/// file can have, or that begins with a dot, except `.well-known` at the top (RFC 8615).
pub fn decode(path: &str) -> Result<RelativePath, StatusCode> {
    let path = path.strip_prefix('/').ok_or(StatusCode::BadRequest)?;
    let (path, is_folder) = match path.strip_suffix('/') {
        Some("") => return Err(StatusCode::NotFound),
        Some(path) => (path, true),
        None => (path, path.is_empty()),
    };
    let mut bytes = Vec::with_capacity(path.len());
    let mut fault = Ok(());
    if path.is_empty() {
        return Ok(RelativePath { bytes, is_folder });
    }
    for (index, segment) in path.split('/').enumerate() {
        if index > 0 {
            bytes.push(b'/');
        }
        let start = bytes.len();
        unescape(segment, &mut bytes)?;
        let name = &bytes[start..];
        let is_known = index == 0 && name == WELL_KNOWN;
        match name {
            b".." => return Err(StatusCode::BadRequest),
            name if name.contains(&0) => return Err(StatusCode::BadRequest),
            name if name.is_empty() || name.contains(&b'/') => fault = Err(StatusCode::NotFound),
            [b'.', ..] if !is_known => fault = Err(StatusCode::NotFound),
            _ => {}
        }
    }
    fault.map(|()| RelativePath { bytes, is_folder })
}

/// Decodes percent-encoded bytes, RFC 3986, section 2.1.
fn unescape(text: &str, out: &mut Vec<u8>) -> Result<(), StatusCode> {
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            out.push(*first);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let pair = match rest {
            [high, low, ..] => digit(*high).zip(digit(*low)),
            _ => None,
        };
        let (high, low) = pair.ok_or(StatusCode::BadRequest)?;
        out.push((high << 4 | low) as u8);
        rest = &rest[2..];
    }
    Ok(())
}

const WELL_KNOWN: &[u8] = b".well-known";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_are_decoded_once() {
        for (path, bytes, is_folder) in [
            ("/", &b""[..], true),
            ("/a", b"a", false),
            ("/a/", b"a", true),
            ("/a/b.c", b"a/b.c", false),
            ("/a%20b/%c3%A9", b"a b/\xc3\xa9", false),
            ("/%2561", b"%61", false),
            (
                "/.well-known/acme-challenge/x",
                b".well-known/acme-challenge/x",
                false,
            ),
            ("/a..b/c...", b"a..b/c...", false),
        ] {
            let bytes = bytes.to_vec();
            assert_eq!(
                decode(path),
                Ok(RelativePath { bytes, is_folder }),
                "{path}"
            );
        }
    }

    #[test]
    fn malformed_hidden_and_parent_paths_are_rejected() {
        for (path, status) in [
            ("/..", StatusCode::BadRequest),
            ("/a/../b", StatusCode::BadRequest),
            ("/a/%2e%2E/b", StatusCode::BadRequest),
            ("/..%2f..%2fetc/passwd", StatusCode::NotFound),
            ("/%2e%2e%2fetc", StatusCode::NotFound),
            ("/a%00.html", StatusCode::BadRequest),
            ("/%", StatusCode::BadRequest),
            ("/%4", StatusCode::BadRequest),
            ("/%zz", StatusCode::BadRequest),
            ("a", StatusCode::BadRequest),
            ("//", StatusCode::NotFound),
            ("//evil.test/", StatusCode::NotFound),
            ("/a//b", StatusCode::NotFound),
            ("/a%2fb", StatusCode::NotFound),
            ("/./a", StatusCode::NotFound),
            ("/.git/config", StatusCode::NotFound),
            ("/%2egit/config", StatusCode::NotFound),
            ("/a/.well-known", StatusCode::NotFound),
        ] {
            assert_eq!(decode(path), Err(status), "{path}");
        }
    }

    proptest! {
        #[test]
        fn no_path_leaves_the_folder(path in "/[./%a2eEfF0\\\\]{0,12}") {
            if let Ok(found) = decode(&path) {
                prop_assert!(!found.bytes.contains(&0));
                prop_assert!(!found.bytes.starts_with(b"/") && !found.bytes.ends_with(b"/"));
                let mut names = found.bytes.split(|byte| *byte == b'/');
                prop_assert!(found.bytes.is_empty() || names.all(|name| !name.is_empty() && name[0] != b'.'));
            }
        }
    }
}
