//! HTTPS requests to one authority.
//!
//! The authority is a hostile peer. Each request has a time limit and each response a size limit.
//! `instant-acme` panics on two kinds of responses, which are therefore checked before it reads
//! them: a directory whose `newNonce` is not a URL, and a `Retry-After` that exceeds the clock.
//!
//! Facts that `instant-acme` drops are kept here: the wait that an error response requests, the
//! authority's time, and the metadata of the directory.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use becket_sys::clock::Clock;
use bytes::Bytes;
use http::header::{DATE, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use instant_acme::{BodyWrapper, BytesResponse, HttpClient, Problem};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde::Deserialize;
use tokio::time::timeout;

use crate::error::Error;
use crate::schedule::Setback;

/// Client for one authority. Clones share the connection and the facts.
#[derive(Clone)]
pub struct AuthorityClient(Arc<Inner>);

struct Inner {
    http: Client<HttpsConnector<HttpConnector>, BodyWrapper<Bytes>>,
    directory: Uri,
    clock: Clock,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    setback: Setback,
    meta: DirectoryMeta,
    has_windows: bool,
    /// Difference between the authority's time and the time of this host.
    skew: Duration,
}

/// `meta` of a directory (RFC 8555, section 7.1.1).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DirectoryMeta {
    /// Domain names for CAA records.
    pub caa_identities: Vec<String>,
    pub external_account_required: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Directory {
    new_nonce: String,
    renewal_info: Option<String>,
    #[serde(default)]
    meta: DirectoryMeta,
}

impl AuthorityClient {
    /// Creates a client. `ca` is a PEM file with the accepted roots; `None` means the system's.
    pub fn new(directory: &str, ca: Option<&Path>) -> Result<Self, Error> {
        let directory = directory.parse::<Uri>();
        let directory = directory.map_err(|error| Error::config("acme.authority", error))?;
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(client_config(roots(ca)?)?)
            .https_only()
            .enable_http1()
            .build();
        Ok(Self(Arc::new(Inner {
            http: Client::builder(TokioExecutor::new()).build(connector),
            directory,
            clock: Clock::start(),
            seen: Mutex::default(),
        })))
    }

    /// Requests the directory, and returns its metadata.
    pub async fn directory(&self) -> Result<DirectoryMeta, Error> {
        let request = Request::builder().uri(&self.0.directory);
        let request = request.body(BodyWrapper::default());
        self.request(request.map_err(instant_acme::Error::from)?)
            .await?;
        Ok(self.meta())
    }

    /// Returns the metadata of the last directory.
    pub fn meta(&self) -> DirectoryMeta {
        self.seen().meta.clone()
    }

    /// Returns whether the authority suggests renewal windows.
    pub fn has_windows(&self) -> bool {
        self.seen().has_windows
    }

    /// Returns the difference between the authority's time and the time of this host.
    pub fn skew(&self) -> Duration {
        self.seen().skew
    }

    /// Returns the facts about error responses since the last call.
    pub fn take_setback(&self) -> Setback {
        std::mem::take(&mut self.seen().setback)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn exchange(
        &self,
        mut request: Request<BodyWrapper<Bytes>>,
    ) -> Result<BytesResponse, instant_acme::Error> {
        let is_get = request.method() == Method::GET;
        let is_directory = *request.uri() == self.0.directory;
        let agent = HeaderValue::from_static(USER_AGENT_TEXT);
        request.headers_mut().insert(USER_AGENT, agent);
        let response = self.0.http.request(request).await;
        let (mut parts, body) = response
            .map_err(|error| other(causes(&error)))?
            .into_parts();
        let body = Limited::new(body, LONGEST_BODY).collect().await;
        let body = body.map_err(|error| other(causes(&*error)))?.to_bytes();
        let now = self.0.clock.now().unix;
        let wait = retry_after(&parts.headers, now);
        parts.headers.remove(RETRY_AFTER);
        // Without this header, `instant-acme` rejects a renewal window.
        if let Some(wait) = wait.or(is_get.then_some(DEFAULT_WAIT)) {
            let value = HeaderValue::from(wait.as_secs());
            parts.headers.insert(RETRY_AFTER, value);
        }
        let mut seen = self.seen();
        if let Some(date) = date(parts.headers.get(DATE)) {
            seen.skew = date.abs_diff(now);
        }
        if !parts.status.is_success() {
            seen.setback.retry_after = wait.or(seen.setback.retry_after);
            seen.setback.is_rate_limit |= parts.status == StatusCode::TOO_MANY_REQUESTS;
            let problem = serde_json::from_slice::<Problem>(&body).ok();
            let problem = problem.filter(|it| it.r#type.is_some() || it.detail.is_some());
            let problem = problem.ok_or_else(|| other(format!("status {}", parts.status)))?;
            // `instant-acme` does not check the status of a directory.
            if is_get {
                return Err(problem.into());
            }
        } else if is_directory {
            let directory: Directory = serde_json::from_slice(&body)?;
            directory.new_nonce.parse::<Uri>()?;
            seen.meta = directory.meta;
            seen.has_windows = directory.renewal_info.is_some();
        }
        drop(seen);
        let body = Box::new(body);
        Ok(BytesResponse { parts, body })
    }
}

impl HttpClient for AuthorityClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            let exchange = timeout(REQUEST_TIME, client.exchange(request));
            let late = |_| other(format!("no answer within {} s", REQUEST_TIME.as_secs()));
            exchange.await.map_err(late)?
        })
    }
}

