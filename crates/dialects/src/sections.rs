//! Functions that the translations of HAProxy and nginx share: they build listeners, policies and
//! backends.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::builder::{SectionBuilder, SettingId, TranslationBuilder};
use super::directive::{Directive, Directives, apply, each, find};
use super::setting::SettingSupport;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientProtocol {
    Tls,
    /// The server terminates TLS; becket forwards the encrypted bytes.
    Passthrough,
    Plain,
}

/// A `[[listener]]` under construction. Simple directives, which need only their table row, are
/// added at the end.
#[derive(Clone, Debug)]
pub(super) struct ListenerPlan {
    pub(super) name: String,
    /// Section (HAProxy) or block (nginx) that defines the listener.
    pub(super) origin: SettingId,
    pub(super) bind: Vec<(String, SettingId)>,
    pub(super) protocol: (ClientProtocol, SettingId),
    pub(super) routes: Vec<(Table, SettingId)>,
    pub(super) backend: Option<(String, SettingId)>,
    /// Rule that redirects to `https`; `None` for listeners with TLS.
    pub(super) redirect: Option<SettingId>,
    /// Empty for listeners without TLS.
    pub(super) certificates: Vec<(Value, SettingId)>,
}

impl ListenerPlan {
    pub(super) fn new(origin: SettingId) -> Self {
        Self {
            name: String::new(),
            origin,
            bind: Vec::new(),
            protocol: (ClientProtocol::Plain, origin),
            routes: Vec::new(),
            backend: None,
            redirect: None,
            certificates: Vec::new(),
        }
    }

    pub(super) fn section(self, out: &mut TranslationBuilder) -> SectionBuilder {
        let mut section = out.section("listener", &self.name);
        out.used(self.origin);
        for (at, origin) in self.bind {
            section.push("bind", at, [origin]);
        }
        let (protocol, origin) = self.protocol;
        match protocol {
            ClientProtocol::Tls => section.set("tls", true, origin),
            ClientProtocol::Passthrough => section.set("mode", "passthrough", origin),
            ClientProtocol::Plain => section.set("tls", false, origin),
        }
        if protocol == ClientProtocol::Tls {
            let is_folder = |it: &Value| it.as_str().is_some_and(|path| path.ends_with('/'));
            if self.certificates.is_empty() {
                let accepted = "a certificate and its key for TLS";
                out.refuse(origin, "missing: a certificate", accepted);
            } else if self.certificates.len() > 1 || is_folder(&self.certificates[0].0) {
                section.set("default-certificate", "first", None);
            }
            for (certificate, origin) in self.certificates {
                section.push("certificates", certificate, [origin]);
            }
        }
        if let Some(origin) = self.redirect {
            section.set("redirect", "https", origin);
            return section;
        }
        // Clients without TLS send no server name, so no route applies to them.
        let is_plain = protocol == ClientProtocol::Plain;
        let mut last = None;
        for (route, origin) in self.routes.into_iter().filter(|_| !is_plain) {
            last = route.get("backend").cloned();
            section.push("route", route, [origin]);
        }
        match (self.backend, last) {
            (Some((backend, origin)), _) => section.set("backend", backend, origin),
            (None, Some(last)) => {
                section.set("backend", last, None);
                section.set("unknown-names", "strict", None);
                let why = "it has no default: other names are refused, or go where the last route leads if a certificate has them";
                out.differs(self.origin, why);
            }
            (None, None) => {
                let accepted = "a default, which is a backend with servers";
                out.refuse(self.origin, "missing: where clients go", accepted);
            }
        }
        section
    }
}

