//! `becket demo`: a terminator to try without any setup.
//!
//! [`prepare`] provides what a real deployment has already: a certificate ([`certificate`]), a
//! server to relay to ([`backend`]) and a free port. [`Demo::flags`] is the equivalent command
//! line; the rest is `becket run`. [`display()`] prints the traffic. `becket files` ([`folder`])
//! uses the same certificate.

mod backend;
mod certificate;
mod display;
pub mod folder;

use std::fmt::Write;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::SystemTime;

pub use self::display::display;

use self::certificate::{CertificateFiles, ensure, state_folder};
use becket_prepare::flags::{Flags, LogFlags, ServiceFlags};
use tempfile::TempDir;

/// Address, backend and certificate of the demo.
#[derive(Debug)]
pub struct Demo {
    /// Address to listen on; it was free when it was probed.
    listen: SocketAddr,
    /// Address of the built-in server.
    backend: SocketAddr,
    files: CertificateFiles,
    /// Temporary folder of the files, if the state folder cannot be used.
    _temporary: Option<TempDir>,
}

/// Reason why the demo cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// Neither the user's state directory nor a temporary one can be written.
    #[error("cannot store the certificate: {0}")]
    Certificate(#[source] io::Error),
    /// The requested port, or every port that was tried, is in use.
    #[error("no free port on 127.0.0.1: {0}")]
    Port(#[source] io::Error),
    /// The built-in server did not start.
    #[error("cannot start the built-in backend: {0}")]
    Backend(#[source] io::Error),
}

/// Prepares certificate, backend and address. The port defaults to 8443 or the next free one.
///
/// # Errors
/// See [`DemoError`]; no thread is running then.
pub fn prepare(port: Option<u16>, now: SystemTime) -> Result<Demo, DemoError> {
    let (files, temporary) = made(now).map_err(DemoError::Certificate)?;
    let listen = match port {
        Some(port) => free(port, port),
        None => free(FIRST_PORT, FIRST_PORT + MORE_PORTS),
    };
    let listen = listen.map_err(DemoError::Port)?;
    Ok(Demo {
        listen,
        backend: backend::start().map_err(DemoError::Backend)?,
        files,
        _temporary: temporary,
    })
}

impl Demo {
    /// Returns the equivalent flags of `becket run`: address, certificate, backend and PROXY
    /// header. Only warnings are logged, because the display shows the rest.
    pub fn flags(&self) -> Flags {
        Flags {
            service: ServiceFlags {
                frontend: vec![self.listen.to_string()],
                backend: vec![self.backend.to_string()],
                certificates: vec![self.files.bundle.to_string_lossy().into_owned()],
                alpn: vec!["http/1.1".to_owned()],
                proxy_header: Some("v2".to_owned()),
                ..ServiceFlags::default()
            },
            logs: LogFlags {
                log_level: Some("warn".to_owned()),
                ..LogFlags::default()
            },
            ..Flags::default()
        }
    }

    /// Returns the text for the user: the address and a command line to try.
    pub fn banner(&self) -> String {
        let certificate = quoted(&self.files.certificate);
        let address = self.listen;
        let url = format!("https://localhost:{}/", address.port());
        let mut text = format!(
            "becket demo: https://{address}/ in front of http://{}/\n\n",
            self.backend
        );
        // Writing to a `String` does not fail.
        writeln!(text, "try it:      curl --cacert {certificate} {url}").ok();
        writeln!(
            text,
            "some bytes:  curl --cacert {certificate} -o /dev/null {url}bytes/1000000000"
        )
        .ok();
        text.push_str("end it:      Ctrl-C\n");
        text
    }
}

/// Returns the certificate in the user's state folder, or in a temporary folder if the former is
/// missing or not writable.
fn made(now: SystemTime) -> io::Result<(CertificateFiles, Option<TempDir>)> {
    if let Some(Ok(files)) = state_folder().map(|folder| ensure(&folder, now)) {
        return Ok((files, None));
    }
    let temporary = tempfile::tempdir()?;
    let files = ensure(temporary.path(), now)?;
    Ok((files, Some(temporary)))
}

/// Returns the first free loopback address with a port from `first` to `last`. The probe does not
/// share ports, so a port that another becket uses is not free.
fn free(first: u16, last: u16) -> io::Result<SocketAddr> {
    let mut refusal = io::ErrorKind::AddrInUse.into();
    for port in first..=last {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(listener) => return listener.local_addr(),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

/// Quotes a path as one word for a shell.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(is_plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

const FIRST_PORT: u16 = 8443;
/// Number of further ports to try.
const MORE_PORTS: u16 = 99;

#[cfg(test)]
#[test]
fn a_path_is_one_word_of_a_shell() {
    assert_eq!(quoted(Path::new("/a/b-c.pem")), "/a/b-c.pem");
    assert_eq!(quoted(Path::new("/it's here")), r"'/it'\''s here'");
}
