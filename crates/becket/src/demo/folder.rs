//! `becket files DIR`: serves the files of a folder without any setup.
//!
//! [`prepare`] finds an address and, if no certificate is named, generates one for localhost as
//! `becket demo` does. [`ServedFolder::flags`] returns the equivalent flags of `becket run`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::SystemTime;

use becket_config::address::{Address, ListenAddress};
use becket_config::notation::Text;

use super::certificate::CertificateFiles;
use super::{DemoError, FIRST_PORT, MORE_PORTS, free, made, quoted};
use becket_prepare::flags::{Flags, LogFlags, ServiceFlags};

/// Arguments of `becket files`.
#[derive(Clone, Debug, clap::Args)]
pub struct FilesFlags {
    /// Directory to serve
    #[arg(value_name = "DIR", default_value = ".")]
    pub folder: PathBuf,

    /// Address to listen on: HOST:PORT or :PORT
    ///
    /// Default: 127.0.0.1:8443 (with --plain, 127.0.0.1:8000), or the next free port.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,

    /// Serve without TLS
    #[arg(long, conflicts_with = "certificate")]
    pub plain: bool,

    /// Chain and key in one or two PEM files (default: generated); repeatable
    #[arg(long, value_name = "CHAIN.pem,KEY.pem")]
    pub certificate: Vec<String>,

    /// Output for a line per request and failed handshake: off, stdout, stderr or a file
    #[arg(long, value_name = "FILE", default_value = "stdout")]
    pub access_log: String,

    /// Print the access log as JSON, and the address on stderr
    #[arg(long)]
    pub json: bool,
}

/// A directory and the address at which it is served.
#[derive(Debug)]
pub struct ServedFolder {
    asked: FilesFlags,
    /// Address to listen on: the requested one, or an address that was free when it was probed.
    listen: String,
    /// Generated certificate and key.
    made: Option<CertificateFiles>,
    /// Temporary folder of the generated files, if the state folder cannot be used.
    _temporary: Option<tempfile::TempDir>,
}

/// Finds an address and a certificate for the given arguments.
///
/// # Errors
/// See [`DemoError`].
pub fn prepare(asked: FilesFlags, now: SystemTime) -> Result<ServedFolder, DemoError> {
    let is_made = !asked.plain && asked.certificate.is_empty();
    let (made, _temporary) = if is_made {
        made(now).map(|(files, temporary)| (Some(files), temporary))
    } else {
        Ok((None, None))
    }
    .map_err(DemoError::Certificate)?;
    let first = if asked.plain { FIRST_PLAIN } else { FIRST_PORT };
    let listen = match &asked.listen {
        Some(address) => address.clone(),
        None => free(first..=first + MORE_PORTS)
            .map_err(DemoError::Port)?
            .to_string(),
    };
    Ok(ServedFolder {
        asked,
        listen,
        made,
        _temporary,
    })
}

impl ServedFolder {
    /// Returns the equivalent flags of `becket run`.
    pub fn flags(&self) -> Flags {
        let bundle = self
            .made
            .as_ref()
            .map(|files| files.bundle.to_string_lossy());
        let access_log = match self.asked.access_log.as_str() {
            "stdout" => "/dev/stdout",
            target => target,
        };
        let format = if self.asked.json { "json" } else { "short" };
        Flags {
            service: ServiceFlags {
                frontend: vec![self.listen.clone()],
                folder: Some(self.asked.folder.clone()),
                plain: self.asked.plain,
                certificates: bundle.into_iter().map(String::from).collect(),
                certificate: self.asked.certificate.clone(),
                ..ServiceFlags::default()
            },
            logs: LogFlags {
                log_level: Some("warn".to_owned()),
                log_format: Some(format.to_owned()),
                access_log: Some(access_log.to_owned()),
                ..LogFlags::default()
            },
            ..Flags::default()
        }
    }

    /// Returns the text for the user: the address and a command line to try.
    pub fn banner(&self) -> String {
        let (folder, url) = (self.asked.folder.display(), self.url());
        let ca = match &self.made {
            Some(files) => format!("--cacert {} ", quoted(&files.certificate)),
            None => String::new(),
        };
        format!(
            "becket files: {folder} at {url}\n\ntry it:      curl {ca}{url}\nend it:      Ctrl-C\n"
        )
    }

    /// Returns the URL for a client on this machine.
    fn url(&self) -> String {
        let scheme = if self.asked.plain { "http" } else { "https" };
        let listen = ListenAddress::parse(&self.listen).map(|listen| listen.address);
        let place = match listen {
            Ok(Address::Any(port)) => format!("localhost:{port}"),
            Ok(Address::Ip(ip, port)) if ip.is_unspecified() || ip == LOCALHOST => {
                format!("localhost:{port}")
            }
            _ => self.listen.clone(),
        };
        format!("{scheme}://{place}/")
    }
}

const LOCALHOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
/// First port to try: the default port of `python -m http.server`.
const FIRST_PLAIN: u16 = 8000;

#[cfg(test)]
mod tests {
    use super::*;

    fn site(listen: &str, plain: bool) -> ServedFolder {
        let asked = FilesFlags {
            folder: "dist".into(),
            listen: Some(listen.to_owned()),
            plain,
            certificate: vec!["site.pem".to_owned()],
            access_log: "stdout".to_owned(),
            json: !plain,
        };
        prepare(asked, SystemTime::UNIX_EPOCH).unwrap()
    }

    #[test]
    fn the_url_is_reachable_from_this_host() {
        for (listen, url) in [
            (":8443", "https://localhost:8443/"),
            ("0.0.0.0:1", "https://localhost:1/"),
            ("[::]:1", "https://localhost:1/"),
            ("127.0.0.1:8443", "https://localhost:8443/"),
            ("127.0.0.2:8443", "https://127.0.0.2:8443/"),
            ("[::1]:443", "https://[::1]:443/"),
            ("host.test:443", "https://host.test:443/"),
        ] {
            assert_eq!(site(listen, false).url(), url, "{listen}");
        }
        let banner = site(":8000", true).banner();
        assert!(
            banner.contains(" dist at http://localhost:8000/\n"),
            "{banner}"
        );
        assert!(banner.contains("curl http://localhost:8000/\n"), "{banner}");
    }

    #[test]
    fn access_lines_are_written_to_stdout_as_short_text_or_json() {
        for (plain, format) in [(true, "short"), (false, "json")] {
            let logs = site(":1", plain).flags().logs;
            assert_eq!(logs.log_format.as_deref(), Some(format));
            assert_eq!(logs.access_log.as_deref(), Some("/dev/stdout"));
        }
    }
}
