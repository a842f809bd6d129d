//! Backends and their servers. Most options of servers belong to the backend in becket.

use std::collections::BTreeSet;

use super::super::builder::SectionBuilder;
use super::super::client_tls::server_tls;
use super::super::directive::{
    Directive, Directives, add_server, apply, each, find, server_address, set_if,
};
use super::listeners::versions;
use super::reader::{HaproxyTranslator, ProxySection};

impl HaproxyTranslator<'_> {
    pub(super) fn backend(&mut self, proxy: &ProxySection, name: &str) {
        let mut section = self.out.section("backend", name);
        let mut health = self.out.nested(&section, "health");
        let servers = proxy.own.all("server");
        let Some(first) = servers.first().map(|server| proxy.options(server)) else {
            return;
        };
        let mut seen = BTreeSet::new();
        for server in servers {
            let text = server.word(1);
            let at = server_address(text.strip_prefix("unix@").unwrap_or(text));
            let options = proxy.options(server);
            let (all, sections) = (each(&options), (&mut section, &mut health));
            add_server(&mut self.out, sections, (at, server), all, &mut seen);
            if shared(&options) != shared(&first) {
                let why = "TLS, checks and PROXY headers are those of the first server";
                self.out.differs(server.origin, why);
            }
        }
        apply(&mut self.out, &mut section, "backend.", proxy.each());
        self.choose(&mut section, proxy, &first);
        self.health(&mut health, proxy, &first);
        self.out.set_nested(&mut section, "health", health, None);
        if let Some(ssl) = find("ssl", &first) {
            let verify = find("verify", &first).or(self.global.last("ssl-server-verify"));
            let is_verified = verify.is_none_or(|it| it.text() != "none");
            let sni = find("sni", &first);
            let fixed = sni.and_then(|it| it.text().strip_prefix("str(")?.strip_suffix(')'));
            let sent = match (sni.map(Directive::text), fixed) {
                (_, Some(name)) => name,
                (Some("ssl_fc_sni" | "req.ssl_sni"), _) => "client",
                _ => "off",
            };
            if let Some(sni) = sni.filter(|_| sent == "off") {
                let why = "no name is sent: backend.tls.sni is a name or \"client\"";
                self.out.lost(sni.origin, why);
            }
            let name = find("verifyhost", &first).map(|it| (it.text(), it.origin));
            let name = name.or(fixed.zip(sni.map(|it| it.origin)));
            let given = each(&first).filter(|it| !it.text().ends_with("@system-ca"));
            let verify = (verify, is_verified);
            let mut tls = server_tls(&mut self.out, &section, verify, name, (sent, sni), given);
            if let Some((versions, origin)) = versions(&mut self.out, &first) {
                tls.set("versions", versions, origin);
            }
            self.out.set_nested(&mut section, "tls", tls, ssl.origin);
        }
        self.out.add(section);
    }

    /// Sets load balancing, sticking and the PROXY header.
    fn choose(
        &mut self,
        section: &mut SectionBuilder,
        proxy: &ProxySection,
        first: &[&Directives],
    ) {
        if let Some(given) = proxy.find("balance") {
            let ours = match (given.text(), given.word(1)) {
                ("roundrobin" | "static-rr", _) => "round-robin",
                ("leastconn", _) => "least-connections",
                ("first", _) => "first",
                ("source", _) => "source-hash",
                ("random" | "random(2)", _) => "two-random-choices",
                ("hash", "ssl_fc_sni" | "req.ssl_sni") => "sni-hash",
                _ => "",
            };
            if ours.is_empty() {
                let why = "round-robin instead: becket knows the client's address and server name";
                self.out.lost(given.origin, why);
            } else {
                section.set("balance", ours, given.origin);
            }
        }
        for (name, key, value) in SIMPLE {
            set_if(section, key, *value, find(name, first));
        }
        if let Some(given) = find("source", first).or(proxy.find("source")) {
            let host = given.text().split(':').next().unwrap_or_default();
            section.set("source", vec![host], given.origin);
        }
        let rules = ["stick on", "stick match", "stick store-request"];
        for rule in rules.iter().flat_map(|name| proxy.own.all(name)) {
            let ours = match rule.text() {
                "src" => "source",
                "ssl_fc_session_id" => "tls-session",
                _ => continue,
            };
            section.set("stick", ours, rule.origin);
            self.out.same(rule.origin);
        }
    }

    fn health(&mut self, health: &mut SectionBuilder, proxy: &ProxySection, first: &[&Directives]) {
        let is_tls = ["ssl", "check-ssl"]
            .iter()
            .any(|name| find(name, first).is_some());
        let kind = match proxy.find("option httpchk") {
            Some(_) => "http",
            None if is_tls || proxy.find("option ssl-hello-chk").is_some() => "tls",
            None => "connect",
        };
        if let Some(check) = find("check", first) {
            health.set("check", kind, check.origin);
            apply(&mut self.out, health, "backend.health.", proxy.each());
            // The default of fastinter is inter.
            let fast = find("fastinter", first).or(find("inter", first));
            if let Some(fast) = fast
                && let Some((_, time)) = fast.entry(&mut self.out, "backend.health.")
            {
                health.set("fast-interval", time, fast.origin);
            }
        }
        if let Some(http) = proxy.find("option httpchk") {
            let path = http.words.get(1).or(http.words.first());
            health.set("path", path.map_or("/", String::as_str), http.origin);
            if http.text() != "GET" || http.words.len() > 2 {
                self.out
                    .differs(http.origin, "GET by HTTP/1.1; health.host is the host");
            }
        }
        for send in proxy.own.all("http-check send") {
            for two in send.words.windows(2) {
                match two[0].as_str() {
                    "uri" => health.set("path", two[1].as_str(), send.origin),
                    "Host" | "host" => health.set("host", two[1].as_str(), send.origin),
                    _ => {}
                }
            }
        }
        for expect in proxy.own.all("http-check expect") {
            if expect.text() == "status" {
                let statuses: Vec<&str> = expect.word(1).split(',').collect();
                health.set("expect", statuses, expect.origin);
                self.out.same(expect.origin);
            }
        }
        if let Some(observe) = find("observe", first).filter(|it| it.text() == "layer4") {
            let limit = find("error-limit", first).map_or("", Directive::text);
            let limit = limit.parse::<i64>().unwrap_or(10);
            health.set("passive-failures", limit, observe.origin);
        }
    }
}

/// Returns the options that all servers of a backend share in becket.
fn shared<'d>(scopes: &[&'d Directives]) -> [Option<&'d str>; 9] {
    let names = [
        "ssl",
        "verify",
        "verifyhost",
        "sni",
        "ca-file",
        "crt",
        "check",
        "send-proxy",
        "send-proxy-v2",
    ];
    names.map(|name| find(name, scopes).map(Directive::text))
}

/// Options, with the key and value that each sets.
const SIMPLE: &[(&str, &str, &str)] = &[
    ("send-proxy", "proxy-header", "v1"),
    ("send-proxy-v2", "proxy-header", "v2"),
    ("send-proxy-v2-ssl", "proxy-header", "v2"),
    ("send-proxy-v2-ssl-cn", "proxy-header", "v2"),
    ("on-marked-down", "connections-on-failure", "close"),
];
