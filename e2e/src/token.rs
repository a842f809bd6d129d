//! A PKCS#11 token in software (SoftHSM2).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::place::Place;
use crate::tool::{Tool, finish};

/// Token in the folder of a place: its files are in `tokens`, its PIN is in `pin`.
#[derive(Debug)]
pub struct SoftToken {
    folder: PathBuf,
    tool: Tool,
    module: PathBuf,
}

impl SoftToken {
    /// PIN of the token.
    pub const PIN: &str = "271828";

    /// Creates a token with the label `web` and no keys. Skips the test if SoftHSM2 is not installed.
    #[track_caller]
    pub fn new(place: &Place) -> Option<Self> {
        let tool = Tool::find("softhsm2-util")?;
        let folders = ["/usr/lib/softhsm", "/usr/lib64/pkcs11", "/usr/lib/pkcs11"];
        let modules = folders.map(|folder| Path::new(folder).join("libsofthsm2.so"));
        let module = modules.into_iter().find(|module| module.exists());
        let token = Self {
            folder: place.folder().to_owned(),
            tool,
            module: module.expect("the module of softhsm2-util"),
        };
        fs::create_dir(token.files()).expect("a folder");
        let directory = format!("directories.tokendir = {}\n", token.files().display());
        place.write("softhsm2.conf", &directory);
        place.write("pin", &format!("{}\n", Self::PIN));
        token.manage(&["--init-token", "--free", "--so-pin", "3141592"]);
        Some(token)
    }

    /// Imports a private key in PKCS#8 PEM.
    #[track_caller]
    pub fn import(&self, label: &str, key: &Path) {
        // Derive the ID from the label, so that it is unique.
        let id: String = label.bytes().map(|byte| format!("{byte:02x}")).collect();
        let key = key.to_str().expect("a path in UTF-8");
        self.manage(
            &["--import", key, "--token", "web", "--id", &id]
                .into_iter()
                .chain(["--label", label])
                .collect::<Vec<_>>(),
        );
    }

    #[track_caller]
    fn manage(&self, arguments: &[&str]) {
        let mut command = self.tool.command(arguments);
        if arguments[0] == "--init-token" {
            command.args(["--label", "web"]);
        }
        command.args(["--pin", Self::PIN]);
        self.shows_to(&mut command);
        let done = finish(command, "");
        assert_eq!(done.code, 0, "{}", done.all());
    }

    /// Sets the environment of a command so that it finds the token.
    pub fn shows_to(&self, command: &mut Command) {
        command.env("SOFTHSM2_CONF", self.folder.join("softhsm2.conf"));
    }

    /// Returns the path of the PKCS#11 module.
    pub fn module(&self) -> &Path {
        &self.module
    }

    /// Returns the URI of a key for a configuration.
    pub fn uri(&self, label: &str) -> String {
        let (module, pin) = (self.module.display(), self.folder.join("pin"));
        let pin = pin.display();
        format!("pkcs11:token=web;object={label}?module-path={module}&pin-source={pin}")
    }

    /// Unplugs the token.
    pub fn pull(&self) {
        fs::rename(self.files(), self.folder.join("pulled")).expect("it is there");
    }

    /// Plugs the token in again.
    pub fn plug(&self) {
        fs::rename(self.folder.join("pulled"), self.files()).expect("it was pulled");
    }

    /// Returns the directory of the token's files.
    pub fn files(&self) -> PathBuf {
        self.folder.join("tokens")
    }
}
