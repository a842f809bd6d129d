//! Tests of pages and changes over real sockets.

use super::super::answers::ROUTES;
use super::super::api::{AdminRoute, RouteAction};
use super::super::page_refusals::PageRefusal;
use super::super::sample;
use super::super::snapshot::Snapshot;
use super::super::state::AdminState;
use super::*;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use becket_sys::socket::{ListenOptions, listen};
use becket_sys::socket_file::SocketAccess;

/// Time limit on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn serving(read: fn(&AdminState) -> Snapshot) -> (SocketAddr, Arc<AdminState>) {
    let (address, state, pages) = serving_until(read);
    std::mem::forget(pages);
    (address, state)
}

fn serving_until(read: fn(&AdminState) -> Snapshot) -> (SocketAddr, Arc<AdminState>, Pages) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (state, pages) = serving_at(listener, read);
    (address, state, pages)
}

fn serving_at(
    listener: std::net::TcpListener,
    read: fn(&AdminState) -> Snapshot,
) -> (Arc<AdminState>, Pages) {
    let state = Arc::new(sample::state());
    let sockets = AdminSockets {
        tcp: Some(listener),
        unix: None,
    };
    // There is no control to carry out changes.
    let (control, _) = channel(1);
    let answers = Responder::new(Arc::clone(&state), read, control, Vec::new());
    let pages = start(&sockets, answers).unwrap();
    (state, pages)
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
    let (address, _) = serving(AdminState::snapshot);
    for (path, part) in [
        ("/", "<h1>becket 0"),
        ("/metrics", "becket_workers 1\n"),
        ("/status", "\"state\": \"serving\""),
        ("/healthz", "serving; the last reload was refused"),
    ] {
        let answer = request(address, &format!("GET {path}"));
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
        assert!(answer.contains(part), "{part} is not in {answer}");
    }
}

#[test]
fn the_accepting_process_answers_on_a_shared_socket() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (_, old) = serving_at(listener.try_clone().unwrap(), AdminState::snapshot);
    let (state, new) = serving_at(listener, AdminState::snapshot);
    state.set_draining();
    for (is_new, answer) in [(true, "draining\n"), (false, "serving; the last")] {
        old.let_in(!is_new);
        new.let_in(is_new);
        for _ in 0..20 {
            let said = request(address, "GET /healthz");
            assert!(said.contains(answer), "{said}");
        }
    }
}

#[test]
fn only_the_socket_lists_clients_and_changes_something() {
    let (address, state) = serving(AdminState::snapshot);
    for route in &ROUTES {
        let is_page = matches!(route.action, RouteAction::Page(_) | RouteAction::Health);
        let answer = request(address, &format!("{} {}", route.method, route.path));
        let expected = if is_page { "200" } else { "403" };
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {expected} ")),
            "{answer}"
        );
    }
    assert!(state.refusals[PageRefusal::Forbidden as usize].value() > 3);
}

