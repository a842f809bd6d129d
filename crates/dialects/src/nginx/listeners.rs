//! Translates `listen` directives. Each address becomes a listener, with routes for additional
//! server names.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::super::builder::SettingId;
use super::super::directive::{Directive, Directives, apply, each, find, listen_address};
use super::super::sections::{BOTH_FAMILIES, ClientProtocol, ListenerPlan, add_policy};
use super::reader::{NginxTranslator, is_on, place, redirects};
use super::servers::PassScope;
use super::table::ROW;
use becket_config::address::NamePattern;
use becket_config::notation::Text;

#[derive(Clone, Copy)]
struct ListeningServer<'d> {
    block: &'d Directive,
    listen: &'d Directive,
}

struct NamedRoute(Vec<String>, Table, SettingId);

impl NginxTranslator<'_> {
    pub(super) fn module(&mut self, module: &Directives, is_http: bool) {
        let scope = PassScope::new(module, is_http);
        let mut listening: BTreeMap<String, Vec<ListeningServer<'_>>> = BTreeMap::new();
        for block in module.all("server") {
            for listen in block.inner.all("listen") {
                // Large blocks count more, because each `listen` directive processes the whole
                // block.
                if !self.out.count(1 + block.inner.len() / 64) {
                    return;
                }
                let text = listen.text();
                let is_udp = ["quic", "udp"]
                    .iter()
                    .any(|it| listen.inner.last(it).is_some());
                if text.starts_with("unix:") || is_udp {
                    let why = "becket listens on TCP addresses only";
                    self.out.lost(listen.origin, why);
                } else if let Some(at) = address(text) {
                    if at.starts_with(':') && !text.starts_with('[') {
                        self.out.differs(listen.origin, BOTH_FAMILIES);
                    }
                    let servers = listening.entry(at).or_default();
                    servers.push(ListeningServer { block, listen });
                } else {
                    let accepted = "PORT, or ADDRESS:PORT with an IP address";
                    self.out.refuse(listen.origin, "not an address", accepted);
                }
            }
            if block.inner.last("listen").is_none() {
                self.out.lost(block.origin, "write listen with its address");
            }
        }
        for (at, servers) in listening {
            self.listener(&scope, at, servers);
        }
    }

    fn listener(&mut self, scope: &PassScope<'_>, at: String, servers: Vec<ListeningServer<'_>>) {
        let has = |it: &ListeningServer<'_>, name: &str| it.listen.inner.last(name).is_some();
        let is_default = |it: &ListeningServer<'_>| has(it, "default_server") || has(it, "default");
        let default = servers.iter().position(is_default).unwrap_or_default();
        let ListeningServer { block, listen } = servers[default];
        let is_tls = servers
            .iter()
            .any(|it| has(it, "ssl") || it.block.inner.last("ssl").is_some_and(is_on));
        let preread = find("ssl_preread", &[&*block.inner, scope.module]).filter(|it| is_on(it));
        let (protocol, origin) = match preread {
            _ if is_tls => (ClientProtocol::Tls, listen.origin),
            Some(preread) => (ClientProtocol::Passthrough, preread.origin),
            None => (ClientProtocol::Plain, listen.origin),
        };
        let listens: Vec<&Directive> = servers.iter().map(|it| it.listen).collect();
        // `listen 80` and `listen [::]:80` are one address in becket, so a block may appear twice.
        let mut blocks: Vec<&Directive> = servers.iter().map(|it| it.block).collect();
        blocks.dedup_by_key(|it| it.origin);
        let first = blocks.iter().position(|it| it.origin == block.origin);
        blocks[..=first.unwrap_or_default()].rotate_right(1);
        let port = at.rsplit(':').next().unwrap_or_default();
        let mut plan = ListenerPlan::new(block.origin);
        plan.name = self.listeners.take(&format!("port-{port}"), "listener");
        plan.bind.push((at, listen.origin));
        plan.protocol = (protocol, origin);
        if scope.is_http && protocol == ClientProtocol::Plain {
            // If no server of this address has a `proxy_pass`, the first redirect applies to all
            // servers.
            let passes = blocks.iter().any(|it| scope.pass(it).is_some());
            let redirecting = &blocks[..if passes { 1 } else { blocks.len() }];
            plan.redirect = redirecting.iter().find_map(|it| redirect(it));
        }
        if plan.redirect.is_some() {
            let why = "every request of the address is redirected, with status 301";
            for server in blocks {
                match redirect(server) {
                    Some(rule) => self.out.differs(rule, why),
                    None => self.out.lost(server.origin, why),
                }
                self.server_names(server);
                self.out.used(server.origin);
            }
        } else {
            self.lead(&mut plan, scope, &blocks);
            if plan.backend.is_none() && plan.routes.is_empty() {
                return;
            }
            if is_tls {
                plan.certificates = self.certificates(scope, &blocks);
                self.policy(block, scope, &plan.name, false);
            }
        }
        let mut section = plan.section(&mut self.out);
        if scope.is_http && is_tls {
            section.set("alpn", vec!["http/1.1"], None);
        }
        for listen in &listens {
            self.out.used(listen.origin);
            for name in ["ssl", "default_server", "default"] {
                self.out.used(listen.inner.last(name).map(|it| it.origin));
            }
            let options = each(&[&*listen.inner]);
            apply(&mut self.out, &mut section, "listener.", options);
        }
        if listens
            .iter()
            .any(|it| it.inner.last("proxy_protocol").is_some())
        {
            let scopes = [&*block.inner, scope.module].into_iter();
            let proxies = scopes.flat_map(|it| it.all("set_real_ip_from"));
            let mut proxies = proxies.filter(|it| it.text() != "unix:").peekable();
            if proxies.peek().is_none() {
                section.set("trusted-networks", vec!["0.0.0.0/0", "::/0"], None);
            }
            for proxy in proxies.take_while(|_| self.out.count(1)) {
                section.push("trusted-networks", proxy.text(), [proxy.origin]);
            }
        }
        self.out.add(section);
    }

    /// Sets the backend and the routes of a listener, and adds policies for the routes.
    fn lead(&mut self, plan: &mut ListenerPlan, scope: &PassScope<'_>, servers: &[&Directive]) {
        let (protocol, _) = plan.protocol;
        let is_tls = protocol == ClientProtocol::Tls;
        let reads_names = protocol != ClientProtocol::Plain;
        let has_policies = is_tls && servers.iter().any(|it| has_policy(it));
        let mut routes = Vec::new();
        let mut of_default = Vec::new();
        for (index, server) in servers.iter().enumerate() {
            let Some(pass) = scope.pass(server) else {
                match server.inner.last("ssl_reject_handshake") {
                    Some(given) if index == 0 && is_on(given) => self.out.used(given.origin),
                    _ => {
                        let why = "it passes no connections on as a whole: clients of its names reach the default server's backend";
                        self.out.lost(server.origin, why);
                    }
                }
                continue;
            };
            let target = match scope.maps.get(pass.text()) {
                Some(map) => {
                    self.out.used(server.origin);
                    self.out.used(pass.origin);
                    self.mapped(&mut routes, scope, server, map)
                }
                None => self.target(scope, server, pass, pass.text()),
            };
            let Some(target) = target else {
                continue;
            };
            let names = self.server_names(server);
            self.out.used(server.origin);
            self.out.used(pass.origin);
            if plan.backend.is_none() && (index == 0 || !reads_names) {
                if index > 0 {
                    let why = "for other names, too: the default server passes no connections on";
                    self.out.differs(server.origin, why);
                }
                plan.backend = Some((target, pass.origin));
                of_default = names;
            } else if !reads_names || names.is_empty() {
                let why = "no server name chooses it: becket does not read Host";
                self.out.lost(server.origin, why);
            } else {
                let mut route = to(target);
                if has_policies {
                    let own = self.listeners.take("", &plan.name);
                    self.policy(server, scope, &own, true);
                    route.insert("policy".to_owned(), own.into());
                }
                routes.push(NamedRoute(names, route, server.origin));
            }
        }
        // A wildcard of another server may match names of the default server, so these names need a
        // route.
        let has_patterns = routes
            .iter()
            .any(|it| it.0.iter().any(|name| is_pattern(name)));
        if let (Some((backend, origin)), true) = (&plan.backend, has_patterns) {
            routes.push(NamedRoute(of_default, to(backend.clone()), *origin));
        }
        // Routes for exact names must precede wildcard routes.
        for of_patterns in [false, true] {
            for NamedRoute(names, route, origin) in &routes {
                let names = names.iter().filter(|it| is_pattern(it) == of_patterns);
                let names: Vec<&str> = names.map(String::as_str).collect();
                if !names.is_empty() {
                    let mut route = route.clone();
                    route.insert("names".to_owned(), names.into());
                    plan.routes.push((route, *origin));
                }
            }
        }
    }

    /// Adds a route for each row of a map. Returns the default backend.
    fn mapped(
        &mut self,
        routes: &mut Vec<NamedRoute>,
        scope: &PassScope<'_>,
        server: &Directive,
        map: &Directive,
    ) -> Option<String> {
        self.out.same(map.origin);
        let rows = map.inner.all(ROW.theirs);
        let has_patterns = rows.iter().any(|it| it.text() == "hostnames");
        let mut default = None;
        for row in rows.iter().filter(|it| it.words.len() > 1) {
            let text = row.text();
            let is_known = text == "default" || has_patterns || !text.starts_with(['*', '.']);
            let names = names_of(text);
            if !self.out.count(2) {
                return None;
            }
            let led = (is_known && !names.is_empty())
                .then(|| self.target(scope, server, map, row.word(1)));
            match led.flatten() {
                Some(backend) if text == "default" => default = Some(backend),
                Some(backend) => routes.push(NamedRoute(names, to(backend), map.origin)),
                None => self
                    .out
                    .lost(map.origin, format!("without the row of {text}")),
            }
        }
        default
    }

    fn server_names(&mut self, server: &Directive) -> Vec<String> {
        let mut names = Vec::new();
        for given in server.inner.all("server_name") {
            self.out.used(given.origin);
            let words = given.words.iter().filter(|it| *it != "_" && !it.is_empty());
            for word in words {
                if !self.out.count(1) {
                    return names;
                }
                let found = names_of(word);
                if found.is_empty() {
                    let why = format!("without {word}: names are NAME, *.NAME and .NAME");
                    self.out.lost(given.origin, why);
                } else if word.starts_with('*') {
                    self.out
                        .differs(given.origin, "a star stands for one label");
                }
                names.extend(found);
            }
        }
        names
    }

    fn certificates(
        &mut self,
        scope: &PassScope<'_>,
        servers: &[&Directive],
    ) -> Vec<(Value, SettingId)> {
        let mut seen = BTreeSet::new();
        let mut pairs = Vec::new();
        for server in servers {
            let scopes = [&*server.inner, scope.module];
            let all = |name: &str| {
                let mut found = scopes.iter().map(|scope| scope.all(name));
                found.find(|it| !it.is_empty()).unwrap_or_default()
            };
            let keys = all("ssl_certificate_key");
            for (chain, key) in all("ssl_certificate").iter().zip(keys) {
                self.out.used(chain.origin);
                self.out.used(key.origin);
                if chain.text().contains('$') || key.text().contains(':') {
                    let why = "a certificate and its key are files: see listener.certificates";
                    self.out.lost(chain.origin, why);
                } else if !self.out.count(1) {
                    return pairs;
                } else if seen.insert((chain.text(), key.text())) {
                    let pair = self.out.pair(chain.text(), key.text());
                    pairs.push((pair.into(), chain.origin));
                }
            }
        }
        pairs
    }

    fn policy(&mut self, server: &Directive, scope: &PassScope<'_>, name: &str, is_named: bool) {
        let scopes = [&*server.inner, scope.module];
        let given = |name: &str| find(name, &scopes);
        let versions = given("ssl_protocols").and_then(|it| {
            let has = |version: &&str| it.words.contains(&format!("TLSv{version}"));
            let served: Vec<&str> = ["1.2", "1.3"].into_iter().filter(has).collect();
            self.out.used(it.origin);
            if it.words.len() > served.len() {
                let why = "without versions before TLS 1.2, which do not exist in becket";
                self.out.differs(it.origin, why);
            }
            (served.len() < 2).then_some((served, it.origin))
        });
        let is_verified = given("ssl_verify_client").is_some_and(|it| it.text() != "off");
        if let Some(more) = given("ssl_trusted_certificate").filter(|_| is_verified) {
            let why = "append its certificates to the file of policy.client-ca";
            self.out.lost(more.origin, why);
        }
        let lists = [
            "ssl_ciphers",
            "ssl_conf_command Ciphersuites",
            "ssl_ecdh_curve",
        ];
        let lists = lists.map(given);
        add_policy(&mut self.out, (name, is_named), versions, lists, &scopes);
    }
}

