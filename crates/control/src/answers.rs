//! The routes of the admin pages, and the response to each request.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::Request;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::mpsc::Sender;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::api::{
    self, AdminRoute, ChangeOutcome, ChangeRequest, NoFields, OperatorChange, PageClient, Refused,
    RouteAction, as_json, parse,
};
use super::connections::{self, ListRequest};
use super::exposition::{self, exposition};
use super::host;
use super::page_refusals::PageRefusal;
use super::snapshot::Snapshot;
use super::state::AdminState;
use super::web::web;
use becket_log::{Escaped, shortened};
use becket_process::protocol::OperatorRequest;
use becket_proxy::worker::mailbox::Mailbox;

/// All routes. Routes with the same path must be adjacent.
pub(super) const ROUTES: [AdminRoute; 17] = [
    route("/", "GET", RouteAction::Page(home)),
    route("/metrics", "GET", RouteAction::Page(metrics)),
    route("/status", "GET", RouteAction::Page(status)),
    route("/healthz", "GET", RouteAction::Health),
    route("/connections", "GET", RouteAction::Connections),
    route("/connections/top", "GET", RouteAction::TopConnections),
    route("/connections/kill", "POST", RouteAction::Kill),
    route("/sources", "GET", RouteAction::Sources),
    change("/servers", "PATCH", OperatorChange::of_server),
    change("/servers", "POST", |body| {
        parse(body).map(OperatorChange::AddServer)
    }),
    change("/servers", "DELETE", |body| {
        parse(body).map(OperatorChange::RemoveServer)
    }),
    change("/log", "PUT", |body| parse(body).map(OperatorChange::Log)),
    change("/tickets/rotate", "POST", |body| {
        bare(body, OperatorChange::RotateTickets)
    }),
    change("/sessions/forget", "POST", |body| {
        bare(body, OperatorChange::ForgetSessions)
    }),
    change("/reload", "POST", |body| {
        bare(body, OperatorChange::Asked(OperatorRequest::Reload))
    }),
    change("/drain", "POST", |body| {
        bare(body, OperatorChange::Asked(OperatorRequest::Drain))
    }),
    change("/upgrade", "POST", |body| {
        bare(body, OperatorChange::Asked(OperatorRequest::Upgrade))
    }),
];

const fn route(path: &'static str, method: &'static str, action: RouteAction) -> AdminRoute {
    AdminRoute {
        path,
        method,
        action,
    }
}

const fn change(
    path: &'static str,
    method: &'static str,
    parse: fn(&[u8]) -> Result<OperatorChange, Refused>,
) -> AdminRoute {
    route(path, method, RouteAction::Change(parse))
}

/// Returns a change that needs no fields in the request body.
fn bare(body: &[u8], change: OperatorChange) -> Result<OperatorChange, Refused> {
    parse::<NoFields>(body).map(|_| change)
}

pub(super) struct Responder {
    state: Arc<AdminState>,
    read: fn(&AdminState) -> Snapshot,
    control: Sender<ChangeRequest>,
    workers: Vec<Arc<Mailbox>>,
    /// Limits the number of pages that are created at the same time to [`MAKERS`].
    turns: Arc<Semaphore>,
}

impl Responder {
    /// Creates the responder. It sends changes to `control` and requests for lists to `workers`.
    pub(super) fn new(
        state: Arc<AdminState>,
        read: fn(&AdminState) -> Snapshot,
        control: Sender<ChangeRequest>,
        workers: Vec<Arc<Mailbox>>,
    ) -> Self {
        Self {
            state,
            read,
            control,
            workers,
            turns: Arc::new(Semaphore::new(MAKERS)),
        }
    }

    pub(super) fn count(&self, refusal: PageRefusal) {
        self.state.refusals[refusal as usize].add(1);
    }

    pub(super) async fn answer(&self, request: Request<Incoming>, asker: PageClient) -> Response {
        let path = request.uri().path();
        // `/healthz` accepts every host name, because load balancers send various names and the
        // response contains no secrets.
        if path != "/healthz"
            && let PageClient::Network(_) = asker
            && let Some(answer) = self.misdirected(&request)
        {
            return answer;
        }
        let action = match find(path, request.method()) {
            Ok(action) => action,
            Err(refused) => return refused.into_response(),
        };
        let is_page = matches!(action, RouteAction::Health | RouteAction::Page(_));
        if !is_page && let PageClient::Network(_) = asker {
            self.count(PageRefusal::Forbidden);
            let text = "this address only shows pages";
            return Refused::new(StatusCode::FORBIDDEN, text, "admin.socket").into_response();
        }
        if let RouteAction::Health = action {
            return self.health();
        }
        if let RouteAction::Page(make) = action {
            let turn = Arc::clone(&self.turns).acquire_owned().await;
            let (state, read) = (Arc::clone(&self.state), self.read);
            let made = spawn_blocking(move || {
                let page = make(read(&state));
                drop(turn);
                page
            });
            return made
                .await
                .unwrap_or_else(|_| page("text/plain", Err(fmt::Error)));
        }
        let done = timeout(MOST_PATIENCE, self.act(action, request, asker)).await;
        let late = |_| {
            let text = "no outcome yet";
            let accepted = "another request later; see the log and /status";
            Err(Refused::new(StatusCode::GATEWAY_TIMEOUT, text, accepted))
        };
        answer_of(done.unwrap_or_else(late))
    }

