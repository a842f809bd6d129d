//! TLS settings of HAProxy and nginx: `[[policy]]` for clients and `[backend.tls]` for servers.

use super::builder::{SectionBuilder, SettingId, TranslationBuilder};
use super::directive::{Directive, apply, set_if};
use super::setting::SettingSupport;

/// TLS settings for clients.
#[derive(Debug, Default)]
pub(super) struct ClientTls<'d> {
    /// `None` is both.
    pub(super) versions: Option<(Vec<&'static str>, SettingId)>,
    /// Cipher string for TLS 1.2.
    pub(super) ciphers: Option<&'d Directive>,
    /// Names for TLS 1.3.
    pub(super) suites: Option<&'d Directive>,
    pub(super) curves: Option<&'d Directive>,
    pub(super) verify: Option<&'d Directive>,
    /// CAs and revocation lists.
    pub(super) trust: [Option<&'d Directive>; 2],
    pub(super) without_tickets: Option<&'d Directive>,
}

impl ClientTls<'_> {
    /// Adds the policy, unless it is empty and no route names it.
    pub(super) fn add(&self, out: &mut TranslationBuilder, name: &str, is_named: bool) {
        let mut section = out.section("policy", name);
        let mut versions = vec!["1.2", "1.3"];
        if let Some((served, origin)) = &self.versions {
            versions.clone_from(served);
            section.set("versions", versions.clone(), *origin);
        }
        let [older, newer] = [self.ciphers, self.suites].map(|list| {
            let list = list?;
            if list.text().starts_with("PROFILE=") {
                out.differs(
                    list.origin,
                    "becket's own suites, and no profile of the system",
                );
                return None;
            }
            Some((list.text(), list.origin))
        });
        out.suites(&mut section, &versions, older, newer, "DEFAULT");
        if let Some(curves) = self.curves.filter(|it| it.text() != "auto") {
            out.curves(&mut section, curves.text(), curves.origin);
        }
        set_if(&mut section, "tls12-tickets", false, self.without_tickets);
        let word = match self.verify.map_or("none", Directive::text) {
            "optional" => "optional",
            "required" | "on" => "required",
            "none" | "off" => "",
            _ => {
                let why = "client certificates are verified, or not requested";
                self.verify
                    .into_iter()
                    .for_each(|it| out.lost(it.origin, why));
                ""
            }
        };
        let trust = self.trust.into_iter().flatten();
        if word.is_empty() {
            let why = "no client certificate is requested";
            trust.for_each(|it| out.amend(it.origin, SettingSupport::Ignored, why));
        } else {
            set_if(&mut section, "client-certificates", word, self.verify);
            apply(out, &mut section, "policy.", trust);
        }
        if is_named || !section.is_bare() {
            out.add(section);
        }
    }
}

/// Sets the `[backend.tls]` of a backend with `given` keys. The name to verify is any if it is `None`.
pub(super) fn server_tls<'d>(
    out: &mut TranslationBuilder,
    section: &SectionBuilder,
    (verify, is_verified): (Option<&Directive>, bool),
    name: Option<(&str, SettingId)>,
    sni: (&str, Option<&Directive>),
    given: impl Iterator<Item = &'d Directive>,
) -> SectionBuilder {
    let mut tls = out.nested(section, "tls");
    let origin = verify.map(|it| it.origin);
    match name {
        _ if !is_verified => tls.set("verify", "none", origin),
        Some((name, origin)) => tls.set("name", name, origin),
        None => tls.set("verify", "chain", origin),
    }
    tls.set("sni", sni.0, sni.1.map(|it| it.origin));
    for one in given {
        match one.entry(out, "backend.tls.") {
            Some(("ca" | "crl", _)) if !is_verified => {
                out.amend(one.origin, SettingSupport::Ignored, "nothing is verified");
            }
            Some((key, value)) => tls.set(key, value, one.origin),
            None => {}
        }
    }
    tls
}
