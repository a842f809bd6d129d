//! Words of a line of haproxy.cfg: blanks separate them, `#` begins a comment, a backslash keeps the next character as it is,
//! `'..'` keeps all, and `".."` all but backslashes and variables of the environment.

/// Splits a line into words.
///
/// # Errors
/// The line has an unfinished quote or escape, a variable, or too many words.
pub(super) fn words(line: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, Some(open)) if c == open => quote = None,
            ('\\', None | Some('"')) => {
                let kept = match chars.next() {
                    Some('n') => '\n',
                    Some('r') => '\r',
                    Some('t') => '\t',
                    Some(c) => c,
                    None => return Err("a backslash at the end of a line"),
                };
                word.get_or_insert_default().push(kept);
            }
            ('$', Some('"')) => return Err("variables of the environment are not read"),
            ('#', None) => break,
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("quotes that do not end");
    }
    words.extend(word);
    if words.len() > MOST_WORDS {
        return Err("more than 64 words");
    }
    Ok(words)
}

/// HAProxy's own bound.
const MOST_WORDS: usize = 64;
