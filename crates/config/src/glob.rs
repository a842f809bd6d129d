//! Patterns of file names with `*`, `?` and `[a-z]`, as in shells.

/// Splits a path into folder and pattern. Returns `None` if the last component contains neither `*`
/// nor `?`.
pub fn split(path: &str) -> Option<(&str, &str)> {
    let (folder, name) = match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some(parts) => parts,
        None => (".", path),
    };
    name.contains(['*', '?']).then_some((folder, name))
}

/// Returns whether `name` matches. A name that begins with a dot matches only a pattern that begins
/// with a dot.
pub fn matches(pattern: &str, name: &str) -> bool {
    // The leading-dot option of the `glob` crate is unsuitable, because with it `*` would not match
    // `/.well-known/`.
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let pattern = pattern.replace("[^", "[!");
    glob::Pattern::new(&pattern).is_ok_and(|pattern| pattern.matches(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_patterns_as_in_a_shell() {
        for (pattern, name, fits) in [
            ("*", "a.pem", true),
            ("*", ".a.pem", false),
            (".*", ".a.pem", true),
            ("*.pem", "a.pem", true),
            ("*.pem", "a.pem~", false),
            ("*.[cp]?m", "a.pem", true),
            ("*.[!cp]em", "a.pem", false),
            ("*.[^cp]em", "a.pem", false),
            ("*", "/.well-known/a", true),
            ("/a/*", "/a/b/c", true),
            ("[a-c]*", "b", true),
            ("[a-c]*", "d", false),
            ("a*b*c", "axxbxxc", true),
            ("a*b*c", "axxbxx", false),
            ("?", "é", true),
            ("[", "[", false),
            ("?", "", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_is_the_last_part_of_a_path() {
        assert_eq!(split("/etc/certs/*.pem"), Some(("/etc/certs", "*.pem")));
        assert_eq!(split("*.pem"), Some((".", "*.pem")));
        assert_eq!(split("/?"), Some(("/", "?")));
        assert_eq!(split("/etc/*/a.pem"), None);
        assert_eq!(split("a[1].pem"), None);
    }
}
