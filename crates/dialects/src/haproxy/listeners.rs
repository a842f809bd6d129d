//! Frontends as listeners: one for each `bind` line.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use toml::{Table, Value};

use super::super::builder::{SectionBuilder, SettingId, TranslationBuilder};
use super::super::client_tls::ClientTls;
use super::super::directive::{Directive, Directives, apply, each, find, listen_address, set_if};
use super::super::setting::SettingSupport;
use super::conditions::selected;
use super::reader::{HaproxyTranslator, ProxySection};
use super::table::CRT_LIST_ENTRY;
use becket_config::error::reason;

/// Destinations of the clients of a frontend.
#[derive(Debug, Default)]
struct ClientWays {
    routes: Vec<(Table, SettingId)>,
    /// TLS ends at the servers.
    passes: bool,
    redirect: Option<SettingId>,
    default: Option<(String, SettingId)>,
}

impl HaproxyTranslator<'_> {
    pub(super) fn frontend(&mut self, proxy: &ProxySection) {
        let ways = self.ways(proxy);
        if ways.default.is_none() && ways.routes.is_empty() && ways.redirect.is_none() {
            let why = "it leads to no servers; /metrics and /status are at admin.address";
            return self.out.lost(proxy.origin, why);
        }
        let mut seen = BTreeSet::new();
        for bind in proxy.own.all("bind") {
            let mut addresses = Vec::new();
            for text in bind.text().split(',') {
                let text = text.strip_prefix("ipv4@").unwrap_or(text);
                let text = text.strip_prefix("ipv6@").unwrap_or(text);
                if text.starts_with('/') || text.contains('@') {
                    self.out
                        .lost(bind.origin, "becket listens on TCP addresses only");
                } else if let Some(at) = listen_address(text) {
                    // An address without a host includes both families.
                    addresses.extend(Some(at.clone()).filter(|_| seen.insert(at)));
                } else {
                    let accepted = "ADDRESS:PORT with an IP address, * or nothing, and one port";
                    self.out.refuse(bind.origin, "not an address", accepted);
                }
            }
            if !addresses.is_empty() {
                self.listener(proxy, addresses, bind, &ways);
            }
        }
    }

    fn ways(&mut self, proxy: &ProxySection) -> ClientWays {
        let mut ways = ClientWays::default();
        let mut acls: BTreeMap<&str, Vec<&Directive>> = BTreeMap::new();
        for acl in proxy.own.all("acl") {
            acls.entry(acl.text()).or_default().push(acl);
        }
        for rule in proxy.own.all("use_backend") {
            let mut used = Vec::new();
            let condition = rule.words.get(2..).filter(|_| rule.word(1) == "if");
            let found = condition.and_then(|it| selected(&acls, it, &mut self.out, &mut used));
            let backend = self.backends.get(rule.text());
            // Otherwise the remark of the table applies.
            let (Some(found), Some(backend)) = (found, backend) else {
                continue;
            };
            for origin in used.into_iter().chain([rule.origin]) {
                self.out.same(origin);
            }
            for one in found {
                let mut route = Table::new();
                for (key, list) in [("names", one.names), ("alpn", one.alpn)] {
                    if !list.is_empty() {
                        route.insert(key.to_owned(), list.into());
                    }
                }
                route.insert("backend".to_owned(), backend.as_str().into());
                ways.passes |= one.passes;
                ways.routes.push((route, rule.origin));
            }
        }
        let rules = ["redirect", "http-request"].map(|name| proxy.own.all(name));
        if let Some(rule) = rules.concat().iter().find(|it| redirects(&it.words)) {
            ways.redirect = Some(rule.origin);
            self.out.differs(rule.origin, "the status is always 301");
        }
        for rule in proxy.own.all("tcp-request") {
            let is_hello = rule.words.iter().any(|it| it.contains("ssl_hello_type"));
            ways.passes |= is_hello;
            if is_hello || rule.text() == "inspect-delay" {
                let why = "becket reads the whole ClientHello first";
                self.out.amend(rule.origin, SettingSupport::Ignored, why);
            }
        }
        let default = proxy.find("default_backend");
        let (name, origin) =
            default.map_or((&*proxy.name, proxy.origin), |it| (it.text(), it.origin));
        let has_servers = default.is_some() || !proxy.own.all("server").is_empty();
        let default = self.backends.get(name).filter(|_| has_servers);
        ways.default = default.map(|name| (name.clone(), origin));
        ways
    }

    fn listener(
        &mut self,
        proxy: &ProxySection,
        addresses: Vec<String>,
        bind: &Directive,
        ways: &ClientWays,
    ) {
        let name = self.names.take(&proxy.name, "listener");
        let mut section = self.out.section("listener", &name);
        for at in addresses {
            section.push("bind", at, bind.origin);
        }
        let is_tls = bind.inner.last("ssl").is_some();
        if is_tls {
            self.tls(&mut section, &name, proxy, bind);
        } else if ways.passes {
            section.set("mode", "passthrough", bind.origin);
        } else {
            section.set("tls", false, bind.origin);
        }
        let reads_names = is_tls || ways.passes;
        match ways.redirect.filter(|_| !reads_names) {
            Some(origin) => section.set("redirect", "https", origin),
            None => self.lead(&mut section, proxy, ways, reads_names),
        }
        let given = proxy.each().chain(each(&[&*bind.inner]));
        apply(&mut self.out, &mut section, "listener.", given);
        let keepalive = proxy.find("option clitcpka").or(proxy.find("option tcpka"));
        let proxies = bind.inner.last("accept-proxy");
        set_if(&mut section, "fast-open", 256, bind.inner.last("tfo"));
        set_if(&mut section, "keepalive", "2h", keepalive);
        set_if(&mut section, "accept-proxy", "any", proxies);
        set_if(
            &mut section,
            "trusted-networks",
            vec!["0.0.0.0/0", "::/0"],
            proxies,
        );
        self.out.add(section);
    }

    /// Sets routes and backend.
    fn lead(
        &mut self,
        section: &mut SectionBuilder,
        proxy: &ProxySection,
        ways: &ClientWays,
        reads_names: bool,
    ) {
        for (route, origin) in &ways.routes {
            let names = route.get("names").and_then(Value::as_array);
            if !reads_names {
                let why = "not without TLS, where clients send no server name";
                self.out.differs(*origin, why);
            } else if self.out.count(1 + names.map_or(0, Vec::len)) {
                section.push("route", route.clone(), *origin);
            }
        }
        let last = ways.routes.last().and_then(|(it, _)| it.get("backend"));
        if let Some((backend, origin)) = &ways.default {
            section.set("backend", backend.as_str(), *origin);
        } else if let Some(backend) = last.filter(|_| reads_names) {
            section.set("backend", backend.clone(), None);
            section.set("unknown-names", "refuse", None);
            let why = "without default_backend, unknown names are refused, and clients without a name go to the last use_backend";
            self.out.differs(proxy.origin, why);
        } else {
            let accepted = "default_backend with a backend that has servers";
            let fault = "missing: where clients go";
            self.out.refuse(proxy.origin, fault, accepted);
        }
    }

    /// Sets certificates and protocols, and adds the policy.
    fn tls(
        &mut self,
        section: &mut SectionBuilder,
        name: &str,
        proxy: &ProxySection,
        bind: &Directive,
    ) {
        let options = &bind.inner;
        let mut files = Vec::new();
        for crt in options.all("crt") {
            files.push((self.certificate(crt.text(), crt.origin), crt.origin));
        }
        for list in options.all("crt-list") {
            self.crt_list(&mut files, list);
        }
        if files.is_empty() {
            let accepted = "crt FILE or crt-list FILE with ssl";
            self.out
                .refuse(bind.origin, "missing: a certificate", accepted);
        } else if files.len() > 1 || files[0].0.ends_with('/') {
            section.set("default-certificate", "first", None);
        }
        for (path, origin) in files {
            section.push("certificates", path, origin);
        }
        if let Some(given) = options.last("alpn") {
            let is_http = proxy.find("mode").is_some_and(|it| it.text() == "http");
            let mut offered: Vec<&str> = given.text().split(',').collect();
            if is_http && offered.contains(&"h2") {
                offered.retain(|it| *it != "h2");
                let why = "without h2, which becket does not translate: add it to listener.alpn if the servers speak HTTP/2";
                self.out.differs(given.origin, why);
            }
            section.set("alpn", offered, given.origin);
        }
        set_if(
            section,
            "unknown-names",
            "refuse",
            options.last("strict-sni"),
        );
        let global = &self.global;
        let either = |name: &str, default: &str| options.last(name).or(global.last(default));
        let mut all = vec![&**options];
        all.extend(global.last("ssl-default-bind-options").map(|it| &*it.inner));
        let tls = ClientTls {
            versions: versions(&mut self.out, &all),
            ciphers: either("ciphers", "ssl-default-bind-ciphers"),
            suites: either("ciphersuites", "ssl-default-bind-ciphersuites"),
            curves: either("curves", "ssl-default-bind-curves").or(options.last("ecdhe")),
            verify: options.last("verify"),
            trust: ["ca-file", "crl-file"].map(|name| options.last(name)),
            without_tickets: find("no-tls-tickets", &all),
        };
        tls.add(&mut self.out, name, false);
    }

    /// Returns the path of a certificate, or of a folder of certificates.
    fn certificate(&mut self, path: &str, origin: SettingId) -> String {
        let path = self.out.place(path);
        if !path.ends_with('/') && self.parts.list(Path::new(&path)).is_err() {
            return path;
        }
        self.out.differs(origin, "only files that end with .pem");
        path.trim_end_matches('/').to_owned() + "/"
    }

    /// Adds the certificates of a list.
    fn crt_list(&mut self, files: &mut Vec<(String, SettingId)>, list: &Directive) {
        let path = self.out.place(list.text());
        let text = self.parts.text(Path::new(&path), self.bytes);
        let text = match text.and_then(|it| it.ok_or_else(|| io::Error::other("no such file"))) {
            Ok(text) => text,
            Err(error) => {
                let accepted = "a file with one certificate in each line";
                return self.out.refuse(list.origin, reason(&error), accepted);
            }
        };
        self.bytes = self.bytes.saturating_sub(text.len() as u64);
        let part: Box<str> = list.text().escape_debug().to_string().into();
        let outer = self.out.enter(Some(part));
        for (index, line) in String::from_utf8_lossy(&text).lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') || !self.out.count(1) {
                continue;
            }
            let origin = self.out.note(&CRT_LIST_ENTRY, Some(index + 1), line);
            let (file, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let path = self.certificate(file, origin);
            if rest.contains('[') {
                let why = "without its options: write a [[policy]] and name it in listener.certificates.policy";
                self.out.lost(origin, why);
            } else if !rest.is_empty() {
                let why = "the names in the certificate count, not this filter";
                self.out.differs(origin, why);
            }
            files.push((path, origin));
        }
        self.out.enter(outer);
    }
}

