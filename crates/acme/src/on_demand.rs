//! Decides whether a certificate is ordered for a name that a client asked for.
//!
//! Each condition of `[acme.on-demand]` must allow the name: the list, a file of that name in the
//! folder, and the answer of a URL. They are checked before each order, so that a renewal needs
//! permission too.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Empty;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::context::Context;
use crate::error::Error;
use crate::http::{causes, roots};

/// Client for `acme.on-demand.ask`.
pub type AskingClient = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// # Errors
/// Returns [`Error::NotAllowed`] with the condition that refused the name, or that could not be
/// checked.
pub async fn check(context: &Context, name: &str) -> Result<(), Error> {
    let refused = |why: String| Err(Error::NotAllowed(format!("{name}: {why}")));
    let on_demand = context.section.on_demand.as_ref();
    let Some(on_demand) = on_demand.filter(|_| context.section.on_demand(name).is_some()) else {
        return refused("not in acme.on-demand.names".to_owned());
    };
    if let Some(folder) = &on_demand.folder {
        let file = context.base.join(folder).join(name);
        let found = timeout(ASK_TIME, spawn_blocking(move || fs::symlink_metadata(file)));
        match found.await {
            Ok(Ok(Ok(_))) => {}
            Ok(Ok(Err(error))) => {
                return refused(format!("file in acme.on-demand.folder: {error}"));
            }
            _ => return refused("acme.on-demand.folder does not answer".to_owned()),
        }
    }
    if let Some(url) = &on_demand.ask {
        match timeout(ASK_TIME, ask(context, url, name)).await {
            Ok(Ok(status)) if status.is_success() => {}
            Ok(Ok(status)) => return refused(format!("acme.on-demand.ask answered {status}")),
            Ok(Err(why)) => return refused(format!("acme.on-demand.ask: {why}")),
            Err(_) => return refused("acme.on-demand.ask does not answer".to_owned()),
        }
    }
    Ok(())
}

/// Requests the URL with `domain=NAME`, and returns the status.
async fn ask(context: &Context, url: &str, name: &str) -> Result<http::StatusCode, String> {
    let separator = if url.contains('?') { '&' } else { '?' };
    let uri = format!("{url}{separator}domain={name}").parse::<Uri>();
    let uri = uri.map_err(|error| error.to_string())?;
    let client = match context.asking.get() {
        Some(client) => client.clone(),
        None => {
            let client = client(context, url).map_err(|error| error.to_string())?;
            context.asking.get_or_init(|| client).clone()
        }
    };
    let request = Request::get(uri).body(Empty::<Bytes>::new());
    let request = request.map_err(|error| error.to_string())?;
    let response = client.request(request).await;
    response
        .map(|response| response.status())
        .map_err(|error| causes(&error))
}

fn client(context: &Context, url: &str) -> Result<AskingClient, Error> {
    let ca = context.section.ca.as_ref().map(|ca| context.base.join(ca));
    let roots = match url.starts_with("https:") {
        true => roots(ca.as_deref())?,
        false => RootCertStore::empty(),
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::config("acme.on-demand.ask", error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .build();
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

/// Time limit for each condition.
const ASK_TIME: Duration = Duration::from_secs(5);
