//! What the tests of `becket-load` stand on: programs that are stopped whatever happens, free ports,
//! certificates, and a TLS server that can be told to misbehave.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod nginx;
pub(crate) mod peer;
pub(crate) mod server;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use becket_stats::report::LoadReport;

/// Runs `becket-load` with these arguments, which spaces separate.
pub(crate) fn load(args: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_becket-load"))
        .args(args.split_ascii_whitespace())
        .stdin(Stdio::null())
        .output()
        .expect("becket-load starts")
}

/// Runs it against `url` and returns its report; panics with all output if there is none.
pub(crate) fn report(url: &str, args: &str) -> LoadReport {
    let output = load(&format!("-q --json - {url} {args}"));
    let text = String::from_utf8_lossy(&output.stdout);
    LoadReport::from_json(&text).unwrap_or_else(|e| panic!("{args}: {e}\n{}", shown(&output)))
}

/// Both streams of a program, for a failed assertion.
pub(crate) fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!(
        "{}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    )
}

/// A directory with a certificate (`cert.pem`) and key (`key.pem`) for localhost.
pub(crate) struct Identity {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) chain: Vec<rustls_pki_types::CertificateDer<'static>>,
    pub(crate) key: rustls_pki_types::PrivateKeyDer<'static>,
}

impl Identity {
    pub(crate) fn new() -> Self {
        let made =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(dir.path().join("cert.pem"), made.cert.pem()).expect("written");
        std::fs::write(dir.path().join("key.pem"), made.signing_key.serialize_pem())
            .expect("written");
        let key = rustls_pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der())
            .expect("a key");
        Self {
            dir,
            chain: vec![made.cert.der().clone()],
            key,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// The text of a path.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
