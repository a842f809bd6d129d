//! Translates frontends to listeners, one for each `bind` line.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use toml::Value;

use super::super::builder::{SettingId, TranslationBuilder};
use super::super::directive::{Directive, Directives, apply, each, find, listen_address};
use super::super::sections::{BOTH_FAMILIES, ClientProtocol, ListenerPlan, add_policy};
use super::conditions::selected;
use super::reader::{HaproxySection, HaproxyTranslator};
use super::table::CRT_LIST_ENTRY;
use becket_config::error::reason;

impl HaproxyTranslator<'_> {
    pub(super) fn frontend(&mut self, proxy: &HaproxySection) {
        let plan = self.plan(proxy);
        if plan.backend.is_none() && plan.routes.is_empty() && plan.redirect.is_none() {
            let why = "it leads to no servers; /metrics and /status are at admin.address";
            return self.out.lost(proxy.origin, why);
        }
        let mut seen: BTreeMap<String, &Directive> = BTreeMap::new();
        for bind in proxy.own.all("bind") {
            if !self.out.count(1 + plan.routes.len()) {
                return;
            }
            let mut plan = plan.clone();
            for text in bind.text().split(',') {
                let text = text.strip_prefix("ipv4@").unwrap_or(text);
                let text = text.strip_prefix("ipv6@").unwrap_or(text);
                if text.starts_with('/') || text.contains('@') {
                    let why = "becket listens on TCP addresses only";
                    self.out.lost(bind.origin, why);
                } else if let Some(at) = listen_address(text) {
                    let Some(first) = seen.get(&at) else {
                        if text.starts_with(['*', ':']) {
                            self.out.differs(bind.origin, BOTH_FAMILIES);
                        }
                        plan.bind.push((at.clone(), bind.origin));
                        seen.insert(at, bind);
                        continue;
                    };
                    // becket listens on IPv4 and IPv6 for `:PORT`, so a second `bind` line for the
                    // port is not needed.
                    self.out
                        .differs(bind.origin, "it is one with an earlier bind");
                    for option in each(&[&*bind.inner]) {
                        let same = first.inner.last(option.name);
                        if same.is_some_and(|it| it.text() == option.text()) {
                            self.out.used(option.origin);
                        }
                    }
                } else {
                    let accepted = "ADDRESS:PORT with an IP address, * or nothing, and one port";
                    self.out.refuse(bind.origin, "not an address", accepted);
                }
            }
            if !plan.bind.is_empty() {
                plan.name = self.names.take(&proxy.name, "listener");
                self.listener(proxy, bind, plan);
            }
        }
    }

    fn plan(&mut self, proxy: &HaproxySection) -> ListenerPlan {
        let mut plan = ListenerPlan::new(proxy.origin);
        let is_http = proxy.find("mode").is_some_and(|it| it.text() == "http");
        let mut passes = false;
        let mut acls: BTreeMap<&str, Vec<&Directive>> = BTreeMap::new();
        for acl in proxy.own.all("acl") {
            acls.entry(acl.text()).or_default().push(acl);
        }
        for rule in proxy.own.all("use_backend") {
            let mut used = Vec::new();
            let condition = rule.words.get(2..).filter(|_| rule.word(1) == "if");
            let found = condition.and_then(|it| selected(&acls, it, &mut self.out, &mut used));
            // Drops routes by ALPN, because becket does not convert HTTP/2 to HTTP/1.1 as HAProxy
            // does.
            let found = found.filter(|it| !is_http || it.iter().all(|it| !it.contains_key("alpn")));
            // Leaves the rule untranslated. Its remark keeps the support that the table row
            // specifies.
            let (Some(found), Some(backend)) = (found, self.backends.get(rule.text())) else {
                continue;
            };
            for origin in used.into_iter().chain([rule.origin]) {
                self.out.same(origin);
            }
            for mut route in found {
                route.insert("backend".to_owned(), backend.as_str().into());
                plan.routes.push((route, rule.origin));
            }
        }
        let names = [
            "redirect",
            "http-request",
            "acl",
            "use_backend",
            "tcp-request",
        ];
        for rule in names.iter().flat_map(|it| proxy.own.all(it)) {
            let all = rule.words.join(" ").replace("req_ssl", "req.ssl");
            passes |= all.contains("req.ssl_");
            let is_hello = match rule.name {
                "acl" => all.contains("req.ssl_hello_type"),
                // `content accept` restricts no clients, so it needs no translation.
                "tcp-request" => {
                    all == "content reject if !{ req.ssl_hello_type 1 }"
                        || all.starts_with("inspect-delay")
                        || all.starts_with("content accept")
                }
                _ => false,
            };
            if is_hello {
                let why = "becket reads the whole ClientHello first";
                self.out.ignored(rule.origin, why);
            } else if redirects(&all) {
                plan.redirect = Some(rule.origin);
                self.out.differs(rule.origin, "the status is always 301");
            }
        }
        if passes {
            plan.protocol = (ClientProtocol::Passthrough, proxy.origin);
        }
        let default = proxy.find("default_backend");
        let has_servers = default.is_some() || !proxy.own.all("server").is_empty();
        let (name, origin) =
            default.map_or((&*proxy.name, proxy.origin), |it| (it.text(), it.origin));
        let backend = self.backends.get(name).filter(|_| has_servers);
        plan.backend = backend.map(|name| (name.clone(), origin));
        plan
    }

    fn listener(&mut self, proxy: &HaproxySection, bind: &Directive, mut plan: ListenerPlan) {
        let ssl = bind.inner.last("ssl");
        plan.protocol.1 = bind.origin;
        if let Some(ssl) = ssl {
            self.out.used(ssl.origin);
            plan.protocol.0 = ClientProtocol::Tls;
            plan.certificates = self.certificates(&bind.inner);
            self.policy(&plan.name, &bind.inner);
        }
        let is_plain = plan.protocol.0 == ClientProtocol::Plain;
        plan.redirect = plan.redirect.filter(|_| is_plain);
        let mut section = plan.section(&mut self.out);
        if let Some(given) = bind.inner.last("alpn").filter(|_| ssl.is_some()) {
            let is_http = proxy.find("mode").is_some_and(|it| it.text() == "http");
            let mut offered: Vec<&str> = given.text().split(',').collect();
            if is_http && offered.contains(&"h2") {
                offered.retain(|it| *it != "h2");
                let why = "without h2, which becket does not translate: add it to listener.alpn if the servers speak HTTP/2";
                self.out.differs(given.origin, why);
            }
            section.set("alpn", offered, given.origin);
        }
        let given = proxy.each().chain(each(&[&*bind.inner]));
        let given = given.filter(|it| ssl.is_some() || it.name != "strict-sni");
        apply(&mut self.out, &mut section, "listener.", given);
        if let Some(proxies) = bind.inner.last("accept-proxy") {
            section.set(
                "trusted-networks",
                vec!["0.0.0.0/0", "::/0"],
                proxies.origin,
            );
        }
        self.out.add(section);
    }

    /// Adds the policy of a `bind` line, if it is not empty.
    fn policy(&mut self, name: &str, options: &Directives) {
        let global = &self.global;
        let either = |name: &str, default: &str| options.last(name).or(global.last(default));
        let mut scopes = vec![options];
        scopes.extend(global.last("ssl-default-bind-options").map(|it| &*it.inner));
        let older = either("ciphers", "ssl-default-bind-ciphers");
        let newer = either("ciphersuites", "ssl-default-bind-ciphersuites");
        let curves = either("curves", "ssl-default-bind-curves").or(options.last("ecdhe"));
        let versions = versions(&mut self.out, &scopes);
        let lists = [older, newer, curves];
        add_policy(&mut self.out, (name, false), versions, lists, &scopes);
    }

    fn certificates(&mut self, options: &Directives) -> Vec<(Value, SettingId)> {
        let mut files = Vec::new();
        for crt in options.all("crt") {
            files.push((self.certificate(crt.text(), crt.origin), crt.origin));
        }
        for list in options.all("crt-list") {
            self.out.used(list.origin);
            self.crt_list(&mut files, list);
        }
        files
    }

    fn certificate(&mut self, path: &str, origin: SettingId) -> Value {
        let path = self.out.place(path);
        if !path.ends_with('/') && self.parts.list(Path::new(&path)).is_err() {
            return path.into();
        }
        self.out.differs(origin, "only files that end with .pem");
        (path.trim_end_matches('/').to_owned() + "/").into()
    }

    fn crt_list(&mut self, files: &mut Vec<(Value, SettingId)>, list: &Directive) {
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
        let base = self.global.last("crt-base").map_or("", Directive::text);
        let base = Path::new(base).to_owned();
        let part: Box<str> = list.text().escape_debug().to_string().into();
        let outer = self.out.enter(Some(part));
        for (index, line) in String::from_utf8_lossy(&text).lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') || !self.out.count(1) {
                continue;
            }
            let origin = self.out.note(&CRT_LIST_ENTRY, Some(index + 1), line);
            let (file, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let path = self.certificate(&base.join(file).to_string_lossy(), origin);
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

/// Returns the TLS versions that the options leave enabled, or `None` for all.
pub(super) fn versions(
    out: &mut TranslationBuilder,
    scopes: &[&Directives],
) -> Option<(Vec<&'static str>, SettingId)> {
    let mut served = vec!["1.2", "1.3"];
    let mut origin = None;
    for given in VERSIONS.iter().filter_map(|name| find(name, scopes)) {
        let version = given.text().strip_prefix("TLSv").unwrap_or("1.0");
        served.retain(|served| match given.name {
            "ssl-min-ver" => *served >= version,
            "ssl-max-ver" => *served <= version,
            "force-tlsv12" | "no-tlsv13" => *served == "1.2",
            _ => *served == "1.3",
        });
        out.used(given.origin);
        if given.name == "ssl-min-ver" && version < "1.2" {
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

/// Returns `true` if a rule redirects plaintext requests to `https`.
fn redirects(all: &str) -> bool {
    let rule = all.strip_prefix("redirect ").unwrap_or(all);
    let Some(rest) = rule.strip_prefix("scheme https") else {
        return false;
    };
    let code = rest.strip_prefix(" code 30");
    let rest = code.and_then(|it| it.get(1..)).unwrap_or(rest);
    ["", " if !{ ssl_fc }", " unless { ssl_fc }"].contains(&rest)
}

const VERSIONS: [&str; 6] = [
    "ssl-min-ver",
    "ssl-max-ver",
    "force-tlsv12",
    "force-tlsv13",
    "no-tlsv12",
    "no-tlsv13",
];
