//! Built-in scenarios, in the order in which `becket-bench run all` runs them.

use crate::Error;
use crate::scenario::Scenario;

macro_rules! suite {
    ($($id:literal),* $(,)?) => {
        &[$(($id, include_str!(concat!("../scenarios/", $id, ".toml")))),*]
    };
}

pub const SUITE: &[(&str, &str)] = suite![
    "classics",
    "implementations",
    "overload",
    "collapse",
    "cores",
    "sharing",
    "key",
    "cipher",
    "resumption",
    "object-size",
    "files",
    "latency",
    "delay",
    "maxconn",
    "maxconn-idle",
    "shared-cache",
    "replication",
    "store",
    "servers",
    "passthrough",
    "relay",
    "ktls",
    "files-ktls",
    "library",
    "threads",
    "signing",
    "batches",
    "generator",
    "idle",
    "crowd",
    "certificates",
    "queued",
    "scraped",
    "storm",
    "pq",
];

/// Loads the requested scenarios. A request is a scenario ID, `all`, or a file name that ends in `.toml`.
pub fn find(asked: &[String]) -> Result<Vec<Scenario>, Error> {
    let mut found: Vec<Scenario> = Vec::new();
    for name in asked {
        if name == "all" {
            for (id, text) in SUITE {
                found.push(Scenario::parse(id, text)?);
            }
        } else if name.ends_with(".toml") {
            let text = std::fs::read_to_string(name)
                .map_err(|e| Error::Asked(format!("cannot read scenario {name}: {e}")))?;
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
    use crate::articles::{ARTICLES, Article};

    #[test]
    fn every_scenario_of_the_suite_is_valid_and_has_the_id_of_its_file() {
        let all = find(&["all".to_owned()]).unwrap();
        assert_eq!(all.len(), SUITE.len());
        for (scenario, (id, _)) in all.iter().zip(SUITE) {
            assert_eq!(scenario.id, *id);
            assert!(scenario.question.ends_with('?'), "{id}");
            assert!(!scenario.then.text.is_empty(), "{id}");
            let quick = scenario.cases(true).unwrap().len();
            assert!(quick <= scenario.cases(false).unwrap().len(), "{id}");
        }
    }
    #[test]
    fn every_scenario_names_its_articles_or_states_that_there_are_none() {
        let all = find(&["all".to_owned()]).unwrap();
        let ids: Vec<&str> = all.iter().map(|scenario| scenario.id.as_str()).collect();
        assert_eq!(ids, CITED.map(|(id, _)| id), "the list of citations");
        for (scenario, (id, articles)) in all.iter().zip(CITED) {
            let then = &scenario.then;
            let cited: Vec<&str> = then.source.iter().map(|s| s.article.as_str()).collect();
            assert_eq!(cited, articles, "{id}");
            let none = then.text.starts_with("Not in the articles");
            assert_eq!(articles.is_empty(), none, "{id}: {}", then.text);
            // The list of articles has the years; a text must not repeat them.
            assert!(!then.text.contains("201"), "{id}: {}", then.text);
            for source in &then.source {
                let kinds = [
                    "table",
                    "figure",
                    "section",
                    "results",
                    "quotation",
                    "synopsis",
                ];
                let has_kind = kinds.iter().any(|kind| source.place.contains(kind));
                assert!(has_kind, "{id}: which table or figure? {}", source.place);
                let mut rows = source.rows.iter();
                assert!(rows.all(|row| row.len() == source.head.len()), "{id}");
                assert_eq!(source.head.is_empty(), source.rows.is_empty(), "{id}");
                let (figures, rows) = (source.figures.len(), source.rows.len());
                assert!(figures == 0 || figures == rows, "{id}: {}", source.place);
            }
        }
    }

    #[test]
    fn every_article_is_cited_and_has_a_link() {
        for article in ARTICLES {
            assert!(article.link.starts_with("https://"), "{}", article.id);
            let is_cited = CITED.iter().any(|(_, ids)| ids.contains(&article.id));
            assert!(is_cited, "{}", article.id);
        }
        // The articles of HAProxy Technologies give no year.
        let years = |id| Article::find(id).unwrap().year;
        assert_eq!(years("haproxy-ssl"), None);
        assert_eq!(years("tlsnappy"), Some(2012));
    }

    /// Each scenario of the suite with the articles that it cites, in order.
    const CITED: [(&str, &[&str]); 35] = [
        (
            "classics",
            &[
                "bernat-1",
                "bernat-1",
                "bernat-2",
                "haproxy-ssl",
                "haproxy-ssl",
                "haproxy-ssl",
                "haproxy-ssl",
                "haproxy-ssl",
                "tlsnappy",
            ],
        ),
        ("implementations", &["bernat-1"]),
        ("overload", &["bernat-1"]),
        ("collapse", &["bernat-1"]),
        ("cores", &["haproxy-ssl", "bernat-1"]),
        ("sharing", &[]),
        ("key", &["bernat-1", "haproxy-ssl"]),
        ("cipher", &["haproxy-ssl", "bernat-1"]),
        ("resumption", &["haproxy-ssl", "bernat-1"]),
        ("object-size", &["haproxy-ssl", "langley"]),
        ("files", &["nginx-ktls"]),
        ("latency", &["bernat-2", "bernat-1"]),
        ("delay", &["bernat-1"]),
        ("maxconn", &["haproxy-maxconn"]),
        ("maxconn-idle", &["haproxy-maxconn"]),
        ("shared-cache", &["haproxy-shared-cache"]),
        ("replication", &["haproxy-shared-cache"]),
        ("store", &[]),
        ("servers", &[]),
        ("passthrough", &["haproxy-shared-cache"]),
        ("relay", &[]),
        ("ktls", &["nginx-ktls"]),
        ("files-ktls", &["nginx-ktls"]),
        ("library", &["bernat-2"]),
        ("threads", &["bernat-2", "tlsnappy"]),
        ("signing", &["tlsnappy"]),
        ("batches", &["tlsnappy", "bernat-2"]),
        ("generator", &["tlsnappy"]),
        ("idle", &["langley", "bernat-1"]),
        ("crowd", &[]),
        ("certificates", &[]),
        ("queued", &[]),
        ("scraped", &[]),
        ("storm", &[]),
        ("pq", &[]),
    ];
}
