//! A PKCS#11 token in software: SoftHSM2.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::place::Place;
use crate::tool::{Tool, finish};

/// A token in the folder of a place: its files are in `tokens`, its PIN in `pin`.
#[derive(Debug)]
pub struct SoftToken {
    folder: PathBuf,
    tool: Tool,
    module: PathBuf,
}

impl SoftToken {
    /// What unlocks it.
    pub const PIN: &str = "271828";

    /// Makes one with the label `web`, which can sign nothing yet. Without SoftHSM2, the test is skipped.
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

    /// Gives it a private key, PKCS#8 PEM.
    #[track_caller]
    pub fn import(&self, label: &str, key: &Path) {
        // No two have one.
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

    /// Has a program find it.
    pub fn shows_to(&self, command: &mut Command) {
        command.env("SOFTHSM2_CONF", self.folder.join("softhsm2.conf"));
    }

    /// The library that speaks with it.
    pub fn module(&self) -> &Path {
        &self.module
    }

    /// What a configuration calls a key of it.
    pub fn uri(&self, label: &str) -> String {
        let (module, pin) = (self.module.display(), self.folder.join("pin"));
        let pin = pin.display();
        format!("pkcs11:token=web;object={label}?module-path={module}&pin-source={pin}")
    }

    /// Pulls it.
    pub fn pull(&self) {
        fs::rename(self.files(), self.folder.join("pulled")).expect("it is there");
    }

    /// Plugs it in again.
    pub fn plug(&self) {
        fs::rename(self.folder.join("pulled"), self.files()).expect("it was pulled");
    }

    /// Where it keeps what it has.
    pub fn files(&self) -> PathBuf {
        self.folder.join("tokens")
    }
}
