//! Reads the file of kept edits, for the configuration and for `becket ctl --keep`.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use becket_config::edits::Edits;
use becket_config::error::Problem;
use becket_config::read::{KeyLocations, Reading};
use becket_sys::identity::user_name;

use becket_keys::files::{Files, LARGEST, part, reason};

/// Reads the kept edits of a configuration file. There are none where the file is missing.
pub fn edits(files: &Files, config: &Path, path: &Path) -> Reading<Edits> {
    let shown = path.to_string_lossy();
    match text(files, config, path) {
        Ok(text) => {
            let mut read = Edits::read(&text);
            for problem in &mut read.problems {
                problem.file = Some(shown.as_ref().into());
            }
            read
        }
        Err(error) => {
            let problem = Problem::new("admin.edits", reason(&error)).text(&shown);
            let accepted = "a file that only root or the owner of the configuration can change";
            Reading {
                file: None,
                problems: vec![problem.accepted(accepted)],
                places: KeyLocations::default(),
            }
        }
    }
}

fn text(files: &Files, config: &Path, path: &Path) -> io::Result<String> {
    let (file, found) = match files.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        opened => opened?,
    };
    // A configuration that is a pipe has no owner.
    let owner = files.open(config).map_or(0, |(_, config)| config.uid());
    let (uid, mode) = (found.uid(), found.mode() & 0o777);
    if ![0, owner].contains(&uid) || mode & 0o022 != 0 {
        let fault = format!("it belongs to {}, mode {mode:04o}", user_name(uid));
        return Err(io::Error::other(fault));
    }
    let text = part(&file, LARGEST)?;
    String::from_utf8(text).map_err(|_| io::Error::other("not UTF-8"))
}
