//! The admin pages, and what may be changed there: `/`, `/metrics`, `/status`, `/healthz`, and the rest of [`ROUTES`].
//!
//! Pages are for everybody who reaches the address: it is meant for loopback or a management network. Lists that name clients,
//! and changes, are for whoever may open the unix socket, or has the token ([`Desk::trusts`]); each change is logged with who
//! made it.
//!
//! They have threads of their own: one accepts clients and speaks with them ([`admin_http`]), answers `/healthz` and gathers lists; for each
//! socket one more makes the other pages, one at a time, from a [`Snapshot`] of the server. So a flood takes time from other pages of
//! its socket, but health checks and the other socket do not wait for it, and signals, reloads and rotation, which are control's, wait
//! for no page at all.
//!
//! [`visitors`](super::visitors) bounds the room that clients take. [`host`] says which names are ours.

use std::convert::Infallible;
use std::fmt;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use becket_sys::socket_file::SocketFile;
use hyper::Request;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{oneshot, watch};
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::timeout;

use super::admin_http::{self, Asker, Refusal};
use super::api::{self, Action, Change, ChangeOutcome, ChangeRequest, Refused, Route};
use super::connections::{self, Wanted};
use super::exposition::{self, exposition};
use super::host;
use super::snapshot::Snapshot;
use super::state::State;
use super::trials;
use super::visitors::{PLACES, SHARE_OF_AN_ADDRESS, Visitor, Visitors};
use super::web::web;
use becket_log::Escaped;
use becket_proxy::worker::mailbox::Mailbox;

/// Everything that may be asked. Where two methods have one path, they stand together.
pub(super) const ROUTES: [Route; 20] = [
    route("/", "GET", Action::Page(home)),
    route("/metrics", "GET", Action::Page(metrics)),
    route("/status", "GET", Action::Page(status)),
    route("/healthz", "GET", Action::Health),
    route("/connections", "GET", Action::Connections),
    route("/connections/top", "GET", Action::TopConnections),
    route("/connections/kill", "POST", Action::Kill),
    route("/sources", "GET", Action::Sources),
    route("/policies/report", "GET", Action::Trials),
    route("/servers", "PATCH", Action::Change(Change::of_server)),
    route("/servers", "POST", Action::Change(Change::of_addition)),
    route("/servers", "DELETE", Action::Change(Change::of_removal)),
    route(
        "/certificates",
        "PUT",
        Action::TakeKey(Change::of_certificate),
    ),
    route(
        "/certificates",
        "DELETE",
        Action::Change(Change::of_certificate_removal),
    ),
    route("/log", "PUT", Action::Change(Change::of_log)),
    route(
        "/tickets/rotate",
        "POST",
        Action::Change(Change::of_tickets),
    ),
    route(
        "/sessions/forget",
        "POST",
        Action::Change(Change::of_sessions),
    ),
    route("/reload", "POST", Action::Tell(Change::of_reload)),
    route("/drain", "POST", Action::Tell(Change::of_drain)),
    route("/upgrade", "POST", Action::Tell(Change::of_upgrade)),
];

const fn route(path: &'static str, method: &'static str, action: Action) -> Route {
    Route {
        path,
        method,
        action,
    }
}

/// Where clients of the pages arrive.
#[derive(Debug, Default)]
pub struct AdminSockets {
    /// At an address.
    pub tcp: Option<std::net::TcpListener>,
    /// At a path.
    pub unix: Option<SocketFile>,
}

/// The pages that are served.
#[derive(Debug)]
pub struct Pages {
    /// Dropped when they are closed.
    door: Option<watch::Sender<Door>>,
    /// Says nothing, and ends when all who were let in have gone.
    clients: Receiver<Infallible>,
}

/// Whether clients of the pages are let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Open,
    Shut,
    /// Those who wait in the kernel by now, and then nobody any more.
    Closing,
}

impl Pages {
    /// Whether clients are let in. Who comes meanwhile waits in the kernel, for this process or another one that has the sockets, too.
    pub fn let_in(&self, open: bool) {
        if let Some(door) = &self.door {
            door.send_replace(if open { Door::Open } else { Door::Shut });
        }
    }

    /// Lets in nobody any more, and has no more part in the sockets.
    pub fn close(&mut self) {
        self.door.take();
    }

