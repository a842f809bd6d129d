//! Implements the backend server of the demo: a small HTTP/1.1 server on loopback, with one thread
//! per connection.
//!
//! `GET /` returns the client's data from the PROXY header; `GET /bytes/N` returns N bytes, for
//! measurements. A connection begins with a PROXY header of version 2 and carries one request.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use becket_log::Escaped;
use becket_proto::proxy_header::{Accept, Endpoints, ProxyHeader, decode};

/// Starts the server on a free port of 127.0.0.1, and returns its address. The server runs until
/// the process exits.
///
/// # Errors
/// No port is free, or the thread cannot be started.
pub(super) fn start() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let named = || thread::Builder::new().name("demo-backend".to_owned());
    named().spawn(move || {
        for stream in listener.incoming() {
            // A failed connection does not affect other connections.
            let started = stream.and_then(|stream| named().spawn(move || answer(stream)));
            if started.is_err() {
                thread::sleep(PAUSE);
            }
        }
    })?;
    Ok(address)
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let facts = read_header(&mut stream)?;
    let head: Vec<String> = BufReader::new((&stream).take(HEAD_LIMIT))
        .lines()
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
        .collect();
    let mut words = head.first().map_or("", String::as_str).split(' ');
    let (method, path) = (words.next(), words.next().unwrap_or_default());
    let host = head.iter().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim())
    });
    let count = path.strip_prefix("/bytes/").map(str::parse::<u64>);
    let (status, text, count) = match (path, count) {
        ("/", _) => ("200 OK", page(&facts, host.unwrap_or("localhost")), 0),
        (_, Some(Ok(count))) => ("200 OK", String::new(), count),
        (_, Some(Err(_))) => ("400 Bad Request", "/bytes/N needs a number\n".to_owned(), 0),
        _ => (
            "404 Not Found",
            "not found; try / or /bytes/N\n".to_owned(),
            0,
        ),
    };
    let length = text.len() as u64 + count;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    if method == Some("HEAD") {
        return stream.write_all(head.as_bytes());
    }
    stream.write_all((head + &text).as_bytes())?;
    io::copy(&mut io::repeat(b'.').take(count), &mut stream)?;
    Ok(())
}

/// Reads exactly one PROXY header. The last two of its first 16 bytes contain the number of bytes
/// that follow them.
fn read_header(stream: &mut TcpStream) -> io::Result<String> {
    let mut bytes = vec![0; 16];
    stream.read_exact(&mut bytes)?;
    let length = u16::from_be_bytes([bytes[14], bytes[15]]);
    bytes.resize(16 + usize::from(length), 0);
    stream.read_exact(&mut bytes[16..])?;
    match decode(&bytes, Accept::V2) {
        Ok(Some((header, _))) => Ok(facts(&header)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Formats the client's data from a PROXY header, one field per line.
fn facts(header: &ProxyHeader<'_>) -> String {
    let tlvs = &header.tlvs;
    let ssl = tlvs.ssl.as_ref().filter(|ssl| ssl.is_tls);
    let text = |value: &str| Escaped::new(value).to_string();
    let client = match header.endpoints {
        Endpoints::Tcp { source, .. } => Some(source.to_string()),
        _ => None,
    };
    let lines = [
        ("client", client),
        ("TLS version", ssl.and_then(|ssl| ssl.version).map(text)),
        ("cipher", ssl.and_then(|ssl| ssl.cipher).map(text)),
        ("server name", tlvs.authority.map(text)),
        ("ALPN", tlvs.alpn.map(|it| Escaped::new(it).to_string())),
    ];
    let lines = lines.map(|(name, value)| {
        let value = value.unwrap_or_else(|| "(none)".to_owned());
        format!("    {name:<12} {value}\n")
    });
    lines.concat()
}

fn page(facts: &str, host: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "Hello from behind becket {version}.\n\
         \n\
         You are connected to becket over TLS, and becket to this server over plain TCP.\n\
         The PROXY header contains:\n\
         \n\
         {facts}\n\
         To transfer some bytes: https://{host}/bytes/100000000\n"
    )
}

/// Read timeout of a connection.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause after a failed accept, for example because no file descriptor is free.
const PAUSE: Duration = Duration::from_millis(10);
const HEAD_LIMIT: u64 = 64 * 1024;
