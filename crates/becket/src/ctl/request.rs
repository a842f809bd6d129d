//! Requests of `becket ctl` to the admin pages.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::admin::{AdminAddress, NoStatus};
use crate::status::escaped;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotDone {
    #[error(transparent)]
    NoStatus(#[from] NoStatus),
    #[error("{0}")]
    Refused(String),
}

/// Response of a task, as JSON and as text.
pub(super) type Printed = (Value, String);

/// Decodes a response, and returns it with the text that `text` formats from it.
pub(super) fn shown<T: DeserializeOwned>(
    object: Value,
    text: impl FnOnce(&T) -> String,
) -> Result<Printed, NotDone> {
    let text = text(&answer(object.clone())?);
    Ok((object, text))
}

fn answer<T: DeserializeOwned>(object: Value) -> Result<T, NotDone> {
    let answer = serde_json::from_value(object);
    answer.map_err(|error| NotDone::Refused(format!("cannot decode the answer: {error}")))
}

pub(super) fn query(words: Map<String, Value>) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (field, value) in &words {
        match value {
            Value::String(text) => query.append_pair(field, text),
            other => query.append_pair(field, &other.to_string()),
        };
    }
    query.finish()
}

pub(super) fn ask(
    place: &AdminAddress,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, NotDone> {
    #[derive(Deserialize)]
    struct RefusedRequest {
        error: String,
        accepted: String,
    }
    let answer = place.request(method, path, body)?;
    if answer.code == 200
        && let Ok(object) = answer.json()
    {
        return Ok(object);
    }
    Err(NotDone::Refused(match answer.json::<RefusedRequest>() {
        Err(_) => format!(
            "refused with HTTP status {}: {}",
            answer.code,
            escaped(&answer.text())
        ),
        Ok(RefusedRequest { error, accepted }) => {
            let lines: Vec<String> = error.lines().map(escaped).collect();
            let separator = if lines.len() > 1 { "\n" } else { "; " };
            let accepted = escaped(&accepted);
            format!("{}{separator}accepted: {accepted}", lines.join("\n"))
        }
    }))
}
