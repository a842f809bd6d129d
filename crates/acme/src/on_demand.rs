//! Decides whether a certificate is ordered for a name that a client asked for.
//!
//! Each condition of `[acme.on-demand]` must allow the name: the list, a file of that name in the
//! folder, and the answer of a URL. They are checked before each order, so that a renewal needs
//! permission too.

use std::time::Duration;
use std::{fs, io};

use http::{StatusCode, Uri};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::context::Context;
use crate::error::Error;
use crate::http::{asking_client, status_of};

/// # Errors
/// Returns [`Error::NotAllowed`] with the condition that refused the name, or
/// [`Error::Config`] for a condition that could not be checked.
pub async fn check(context: &Context, name: &str) -> Result<(), Error> {
    let refused = |why: String| Err(Error::NotAllowed(format!("{name}: {why}")));
    let names = context.section.on_demand_names();
    let is_listed = names.is_some_and(|it| it.certificate(name).is_some());
    let Some(on_demand) = context.section.on_demand.as_ref().filter(|_| is_listed) else {
        return refused("not in acme.on-demand.names".to_owned());
    };
    if let Some(folder) = &on_demand.folder {
        let unknown = |why: String| Error::config("acme.on-demand.folder", why);
        let file = context.base.join(folder).join(name);
        let found = timeout(ASK_TIME, spawn_blocking(move || fs::symlink_metadata(file)));
        let found = found.await.map_err(|_| unknown(LATE.to_owned()))?;
        match found.map_err(io::Error::other).flatten() {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return refused("no file in acme.on-demand.folder".to_owned());
            }
            Err(error) => return Err(unknown(error.to_string())),
        }
    }
    if let Some(url) = &on_demand.ask {
        let unknown = |why: String| Error::config("acme.on-demand.ask", why);
        let status = timeout(ASK_TIME, ask(context, url, name)).await;
        let status = status.map_err(|_| unknown(LATE.to_owned()))?;
        let status = status.map_err(unknown)?;
        if status.is_server_error() {
            return Err(unknown(format!("{name}: status {status}")));
        }
        if !status.is_success() {
            return refused(format!("acme.on-demand.ask answered {status}"));
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

const LATE: &str = "no answer in time";
/// Time limit for each condition.
const ASK_TIME: Duration = Duration::from_secs(5);
