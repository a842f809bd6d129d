//! The file that `SSLKEYLOGFILE` names, opened when the first secret is to be written.
//!
//! rustls opens it when the object is made. A configuration is made while becket may still be root, and what is root's to open
//! by a name that the environment chose is more than the run user could.

use std::sync::OnceLock;

use rustls::{KeyLog, KeyLogFile};

/// Opens the file at the first secret.
#[derive(Debug, Default)]
pub struct LateKeyLog(OnceLock<KeyLogFile>);

impl KeyLog for LateKeyLog {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let file = self.0.get_or_init(KeyLogFile::new);
        file.log(label, client_random, secret);
    }
}
