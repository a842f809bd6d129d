//! Backends: upstreams, and single servers in `proxy_pass`.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::super::builder::SectionBuilder;
use super::super::client_tls::server_tls;
use super::super::directive::{
    Directive, Directives, add_server, each, find, server_address, set_if,
};
use super::reader::NginxTranslator;

/// Upstreams and maps of a module.
pub(super) struct PassScope<'d> {
    pub(super) module: &'d Directives,
    pub(super) is_http: bool,
    /// Maps of server names, by the variables that they set.
    pub(super) maps: BTreeMap<&'d str, &'d Directive>,
    pools: BTreeMap<&'d str, &'d Directive>,
}

impl<'d> PassScope<'d> {
    pub(super) fn new(module: &'d Directives, is_http: bool) -> Self {
        let names = ["$ssl_preread_server_name", "$ssl_server_name"];
        let maps = module.all("map").iter();
        let maps = maps.filter(|it| names.contains(&it.text()));
        let pools = module.all("upstream").iter();
        Self {
            module,
            is_http,
            maps: maps.map(|it| (it.word(1), it)).collect(),
            pools: pools.map(|it| (it.text(), it)).collect(),
        }
    }

    /// Returns the `proxy_pass` for all connections of a server.
    pub(super) fn pass<'s>(&self, server: &'s Directive) -> Option<&'s Directive> {
        let mut places = server.inner.all("location").iter();
        match places.find(|it| it.text() == "/") {
            Some(place) if self.is_http => place.inner.last("proxy_pass"),
            _ if self.is_http => None,
            _ => server.inner.last("proxy_pass"),
        }
    }
}

impl NginxTranslator {
    /// Returns the name of the backend for `to`. Adds the backend if its settings are new.
    pub(super) fn target(
        &mut self,
        scope: &PassScope<'_>,
        server: &Directive,
        pass: &Directive,
        to: &str,
    ) -> Option<String> {
        let places = server.inner.all("location").iter();
        let places = places.filter(|it| it.text() == "/").map(|it| &*it.inner);
        let scopes: Vec<&Directives> = places.chain([&*server.inner, scope.module]).collect();
        let is_on = |name: &str| find(name, &scopes).is_some_and(|it| it.text() == "on");
        let (is_tls, rest) = match to.split_once("://") {
            Some((scheme, rest)) => (scheme == "https", rest),
            None => (is_on("proxy_ssl"), to),
        };
        let (host, path) = match rest.strip_prefix("unix:") {
            Some(path) => (path.split(':').next().unwrap_or_default(), ""),
            None => rest.split_once('/').unwrap_or((rest, "")),
        };
        if !path.is_empty() || host.contains('$') {
            let why = "becket does not change paths, and its routes know server names alone";
            self.out.lost(pass.origin, why);
            return None;
        }
        let options = NAMES.into_iter().chain(OTHERS);
        let options = options.map(|name| find(name, &scopes).map_or("", Directive::text));
        let kind = [host, if is_tls { "tls" } else { "" }]
            .into_iter()
            .chain(options);
        let kind: Vec<String> = kind.map(str::to_owned).collect();
        if let Some(name) = self.backends.get(&kind) {
            return Some(name.clone());
        }
        let port = match (scope.is_http, is_tls) {
            (false, _) => "",
            (true, false) => ":80",
            (true, true) => ":443",
        };
        let name = self.names.take(host.trim_start_matches('/'), "backend");
        let mut section = self.out.section("backend", &name);
        let mut health = self.out.nested(&section, "health");
        let mut seen = BTreeSet::new();
        if let Some(pool) = scope.pools.get(host) {
            for server in pool.inner.all("server") {
                let text = server.text();
                let at = address(text.strip_prefix("unix:").unwrap_or(text), port);
                // 0 turns an option off.
                let options = each(&[&*server.inner]).filter(|it| it.text() != "0");
                let sections = (&mut section, &mut health);
                if self.out.count(1) {
                    add_server(&mut self.out, sections, (at, server), options, &mut seen);
                }
            }
            self.balance(&mut section, pool);
        } else {
            let none = [].into_iter();
            let sections = (&mut section, &mut health);
            add_server(
                &mut self.out,
                sections,
                (address(host, port), pass),
                none,
                &mut seen,
            );
        }
        self.out.set_nested(&mut section, "health", health, None);
        let header = find("proxy_protocol", &scopes).filter(|it| it.text() == "on");
        set_if(&mut section, "proxy-header", "v1", header);
        if is_tls {
            let tls = self.tls(&section, &scopes, host);
            self.out.set_nested(&mut section, "tls", tls, pass.origin);
        }
        self.out.add(section);
        self.backends.insert(kind, name.clone());
        Some(name)
    }

    fn tls(
        &mut self,
        section: &SectionBuilder,
        scopes: &[&Directives],
        host: &str,
    ) -> SectionBuilder {
        let [verify, name, sni, chain, key] = NAMES.map(|name| find(name, scopes));
        let verified = verify.filter(|it| it.text() == "on");
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        let of_host = verified.map(|it| (host, it.origin));
        let name = name.map(|it| (it.text(), it.origin)).or(of_host);
        let sent = sni.filter(|it| it.text() == "on");
        let sent = sent.map_or("off", |_| name.map_or(host, |(name, _)| name));
        let (verify, sni) = ((verify, verified.is_some()), (sent, sni));
        let mut tls = server_tls(&mut self.out, section, verify, name, sni, each(scopes));
        if let (Some(chain), Some(key)) = (chain, key) {
            let pair = [("chain", chain), ("key", key)];
            let place = |it: &Directive| Value::from(self.out.place(it.text()));
            let pair = pair.map(|(key, it)| (key.to_owned(), place(it)));
            tls.set("client-certificate", Table::from_iter(pair), chain.origin);
        }
        tls
    }

    fn balance(&mut self, section: &mut SectionBuilder, pool: &Directive) {
        for (name, ours) in [
            ("least_conn", "least-connections"),
            ("ip_hash", "source-hash"),
            ("random", "two-random-choices"),
        ] {
            set_if(section, "balance", ours, pool.inner.last(name));
        }
        let hash = pool.inner.last("hash");
        let ours = match hash.map_or("", Directive::text) {
            "$remote_addr" | "$binary_remote_addr" => "source-hash",
            "$ssl_server_name" | "$ssl_preread_server_name" => "sni-hash",
            _ => return,
        };
        set_if(section, "balance", ours, hash);
        hash.into_iter().for_each(|it| self.out.same(it.origin));
    }
}

/// Returns the address of a server, with `port` by default.
fn address(text: &str, port: &str) -> Option<String> {
    let has_port = text.contains(':') && !text.ends_with(']');
    if has_port || text.starts_with('/') {
        return server_address(text);
    }
    server_address(&format!("{text}{port}"))
}

/// Settings of TLS towards servers that code translates.
const NAMES: [&str; 5] = [
    "proxy_ssl_verify",
    "proxy_ssl_name",
    "proxy_ssl_server_name",
    "proxy_ssl_certificate",
    "proxy_ssl_certificate_key",
];
/// Further settings that separate backends.
const OTHERS: [&str; 3] = [
    "proxy_ssl_trusted_certificate",
    "proxy_ssl_crl",
    "proxy_protocol",
];
