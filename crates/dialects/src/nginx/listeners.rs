//! Addresses that `server` blocks listen on: each is a listener, with a route for each server of other names.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::super::builder::{SectionBuilder, SettingId};
use super::super::client_tls::ClientTls;
use super::super::directive::{Directive, Directives, apply, each, find, listen_address, set_if};
use super::reader::{NginxTranslator, redirects};
use super::servers::PassScope;
use becket_config::address::NamePattern;
use becket_config::notation::Text;

/// A `server` with one of its `listen` directives.
#[derive(Clone, Copy)]
struct ListeningServer<'d> {
    block: &'d Directive,
    listen: &'d Directive,
}

impl ListeningServer<'_> {
    fn has(&self, option: &str) -> bool {
        self.listen.inner.last(option).is_some()
    }
}

impl NginxTranslator {
    /// Translates the servers of `http` or `stream`.
    pub(super) fn module(&mut self, module: &Directives, is_http: bool) {
        let scope = PassScope::new(module, is_http);
        let mut order = Vec::new();
        let mut listening: BTreeMap<String, Vec<ListeningServer<'_>>> = BTreeMap::new();
        for block in module.all("server") {
            for listen in block.inner.all("listen") {
                let server = ListeningServer { block, listen };
                if listen.text().starts_with("unix:") || server.has("quic") || server.has("udp") {
                    self.out
                        .lost(listen.origin, "becket listens on TCP addresses only");
                    continue;
                }
                let Some(at) = address(listen.text()) else {
                    let accepted = "PORT, or ADDRESS:PORT with an IP address";
                    self.out.refuse(listen.origin, "not an address", accepted);
                    continue;
                };
                let servers = listening.entry(at.clone()).or_default();
                if servers.is_empty() {
                    order.push(at);
                }
                // An address without a host includes both families.
                if servers
                    .last()
                    .is_none_or(|last| last.block.origin != block.origin)
                {
                    servers.push(server);
                }
            }
            if block.inner.last("listen").is_none() {
                self.out.lost(block.origin, "write listen with its address");
            }
        }
        for at in order {
            if let Some(servers) = listening.remove(&at) {
                self.listener(&scope, &at, servers);
            }
        }
    }

    fn listener(&mut self, scope: &PassScope<'_>, at: &str, mut servers: Vec<ListeningServer<'_>>) {
        // The default first.
        let default =
            |server: &ListeningServer<'_>| server.has("default_server") || server.has("default");
        let default = servers.iter().position(default).unwrap_or_default();
        servers[..=default].rotate_right(1);
        let ListeningServer { block, listen } = servers[0];
        let is_tls = servers.iter().any(|it| it.has("ssl"));
        let preread = find("ssl_preread", &[&*block.inner, scope.module]);
        let preread = preread.filter(|it| it.text() == "on" && !is_tls);
        let port = at.rsplit(':').next().unwrap_or_default();
        let name = self.listeners.take(&format!("port-{port}"), "listener");
        let mut section = self.out.section("listener", &name);
        section.push("bind", at, listen.origin);
        if let Some(preread) = preread {
            section.set("mode", "passthrough", preread.origin);
        } else if !is_tls {
            section.set("tls", false, listen.origin);
        }
        let redirected = redirect(block).filter(|_| scope.is_http && !is_tls);
        if let Some(rule) = redirected {
            section.set("redirect", "https", rule);
            for server in &servers {
                let rule = redirect(server.block).unwrap_or(server.block.origin);
                self.out.differs(
                    rule,
                    "every request of the address is redirected, with status 301",
                );
            }
        } else if !self.lead(
            &mut section,
            scope,
            &name,
            &servers,
            is_tls || preread.is_some(),
        ) {
            return;
        } else if is_tls {
            self.certificates(&mut section, scope, &servers);
            if scope.is_http {
                section.set("alpn", vec!["http/1.1"], None);
            }
        }
        apply(
            &mut self.out,
            &mut section,
            "listener.",
            each(&[&*listen.inner]),
        );
        let keepalive = listen.inner.last("so_keepalive");
        let keepalive = keepalive.filter(|it| it.text() != "off");
        set_if(&mut section, "keepalive", "2h", keepalive);
        if let Some(given) = servers
            .iter()
            .find_map(|it| it.listen.inner.last("proxy_protocol"))
        {
            section.set("accept-proxy", "any", given.origin);
            let proxies = [&*block.inner, scope.module].into_iter();
            let proxies = proxies.flat_map(|it| it.all("set_real_ip_from"));
            let mut proxies: Vec<&str> = proxies.map(Directive::text).collect();
            if proxies.is_empty() || !self.out.count(proxies.len()) {
                proxies = vec!["0.0.0.0/0", "::/0"];
            }
            section.set("trusted-networks", proxies, None);
        }
        self.out.add(section);
    }