    /// Lets in those who wait by now, unless another process has the sockets, and waits until everybody has an answer or was too slow
    /// to ask, for `patience` at most: the process is about to end.
    pub async fn finish(mut self, patience: Duration) {
        if let Some(door) = self.door.take() {
            door.send_if_modified(|door| {
                let is_open = *door == Door::Open;
                if is_open {
                    *door = Door::Closing;
                }
                is_open
            });
        }
        drop(timeout(patience, self.clients.recv()).await);
    }
}

/// Serves the pages. Changes go to `control`, lists come from `workers`.
///
/// # Errors
/// No thread, or no descriptors for its event loop.
pub fn start(
    sockets: &AdminSockets,
    state: Arc<State>,
    control: Sender<ChangeRequest>,
    workers: Vec<Arc<Mailbox>>,
) -> io::Result<Pages> {
    serve(sockets, Desk::new(state, State::snapshot, control, workers))
}

fn serve(sockets: &AdminSockets, desk: Desk) -> io::Result<Pages> {
    let tcp = sockets.tcp.as_ref().map(|tcp| {
        tcp.set_nonblocking(true)?;
        tcp.try_clone()
    });
    let unix = sockets.unix.as_ref().map(|unix| {
        unix.listener().set_nonblocking(true)?;
        unix.listener().try_clone()
    });
    let (tcp, unix) = (tcp.transpose()?, unix.transpose()?);
    let mut runtime = Builder::new_current_thread();
    runtime
        .enable_all()
        .thread_name("page")
        .max_blocking_threads(SOCKETS);
    let runtime = runtime.build()?;
    let (door, at_door) = watch::channel(Door::Open);
    let (present, clients) = channel(1);
    let of_tcp = Visitors::new(SHARE_OF_AN_ADDRESS, present.clone());
    let of_socket = Visitors::new(PLACES, present);
    let thread = thread::Builder::new().name("admin-http".to_owned());
    let desk = Arc::new(desk);
    thread.spawn(move || {
        let over_tcp = async {
            let Some(listener) = tcp else {
                return pending::<io::Result<Infallible>>().await;
            };
            let listener = TcpListener::from_std(listener)?;
            let asker = |_: &_, from: std::net::SocketAddr| Asker::Network(from.ip());
            Ok(admin_http::receive(listener, Arc::clone(&desk), asker, of_tcp).await)
        };
        let over_socket = async {
            let Some(listener) = unix else {
                return pending::<io::Result<Infallible>>().await;
            };
            let listener = tokio::net::UnixListener::from_std(listener)?;
            let asker = |it: &tokio::net::UnixStream, _| Asker::Local(it.peer_cred().ok());
            Ok(admin_http::receive(listener, Arc::clone(&desk), asker, of_socket).await)
        };
        runtime.block_on(async {
            let receive = async { tokio::try_join!(over_tcp, over_socket) };
            if let Err(error) = while_open(at_door, receive).await {
                tracing::error!(%error, "admin pages are gone");
            }
            // Who was let in is answered still.
            pending::<()>().await;
        });
    })?;
    Ok(Pages {
        door: Some(door),
        clients,
    })
}

/// Receives clients whenever the pages are open, until they are closed.
async fn while_open<T, E>(
    mut door: watch::Receiver<Door>,
    receive: impl Future<Output = Result<T, E>>,
) -> Result<(), E> {
    let mut receive = pin!(receive);
    let is_not = |it: Door| move |door: &Door| *door != it;
    while let Ok(door_now) = door.wait_for(is_not(Door::Shut)).await.map(|it| *it) {
        if door_now == Door::Closing {
            for _ in 0..LAST_TURNS {
                tokio::select! {
                    biased;
                    failed = &mut receive => return failed.map(drop),
                    () = yield_now() => {}
                }
            }
            break;
        }
        tokio::select! {
            biased;
            shut = door.wait_for(is_not(Door::Open)) => if shut.is_err() {
                break;
            },
            failed = &mut receive => return failed.map(drop),
        }
    }
    Ok(())
}

/// What answers requests.
pub(super) struct Desk {
    state: Arc<State>,
    read: fn(&State) -> Snapshot,
    control: Sender<ChangeRequest>,
    workers: Vec<Arc<Mailbox>>,
}

impl Desk {
    fn new(
        state: Arc<State>,
        read: fn(&State) -> Snapshot,
        control: Sender<ChangeRequest>,
        workers: Vec<Arc<Mailbox>>,
    ) -> Self {
        Self {
            state,
            read,
            control,
            workers,
        }
    }

    /// Counts a connection that was not served.
    pub(super) fn count(&self, refusal: Refusal) {
        self.state.refusals().of(refusal).add(1);
    }

