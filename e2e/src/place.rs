//! The folder of a test, with certificates.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::pki::{Authority, Bundle, Key};

/// Folder of a test with an authority and its certificate `site.pem` for `www.example.org`, `localhost` and
/// `internal.example.org`.
#[derive(Debug)]
pub struct Place {
    folder: TempDir,
    /// Authority that issues the test's certificates. Its own certificate is `ca.pem`.
    pub authority: Authority,
}

impl Place {
    /// Creates a folder, which is removed when the place is dropped.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("becket-e2e-")
            .tempdir()
            .expect("a folder");
        let authority = Authority::new("Becket Test Authority");
        let place = Self { folder, authority };
        fs::write(place.path("ca.pem"), place.authority.pem()).expect("a file");
        let names = [NAME, "localhost", "internal.example.org"];
        place
            .authority
            .issue(&names, Key::Ecdsa)
            .write(&place.path("site.pem"));
        place
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns a path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a path in the folder as text for a command line.
    pub fn text(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }

    /// Issues a certificate for these names and writes it to a file in the folder.
    pub fn issue(&self, file: &str, names: &[&str], key: Key) -> Bundle {
        let bundle = self.authority.issue(names, key);
        bundle.write(&self.path(file));
        bundle
    }

    /// Writes a file in the folder.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("a file");
        path
    }

    /// Reads a file in the folder. Returns an empty text if it does not exist.
    pub fn read(&self, name: &str) -> String {
        let bytes = fs::read(self.path(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

/// First name in `site.pem`.
const NAME: &str = "www.example.org";
