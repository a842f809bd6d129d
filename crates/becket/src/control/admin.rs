//! The admin pages: `/`, `/metrics`, `/status`, `/healthz`.
//!
//! Read-only, without authentication: the address is meant for loopback or a management network.
//! They have two threads of their own: one lets clients in and speaks with them ([`admin_http`]) and answers
//! `/healthz`, one makes the other pages, one at a time, from a [`Snapshot`] of the server. So whoever floods
//! them takes time from other pages, but health checks do not wait for pages, and signals, reloads and
//! rotation, which are control's, wait for neither.
//!
//! At most [`PAGES`] are on their way; further ones are refused. [`host`] says which names are ours.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;

use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::Request;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use super::admin_http::{self, Refusal};
use super::exposition::{self, exposition};
use super::host;
use super::page::page as text;
use super::snapshot::Snapshot;
use super::state::State;
use crate::log::Escaped;

/// Serves the pages until the process ends.
///
/// # Errors
/// No thread, or no descriptors for its event loop.
pub fn start(listener: std::net::TcpListener, state: Arc<State>) -> io::Result<()> {
    serve(listener, Desk::new(state, State::snapshot))
}

fn serve(listener: std::net::TcpListener, desk: Desk) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut runtime = Builder::new_current_thread();
    runtime
        .enable_all()
        .thread_name("page")
        .max_blocking_threads(1);
    let runtime = runtime.build()?;
    let thread = thread::Builder::new().name("admin-http".to_owned());
    thread.spawn(move || {
        let served = runtime.block_on(async {
            let listener = TcpListener::from_std(listener)?;
            match admin_http::receive(listener, Arc::new(desk)).await {}
        });
        let served: io::Result<()> = served;
        if let Err(error) = served {
            tracing::error!(%error, "admin pages are gone");
        }
    })?;
    Ok(())
}

/// What answers requests.
pub(super) struct Desk {
    state: Arc<State>,
    read: fn(&State) -> Snapshot,
    places: Arc<Semaphore>,
}

impl Desk {
    fn new(state: Arc<State>, read: fn(&State) -> Snapshot) -> Self {
        Self {
            state,
            read,
            places: Arc::new(Semaphore::new(PAGES)),
        }
    }

    /// Counts a connection that was not served.
    pub(super) fn count(&self, refusal: Refusal) {
        self.state.refusals().of(refusal).add(1);
    }

    /// Answers, and returns the place of the page, to be given back when all of it was sent.
    pub(super) async fn answer(
        &self,
        request: &Request<Incoming>,
    ) -> (Response, Option<OwnedSemaphorePermit>) {
        let path = request.uri().path();
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "GET or HEAD\n");
            let allowed = HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(header::ALLOW, allowed);
            return (answer, None);
        }
        // It tells nothing that is worth a foreign site's while, and balancers send names of their own.
        if path == "/healthz" {
            return (self.health(), None);
        }
        if let Some(answer) = self.misdirected(request) {
            return (answer, None);
        }
        let make = match path {
            "/" => home,
            "/metrics" => metrics,
            "/status" => status,
            _ => return (plain(StatusCode::NOT_FOUND, "no such page\n"), None),
        };
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            self.count(Refusal::Busy);
            let text = "too many pages are on their way\n";
            return (plain(StatusCode::SERVICE_UNAVAILABLE, text), None);
        };
        let (state, read) = (Arc::clone(&self.state), self.read);
        // With its place: whoever leaves does not make room before the page that it asked for is made.
        let made = spawn_blocking(move || (make(read(&state)), Some(place))).await;
        made.unwrap_or_else(|_| (plain(StatusCode::INTERNAL_SERVER_ERROR, "no page\n"), None))
    }

    /// 200 while serving, 503 while draining, so that a balancer stops sending clients.
    fn health(&self) -> Response {
        match self.state.is_draining() {
            false => plain(StatusCode::OK, "serving\n"),
            true => plain(StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        }
    }

    fn misdirected(&self, request: &Request<Incoming>) -> Option<Response> {
        let config = self.state.config();
        let names = &config.file.admin.hosts;
        let host = host::foreign(request.uri(), request.headers(), names)?;
        self.count(Refusal::ForeignHost);
        let host = Escaped::new(host);
        let text = format!(
            "the host \"{host}\" is not an address, not localhost, and not in admin.hosts\n"
        );
        Some(plain(StatusCode::MISDIRECTED_REQUEST, text))
    }
}

