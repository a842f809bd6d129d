//! Hints in error messages: for invalid TOML, and for keys of other programs.

/// Returns becket's setting for a key of nginx, HAProxy or Traefik.
pub(crate) fn foreign(key: &str) -> Option<&'static str> {
    let plain = |c: &char| !matches!(c, '-' | '_');
    let key: String = key.to_ascii_lowercase().chars().filter(plain).collect();
    let row = FOREIGN.iter().find(|(keys, _)| keys.contains(&&*key));
    row.map(|(_, setting)| *setting)
}

/// Keys of other programs, in lower case without `-` and `_`, and the equivalent becket keys.
const FOREIGN: [(&[&str], &str); 15] = [
    (
        &["sslcertificate", "certfile", "certificate", "cert", "crt"],
        "certificates of a [[listener]]",
    ),
    (
        &["sslcertificatekey", "keyfile", "certificatekey"],
        "certificates = [{ chain = \"..\", key = \"..\" }] of a [[listener]]",
    ),
    (
        &["servername", "hostsni"],
        "names of a [[listener.route]]; names of certificates need no key",
    ),
    (
        &["proxypass", "defaultbackend", "usebackend", "service"],
        "backend of a [[listener]] or a [[listener.route]]",
    ),
    (
        &["upstream", "loadbalancer", "services"],
        "a [[backend]] with a [[backend.server]]",
    ),
    (&["frontend", "entrypoints"], "a [[listener]]"),
    (&["listen", "address"], "bind of a [[listener]]"),
    (
        &["sslprotocols", "minversion", "maxversion", "sslminver"],
        "versions of a [[policy]]",
    ),
    (
        &["sslciphers", "ciphers", "ciphersuites", "sslciphersuites"],
        "suites of a [[policy]]",
    ),
    (
        &["curves", "sslecdhcurve", "curvepreferences", "ecdhe"],
        "groups of a [[policy]]",
    ),
    (
        &["cafile", "sslclientcertificate", "clientauth"],
        "client-ca of a [[policy]], or ca of [backend.tls]",
    ),
    (
        &["verify", "sslverifyclient"],
        "client-certificates of a [[policy]], or verify of [backend.tls]",
    ),
    (
        &["timeout", "proxyreadtimeout", "keepalivetimeout"],
        "a key of [timeouts]",
    ),
    (
        &["mode"],
        "mode of a [[listener]] or a [[listener.route]]; servers always get TCP",
    ),
    (
        &["sendproxy", "sendproxyv2", "proxyprotocol"],
        "proxy-header of a [[backend]], or accept-proxy of a [[listener]]",
    ),
];

/// Returns the innermost bracket or string that is open at the byte offset `until`, and the offset where it begins.
pub(crate) fn opened(text: &str, until: usize) -> Option<(usize, &'static str)> {
    let mut open = Vec::new();
    let mut at = 0;
    while at < until {
        let rest = text.as_bytes().get(at..).unwrap_or_default();
        let quote = QUOTES
            .into_iter()
            .find(|quote| rest.starts_with(quote.as_bytes()));
        at += match (rest.first(), quote) {
            (None, _) => break,
            (_, Some(quote)) => match string_length(rest, quote) {
                length if at + length > until => return Some((at, quote)),
                length => length,
            },
            (Some(b'#'), _) => rest.iter().take_while(|byte| **byte != b'\n').count(),
            (Some(byte), _) => {
                match byte {
                    b'[' => open.push((at, "[")),
                    b'{' => open.push((at, "{")),
                    b']' | b'}' => {
                        open.pop();
                    }
                    _ => {}
                }
                1
            }
        };
    }
    open.pop()
}

/// Returns the length of the string at the start of `text`, including its quotes. Returns more than
/// the length of `text` if the closing quote is missing.
fn string_length(text: &[u8], quote: &str) -> usize {
    let mut at = quote.len();
    loop {
        let rest = text.get(at..).unwrap_or_default();
        at += match rest.first() {
            None => return text.len() + 1,
            _ if rest.starts_with(quote.as_bytes()) => return at + quote.len(),
            Some(b'\n') if quote.len() == 1 => return at,
            Some(b'\\') if quote.starts_with('"') => 2,
            Some(_) => 1,
        };
    }
}

/// Longer quotes come first, because `"` is a prefix of `"""`.
const QUOTES: [&str; 4] = ["\"\"\"", "'''", "\"", "'"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_other_programs_are_recognised_in_any_spelling() {
        for key in ["ssl_certificate", "ssl-certificate", "crt"] {
            assert_eq!(foreign(key), Some("certificates of a [[listener]]"));
        }
        assert_eq!(foreign("minVersion"), foreign("min_version"));
        assert_eq!(foreign("backlog"), None);
    }

    #[test]
    fn the_innermost_open_bracket_or_string_is_found() {
        for (text, expected) in [
            ("a = [1, {b = 2}\n", Some((4, "["))),
            ("a = [1, {b = 2\n", Some((8, "{"))),
            ("a = \"\"\"\n[\"\n", Some((4, "\"\"\""))),
            ("[[a]]\nb = '[' # [\nc = \"\\\"[\"\n", None),
            ("a = \"[\nb = ]\n", None),
            ("]}'\\'", None),
        ] {
            assert_eq!(opened(text, text.len()), expected, "{text}");
        }
        assert_eq!(opened("a = [", usize::MAX), Some((4, "[")));
    }
}
