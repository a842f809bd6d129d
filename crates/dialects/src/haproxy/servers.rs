//! Translates backends and their servers. In becket, most server options are set per backend.

use super::super::builder::SectionBuilder;
use super::super::directive::{Directive, Directives, apply, each, find, server_address};
use super::super::sections::{ANY_NAME, PoolServer, add_servers, server_tls};
use super::listeners::versions;
use super::reader::{CHECK, HaproxySection, HaproxyTranslator};

impl HaproxyTranslator<'_> {
    pub(super) fn backend(&mut self, proxy: &HaproxySection, name: &str) {
        let mut section = self.out.section("backend", name);
        let mut health = section.nested("health");
        self.out.used(proxy.origin);
        let servers = proxy.own.all("server").iter().map(|given| {
            let text = given.word(1);
            let mut families = ["unix@", "ipv4@", "ipv6@"].into_iter();
            let host = families.find_map(|it| text.strip_prefix(it));
            let address = server_address(host.unwrap_or(text), "");
            PoolServer(given, address, proxy.options(given))
        });
        let servers: Vec<PoolServer<'_>> = servers.collect();
        let first = servers.first().map_or(&[][..], |it| &it.2[..]);
        apply(&mut self.out, &mut section, "backend.", proxy.each());
        add_servers(&mut self.out, &mut section, &mut health, &servers);
        self.health(&mut health, proxy, first);
        section.set_nested("health", health, None);
        if let Some(ssl) = find("ssl", first) {
            let tls = self.tls(&section, first);
            section.set_nested("tls", tls, ssl.origin);
        }
        self.out.add(section);
    }

    fn tls(&mut self, section: &SectionBuilder, first: &[&Directives]) -> SectionBuilder {
        let verify = find("verify", first).or(self.global.last("ssl-server-verify"));
        let is_verified = verify.is_none_or(|it| it.text() != "none");
        let sni = find("sni", first);
        let fixed = sni.and_then(|it| it.text().strip_prefix("str(")?.strip_suffix(')'));
        let sent = match (sni.map(Directive::text), fixed) {
            (_, Some(name)) => name,
            (Some("ssl_fc_sni" | "req.ssl_sni"), _) => "client",
            _ => "off",
        };
        if let Some(sni) = sni.filter(|_| sent == "off") {
            let why = "no name is sent, and any is accepted: set backend.tls.sni and .name";
            self.out.lost(sni.origin, why);
        }
        let name = find("verifyhost", first).map(|it| (it.text(), it.origin));
        let name = name.or(fixed.zip(sni.map(|it| it.origin)));
        if let Some(sni) = sni.filter(|_| is_verified && sent == "client" && name.is_none()) {
            self.out.lost(sni.origin, ANY_NAME);
        }
        let given = each(first).filter(|it| !it.text().ends_with("@system-ca"));
        let verify = (verify, is_verified);
        let mut tls = server_tls(&mut self.out, section, verify, name, (sent, sni), given);
        if let Some((versions, origin)) = versions(&mut self.out, first) {
            tls.set("versions", versions, origin);
        }
        tls
    }

    fn health(
        &mut self,
        health: &mut SectionBuilder,
        proxy: &HaproxySection,
        first: &[&Directives],
    ) {
        let chosen = proxy.find(CHECK);
        let is = |name: &str| chosen.is_some_and(|it| it.setting.theirs == name);
        let over_tls = find("check-ssl", first).or(find("ssl", first));
        let kind = match over_tls {
            _ if is(CHECK) => "http",
            None if !is("option ssl-hello-chk") => "connect",
            _ => "tls",
        };
        if let Some(check) = find("check", first) {
            health.set("check", kind, check.origin);
            for given in [chosen, find("check-ssl", first)].into_iter().flatten() {
                self.out.used(given.origin);
            }
            apply(&mut self.out, health, "backend.health.", proxy.each());
            // In HAProxy, `fastinter` defaults to `inter`.
            let inter = find("inter", first).filter(|_| find("fastinter", first).is_none());
            if let Some(inter) = inter
                && let Some((_, time)) = inter.entry(&mut self.out, "backend.health.")
            {
                health.set("fast-interval", time, inter.origin);
            }
        }
        if let Some(observe) = find("observe", first).filter(|it| it.text() == "layer4") {
            let limit = find("error-limit", first);
            self.out.used(limit.map(|it| it.origin));
            let limit = limit.and_then(|it| it.text().parse::<i64>().ok());
            health.set("passive-failures", limit.unwrap_or(10), observe.origin);
        }
        let Some(http) = chosen.filter(|_| is(CHECK)) else {
            return;
        };
        let path = http.words.get(1).or(http.words.first());
        health.set("path", path.map_or("/", String::as_str), http.origin);
        if http.text() != "GET" || http.words.len() > 2 {
            let why = "GET by HTTP/1.1; health.host is the host";
            self.out.differs(http.origin, why);
        }
        for send in proxy.all("http-check send") {
            for two in send.words.windows(2) {
                let key = match two[0].as_str() {
                    "uri" => "path",
                    "Host" | "host" => "host",
                    _ => continue,
                };
                health.set(key, two[1].as_str(), send.origin);
            }
            let why = "a check is a GET of health.path with health.host alone";
            self.out.differs(send.origin, why);
        }
        for expect in proxy.all("http-check expect") {
            if expect.text() == "status" && expect.words.len() == 2 {
                let statuses: Vec<&str> = expect.word(1).split(',').collect();
                health.set("expect", statuses, expect.origin);
                self.out.same(expect.origin);
            }
        }
    }
}