    /// Answers a request.
    pub(super) async fn answer(
        &self,
        request: Request<Incoming>,
        visitor: &Arc<Visitor>,
    ) -> Response {
        let asker = visitor.asker;
        let path = request.uri().path();
        // Health tells nothing that is worth a foreign site's while, and balancers send names of their own.
        if path != "/healthz"
            && let Asker::Network(_) = asker
            && let Some(answer) = self.misdirected(&request)
        {
            return answer;
        }
        let action = match find(path, request.method()) {
            Ok(action) => action,
            Err(refused) => return refused.into_response(),
        };
        let is_page = matches!(action, Action::Health | Action::Page(_));
        if !is_page && let Err(refused) = self.trusts(&request, asker) {
            self.count(Refusal::Forbidden);
            return refused.into_response();
        }
        if matches!((action, asker), (Action::TakeKey(_), Asker::Network(_))) {
            let text = "a private key is not taken over the network";
            let refused = Refused::new(StatusCode::FORBIDDEN, text, "admin.socket");
            return refused.into_response();
        }
        if let Action::Health = action {
            return self.health();
        }
        if !visitor.take_place(matches!(action, Action::Tell(_))) {
            self.count(Refusal::Busy);
            let text = "too many requests are being answered";
            let refused = Refused::new(StatusCode::SERVICE_UNAVAILABLE, text, "fewer at a time");
            return refused.into_response();
        }
        if let Action::Page(make) = action {
            let turn = Arc::clone(&visitor.among.page).acquire_owned().await;
            let (state, read) = (Arc::clone(&self.state), self.read);
            // A client that leaves keeps its place until the page that it asked for is made.
            let place = (turn, Arc::clone(visitor));
            let made = spawn_blocking(move || {
                let page = make(read(&state));
                drop(place);
                page
            });
            return made
                .await
                .unwrap_or_else(|_| page("text/plain", Err(fmt::Error)));
        }
        let done = timeout(MOST_PATIENCE, self.act(action, request, asker)).await;
        let late = |_| {
            let text = "there is no outcome yet";
            let accepted = "patience: the log and /status will tell it";
            Err(Refused::new(StatusCode::GATEWAY_TIMEOUT, text, accepted))
        };
        answer_of(done.unwrap_or_else(late))
    }

    /// Lists or changes something.
    async fn act(
        &self,
        action: Action,
        request: Request<Incoming>,
        asker: Asker,
    ) -> Result<Value, Refused> {
        let workers = &self.workers;
        let words = api::query(request.uri().query());
        match action {
            Action::Health | Action::Page(_) => Ok(Value::Null),
            Action::Connections => {
                let wanted = Wanted::of(words, 100, MOST_ROWS)?;
                Ok(connections::list(workers, wanted).await)
            }
            Action::TopConnections => {
                let wanted = Wanted::of(words, 20, MOST_ROWS)?;
                let prefixes = self.state.config().file.admission.prefixes();
                Ok(connections::top(workers, wanted, prefixes).await)
            }
            Action::Sources => {
                let wanted = Wanted::of(words, 100, MOST_ROWS)?;
                Ok(connections::sources(&self.state, wanted))
            }
            Action::Trials => trials::reports(&self.state, words),
            Action::Kill | Action::Change(_) | Action::TakeKey(_) | Action::Tell(_) => {
                let path = request.uri().path().to_owned();
                let body = to_bytes(Body::new(request.into_body()), LONGEST_CHANGE).await;
                let body = body.map_err(|_| {
                    let accepted = format!("at most {LONGEST_CHANGE} bytes");
                    Refused::new(
                        StatusCode::PAYLOAD_TOO_LARGE,
                        "the request is too long",
                        accepted,
                    )
                })?;
                let done = self.change(action, &body).await;
                let takes_key = matches!(action, Action::TakeKey(_));
                let outcome = match &done {
                    Ok(_) => "done",
                    // What is wrong with a request may quote it.
                    Err(_) if takes_key => "refused",
                    Err(refused) => &refused.error,
                };
                let said: &[u8] = if takes_key {
                    b"a certificate and its key"
                } else {
                    &body
                };
                let said = Escaped::new(said);
                let outcome = Escaped::new(outcome);
                tracing::info!(by = %asker, path, %said, %outcome, "asked to change something");
                done
            }
        }
    }

