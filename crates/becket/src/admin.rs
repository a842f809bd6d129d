//! Sends requests to the admin address of a running becket, for `becket status` and all commands
//! that show or change its state.
//!
//! The address is a command-line argument, or is set in the configuration file, or is the default
//! socket. Only the address is read from the file, so the user needs no permission to read keys,
//! and errors elsewhere in the file do not matter.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use becket_control::status::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use socket2::Socket;

/// Reason why no status is available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoStatus {
    /// The configuration file cannot be read, or sets no admin address.
    #[error("{}: {reason}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Why the file cannot be used.
        reason: String,
    },
    /// The request failed.
    #[error("cannot reach becket at {address}: {error}; {}", advice(error))]
    Unreachable {
        /// Address of the request.
        address: String,
        /// Operating system error.
        error: io::Error,
    },
    /// The response is not from becket.
    #[error("{0}: the answer is not from becket")]
    Foreign(String),
}

/// Address of the admin pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct AdminAddress {
    /// Admin socket of becket (default: /run/becket/admin.sock)
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,

    /// Admin address of becket
    #[arg(long, value_name = "ADDR", global = true)]
    pub admin: Option<String>,

    /// Configuration file that sets admin.socket or admin.address
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "run this as root or as the owner of the socket",
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "start becket with admin.socket or admin.address, and name its --config, --socket or --admin"
        }
        _ => "see the log of becket",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Endpoint {
    Socket(PathBuf),
    Address(String),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// Response of the admin pages.
#[derive(Clone, Debug, PartialEq)]
pub struct AdminAnswer {
    /// HTTP status code.
    pub code: u16,
    /// Body, unchanged.
    pub body: Vec<u8>,
}

impl AdminAnswer {
    /// Decodes the body as JSON.
    ///
    /// # Errors
    /// Fails if the body does not deserialize to a `T`.
    pub fn json<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.body)
    }

    /// Returns the body as text without trailing white space.
    pub fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        text.trim_end().to_owned()
    }
}

impl AdminAddress {
    /// Requests the status. Each connect, write and read blocks for at most [`PATIENCE`].
    ///
    /// # Errors
    /// Fails if the request fails or if the response is not from becket.
    pub fn status(&self) -> Result<Status, NoStatus> {
        self.status_and_text().map(|(status, _)| status)
    }

    /// Requests the status, and returns it with its original text. Blocks as [`Self::status`] does.
    ///
    /// # Errors
    /// As for [`Self::status`].
    pub fn status_and_text(&self) -> Result<(Status, String), NoStatus> {
        let answer = self.request("GET", "/status", None)?;
        match answer.json::<Status>() {
            Ok(status) if answer.code == 200 && !status.process.version.is_empty() => {
                Ok((status, answer.text()))
            }
            _ => Err(NoStatus::Foreign(self.at()?.to_string())),
        }
    }

    /// Sends a request. Blocks as [`Self::status`] does.
    ///
    /// # Errors
    /// Fails if the request fails or if the response is not HTTP.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<AdminAnswer, NoStatus> {
        let at = self.at()?;
        let text = body.map(Value::to_string).unwrap_or_default();
        let answered = exchange(&at, method, path, &text);
        let bytes = answered.map_err(|error| NoStatus::Unreachable {
            address: at.to_string(),
            error,
        })?;
        answer(&bytes).ok_or_else(|| NoStatus::Foreign(at.to_string()))
    }

    fn at(&self) -> Result<Endpoint, NoStatus> {
        if let Some(path) = &self.socket {
            return Ok(Endpoint::Socket(path.clone()));
        }
        if let Some(address) = &self.admin {
            return Ok(Endpoint::Address(address.clone()));
        }
        let Some(path) = &self.config else {
            return Ok(Endpoint::Socket(USUAL_SOCKET.into()));
        };
        let failed = |reason: String| NoStatus::File {
            path: path.clone(),
            reason,
        };
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let file: AdminKeys = toml::from_str(&text).map_err(|error| failed(error.to_string()))?;
        let unset = || failed("neither admin.socket nor admin.address is set".to_owned());
        if let Some(socket) = file.admin.socket {
            let folder = path.parent().unwrap_or(Path::new(""));
            return Ok(Endpoint::Socket(folder.join(socket)));
        }
        file.admin.address.map(Endpoint::Address).ok_or_else(unset)
    }
}

/// Keys of the configuration file that set the admin address. Errors in other keys are ignored.
#[derive(Default, Deserialize)]
#[serde(default)]
struct AdminKeys {
    admin: AdminSection,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AdminSection {
    socket: Option<PathBuf>,
    address: Option<String>,
}

/// Sends one request, and returns the whole answer.
fn exchange(at: &Endpoint, method: &str, path: &str, body: &str) -> io::Result<Vec<u8>> {
    let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !body.is_empty() {
        let length = body.len();
        request += &format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
    }
    // becket answers a POST request only after the reload or upgrade has ended.
    let patience = match method {
        "POST" => MOST_PATIENCE,
        _ => PATIENCE,
    };
    let mut tries = 1;
    loop {
        let mut answer = Vec::new();
        match at.exchange(&request, body, patience, &mut answer) {
            Err(error) if tries < MOST_TRIES && answer.is_empty() && at.has_not_read(&error) => {
                tries += 1;
            }
            done => return done.map(|()| answer),
        }
    }
}

impl Endpoint {
    /// Sends a request, adding its `Host` field, and receives until the server closes the
    /// connection.
    fn exchange(
        &self,
        request: &str,
        body: &str,
        patience: Duration,
        answer: &mut Vec<u8>,
    ) -> io::Result<()> {
        let (mut stream, host) = match self {
            Self::Socket(path) => (UnixStream::connect(path)?.into(), "localhost".to_owned()),
            Self::Address(address) => {
                let stream = connect(address)?;
                // The server accepts every IP address as `Host`, but not every name.
                let host = stream.peer_addr()?.to_string();
                (Socket::from(stream), host)
            }
        };
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{request}Host: {host}\r\n\r\n{body}").as_bytes())?;
        match stream.take(LONGEST_ANSWER).read_to_end(answer)? {
            0 => Err(io::Error::other(
                "the connection was closed without an answer",
            )),
            _ => Ok(()),
        }
    }

