//! A proxy between a companion and pebble. A test decides what happens to a request or to its answer; the proxy counts the orders
//! that the authority has accepted.
//!
//! Requests are recognized by their path at pebble, such as `/order-plz`; see [`STEPS`]. Tests of other crates include this
//! file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};
use serde_json::Value;

/// Paths of the requests of an order, in their sequence.
pub const STEPS: [&str; 9] = [
    "/dir",
    "/nonce-plz",
    "/sign-me-up",
    "/order-plz",
    "/authZ/",
    "/chalZ/",
    "/my-order/",
    "/finalize-order/",
    "/certZ/",
];

/// The fate of a request, or of its answer.
pub enum Verdict {
    Pass,
    /// This answer replaces the authority's.
    Answer(String),
    /// No answer. The connection is closed when the sender is dropped.
    Hold(Receiver<()>),
}

/// Returns what happens to the request for a path: before it is forwarded, and with its answer before that is passed.
type Rule = Box<dyn FnMut(&str, Option<&str>) -> Verdict + Send>;

/// Running proxy.
pub struct AuthorityProxy {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    authority: SocketAddr,
    name: ServerName<'static>,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    rule: Mutex<Rule>,
    orders: Mutex<Orders>,
}

#[derive(Default)]
struct Orders {
    /// Names and state of each accepted order, by its URL.
    known: BTreeMap<String, (BTreeSet<String>, String)>,
    most_live: usize,
    /// Paths of answered requests.
    answered: Vec<String>,
}

/// A request or an answer that the proxy holds. When this is dropped, its connection is closed.
pub struct Hold {
    reached: Receiver<()>,
    _release: Sender<()>,
}

impl AuthorityProxy {
    /// Starts a proxy at the host of `authority`, with a certificate and key for `name`. `ca` issued them and the authority's.
    pub fn start(authority: SocketAddr, name: &str, [ca, certificate, key]: [&Path; 3]) -> Self {
        let pem = |path| fs::read(path).expect("a file");
        let certificates = |path| {
            CertificateDer::pem_slice_iter(&pem(path))
                .map(|it| it.expect("a certificate"))
                .collect::<Vec<_>>()
        };
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(
                certificates(certificate),
                PrivateKeyDer::from_pem_slice(&pem(key)).expect("a key"),
            )
            .expect("a pair");
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates(ca));
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let listener = TcpListener::bind((authority.ip(), 0)).expect("a socket");
        let state = Arc::new(State {
            authority,
            name: ServerName::try_from(name.to_owned()).expect("a name"),
            server: Arc::new(server),
            client: Arc::new(client),
            rule: Mutex::new(pass()),
            orders: Mutex::default(),
        });
        let (address, shared) = (
            listener.local_addr().expect("an address"),
            Arc::clone(&state),
        );
        // The thread ends with the test program.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // A companion that was killed closes its connections.
                thread::spawn(move || state.relay(stream).unwrap_or_default());
            }
        });
        Self { address, state }
    }

    pub fn set(&self, rule: impl FnMut(&str, Option<&str>) -> Verdict + Send + 'static) {
        *lock(&self.state.rule) = Box::new(rule);
    }

    /// Passes everything from now on.
    pub fn clear(&self) {
        *lock(&self.state.rule) = pass();
    }

    /// Holds the `nth` request for a path, or its successful answer.
    pub fn hold(&self, path: &'static str, mut nth: usize, is_answered: bool) -> Hold {
        let ((reach, reached), (_release, waits)) = (channel(), channel());
        let mut waits = Some(waits);
        self.set(move |at, answer| {
            let is_point = answer.map_or(!is_answered, |it| is_answered && is_success(it));
            nth = nth.saturating_sub(usize::from(at.starts_with(path) && is_point));
            match waits.take_if(|_| nth == 0) {
                Some(waits) if reach.send(()).is_ok() => Verdict::Hold(waits),
                _ => Verdict::Pass,
            }
        });
        Hold { reached, _release }
    }

    /// Returns how many requests for a path were answered by the authority.
    pub fn answered(&self, path: &str) -> usize {
        let orders = lock(&self.state.orders);
        orders
            .answered
            .iter()
            .filter(|it| it.starts_with(path))
            .count()
    }

    /// Returns the last known state of each accepted order.
    pub fn orders(&self) -> Vec<String> {
        let orders = lock(&self.state.orders);
        orders
            .known
            .values()
            .map(|(_, status)| status.clone())
            .collect()
    }

    /// Returns the largest number of orders for the same names that were pending, ready or processing at the same time.
    pub fn most_live(&self) -> usize {
        lock(&self.state.orders).most_live
    }
}

