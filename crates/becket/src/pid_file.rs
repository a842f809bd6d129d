//! `process.pid-file`: tells service managers which process to signal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use becket_config::process::Process;

/// A file with the number of this process, gone when dropped.
#[derive(Debug)]
pub(crate) struct PidFile(PathBuf);

impl PidFile {
    /// Writes it, if there is to be one; a relative path starts at `folder`. It comes by a new name and is renamed, so that
    /// nobody reads half of it, and a link that somebody left there is replaced and not followed.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn of(process: &Process, folder: &Path) -> io::Result<Option<Self>> {
        let Some(path) = &process.pid_file else {
            return Ok(None);
        };
        let path = folder.join(path);
        let pid = std::process::id();
        let mut fresh = path.clone().into_os_string();
        fresh.push(format!(".{pid}"));
        let written =
            create(Path::new(&fresh), &format!("{pid}\n")).and_then(|()| fs::rename(&fresh, &path));
        written?;
        Ok(Some(Self(path)))
    }
}

fn create(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)?;
    file.write_all(text.as_bytes())
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "pid file not removed");
        }
    }
}
