//! `becket status`: asks a running becket for its `/status` and prints it for a person.
//!
//! The admin address is given, or read from the configuration file. Nothing else of the file is
//! looked at: keys need not be readable for whoever asks. The page is made of the JSON as it
//! comes ([`crate::control::page`]), so a becket of another version is shown as far as its fields are known.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use becket_config::file::File;

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoStatus {
    /// Neither an address nor a file was given.
    #[error("no admin address: give --admin ADDR, or --config FILE that has admin.address")]
    NoAddress,
    /// The file cannot be read, or does not say where.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Nothing answers there.
    #[error("{address}: {error}")]
    Unreachable {
        /// Where it was asked.
        address: String,
        /// What the system said.
        error: io::Error,
    },
    /// Something else answers there.
    #[error("{0}: the answer is not a becket's status")]
    Foreign(String),
}

/// Where to ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// `HOST:PORT`; goes before the file's.
    pub admin: Option<String>,
    /// A configuration file.
    pub config: Option<PathBuf>,
}

impl Place {
    /// Asks and returns the object as it was sent. Blocks for [`PATIENCE`] at most per step.
    ///
    /// # Errors
    ///
    /// When nobody answers there, or not as becket does.
    pub fn ask(&self) -> Result<Value, NoStatus> {
        let address = self.address()?;
        let body = fetch(&address).map_err(|error| NoStatus::Unreachable {
            address: address.clone(),
            error,
        })?;
        body.as_deref()
            .and_then(|body| serde_json::from_slice(body).ok())
            .filter(|value: &Value| value["version"].is_string())
            .ok_or(NoStatus::Foreign(address))
    }

    fn address(&self) -> Result<String, NoStatus> {
        if let Some(address) = &self.admin {
            return Ok(address.clone());
        }
        let path = self.config.as_ref().ok_or(NoStatus::NoAddress)?;
        let failed = |reason: String| NoStatus::File {
            path: path.clone(),
            reason,
        };
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let file = File::parse(&text).map_err(|problems| {
            let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
            failed(texts.join("; "))
        })?;
        let address = file.admin.address.map(|address| address.text.to_string());
        address.ok_or_else(|| failed("admin.address is not set".to_owned()))
    }
}

/// The body of `/status`; nothing when the answer is another one.
fn fetch(address: &str) -> io::Result<Option<Vec<u8>>> {
    let mut stream = connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // An address is a host that is always accepted; a name might not be.
    let host = stream.peer_addr()?;
    let request = format!("GET /status HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut answer)?;
    let ok = answer.starts_with(b"HTTP/1.1 200 ");
    let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    Ok(head.filter(|_| ok).map(|end| answer.split_off(end + 4)))
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()?.collect::<Vec<SocketAddr>>() {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// For each of: connect, write, a read. The page takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// A status of thousands of routes has a few megabytes.
const LONGEST_ANSWER: u64 = 64 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn answering(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).unwrap() > 0);
            stream.write_all(answer.as_bytes()).unwrap();
        });
        address
    }

    fn ask(answer: &'static str) -> Result<Value, NoStatus> {
        let place = Place {
            admin: Some(answering(answer)),
            config: None,
        };
        place.ask()
    }

    #[test]
    fn the_object_of_a_becket_is_returned_and_nothing_else() {
        let status = ask("HTTP/1.1 200 OK\r\na: b\r\n\r\n{\"version\":\"1\"}").unwrap();
        assert_eq!(status["version"], "1");
        for other in [
            "HTTP/1.1 404 Not Found\r\n\r\n{\"version\":\"1\"}",
            "HTTP/1.1 200 OK\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\n\r\n<html>",
            "HTTP/1.1 200 OK\r\n",
            "",
        ] {
            assert!(matches!(ask(other), Err(NoStatus::Foreign(_))), "{other}");
        }
    }

    #[test]
    fn the_address_comes_from_the_flag_or_from_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("becket.toml");
        let mut place = Place {
            admin: None,
            config: Some(path.clone()),
        };
        assert!(matches!(place.address(), Err(NoStatus::File { .. })));
        std::fs::write(&path, "[admin]\n").unwrap();
        let error = place.address().unwrap_err().to_string();
        assert!(error.ends_with("admin.address is not set"), "{error}");
        std::fs::write(&path, "[admin]\naddress = \"localhost:1\"\n").unwrap();
        assert_eq!(place.address().unwrap(), "localhost:1");
        place.admin = Some("[::1]:2".to_owned());
        assert_eq!(place.address().unwrap(), "[::1]:2");
        assert!(matches!(
            Place::default().address(),
            Err(NoStatus::NoAddress)
        ));
    }
}