impl Hold {
    /// Waits until the request or answer is held.
    #[track_caller]
    pub fn reached(&self) {
        self.reached
            .recv_timeout(LONGEST_STEP)
            .expect("the step is reached");
    }
}

impl State {
    fn relay(&self, stream: TcpStream) -> io::Result<()> {
        let server = ServerConnection::new(Arc::clone(&self.server)).map_err(io::Error::other)?;
        let mut companion = StreamOwned::new(server, stream);
        let (path, request) = read_request(&mut companion)?;
        let judge = |answer: Option<&str>| lock(&self.rule)(&path, answer);
        let (mut answer, mut verdict) = (String::new(), judge(None));
        if matches!(verdict, Verdict::Pass) {
            answer = self.ask(&request)?;
            lock(&self.orders).note(&path, &answer);
            verdict = judge(Some(&answer));
        }
        let answer = match verdict {
            Verdict::Pass => answer,
            Verdict::Answer(other) => other,
            Verdict::Hold(held) => return held.recv().map_err(io::Error::other),
        };
        companion.write_all(answer.as_bytes())?;
        companion.conn.send_close_notify();
        companion.flush()
    }

    fn ask(&self, request: &str) -> io::Result<String> {
        let client = ClientConnection::new(Arc::clone(&self.client), self.name.clone());
        let client = client.map_err(io::Error::other)?;
        let mut authority = StreamOwned::new(client, TcpStream::connect(self.authority)?);
        authority.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        authority.read_to_end(&mut answer)?;
        String::from_utf8(answer).map_err(io::Error::other)
    }
}

impl Orders {
    fn note(&mut self, path: &str, answer: &str) {
        self.answered.push(path.to_owned());
        let is_order = ["/order-plz", "/my-order/", "/finalize-order/"];
        if !is_order.iter().any(|it| path.starts_with(it)) || !is_success(answer) {
            return;
        }
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let order: Value = serde_json::from_str(body).expect("an order");
        let location = head
            .lines()
            .find_map(|line| line.strip_prefix("Location: "));
        let url = location.map_or_else(|| path.to_owned(), str::to_owned);
        let id = url.rsplit('/').next().expect("an ID").to_owned();
        let status = order["status"].as_str().expect("a state").to_owned();
        // Pebble lists the names at random.
        let names = order["identifiers"].as_array().expect("names").iter();
        let names: BTreeSet<String> = names.map(Value::to_string).collect();
        self.known.insert(id, (names.clone(), status));
        let is_live = |it: &&(_, String)| it.0 == names && !["valid", "invalid"].contains(&&*it.1);
        self.most_live = self
            .most_live
            .max(self.known.values().filter(is_live).count());
    }
}

/// Reads one request. Returns its path, and the request with a header that ends the connection after the answer.
fn read_request(stream: impl Read) -> io::Result<(String, String)> {
    let mut stream = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    while !head.ends_with("\r\n\r\n") {
        let start = head.len();
        if stream.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = head[start..].to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    head.truncate(head.len() - 2);
    let body = String::from_utf8(body).map_err(io::Error::other)?;
    Ok((path, format!("{head}connection: close\r\n\r\n{body}")))
}

fn is_success(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 2")
}

fn pass() -> Rule {
    Box::new(|_, _| Verdict::Pass)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum time until a step is reached. Pebble may reject three nonces in a row; the companion then waits a minute and a half.
const LONGEST_STEP: Duration = Duration::from_secs(120);
