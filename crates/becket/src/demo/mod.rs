//! Implements `becket demo`, which runs a TLS terminator without any setup.
//!
//! [`prepare`] creates a certificate ([`certificate`]), starts a backend server ([`backend`]) and
//! finds free ports. [`Demo::flags`] returns the equivalent flags of `becket run`, and
//! [`display()`] prints the traffic. `becket files` ([`folder`]) uses the same certificate.

mod backend;
mod certificate;
mod display;
pub mod folder;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::SystemTime;

pub use self::display::display;

use self::certificate::{CertificateFiles, ensure, state_folder};
use becket_prepare::flags::{Flags, LogFlags, ProcessFlags, ServiceFlags};
use tempfile::TempDir;

#[derive(Debug)]
pub struct Demo {
    /// Address to listen on. The port was free when `prepare` probed it.
    listen: SocketAddr,
    /// Preferred port. The demo uses another port if it is in use.
    wanted: u16,
    /// Address of the status page. The port was free when `prepare` probed it.
    admin: SocketAddr,
    backend: SocketAddr,
    files: CertificateFiles,
    /// Temporary folder of the certificate, if the state folder cannot be used.
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

/// Prepares certificate, backend and addresses. The default port is 8443, or the next free one.
///
/// # Errors
/// See [`DemoError`]. After an error, no thread is running.
pub fn prepare(port: Option<u16>, now: SystemTime) -> Result<Demo, DemoError> {
    let (files, temporary) = made(now).map_err(DemoError::Certificate)?;
    let wanted = port.unwrap_or(FIRST_PORT);
    let last = port.unwrap_or(FIRST_PORT + MORE_PORTS);
    let listen = free(wanted..=last).map_err(DemoError::Port)?;
    let pages = (FIRST_ADMIN..=FIRST_ADMIN + MORE_PORTS).filter(|port| *port != listen.port());
    Ok(Demo {
        listen,
        wanted,
        admin: free(pages).map_err(DemoError::Port)?,
        backend: backend::start().map_err(DemoError::Backend)?,
        files,
        _temporary: temporary,
    })
}

impl Demo {
    /// Returns the equivalent flags of `becket run`. Only warnings are logged, because the display
    /// shows the traffic, and the warning about running as root is suppressed.
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
            process: ProcessFlags {
                admin: Some(self.admin.to_string()),
                ..ProcessFlags::default()
            },
            logs: LogFlags {
                log_level: Some("warn,becket_control::launch=error".to_owned()),
                ..LogFlags::default()
            },
            ..Flags::default()
        }
    }

    /// Returns the text for the user: addresses, and commands to paste. `program` is the name by which
    /// the user started becket.
    pub fn banner(&self, program: &Path) -> String {
        let (listen, admin, backend) = (self.listen, self.admin, self.backend);
        let port = match listen.port() {
            port if port == self.wanted || self.wanted == 0 => port.to_string(),
            port => format!("{port}, because {} is in use", self.wanted),
        };
        let url = format!("https://localhost:{}/", listen.port());
        let curl = format!("curl --cacert {}", quoted(&self.files.certificate));
        let (becket, load) = (quoted(program), load_command(program));
        format!(
            "becket demo: port {port}\n\
             \n\
             web site:     {url} in front of http://{backend}/\n\
             status page:  http://{admin}/\n\
             \n\
             try it:       {curl} {url}\n\
             resumed:      {curl} {url} {url}\n\
             some bytes:   {curl} -o /dev/null {url}bytes/1000000000\n\
             some load:    {load} https://{listen}/ -c 10 -d 5s --resume every=4\n\
             watch it:     {becket} top --admin {admin}\n\
             end it:       Ctrl-C\n"
        )
    }
}

/// Returns the certificate in the user's state folder. Uses a temporary folder if the state folder
/// is missing or not writable.
fn made(now: SystemTime) -> io::Result<(CertificateFiles, Option<TempDir>)> {
    if let Some(Ok(files)) = state_folder().map(|folder| ensure(&folder, now)) {
        return Ok((files, None));
    }
    let temporary = tempfile::tempdir()?;
    let files = ensure(temporary.path(), now)?;
    Ok((files, Some(temporary)))
}

/// Returns the first loopback address whose port is free. The probe does not set SO_REUSEPORT, so a
/// port that another becket uses is not free.
fn free(ports: impl IntoIterator<Item = u16>) -> io::Result<SocketAddr> {
    let mut refusal = io::ErrorKind::AddrInUse.into();
    for port in ports {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(listener) => return listener.local_addr(),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

/// Returns the command that starts the load generator: the program in becket's directory, or `cargo
/// run`.
fn load_command(program: &Path) -> String {
    let load = program.with_file_name("becket-load");
    if program.components().count() == 1 || load.exists() {
        return quoted(&load);
    }
    "cargo run --release -p becket-load --".to_owned()
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
const FIRST_ADMIN: u16 = 9443;
/// Number of ports to try after the default port.
const MORE_PORTS: u16 = 99;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_quoted_as_one_shell_word() {
        assert_eq!(quoted(Path::new("/a/b-c.pem")), "/a/b-c.pem");
        assert_eq!(quoted(Path::new("/it's here")), r"'/it'\''s here'");
    }

    #[test]
    fn the_banner_shows_commands_and_explains_another_port() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mut demo = Demo {
            listen: address("127.0.0.1:8444"),
            wanted: FIRST_PORT,
            admin: address("127.0.0.1:9443"),
            backend: address("127.0.0.1:1"),
            files: CertificateFiles {
                certificate: "/c.pem".into(),
                bundle: "/b.pem".into(),
            },
            _temporary: None,
        };
        let banner = demo.banner(Path::new("becket"));
        for line in [
            "becket demo: port 8444, because 8443 is in use",
            "status page:  http://127.0.0.1:9443/",
            "try it:       curl --cacert /c.pem https://localhost:8444/",
            "resumed:      curl --cacert /c.pem https://localhost:8444/ https://localhost:8444/",
            "some load:    becket-load https://127.0.0.1:8444/ -c 10 -d 5s --resume every=4",
            "watch it:     becket top --admin 127.0.0.1:9443",
        ] {
            assert!(banner.lines().any(|it| it == line), "{line}\n{banner}");
        }
        demo.wanted = 8444;
        let banner = demo.banner(Path::new("nowhere/becket"));
        assert!(banner.starts_with("becket demo: port 8444\n"), "{banner}");
        assert!(banner.contains("    cargo run --release -p becket-load -- https:"));
        let admin = demo.flags().process.admin;
        assert_eq!(admin.as_deref(), Some("127.0.0.1:9443"));
    }

    #[test]
    fn a_port_in_use_is_skipped() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert!(free([port]).is_err());
        assert_ne!(free([port, 0]).unwrap().port(), port);
    }
}