    async fn change(&self, action: Action, body: &[u8]) -> Result<Value, Refused> {
        let (Action::Change(parse) | Action::TakeKey(parse) | Action::Tell(parse)) = action else {
            return Ok(connections::kill(&self.workers, api::filter_of(body)?).await);
        };
        let gone = || {
            let text = "becket is about to end";
            Refused::new(
                StatusCode::SERVICE_UNAVAILABLE,
                text,
                "a becket that serves",
            )
        };
        let (reply, outcome) = oneshot::channel();
        let asked = ChangeRequest {
            change: parse(body)?,
            outcome: ChangeOutcome(reply),
        };
        self.control.send(asked).await.map_err(|_| gone())?;
        outcome.await.map_err(|_| gone())?
    }

    /// Whether the client may see who our clients are, and change something: who can open the socket, or has the token.
    fn trusts(&self, request: &Request<Incoming>, asker: Asker) -> Result<(), Refused> {
        if let Asker::Local(_) = asker {
            return Ok(());
        }
        let config = self.state.config();
        let Some(token) = &config.admin.token else {
            let text = "this address only shows pages";
            let accepted = "admin.socket, or admin.token-file";
            return Err(Refused::new(StatusCode::FORBIDDEN, text, accepted));
        };
        let said = request.headers().get(header::AUTHORIZATION);
        let said = said.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        if said.is_some_and(|said| token.is(said)) {
            return Ok(());
        }
        let (text, accepted) = ("no token, or a wrong one", "Authorization: Bearer TOKEN");
        Err(Refused::new(StatusCode::UNAUTHORIZED, text, accepted))
    }

    /// 200 while serving, 503 while draining, so that a balancer stops sending clients.
    fn health(&self) -> Response {
        if self.state.is_draining() {
            plain(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
        } else {
            plain(StatusCode::OK, "serving\n")
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

/// What is done for a path and a method.
fn find(path: &str, method: &Method) -> Result<Action, Refused> {
    let asked = match method.as_str() {
        "HEAD" => "GET",
        method => method,
    };
    let mut known = ROUTES.iter().filter(|route| route.path == path);
    let methods: Vec<&str> = known.clone().map(|route| route.method).collect();
    if methods.is_empty() {
        let mut paths: Vec<&str> = ROUTES.iter().map(|route| route.path).collect();
        paths.dedup();
        let error = "no such page";
        return Err(Refused::new(StatusCode::NOT_FOUND, error, paths.join(" ")));
    }
    let route = known.find(|route| route.method == asked);
    route.map(|route| route.action).ok_or_else(|| {
        let allowed = methods.join(", ").replace("GET", "GET, HEAD");
        let error = "not by this method";
        Refused::new(StatusCode::METHOD_NOT_ALLOWED, error, allowed)
    })
}

fn answer_of(done: Result<Value, Refused>) -> Response {
    match done {
        Ok(object) => ([(header::CACHE_CONTROL, "no-store")], Json(object)).into_response(),
        Err(refused) => refused.into_response(),
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let object = json!({"error": self.error, "accepted": self.accepted});
        let mut answer = (self.code, Json(object)).into_response();
        let headers = answer.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.code == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.code == StatusCode::METHOD_NOT_ALLOWED
            && let Ok(allowed) = HeaderValue::from_str(&self.accepted)
        {
            headers.insert(header::ALLOW, allowed);
        }
        answer
    }
}

/// The status in a browser, which loads nothing else and runs no script.
fn home(snapshot: Snapshot) -> Response {
    let object = serde_json::to_value(&snapshot).map_err(|_| fmt::Error);
    let body = object.and_then(|status| web(&status, &snapshot.history));
    let mut answer = page("text/html; charset=utf-8", body);
    let policy =
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'";
    let policy = HeaderValue::from_static(policy);
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    answer
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

/// TCP and unix.
const SOCKETS: usize = 2;
/// For a reload or an upgrade, which have time-outs of their own; longer than `becket reload` waits.
const MOST_PATIENCE: Duration = Duration::from_secs(65);
/// In each of them one client is let in at each socket: as many as the kernel has in a queue of `std`, and as many again for the loop to hear
/// of them.
const LAST_TURNS: usize = 256;
/// For the last answers. Whoever is silent goes before that.
pub const LAST_MOMENT: Duration = Duration::from_secs(2);
/// Rows of one answer: half a megabyte.
pub(super) const MOST_ROWS: usize = 1000;
/// Bytes of a change.
const LONGEST_CHANGE: usize = 64 * 1024;

#[cfg(test)]
mod tests;
