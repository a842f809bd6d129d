//! Patterns of file names: `*`, `?` and `[a-z]`, as shells have them.

/// The folder and the pattern of a path whose last part has `*` or `?`; `None` for other paths.
pub fn split(path: &str) -> Option<(&str, &str)> {
    let (folder, name) = match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some(parts) => parts,
        None => (".", path),
    };
    name.contains(['*', '?']).then_some((folder, name))
}

/// Whether a name fits a pattern. Names that begin with a dot fit only patterns that do.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    if name.first() == Some(&'.') && pattern.first() != Some(&'.') {
        return false;
    }
    let (mut at, mut of) = (0, 0);
    // Where the last `*` is, and how much of the name it has taken.
    let mut star: Option<(usize, usize)> = None;
    while at < name.len() {
        if pattern.get(of) == Some(&'*') {
            star = Some((of, at));
            of += 1;
        } else if let Some(length) = one(&pattern[of..], name[at]) {
            of += length;
            at += 1;
        } else if let Some((begin, taken)) = star {
            star = Some((begin, taken + 1));
            (of, at) = (begin + 1, taken + 1);
        } else {
            return false;
        }
    }
    pattern[of..].iter().all(|c| *c == '*')
}

/// How long the first part of a pattern is, if a character fits it.
fn one(pattern: &[char], c: char) -> Option<usize> {
    match pattern.first()? {
        '?' => Some(1),
        '[' => match pattern.iter().skip(2).position(|c| *c == ']') {
            Some(end) => class(&pattern[1..end + 2], c).then_some(end + 3),
            None => (c == '[').then_some(1),
        },
        first => (*first == c).then_some(1),
    }
}

/// Whether a character is in what stands between brackets.
fn class(inner: &[char], c: char) -> bool {
    let (inverted, mut rest) = match inner {
        ['!' | '^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut is_in = false;
    while let [first, tail @ ..] = rest {
        (is_in, rest) = match tail {
            ['-', last, tail @ ..] => (is_in || (*first..=*last).contains(&c), tail),
            tail => (is_in || *first == c, tail),
        };
    }
    is_in != inverted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_patterns_as_in_a_shell() {
        for (pattern, name, fits) in [
            ("*", "a.pem", true),
            ("*", ".a.pem", false),
            (".*", ".a.pem", true),
            ("*.pem", "a.pem", true),
            ("*.pem", "a.pem~", false),
            ("*.[cp]?m", "a.pem", true),
            ("*.[!cp]em", "a.pem", false),
            ("[a-c]*", "b", true),
            ("[a-c]*", "d", false),
            ("a*b*c", "axxbxxc", true),
            ("a*b*c", "axxbxx", false),
            ("?", "é", true),
            ("[", "[", true),
            ("**", "", true),
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
