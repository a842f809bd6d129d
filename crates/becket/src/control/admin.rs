//! The admin pages: `/`, `/metrics`, `/status`, `/healthz`.
//!
//! Read-only, without authentication: the address is meant for loopback or a management network. It
//! runs on the control thread's tokio runtime and reads the server through a [`View`].
//!
//! Bounded: [`SLOTS`] connections at a time, each with one request and [`LIFETIME`] in all, so that
//! none is held open for ever. Every answer closes its connection.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use super::doorway::Doorway;
use super::exposition::{self, Scrape};
use super::index::index;
use super::status::Status;
use super::view::View;

/// Serves the pages until the future is dropped. Needs a tokio runtime with I/O and time; the
/// connections are tasks of that runtime.
///
/// # Errors
/// None in practice: failed accepts are tried again.
pub async fn serve(listener: TcpListener, view: Arc<dyn View>) -> io::Result<()> {
    let doorway = Doorway::new(listener, SLOTS, Some(LIFETIME));
    axum::serve(doorway, router(view)).await
}

fn router(view: Arc<dyn View>) -> Router {
    Router::new()
        .route("/", get(home))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/healthz", get(healthz))
        .fallback(unknown)
        .layer(map_response(close))
        .with_state(view)
}

/// Makes the answer the last one of its connection.
async fn close(mut answer: Response) -> Response {
    let close = HeaderValue::from_static("close");
    answer.headers_mut().insert(header::CONNECTION, close);
    answer
}

async fn home(State(view): State<Arc<dyn View>>) -> Response {
    let page = index(&Status::of(&*view));
    answer("text/html; charset=utf-8", page)
}

async fn metrics(State(view): State<Arc<dyn View>>) -> Response {
    answer(exposition::CONTENT_TYPE, Scrape::of(&*view).render())
}

async fn status(State(view): State<Arc<dyn View>>) -> Response {
    let object = serde_json::to_string_pretty(&Status::of(&*view));
    let line = object.map(|text| text + "\n").map_err(|_| fmt::Error);
    answer("application/json", line)
}

/// 200 while serving, 503 while draining, so that a balancer stops sending clients.
async fn healthz(State(view): State<Arc<dyn View>>) -> Response {
    let (code, text) = match view.condition().draining {
        false => (StatusCode::OK, "serving\n"),
        true => (StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
    };
    (
        code,
        answer("text/plain; charset=utf-8", Ok(text.to_owned())),
    )
        .into_response()
}

async fn unknown() -> Response {
    let page = answer("text/plain; charset=utf-8", Ok("no such page\n".to_owned()));
    (StatusCode::NOT_FOUND, page).into_response()
}

fn answer(content_type: &'static str, body: Result<String, fmt::Error>) -> Response {
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

/// Connections at a time. A scraper or two, a balancer's probes and some browsers need ten.
const SLOTS: usize = 64;
/// For one connection in all. A page takes milliseconds.
const LIFETIME: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::sync::atomic::Ordering::Relaxed;

    fn fetch(address: SocketAddr, path: &str) -> String {
        request(address, &format!("GET {path}"))
    }

    /// Sends a request and reads until the server closes, which it does long before its time-out.
    fn request(address: SocketAddr, line: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIFETIME / 2)).unwrap();
        write!(stream, "{line} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Runs `test` beside a server that ends with it.
    fn with_server(test: impl FnOnce(SocketAddr, Arc<Sample>) + Send + 'static) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let sample = Arc::new(Sample::new(vec![Arc::default()]));
            let view: Arc<dyn View> = Arc::clone(&sample) as _;
            tokio::spawn(serve(listener, view));
            let client = tokio::task::spawn_blocking(move || test(address, sample));
            client.await.unwrap();
        });
    }

    #[test]
    fn every_page_answers_and_closes() {
        with_server(|address, _| {
            for (path, part) in [
                ("/", "<h1>becket"),
                ("/metrics", "becket_workers 1\n"),
                ("/status", "\"state\": \"serving\""),
                ("/healthz", "serving\n"),
            ] {
                let answer = fetch(address, path);
                assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
                assert!(answer.contains("connection: close\r\n"), "{answer}");
                assert!(answer.contains(part), "{part} is not in {answer}");
            }
        });
    }

    #[test]
    fn health_turns_to_503_while_draining() {
        with_server(|address, sample| {
            sample.draining.store(true, Relaxed);
            let answer = fetch(address, "/healthz");
            assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
            assert!(answer.contains("cache-control: no-store\r\n"), "{answer}");
        });
    }

    #[test]
    fn a_refused_request_closes_its_connection_too() {
        with_server(|address, _| {
            let answer = request(address, "GET /other");
            assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
            let answer = request(address, "DELETE /metrics");
            assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
        });
    }
}