    /// Returns `true` if the server certainly did not read the whole request, so that the client
    /// can safely send it again. The kernel resets a unix connection only if the receiver closes it
    /// with unread bytes.
    ///
    /// This happens during an upgrade, when the old process closes its socket with requests in the
    /// accept queue.
    fn has_not_read(&self, error: &io::Error) -> bool {
        let unread = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
        matches!(self, Self::Socket(_)) && unread.contains(&error.kind())
    }
}

/// Parses an HTTP answer whose body ends with the connection. Returns `None` if it is not HTTP.
fn answer(bytes: &[u8]) -> Option<AdminAnswer> {
    let code = bytes.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    let head = bytes.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let body = &bytes[head + 4..];
    Some(AdminAnswer {
        code: std::str::from_utf8(code).ok()?.parse().ok()?,
        body: body.to_vec(),
    })
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

/// Path of the admin socket in becket's packages.
pub const USUAL_SOCKET: &str = "/run/becket/admin.sock";
/// Timeout of the connect, of each write and of each read. A page takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// Read timeout for the outcome of a reload or an upgrade. It is longer than becket itself waits
/// for the outcome.
const MOST_PATIENCE: Duration = Duration::from_secs(75);
/// Maximum number of attempts. An upgrade may interrupt the first attempt, and another upgrade the
/// second one.
const MOST_TRIES: usize = 3;
/// Maximum length of an answer in bytes. A status with thousands of routes is a few megabytes long.
const LONGEST_ANSWER: u64 = 64 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
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

    fn ask(answer: &'static str) -> Result<Status, NoStatus> {
        let place = AdminAddress {
            admin: Some(answering(answer)),
            ..AdminAddress::default()
        };
        place.status()
    }

    #[test]
    fn only_a_status_from_becket_is_accepted() {
        let status = ask("HTTP/1.1 200 OK\r\na: b\r\n\r\n{\"version\":\"1\"}").unwrap();
        assert_eq!(status.process.version, "1");
        for other in [
            "HTTP/1.1 404 Not Found\r\n\r\n{\"version\":\"1\"}",
            "HTTP/1.1 200 OK\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\n\r\n<html>",
            "HTTP/1.1 200 OK\r\n",
        ] {
            assert!(matches!(ask(other), Err(NoStatus::Foreign(_))), "{other}");
        }
        assert!(matches!(ask(""), Err(NoStatus::Unreachable { .. })));
    }

    #[test]
    fn an_unread_request_is_retried_over_a_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || {
            for _ in 1..MOST_TRIES {
                drop(listener.accept().unwrap());
            }
            // A request that was read but not answered may have changed something.
            for answer in ["HTTP/1.1 200 OK\r\n\r\n{\"version\":\"1\"}", ""] {
                let (mut stream, _) = listener.accept().unwrap();
                assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
                stream.write_all(answer.as_bytes()).unwrap();
            }
            listener.set_nonblocking(true).unwrap();
            listener
        });
        let place = AdminAddress {
            socket: Some(path),
            ..AdminAddress::default()
        };
        assert_eq!(place.status().unwrap().process.version, "1");
        assert!(matches!(place.status(), Err(NoStatus::Unreachable { .. })));
        let again = server.join().unwrap().accept();
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn the_admin_address_is_read_from_the_flags_or_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("becket.toml");
        let mut place = AdminAddress {
            config: Some(path.clone()),
            ..AdminAddress::default()
        };
        assert!(matches!(place.at(), Err(NoStatus::File { .. })));
        let at = |text: &str| {
            std::fs::write(&path, text).unwrap();
            place.at().map(|at| at.to_string())
        };
        let error = at("[admin]\n").unwrap_err().to_string();
        assert!(error.ends_with("admin.address is set"), "{error}");
        for fault in ["[admin", "[admin]\nsocket = 1\n"] {
            assert!(at(fault).unwrap_err().to_string().contains("line "));
        }
        let address = "[admin]\naddress = \"localhost:1\"\n";
        assert_eq!(at(address).unwrap(), "localhost:1");
        let socket = dir.path().join("run/admin.sock");
        let both =
            format!("{address}socket = 'run/admin.sock'\nsocket-mode = 7\n[[listener]]\nbnd = 1\n");
        assert_eq!(at(&both).unwrap(), socket.display().to_string());
        place.admin = Some("[::1]:2".to_owned());
        assert_eq!(place.at().unwrap().to_string(), "[::1]:2");
        place.socket = Some("/a".into());
        assert_eq!(place.at().unwrap().to_string(), "/a");
        assert_eq!(
            AdminAddress::default().at().unwrap().to_string(),
            USUAL_SOCKET
        );
    }
}