fn has_policy(server: &Directive) -> bool {
    let mut given = each(&[&*server.inner]);
    given.any(|it| it.setting.ours.starts_with("policy."))
}

/// Returns the rule that redirects every request of a server to `https`.
fn redirect(server: &Directive) -> Option<SettingId> {
    let scopes = [Some(&*server.inner), place(server)].into_iter().flatten();
    let mut rules = scopes.flat_map(|it| it.all("return"));
    rules.find(|it| redirects(it)).map(|it| it.origin)
}

/// Returns the server names that a pattern matches; empty for an unsupported pattern.
fn names_of(word: &str) -> Vec<String> {
    let mut names = match word.strip_prefix('.') {
        Some(name) => vec![name.to_owned(), format!("*.{name}")],
        None => vec![word.to_owned()],
    };
    names.retain(|name| NamePattern::parse(name).is_ok());
    names
}

fn address(text: &str) -> Option<String> {
    let is_port = text.bytes().all(|byte| byte.is_ascii_digit());
    let has_port = text.contains(':') && !text.ends_with(']');
    match (is_port, has_port) {
        (true, _) => listen_address(&format!(":{text}")),
        (_, true) => listen_address(text),
        _ => listen_address(&format!("{text}:80")),
    }
}

fn to(backend: String) -> Table {
    Table::from_iter([("backend".to_owned(), backend.into())])
}

fn is_pattern(name: &str) -> bool {
    name.starts_with('*')
}
