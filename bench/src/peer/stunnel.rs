//! stunnel's configuration. It has a thread per connection and no workers to set.

use super::{SESSIONS, Site, groups, suite_names};

pub(super) fn args(file: &str) -> Vec<String> {
    vec![file.to_owned()]
}

pub(super) fn configuration(site: &Site<'_>) -> String {
    let (old, new) = suite_names(&site.settings.suite);
    format!(
        "foreground = quiet
pid =
debug = 3
curves = {groups}
sessionCacheSize = {SESSIONS}
[bench]
accept = {address}
connect = {backend}
cert = {certificate}
sslVersion = TLSv{tls}
ciphers = {old}
ciphersuites = {new}
TIMEOUTclose = 0
",
        groups = groups(site.settings),
        address = site.address,
        backend = site.backend,
        certificate = site.certificate.display(),
        tls = site.settings.tls,
    )
}

pub(super) fn version(said: &str) -> (String, String) {
    let words = |line: &str| {
        line.split_ascii_whitespace()
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let version = said
        .lines()
        .find_map(|line| line.strip_prefix("stunnel ")?.split(' ').next());
    let running = said
        .lines()
        .find_map(|line| line.strip_prefix("Running  with "));
    let compiled = || {
        said.lines()
            .find_map(|line| Some(line.split_once(" with ")?.1))
    };
    let library = running.or_else(compiled).map(words);
    (
        version.unwrap_or("unknown").to_owned(),
        library.unwrap_or_else(|| "unknown".to_owned()),
    )
}