/// Returns the TLS versions that options leave, or `None` for all.
pub(super) fn versions(
    out: &mut TranslationBuilder,
    scopes: &[&Directives],
) -> Option<(Vec<&'static str>, SettingId)> {
    let mut served = vec!["1.2", "1.3"];
    let mut origin = None;
    for name in VERSIONS {
        let Some(given) = find(name, scopes) else {
            continue;
        };
        let version = given.text().strip_prefix("TLSv").unwrap_or("1.0");
        served.retain(|served| match name {
            "ssl-min-ver" => *served >= version,
            "ssl-max-ver" => *served <= version,
            "force-tlsv12" | "no-tlsv13" => *served == "1.2",
            _ => *served == "1.3",
        });
        if name == "ssl-min-ver" && version < "1.2" {
            let why = "from TLS 1.2 on: older versions do not exist in becket";
            out.differs(given.origin, why);
        }
        origin = origin.or(Some(given.origin));
    }
    let origin = origin?;
    if served.is_empty() {
        let fault = "no version of TLS is left";
        out.refuse(origin, fault, "TLSv1.2, TLSv1.3 or both");
    }
    (served.len() == 1).then_some((served, origin))
}

/// Returns whether a rule redirects requests without TLS to `https`.
fn redirects(words: &[String]) -> bool {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let words = words.strip_prefix(&["redirect"]).unwrap_or(&words);
    let words = words.strip_prefix(&["scheme", "https"]).unwrap_or(&["?"]);
    let words = match words {
        ["code", _, rest @ ..] => rest,
        words => words,
    };
    let without_tls = ["", "if !{ ssl_fc }", "unless { ssl_fc }"];
    without_tls.contains(&words.join(" ").as_str())
}

const VERSIONS: [&str; 6] = [
    "ssl-min-ver",
    "ssl-max-ver",
    "force-tlsv12",
    "force-tlsv13",
    "no-tlsv12",
    "no-tlsv13",
];
