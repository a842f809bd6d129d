//! `process.pid-file`: tells service managers which process to signal.

use std::io;
use std::path::{Path, PathBuf};

use becket_config::process::Process;
use becket_sys::pid_file;

/// A file with the number of this process, removed when dropped.
#[derive(Debug)]
pub(crate) struct ServicePidFile {
    file: pid_file::PidFile,
    path: PathBuf,
}

impl ServicePidFile {
    /// Writes it, if there is to be one; a relative path starts at `folder`.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn of(process: &Process, folder: &Path) -> io::Result<Option<Self>> {
        let Some(path) = &process.pid_file else {
            return Ok(None);
        };
        let path = folder.join(path);
        let file = pid_file::PidFile::write(&path)?;
        Ok(Some(Self { file, path }))
    }
}

impl Drop for ServicePidFile {
    fn drop(&mut self) {
        if let Err(error) = self.file.remove() {
            tracing::warn!(path = %self.path.display(), %error, "pid file not removed");
        }
    }
}