/// Adds a policy, unless it is empty and no route uses it. `versions` is `None` for TLS 1.2 and
/// 1.3. The lists are a cipher string for TLS 1.2, suites for TLS 1.3, and curves.
pub(super) fn add_policy(
    out: &mut TranslationBuilder,
    (name, is_named): (&str, bool),
    versions: Option<(Vec<&'static str>, SettingId)>,
    [older, newer, curves]: [Option<&Directive>; 3],
    scopes: &[&Directives],
) {
    let mut section = out.section("policy", name);
    let mut served = vec!["1.2", "1.3"];
    if let Some((versions, origin)) = versions {
        section.set("versions", versions.clone(), origin);
        served = versions;
    }
    let [older, newer] = [older, newer].map(|list| {
        let list = list?;
        if list.text().starts_with("PROFILE=") {
            let why = "becket's own suites, and no profile of the system";
            out.differs(list.origin, why);
            return None;
        }
        Some((list.text(), list.origin))
    });
    out.suites(&mut section, &served, older, newer, "DEFAULT");
    out.used(curves.map(|it| it.origin));
    if let Some(curves) = curves.filter(|it| it.text() != "auto") {
        out.curves(&mut section, curves.text(), curves.origin);
    }
    let is_verified = each(scopes).any(|it| {
        let is_on = ["on", "optional", "required"].contains(&it.text());
        it.setting.ours == "policy.client-certificates" && is_on
    });
    for given in each(scopes) {
        if is_verified && given.setting.ours == "policy.client-certificates" {
            let why = "client certificates need X.509 version 3, and TLS 1.2 with them extended master secrets: see policy.require-ems";
            out.differs(given.origin, why);
        }
        if !is_verified && ["policy.client-ca", "policy.crl"].contains(&given.setting.ours) {
            let why = "no client certificate is requested";
            out.ignored(given.origin, why);
        } else if let Some((key, value)) = given.entry(out, "policy.") {
            section.set(key, value, given.origin);
        }
    }
    if is_named || !section.is_bare() {
        out.add(section);
    }
}

/// Returns the `[backend.tls]` of a backend. If `name` is `None`, any certificate name is accepted.
/// `sni` is a name, `client` or `off`.
pub(super) fn server_tls<'d>(
    out: &mut TranslationBuilder,
    backend: &SectionBuilder,
    (verify, is_verified): (Option<&Directive>, bool),
    name: Option<(&str, SettingId)>,
    (sni, sent): (&str, Option<&Directive>),
    given: impl Iterator<Item = &'d Directive>,
) -> SectionBuilder {
    let mut tls = backend.nested("tls");
    out.used(verify.map(|it| it.origin));
    match name {
        _ if !is_verified => tls.set("verify", "none", verify.map(|it| it.origin)),
        Some((name, origin)) => tls.set("name", name, origin),
        None => tls.set("verify", "chain", verify.map(|it| it.origin)),
    }
    tls.set("sni", sni, sent.map(|it| it.origin));
    for one in given {
        match one.entry(out, "backend.tls.") {
            Some(("ca" | "crl", _)) if !is_verified => {
                out.ignored(one.origin, "nothing is verified");
            }
            Some((key, value)) => tls.set(key, value, one.origin),
            None => {}
        }
    }
    tls
}

#[derive(Debug)]
pub(super) struct PoolServer<'d>(
    pub(super) &'d Directive,
    pub(super) Option<String>,
    pub(super) Vec<&'d Directives>,
);

/// Adds servers with their own options to a backend. Per-backend options come from the first
/// server. Skips repeated addresses.
pub(super) fn add_servers(
    out: &mut TranslationBuilder,
    section: &mut SectionBuilder,
    health: &mut SectionBuilder,
    servers: &[PoolServer<'_>],
) {
    let mut seen = BTreeSet::new();
    let first = servers.first().map_or(&[][..], |it| &it.2[..]);
    apply(out, section, "backend.", each(first));
    apply(out, health, "backend.health.", each(first));
    for PoolServer(server, address, options) in servers {
        let Some(at) = address else {
            let accepted = "HOST:PORT, [V6]:PORT or the path of a socket";
            out.refuse(server.origin, "not the address of a server", accepted);
            continue;
        };
        if !seen.insert(at) {
            let why = "an earlier server of the backend has this address";
            out.lost(server.origin, why);
            continue;
        }
        let mut others = each(first).filter(|it| is_shared(it));
        if let Some(other) = others.find(|it| find(it.name, options).is_none()) {
            let is_check = other.setting.ours.starts_with("backend.health.");
            let why = format!("it gets {} as the first server does", other.name);
            let verdict = if is_check {
                SettingSupport::Different
            } else {
                SettingSupport::Lost
            };
            out.amend(server.origin, verdict, why);
        }
        let mut table = Table::from_iter([("address".to_owned(), at.clone().into())]);
        for given in each(options) {
            let same = find(given.name, first).filter(|it| it.text() == given.text());
            if let Some((key, value)) = given.entry(out, "backend.server.") {
                out.used(given.origin);
                table.insert(key.to_owned(), value);
            } else if is_shared(given) && same.is_none() {
                out.lost(given.origin, "all servers of the backend are as the first");
            } else if same.is_some_and(|it| it.origin != given.origin) {
                out.used(given.origin);
            }
        }
        section.push("server", table, [server.origin]);
    }
}

/// Returns `true` if becket supports this server option only per backend.
fn is_shared(option: &Directive) -> bool {
    let ours = option.setting.ours;
    ours.starts_with("backend.") && !ours.starts_with("backend.server.")
}

pub(super) const BOTH_FAMILIES: &str = "for IPv4 and IPv6: write 0.0.0.0 for IPv4 alone";
pub(super) const ANY_NAME: &str =
    "any name in the server's certificate is accepted: set backend.tls.name";
