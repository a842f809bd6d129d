//! What the trials of policies came to in the last day.

use serde_json::{Value, json};

use super::api::Refused;
use super::connections;
use super::state::State;

/// The reports of every trial, or of that of one policy, by the words of a request: `policy` and `limit`.
pub(super) fn reports(state: &State, words: Vec<(String, String)>) -> Result<Value, Refused> {
    let (mut wanted, mut limit) = (None, 20);
    for (field, value) in words {
        match field.as_str() {
            "policy" => wanted = Some(value),
            "limit" => limit = connections::limit(&value, connections::MOST_ROWS)?,
            _ => {
                let fault = format!("no field {field:?}");
                return Err(Refused::unusable(fault, "policy, limit"));
            }
        }
    }
    let config = state.config();
    let trials = config.trials();
    if let Some(policy) = &wanted
        && !trials.contains_key(policy.as_str())
    {
        let names: Vec<_> = trials.into_keys().collect();
        let accepted = match &names[..] {
            [] => "a policy with a trial; there is none".to_owned(),
            names => names.join(", "),
        };
        let fault = format!("no trial of a policy {policy:?}");
        return Err(Refused::unusable(fault, accepted));
    }
    let now = state.shared().clock.mono();
    let chosen = trials.into_iter();
    let chosen = chosen.filter(|(policy, _)| wanted.as_ref().is_none_or(|it| it == policy));
    let reports: Vec<_> = chosen.map(|(_, it)| it.report(limit, now)).collect();
    Ok(json!({"policies": reports}))
}
