//! Host names of listeners and routes: intersection and precedence.
//!
//! `None` stands for every name. A wildcard covers names with any number of labels before its
//! suffix, as the Gateway API defines it.

use becket_config::address::NamePattern;
use becket_config::error::Problem;
use becket_config::notation::Text;

/// Parses a host name of a listener or a route.
pub fn parse(field: &str, text: &str) -> Result<NamePattern, Problem> {
    NamePattern::parse(text).map_err(|error| {
        let problem = Problem::new(field, error.to_string()).text(text);
        problem.accepted(NamePattern::ACCEPTED)
    })
}

/// Returns the names that both patterns cover, or `None` if there are none.
pub fn intersection(
    listener: Option<&NamePattern>,
    route: Option<&NamePattern>,
) -> Option<Option<NamePattern>> {
    let (Some(one), Some(other)) = (listener, route) else {
        return Some(listener.or(route).cloned());
    };
    if covers(Some(one), Some(other)) {
        return Some(Some(other.clone()));
    }
    covers(Some(other), Some(one)).then(|| Some(one.clone()))
}

/// Returns whether `wide` covers every name of `narrow`.
pub fn covers(wide: Option<&NamePattern>, narrow: Option<&NamePattern>) -> bool {
    let is_below = |name: &str, suffix: &str| {
        let label = name.strip_suffix(suffix);
        label.is_some_and(|label| label.len() > 1 && label.ends_with('.'))
    };
    match (wide, narrow) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(wide), Some(narrow)) if wide == narrow => true,
        (Some(NamePattern::Exact(_)), _) => false,
        (
            Some(NamePattern::Wildcard(suffix)),
            Some(NamePattern::Exact(name) | NamePattern::Wildcard(name)),
        ) => is_below(name, suffix),
    }
}

/// Returns the order of precedence: exact names, then wildcards with the most labels, then all names.
pub fn precedence(host: Option<&NamePattern>) -> (usize, usize) {
    match host {
        Some(NamePattern::Exact(_)) => (0, 0),
        Some(NamePattern::Wildcard(suffix)) => (1, usize::MAX - suffix.matches('.').count()),
        None => (2, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Option<NamePattern> {
        (!text.is_empty()).then(|| NamePattern::parse(text).unwrap())
    }

    #[test]
    fn the_intersection_is_the_narrower_of_two_patterns() {
        for (listener, route, expected) in [
            ("", "", Some("")),
            ("", "a.test", Some("a.test")),
            ("*.test", "", Some("*.test")),
            ("a.test", "a.test", Some("a.test")),
            ("a.test", "b.test", None),
            ("*.test", "a.test", Some("a.test")),
            ("*.test", "a.b.test", Some("a.b.test")),
            ("*.test", "test", None),
            ("*.b.test", "ab.test", None),
            ("a.test", "*.test", Some("a.test")),
            ("*.a.test", "*.test", Some("*.a.test")),
            ("*.test", "*.a.test", Some("*.a.test")),
            ("*.a.test", "*.b.test", None),
            ("*.a.test", "*.ba.test", None),
        ] {
            let found = intersection(pattern(listener).as_ref(), pattern(route).as_ref());
            assert_eq!(found, expected.map(pattern), "{listener} {route}");
        }
    }

    #[test]
    fn exact_names_precede_wildcards_and_long_wildcards_short_ones() {
        let mut all = ["", "*.test", "*.a.b.test", "*.b.test", "a.test"].map(pattern);
        all.sort_by_key(|host| precedence(host.as_ref()));
        let expected = ["a.test", "*.a.b.test", "*.b.test", "*.test", ""].map(pattern);
        assert_eq!(all, expected);
    }
}
