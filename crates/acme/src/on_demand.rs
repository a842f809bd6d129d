//! Decides whether a certificate is ordered for a name that a client asked for.
//!
//! Each condition of `[acme.on-demand]` must allow the name: the list, a file of that name in the
//! folder, and the answer of a URL. They are checked before each order, so that a renewal needs
//! permission too.

use std::fs;
use std::time::Duration;

use http::{StatusCode, Uri};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::context::Context;
use crate::error::Error;
use crate::http::{asking_client, status_of};

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
async fn ask(context: &Context, url: &str, name: &str) -> Result<StatusCode, String> {
    let separator = if url.contains('?') { '&' } else { '?' };
    let uri = format!("{url}{separator}domain={name}").parse::<Uri>();
    let uri = uri.map_err(|error| error.to_string())?;
    let client = match context.asking.get() {
        Some(client) => client.clone(),
        None => {
            let ca = context.section.ca.as_ref().map(|ca| context.base.join(ca));
            let client = asking_client(url, ca.as_deref()).map_err(|error| error.to_string())?;
            context.asking.get_or_init(|| client).clone()
        }
    };
    status_of(&client, uri).await
}

/// Time limit for each condition.
const ASK_TIME: Duration = Duration::from_secs(5);
