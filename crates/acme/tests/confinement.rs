//! The confined companion opens the files on its list, and no others.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread;

use becket_acme::confine::{Sandbox, drop_privileges};
use becket_config::acme::{Acme, ExternalAccount};
use becket_sys::file_reach;

/// Returns the error of reading a file or a folder.
fn error(path: &Path) -> Option<ErrorKind> {
    let read = if path.is_dir() {
        fs::read_dir(path).err()
    } else {
        File::open(path).err()
    };
    read.map(|error| error.kind())
}

/// The sandbox restricts its thread and later ones.
#[test]
fn a_key_next_to_the_ca_file_cannot_be_read() {
    drop_privileges(None).unwrap();
    let probe = thread::spawn(|| file_reach::confine([""; 0], []).unwrap());
    if probe.join().unwrap().is_none() {
        return becket_tidy::skip("needs Landlock");
    }
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path();
    let at = |name: &str| base.join(name);
    fs::create_dir(at("acme")).unwrap();
    for name in ["ca.pem", "ca.key", "mac.key", "becket.toml", "acme/own"] {
        fs::write(at(name), name).unwrap();
    }
    symlink(at("ca.key"), at("acme/link")).unwrap();
    let section = Acme {
        folder: "acme".to_owned(),
        ca: Some("ca.pem".to_owned()),
        external_account: vec![ExternalAccount {
            key_file: "mac.key".to_owned(),
            ..ExternalAccount::default()
        }],
        ..Acme::default()
    };
    let confined = || {
        let sandbox = Sandbox::apply(&section, base);
        for path in [
            "ca.pem",
            "mac.key",
            "acme/own",
            "acme",
            "/etc/hosts",
            "/usr",
        ] {
            assert_eq!(error(&at(path)), None, "{path}");
        }
        let denied = [
            "ca.key",
            "becket.toml",
            "acme/link",
            "",
            "/etc/passwd",
            "/etc",
            "/root",
            "/run",
        ];
        for path in denied {
            assert_eq!(
                error(&at(path)),
                Some(ErrorKind::PermissionDenied),
                "{path}"
            );
        }
        fs::write(at("acme/new"), "").unwrap();
        assert!(File::options().append(true).open(at("ca.pem")).is_err());
        assert_eq!(sandbox.replaced(), None);
        sandbox
    };
    let sandbox = thread::scope(|scope| scope.spawn(confined).join().unwrap());
    // A replaced file is another file, which a new process can read.
    File::create(at("new.pem"))
        .unwrap()
        .write_all(b"new")
        .unwrap();
    fs::rename(at("new.pem"), at("ca.pem")).unwrap();
    assert_eq!(sandbox.replaced(), Some(&*at("ca.pem")));
}
