//! Translates upstreams, and single servers in `proxy_pass`, to backends.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::builder::SectionBuilder;
use super::super::directive::{Directive, Directives, apply, each, find, server_address};
use super::super::sections::{ANY_NAME, PoolServer, add_servers, server_tls};
use super::reader::{NginxTranslator, is_on, place};

pub(super) struct PassScope<'d> {
    pub(super) module: &'d Directives,
    pub(super) is_http: bool,
    /// `map` blocks on the server name, by the variable that each block sets.
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

    /// Returns the `proxy_pass` that applies to all connections of a server; `None` if only some
    /// locations use one.
    pub(super) fn pass<'s>(&self, server: &'s Directive) -> Option<&'s Directive> {
        match place(server) {
            Some(place) if self.is_http => place.last("proxy_pass"),
            _ if self.is_http => None,
            _ => server.inner.last("proxy_pass"),
        }
    }
}

impl NginxTranslator<'_> {
    /// Returns the backend name for a `proxy_pass` target. Adds a backend unless an existing one
    /// has equal settings.
    pub(super) fn target(
        &mut self,
        scope: &PassScope<'_>,
        server: &Directive,
        pass: &Directive,
        to: &str,
    ) -> Option<String> {
        let scopes = place(server).into_iter();
        let scopes: Vec<&Directives> = scopes.chain([&*server.inner, scope.module]).collect();
        let (is_tls, rest) = match to.split_once("://") {
            Some((scheme, rest)) => (scheme == "https", rest),
            None => (find("proxy_ssl", &scopes).is_some_and(is_on), to),
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
        let pool = scope.pools.get(host);
        pool.into_iter().for_each(|it| self.out.same(it.origin));
        let ssl = find("proxy_ssl", &scopes);
        self.out.used(ssl.map(|it| it.origin));
        let mut kind = vec![host.to_owned(), format!("{is_tls} {}", scope.is_http)];
        for name in TLS.iter().chain(&["proxy_protocol"]) {
            let option = find(name, &scopes);
            let used = option.filter(|_| is_tls || *name == "proxy_protocol");
            self.out.used(used.map(|it| it.origin));
            kind.push(option.map_or("", Directive::text).to_owned());
        }
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
        let mut health = section.nested("health");
        let at = |text: &str| server_address(text.strip_prefix("unix:").unwrap_or(text), port);
        let servers = pool.map_or(&[][..], |pool| pool.inner.all("server"));
        self.out.count(1 + servers.len()).then_some(())?;
        let servers = servers
            .iter()
            .map(|it| PoolServer(it, at(it.text()), vec![&*it.inner]));
        let mut servers: Vec<PoolServer<'_>> = servers.collect();
        match pool.map(|pool| each(&[&*pool.inner])) {
            Some(given) => apply(&mut self.out, &mut section, "backend.", given),
            None => servers.push(PoolServer(pass, at(host), Vec::new())),
        }
        let fails = servers.first().and_then(|it| it.0.inner.last("max_fails"));
        if fails.is_none() && servers.len() > 1 {
            health.set("passive-failures", 1, None);
        }
        add_servers(&mut self.out, &mut section, &mut health, &servers);
        section.set_nested("health", health, None);
        apply(&mut self.out, &mut section, "backend.", each(&scopes));
        if is_tls {
            let tls = self.tls(&section, &scopes, host);
            section.set_nested("tls", tls, pass.origin);
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
        let [verify, name, sni, chain, key, ..] = TLS.map(|name| find(name, scopes));
        let is_verified = verify.is_some_and(is_on);
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        let of_client = name.filter(|it| it.text().starts_with('$'));
        if let Some(given) = of_client.filter(|_| is_verified) {
            self.out.lost(given.origin, ANY_NAME);
        }
        let sent = match (sni.filter(|it| is_on(it)), name) {
            (None, _) => "off",
            _ if of_client.is_some() => "client",
            (_, Some(name)) => name.text(),
            (_, None) if host.parse::<IpAddr>().is_ok() => "off",
            (_, None) => host,
        };
        let name = match name {
            Some(name) => Some((name.text(), name.origin)).filter(|_| of_client.is_none()),
            None => verify.map(|it| (host, it.origin)),
        };
        let verify = (verify, is_verified);
        let mut tls = server_tls(
            &mut self.out,
            section,
            verify,
            name,
            (sent, sni),
            each(scopes),
        );
        if let (Some(chain), Some(key)) = (chain, key) {
            let pair = self.out.pair(chain.text(), key.text());
            tls.set("client-certificate", pair, chain.origin);
        }
        tls
    }
}

const TLS: [&str; 7] = [
    "proxy_ssl_verify",
    "proxy_ssl_name",
    "proxy_ssl_server_name",
    "proxy_ssl_certificate",
    "proxy_ssl_certificate_key",
    "proxy_ssl_trusted_certificate",
    "proxy_ssl_crl",
];
