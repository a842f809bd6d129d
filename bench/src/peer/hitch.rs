//! Generates the configuration of hitch. Debian builds hitch without its shared session cache, so it resumes sessions
//! by ticket only.

use super::site::{BACKLOG, Site, groups, suite_names};

pub(super) fn configuration(site: &Site<'_>) -> String {
    let (old, new) = suite_names(&site.settings.suite);
    format!(
        r#"frontend = {{ host = "{host}" port = "{port}" }}
backend = "[{backend_host}]:{backend_port}"
pem-file = "{certificate}"
workers = {workers}
backlog = {BACKLOG}
tls-protos = TLSv{tls}
ciphers = "{old}"
ciphersuites = "{new}"
ecdh-curve = "{groups}"
user = "nobody"
daemon = off
quiet = on
"#,
        host = site.address.ip(),
        port = site.address.port(),
        backend_host = site.backend.ip(),
        backend_port = site.backend.port(),
        certificate = site.certificate.display(),
        workers = site.settings.workers,
        tls = site.settings.tls,
        groups = groups(site.settings),
    )
}

pub(super) fn version(said: &str, openssl: Option<String>) -> (Option<String>, Option<String>) {
    let version = said
        .split_ascii_whitespace()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    (version.map(str::to_owned), openssl)
}
