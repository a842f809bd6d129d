//! Generates the configuration of stunnel, which uses a thread per connection and has no setting for the number of
//! workers.

use super::site::{SESSIONS, Site, first_words, groups, suite_names, words_after};

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
{small}TIMEOUTclose = 0
",
        small = match site.settings.key.as_str() {
            "rsa1024" => "securityLevel = 0\n",
            _ => "",
        },
        groups = groups(site.settings),
        address = site.address,
        backend = site.backend,
        certificate = site.certificate.display(),
        tls = site.settings.tls,
    )
}

pub(super) fn version(said: &str) -> (Option<String>, Option<String>) {
    let compiled = || {
        let with = said
            .lines()
            .find_map(|line| Some(line.split_once(" with ")?.1));
        with.map(|text| first_words(text, 2))
    };
    let library = words_after(said, "Running  with ", 2).or_else(compiled);
    (words_after(said, "stunnel ", 1), library)
}