/// What `becket status` prints, in a browser.
fn home(snapshot: Snapshot) -> Response {
    let text = serde_json::to_value(&snapshot).map(|status| text(&status, None));
    let text = text.map(|text| text.replace('&', "&amp;").replace('<', "&lt;"));
    let page = text.map(|text| format!("{HEAD}<pre>{text}</pre>\n{LINKS}"));
    self::page("text/html; charset=utf-8", page.map_err(|_| fmt::Error))
}

fn metrics(snapshot: Snapshot) -> Response {
    page(exposition::CONTENT_TYPE, exposition(snapshot))
}

fn status(snapshot: Snapshot) -> Response {
    let object = serde_json::to_string_pretty(&snapshot);
    let line = object.map(|text| text + "\n").map_err(|_| fmt::Error);
    page("application/json", line)
}

fn plain(code: StatusCode, text: impl Into<String>) -> Response {
    (code, page("text/plain; charset=utf-8", Ok(text.into()))).into_response()
}

fn page(content_type: &'static str, body: Result<String, fmt::Error>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    match body {
        Ok(body) => (headers, body).into_response(),
        Err(_) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            headers,
            "not to be formatted\n",
        )
            .into_response(),
    }
}

const HEAD: &str = "<!doctype html>\n<meta charset=utf-8>\n<title>becket</title>\n";
const LINKS: &str = "<p><a href=\"/metrics\">/metrics</a> <a href=\"/status\">/status</a> \
    <a href=\"/healthz\">/healthz</a></p>\n";
/// Pages on their way at a time: bounds the memory that clients hold who do not read.
const PAGES: usize = 32;

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    /// How long anything may take on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn serving(read: fn(&State) -> Snapshot) -> (SocketAddr, Arc<State>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::new(sample::state()));
        serve(listener, Desk::new(Arc::clone(&state), read)).unwrap();
        (address, state)
    }

    /// Sends a request and reads until the server closes.
    fn request(address: SocketAddr, line: &str) -> String {
        let mut stream = ask(address, line);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn ask(address: SocketAddr, line: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "{line} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        stream
    }

    #[test]
    fn every_page_answers_and_closes() {
        let (address, _) = serving(State::snapshot);
        for (path, part) in [
            ("/", "<pre>becket 0"),
            ("/metrics", "becket_workers 1\n"),
            ("/status", "\"state\": \"serving\""),
            ("/healthz", "serving\n"),
        ] {
            let answer = request(address, &format!("GET {path}"));
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert!(answer.contains("connection: close\r\n"), "{answer}");
            assert!(answer.contains(part), "{part} is not in {answer}");
        }
    }

    #[test]
    fn texts_that_are_not_ours_are_escaped() {
        let (address, _) = serving(State::snapshot);
        let page = request(address, "GET /");
        assert!(page.contains("\"&lt;b>\" is not an address"), "{page}");
        assert!(!page.contains("<b>"), "{page}");
    }

    #[test]
    fn health_turns_to_503_while_draining() {
        let (address, state) = serving(State::snapshot);
        state.set_draining();
        let answer = request(address, "GET /healthz");
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.contains("cache-control: no-store\r\n"), "{answer}");
    }

    #[test]
    fn a_refused_request_closes_its_connection_too() {
        let (address, _) = serving(State::snapshot);
        let answer = request(address, "GET /other");
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        let answer = request(address, "DELETE /metrics");
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    }

    #[test]
    fn health_is_told_while_a_page_is_made_and_pages_beyond_the_places_are_refused() {
        // Every page waits for the end of the test.
        static GATE: Mutex<()> = Mutex::new(());
        let gate = GATE.lock().unwrap();
        let (address, state) = serving(|state| {
            drop(GATE.lock().unwrap_or_else(PoisonError::into_inner));
            state.snapshot()
        });
        let pages: Vec<_> = (0..=PAGES).map(|_| ask(address, "GET /metrics")).collect();
        let busy = || state.refusals().of(Refusal::Busy).value();
        while busy() == 0 {
            let answer = request(address, "GET /healthz");
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
        drop(gate);
        let answers = pages.into_iter().map(|mut stream| {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        let refused = answers.filter(|answer| answer.starts_with("HTTP/1.1 503 "));
        assert_eq!(refused.count(), 1);
    }
}
