//! The suite: the scenarios that come with the bench, in the order of the articles' questions.

use crate::Error;
use crate::scenario::Scenario;

macro_rules! suite {
    ($($id:literal),* $(,)?) => {
        &[$(($id, include_str!(concat!("../scenarios/", $id, ".toml")))),*]
    };
}

pub const SUITE: &[(&str, &str)] = suite![
    "implementations",
    "overload",
    "cores",
    "key",
    "cipher",
    "resumption",
    "object-size",
    "files",
    "latency",
    "maxconn",
    "shared-cache",
    "replication",
    "servers",
    "passthrough",
    "relay",
    "ktls",
    "library",
    "threads",
    "signing",
    "batches",
    "generator",
    "idle",
    "queued",
    "scraped",
    "storm",
    "pq",
];

/// Finds what is asked for: ids of the suite, `all`, or files that end in `.toml`.
pub fn find(asked: &[String]) -> Result<Vec<Scenario>, Error> {
    let mut found: Vec<Scenario> = Vec::new();
    for name in asked {
        if name == "all" {
            for (id, text) in SUITE {
                found.push(Scenario::parse(id, text)?);
            }
        } else if name.ends_with(".toml") {
            let text = std::fs::read_to_string(name)
                .map_err(|e| Error::Asked(format!("scenario {name}: {e}")))?;
            found.push(Scenario::parse(name, &text)?);
        } else {
            let known = SUITE.iter().find(|(id, _)| id == name);
            let (id, text) = known.ok_or_else(|| {
                let ids: Vec<&str> = SUITE.iter().map(|(id, _)| *id).collect();
                Error::Asked(format!(
                    "unknown scenario `{name}` (accepted: all, {}, or a file that ends in .toml)",
                    ids.join(", ")
                ))
            })?;
            found.push(Scenario::parse(id, text)?);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_of_the_suite_is_sound_and_bears_its_name() {
        let all = find(&["all".to_owned()]).unwrap();
        assert_eq!(all.len(), SUITE.len());
        for (scenario, (id, _)) in all.iter().zip(SUITE) {
            assert_eq!(scenario.id, *id);
            assert!(scenario.question.ends_with('?'), "{id}");
            assert!(!scenario.then.text.is_empty(), "{id}");
            let names = ["Vincent Bernat", "NGINX", "Google"];
            let is_of_an_article = names.iter().any(|name| scenario.then.text.contains(name));
            assert!(!is_of_an_article || !scenario.then.links.is_empty(), "{id}");
            assert!(
                scenario
                    .then
                    .links
                    .iter()
                    .all(|url| url.starts_with("https://")),
                "{id}"
            );
            let quick = scenario.cases(true).unwrap().len();
            assert!(quick <= scenario.cases(false).unwrap().len(), "{id}");
        }
    }
}