    /// Sets backend, routes and policies. Returns whether there is a backend.
    fn lead(
        &mut self,
        section: &mut SectionBuilder,
        scope: &PassScope<'_>,
        name: &str,
        servers: &[ListeningServer<'_>],
        reads_names: bool,
    ) -> bool {
        let mut backend: Option<SettingId> = None;
        let has_policies = servers.iter().any(|it| has_policy(it.block));
        for (index, server) in servers.iter().map(|it| it.block).enumerate() {
            let Some(pass) = scope.pass(server) else {
                match server.inner.last("ssl_reject_handshake") {
                    Some(given) => section.set("unknown-names", "refuse", given.origin),
                    None => self
                        .out
                        .lost(server.origin, "it passes no connections on as a whole"),
                }
                continue;
            };
            let led = match scope.maps.get(pass.text()) {
                Some(map) => self.mapped(section, scope, server, map),
                None => self.target(scope, server, pass, pass.text()),
            };
            let Some(target) = led else {
                continue;
            };
            if backend.is_none() {
                if index > 0 {
                    let why = "for other names, too: the default server passes no connections on";
                    self.out.differs(server.origin, why);
                }
                backend = Some(pass.origin);
                section.set("backend", target, pass.origin);
                self.policy(server, scope, name, false);
                continue;
            }
            let names = self.server_names(server);
            if !reads_names || names.is_empty() {
                let why = "no server name chooses it: becket does not read Host";
                self.out.lost(server.origin, why);
                continue;
            }
            let mut route = Table::new();
            if has_policies {
                let own = self.listeners.take("", name);
                self.policy(server, scope, &own, true);
                route.insert("policy".to_owned(), own.into());
            }
            route.insert("names".to_owned(), names.into());
            route.insert("backend".to_owned(), target.into());
            section.push("route", route, server.origin);
        }
        backend.is_some()
    }

    /// Adds a route for each name of a map. Returns the default backend.
    fn mapped(
        &mut self,
        section: &mut SectionBuilder,
        scope: &PassScope<'_>,
        server: &Directive,
        map: &Directive,
    ) -> Option<String> {
        let mut default = None;
        for row in map
            .inner
            .all(super::table::ROW.theirs)
            .iter()
            .filter(|it| it.words.len() > 1)
        {
            let names = names_of(row.text());
            let is_default = row.text() == "default";
            let led = (is_default || !names.is_empty()) && self.out.count(2);
            let led = led.then(|| self.target(scope, server, map, row.word(1)));
            match led.flatten() {
                Some(backend) if is_default => default = Some(backend),
                Some(backend) => {
                    let names = ("names".to_owned(), Value::from(names));
                    let route = [names, ("backend".to_owned(), backend.into())];
                    section.push("route", Table::from_iter(route), map.origin);
                }
                None => self
                    .out
                    .lost(map.origin, format!("without the row of {}", row.text())),
            }
        }
        if default.is_none() {
            let fault = "missing: where clients of other names go";
            self.out.refuse(map.origin, fault, "a row of default");
        }
        default
    }

    /// Returns the names of a server.
    fn server_names(&mut self, server: &Directive) -> Vec<String> {
        let mut names = Vec::new();
        for given in server.inner.all("server_name") {
            for word in given.words.iter().filter(|it| *it != "_") {
                let found = names_of(word);
                if found.is_empty() {
                    let why = format!("without {word}: names are NAME, *.NAME and .NAME");
                    self.out.lost(given.origin, why);
                }
                names.extend(found);
            }
        }
        names.retain(|_| self.out.count(1));
        names
    }

    fn certificates(
        &mut self,
        section: &mut SectionBuilder,
        scope: &PassScope<'_>,
        servers: &[ListeningServer<'_>],
    ) {
        let mut seen = BTreeSet::new();
        for server in servers {
            let scopes = [&*server.block.inner, scope.module];
            let all = |name: &str| {
                let mut found = scopes.iter().map(|scope| scope.all(name));
                found.find(|it| !it.is_empty()).unwrap_or_default()
            };
            let keys = all("ssl_certificate_key");
            for (chain, key) in all("ssl_certificate").iter().zip(keys) {
                let [path, key] = [chain, key].map(|it| self.out.place(it.text()));
                if self.out.count(1) && seen.insert(path.clone()) {
                    let pair = [("chain", path), ("key", key)];
                    let pair = pair.map(|(key, path)| (key.to_owned(), path.into()));
                    section.push("certificates", Table::from_iter(pair), chain.origin);
                }
            }
        }
        if let (true, Some(server)) = (seen.is_empty(), servers.first()) {
            let accepted = "ssl_certificate and ssl_certificate_key";
            let fault = "missing: a certificate";
            self.out.refuse(server.block.origin, fault, accepted);
        } else if seen.len() > 1 {
            section.set("default-certificate", "first", None);
        }
    }

    fn policy(&mut self, server: &Directive, scope: &PassScope<'_>, name: &str, is_named: bool) {
        let scopes = [&*server.inner, scope.module];
        let given = |name: &str| find(name, &scopes);
        let versions = given("ssl_protocols").and_then(|it| {
            let has = |version: &&str| {
                it.words
                    .iter()
                    .any(|word| word[..].ends_with(*version) && word.starts_with("TLSv"))
            };
            let served: Vec<&str> = ["1.2", "1.3"].into_iter().filter(has).collect();
            if it.words.len() > served.len() {
                let why = "without versions before TLS 1.2, which do not exist in becket";
                self.out.differs(it.origin, why);
            }
            (served.len() < 2).then_some((served, it.origin))
        });
        let tickets = given("ssl_session_tickets").filter(|it| it.text() == "off");
        let tls = ClientTls {
            versions,
            ciphers: given("ssl_ciphers"),
            suites: given("ssl_conf_command"),
            curves: given("ssl_ecdh_curve"),
            verify: given("ssl_verify_client"),
            trust: ["ssl_client_certificate", "ssl_crl"].map(given),
            without_tickets: tickets,
        };
        tls.add(&mut self.out, name, is_named);
    }
}

/// Returns whether a server has its own policy.
fn has_policy(server: &Directive) -> bool {
    let mut given = each(&[&*server.inner]);
    given.any(|it| it.setting.ours.starts_with("policy."))
}

/// Returns the rule that redirects every request of a server to `https`.
fn redirect(server: &Directive) -> Option<SettingId> {
    let places = server.inner.all("location").iter();
    let whole = places.filter(|it| it.text() == "/").map(|it| &*it.inner);
    let mut rules = [&*server.inner]
        .into_iter()
        .chain(whole)
        .flat_map(|it| it.all("return"));
    rules.find(|it| redirects(&it.words)).map(|it| it.origin)
}

/// Returns the names that a word matches. Returns none for an unsupported pattern.
fn names_of(word: &str) -> Vec<String> {
    let mut names = match word.strip_prefix('.') {
        Some(name) => vec![name.to_owned(), format!("*.{name}")],
        None => vec![word.to_owned()],
    };
    names.retain(|name| NamePattern::parse(name).is_ok());
    names
}

/// Returns the address of a `listen`.
fn address(text: &str) -> Option<String> {
    let is_port = text.bytes().all(|byte| byte.is_ascii_digit());
    let has_port = text.contains(':') && !text.ends_with(']');
    match (is_port, has_port) {
        (true, _) => listen_address(&format!(":{text}")),
        (_, true) => listen_address(text),
        _ => listen_address(&format!("{text}:80")),
    }
}