/// Client for the URL of `acme.on-demand.ask`.
pub type AskingClient = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// Creates a client for a URL. `ca` is a PEM file with the roots for `https`; `None` means the
/// system's.
pub fn asking_client(url: &str, ca: Option<&Path>) -> Result<AskingClient, Error> {
    let roots = if url.starts_with("https:") {
        roots(ca)?
    } else {
        RootCertStore::empty()
    };
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(client_config(roots)?)
        .https_or_http()
        .enable_http1()
        .build();
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

/// Requests a URL, and returns the status of the response.
pub async fn status_of(client: &AskingClient, uri: Uri) -> Result<StatusCode, String> {
    let request = Request::get(uri).body(Empty::new());
    let request = request.map_err(|error| error.to_string())?;
    let response = client.request(request).await;
    response
        .map(|response| response.status())
        .map_err(|error| causes(&error))
}

fn client_config(roots: RootCertStore) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| Error::config("acme.authority", error))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// Returns the CA certificates of a PEM file, or of the system.
fn roots(ca: Option<&Path>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let Some(path) = ca else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let none = || Error::config("acme.ca", "this system has no CA certificates");
        return Some(roots).filter(|it| !it.is_empty()).ok_or_else(none);
    };
    let fault = |error: &dyn std::fmt::Display| {
        Error::config("acme.ca", format!("{}: {error}", path.display()))
    };
    let text = std::fs::read(path).map_err(|error| fault(&error))?;
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| fault(&error))?;
        roots.add(certificate).map_err(|error| fault(&error))?;
    }
    let roots = Some(roots).filter(|it| !it.is_empty());
    roots.ok_or_else(|| fault(&"no certificate"))
}

/// Returns the requested wait (RFC 9110, section 10.2.3), limited to [`LONGEST_WAIT`].
fn retry_after(headers: &HeaderMap, now: Duration) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?;
    let seconds = value.to_str().ok()?.trim().parse().ok();
    let wait = match seconds {
        Some(seconds) => Duration::from_secs(seconds),
        None => date(Some(value))?.saturating_sub(now),
    };
    Some(wait.min(LONGEST_WAIT))
}

fn date(value: Option<&HeaderValue>) -> Option<Duration> {
    let date = httpdate::parse_http_date(value?.to_str().ok()?).ok()?;
    date.duration_since(UNIX_EPOCH).ok()
}

/// Returns an error with its causes on one line. The errors of `hyper` do not contain theirs.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn other(text: String) -> instant_acme::Error {
    instant_acme::Error::Other(text.into())
}

/// Authorities require this header (RFC 8555, section 6.1).
const USER_AGENT_TEXT: &str = concat!("becket-acme/", env!("CARGO_PKG_VERSION"));
/// Time limit for a request: connect, handshake and complete response.
const REQUEST_TIME: Duration = Duration::from_secs(30);
/// Maximum size of a response in bytes. The longest expected one is a chain of a few KiB.
const LONGEST_BODY: usize = 1024 * 1024;
/// Longest wait that an authority can request: the longest period of a usual rate limit.
const LONGEST_WAIT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Wait between requests for a renewal window (RFC 9773, section 4.3).
const DEFAULT_WAIT: Duration = Duration::from_secs(6 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(value: &str) -> Option<u64> {
        let value = HeaderValue::from_str(value).unwrap();
        let headers = [(RETRY_AFTER, value)].into_iter().collect();
        retry_after(&headers, Duration::from_secs(1_000_000_000)).map(|wait| wait.as_secs())
    }

    #[test]
    fn a_requested_wait_is_a_number_or_a_date_and_is_limited() {
        assert_eq!(wait("120"), Some(120));
        assert_eq!(wait("Sun, 09 Sep 2001 01:47:40 GMT"), Some(60));
        assert_eq!(wait("Sun, 09 Sep 2001 01:40:00 GMT"), Some(0));
        assert_eq!(wait("18446744073709551615"), Some(LONGEST_WAIT.as_secs()));
        assert_eq!(
            wait("Fri, 31 Dec 9999 23:59:59 GMT"),
            Some(LONGEST_WAIT.as_secs())
        );
        for value in ["", "soon", "-1", "18446744073709551616"] {
            assert_eq!(wait(value), None, "{value}");
        }
    }

    #[test]
    fn a_ca_file_may_have_several_certificates_and_must_have_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let certificate = || {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new(["ca.test".to_owned()]).unwrap();
            params.self_signed(&key).unwrap().pem()
        };
        std::fs::write(&path, certificate() + &certificate()).unwrap();
        assert_eq!(roots(Some(&path)).unwrap().len(), 2);
        std::fs::write(&path, "text").unwrap();
        let error = roots(Some(&path)).unwrap_err().to_string();
        assert!(
            error.starts_with("acme.ca: ") && error.contains("no certificate"),
            "{error}"
        );
        assert!(AuthorityClient::new("https://a b/", Some(&path)).is_err());
    }
}