    async fn act(
        &self,
        action: RouteAction,
        request: Request<Incoming>,
        asker: PageClient,
    ) -> Result<Value, Refused> {
        let workers = &self.workers;
        let words = api::query(request.uri().query());
        match action {
            RouteAction::Health | RouteAction::Page(_) => Ok(Value::Null),
            RouteAction::Connections => {
                let wanted = ListRequest::of(words, 100)?;
                as_json(&connections::list(workers, &self.state.config(), wanted).await?)
            }
            RouteAction::TopConnections => {
                let wanted = ListRequest::of(words, 20)?;
                as_json(&connections::top(workers, &self.state.config(), wanted).await?)
            }
            RouteAction::Sources => {
                let wanted = ListRequest::of(words, 100)?;
                as_json(&connections::sources(&self.state, wanted))
            }
            RouteAction::Kill | RouteAction::Change(_) => {
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
                // The request is logged before the change, because the client may disconnect before
                // the result is available.
                tracing::info!(name: "change-requested", by = %asker, path, body = %shortened(&body), "change requested over the admin socket");
                let done = self.change(action, &body).await;
                let outcome = match &done {
                    Ok(_) => "done",
                    Err(refused) => &refused.error,
                };
                tracing::info!(name: "change-ended", by = %asker, path, outcome = %shortened(outcome.as_bytes()), "change requested over the admin socket completed");
                done
            }
        }
    }

    async fn change(&self, action: RouteAction, body: &[u8]) -> Result<Value, Refused> {
        let RouteAction::Change(parse) = action else {
            let (config, filter) = (self.state.config(), api::filter_of(body)?);
            return as_json(&connections::kill(&self.workers, &config, filter).await?);
        };
        let gone = || {
            let text = "becket is about to exit";
            Refused::new(
                StatusCode::SERVICE_UNAVAILABLE,
                text,
                "a becket that is not draining",
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

    /// Returns 200 while serving and 503 while draining, so that load balancers send no new
    /// clients.
    fn health(&self) -> Response {
        if self.state.is_draining() {
            plain(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
        } else if self.state.is_reload_refused() {
            plain(
                StatusCode::OK,
                "serving; the last reload was refused: see /status\n",
            )
        } else {
            plain(StatusCode::OK, "serving\n")
        }
    }

    fn misdirected(&self, request: &Request<Incoming>) -> Option<Response> {
        let config = self.state.config();
        let names = &config.file.admin.hosts;
        let host = host::foreign(request.uri(), request.headers(), names)?;
        self.count(PageRefusal::ForeignHost);
        let host = Escaped::new(host);
        let text = format!(
            "the host \"{host}\" is not an address, not localhost, and not in admin.hosts\n"
        );
        Some(plain(StatusCode::MISDIRECTED_REQUEST, text))
    }
}

fn find(path: &str, method: &Method) -> Result<RouteAction, Refused> {
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
        let error = "method not allowed";
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
        if self.code == StatusCode::METHOD_NOT_ALLOWED
            && let Ok(allowed) = HeaderValue::from_str(&self.accepted)
        {
            headers.insert(header::ALLOW, allowed);
        }
        answer
    }
}

fn home(snapshot: Snapshot) -> Response {
    let mut nonce = [0; 16];
    let filled = aws_lc_rs::rand::fill(&mut nonce).map_err(|_| fmt::Error);
    let nonce = format!("{:032x}", u128::from_ne_bytes(nonce));
    let body = filled.and_then(|()| web(&snapshot.status, &snapshot.history, &nonce));
    let policy = format!(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let policy = [(header::CONTENT_SECURITY_POLICY, policy)];
    (policy, page("text/html; charset=utf-8", body)).into_response()
}

fn metrics(snapshot: Snapshot) -> Response {
    page(exposition::CONTENT_TYPE, exposition(snapshot))
}

fn status(snapshot: Snapshot) -> Response {
    let object = serde_json::to_string_pretty(&snapshot.status);
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
            "cannot render this page\n",
        )
            .into_response(),
    }
}

/// Number of threads that create pages.
pub(super) const MAKERS: usize = 2;
/// Timeout of lists and changes. Longer than the default timeouts of a reload and of an upgrade,
/// and shorter than the read timeout of `becket reload`.
const MOST_PATIENCE: Duration = Duration::from_secs(65);
/// Maximum length in bytes of the request body of a change.
const LONGEST_CHANGE: usize = 64 * 1024;
