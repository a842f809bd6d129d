//! Hints in error messages: for invalid TOML, and for keys of other programs.

use toml_parser::Source;
use toml_parser::lexer::TokenKind;

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

/// Returns the innermost bracket or string that is open at the byte offset `until`, the start of a line, and the offset
/// where it begins.
pub(crate) fn opened(text: &str, until: usize) -> Option<(usize, &'static str)> {
    let mut open = Vec::new();
    for token in Source::new(text).lex() {
        let (start, end) = (token.span().start(), token.span().end());
        if start >= until {
            break;
        }
        match token.kind() {
            TokenKind::MlBasicString if end >= until => return Some((start, "\"\"\"")),
            TokenKind::MlLiteralString if end >= until => return Some((start, "'''")),
            TokenKind::LeftSquareBracket => open.push((start, "[")),
            TokenKind::LeftCurlyBracket => open.push((start, "{")),
            TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket => {
                open.pop();
            }
            _ => {}
        }
    }
    open.pop()
}

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
