//! Opens the file of `SSLKEYLOGFILE` when the first secret is written.
//!
//! The key log of rustls opens the file when it is created. At that time becket may still be root,
//! and root must not open a file whose name comes from the environment.

use std::sync::OnceLock;

use rustls::{KeyLog, KeyLogFile};

#[derive(Debug, Default)]
pub struct LateKeyLog(OnceLock<KeyLogFile>);

impl KeyLog for LateKeyLog {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let file = self.0.get_or_init(KeyLogFile::new);
        file.log(label, client_random, secret);
    }
}