#[test]
fn the_file_for_programs_has_every_route_and_every_field() {
    use std::collections::BTreeSet;
    let text = include_str!("../../../../docs/reference/admin.openapi.json");
    let api: Value = serde_json::from_str(text).unwrap();
    let keys = |object: &Value| -> BTreeSet<String> {
        let object = object.as_object().unwrap_or_else(|| panic!("{object}"));
        object.keys().cloned().collect()
    };
    let written = keys(&api["paths"]).into_iter().flat_map(|path| {
        let methods = keys(&api["paths"][&path]);
        methods
            .into_iter()
            .map(move |method| (path.clone(), method))
    });
    let routes = ROUTES.iter();
    let routes = routes.map(|it| (it.path.to_owned(), it.method.to_ascii_lowercase()));
    assert_eq!(written.collect::<BTreeSet<_>>(), routes.collect());

    let schema = |name: &str| keys(&api["components"]["schemas"][name]["properties"]);
    let status = serde_json::to_value(sample::state().snapshot().status).unwrap();
    assert_eq!(keys(&status), schema("Status"));
    assert_eq!(keys(&status["totals"]), schema("Totals"));
    assert_eq!(keys(&status["backends"][0]), schema("Backend"));
    assert_eq!(keys(&status["backends"][0]["servers"][0]), schema("Server"));
    // An unknown field is answered with the known ones.
    let fields = |route: &AdminRoute| {
        let RouteAction::Change(parse) = route.action else {
            return None;
        };
        let refused = parse(b"{\"?\":1}").unwrap_err();
        let (_, known) = refused.error.split_once("expected ")?;
        let fields = known.split('`').skip(1).step_by(2);
        Some(fields.map(str::to_owned).collect::<BTreeSet<_>>())
    };
    for route in &ROUTES {
        let operation = &api["paths"][route.path][route.method.to_ascii_lowercase()];
        let body = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
        let name = body.as_str().and_then(|name| name.rsplit('/').next());
        if let Some(fields) = fields(route) {
            let schema = name.map(schema).unwrap_or_default();
            assert_eq!(fields, schema, "{}", route.path);
        }
    }
    let mut filter: BTreeSet<_> = becket_proxy::worker::listing::Filter::FIELDS
        .map(str::to_owned)
        .into();
    let parameters = api["paths"]["/connections"]["get"]["parameters"].as_array();
    let parameters = parameters.unwrap().iter();
    let mut words: BTreeSet<_> = parameters
        .map(|it| it["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(words.remove("limit"));
    assert_eq!(words, filter);
    filter.insert("all".to_owned());
    assert_eq!(schema("Kill"), filter);
}

#[test]
fn the_socket_is_closed_when_the_pages_are_dropped() {
    let (address, _, pages) = serving_until(AdminState::snapshot);
    assert!(request(address, "GET /healthz").contains("serving"));
    drop(pages);
    // Only these pages had the socket, which is closed in a moment.
    while TcpStream::connect(address).is_ok() {}
}

#[test]
fn waiting_clients_are_answered_before_the_process_exits() {
    let (address, _, pages) = serving_until(AdminState::snapshot);
    pages.let_in(false);
    let mut waiting: Vec<_> = (0..20).map(|_| ask(address, "GET /healthz")).collect();
    pages.let_in(true);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(pages.finish(PATIENCE));
    for stream in &mut waiting {
        // The answer has arrived already.
        stream.set_nonblocking(true).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

#[test]
fn waiting_clients_are_answered_by_the_new_process() {
    // The old process may accept a client before it learns that it must not.
    let mut answers = (0..100).map(|_| answer_of_a_process_that_follows());
    let left = answers.any(|answer| answer.ends_with("draining\n"));
    assert!(left, "the old process answers all");
}

/// Returns the answer to a client that connects while a process stops accepting; a following
/// process drains.
fn answer_of_a_process_that_follows() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (_, old) = serving_at(listener.try_clone().unwrap(), AdminState::snapshot);
    old.let_in(false);
    let mut waiting = ask(address, "GET /healthz");
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(old.finish(PATIENCE));
    let (state, _new) = serving_at(listener, AdminState::snapshot);
    state.set_draining();
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn foreign_text_is_escaped() {
    let (address, _) = serving(AdminState::snapshot);
    let page = request(address, "GET /");
    assert!(
        page.contains("&quot;&lt;b&gt;&quot; is not an address"),
        "{page}"
    );
    assert!(
        page.contains("content-security-policy: default-src 'none'"),
        "{page}"
    );
}

#[test]
fn health_turns_to_503_while_draining() {
    let (address, state) = serving(AdminState::snapshot);
    state.set_draining();
    let answer = request(address, "GET /healthz");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("cache-control: no-store\r\n"), "{answer}");
}

#[test]
fn a_refused_request_closes_its_connection_too() {
    let (address, _) = serving(AdminState::snapshot);
    let answer = request(address, "GET /other");
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
    let answer = request(address, "DELETE /metrics");
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
}

#[test]
fn health_answers_while_pages_are_rendered_and_the_oldest_client_is_closed() {
    // Every page waits for the end of the test.
    static GATE: Mutex<()> = Mutex::new(());
    let gate = GATE.lock().unwrap();
    let (address, state) = serving(|state| {
        drop(GATE.lock().unwrap_or_else(PoisonError::into_inner));
        state.snapshot()
    });
    let mut pages: Vec<_> = (0..admin_http::MOST)
        .map(|_| ask(address, "GET /metrics"))
        .collect();
    let answer = request(address, "GET /healthz");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(state.refusals[PageRefusal::Evicted as usize].value(), 1);
    // Its request was not read, or its answer is not written; it is closed in both cases.
    assert!(matches!(pages[0].read(&mut [0; 1]), Ok(0) | Err(_)));
    drop(gate);
    let mut answer = String::new();
    pages[1].read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn clients_that_read_no_answer_hold_up_neither_the_socket_nor_other_pages() {
    let options = ListenOptions {
        send_buffer: Some(4096),
        ..ListenOptions::default()
    };
    let listener = listen("127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let address = listener.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin.sock");
    let access = SocketAccess {
        mode: 0o600,
        owner: None,
        group: None,
    };
    let sockets = AdminSockets {
        tcp: Some(listener),
        unix: Some(SocketFile::bind(&path, &access).unwrap()),
    };
    // More than the kernel buffers between two sockets.
    let large = |state: &AdminState| {
        let mut snapshot = state.snapshot();
        let certificate = snapshot.status.certificates[0].clone();
        snapshot.status.certificates = vec![certificate; 5000].into();
        snapshot
    };
    let (control, _) = channel(1);
    let answers = Responder::new(Arc::new(sample::state()), large, control, Vec::new());
    let _pages = start(&sockets, answers).unwrap();
    let began = |mut stream: TcpStream| {
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(status, *b"HTTP/1.1 200");
        stream
    };
    let _slow: Vec<_> = (0..admin_http::MOST)
        .map(|_| began(ask(address, "GET /status")))
        .collect();
    let mut operator = UnixStream::connect(&path).unwrap();
    operator.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(operator, "GET /connections HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    operator.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");
    began(ask(address, "GET /status"));
}
