//! Translates versions, suites and client certificates of frontends.

use super::super::builder::{SectionBuilder, SettingId};
use super::reader::{HitchTranslator, MAIN, POLICY, TLS};
use super::scope::{Scope, words};

impl HitchTranslator {
    /// Adds the policy of a frontend, with the global settings as defaults.
    pub(super) fn policy(&mut self, name: &str, scope: &Scope) {
        let mut own = Scope::default();
        for name in POLICY {
            let given = scope.held.get(name).or(self.global.held.get(name));
            own.held.extend(given.map(|given| (*name, given.clone())));
        }
        if own.held.is_empty() && self.frontends.is_empty() && name != MAIN {
            return;
        }
        let has_versions = TLS.iter().any(|name| scope.held.contains_key(name));
        let of_versions = if has_versions { scope } else { &own };
        let mut section = self.out.section("policy", name);
        let versions = self.versions(&mut section, of_versions.text("tls-protos"));
        let (older, newer) = (own.text("ciphers"), own.text("ciphersuites"));
        self.out
            .suites(&mut section, &versions, older, newer, DEFAULT_CIPHERS);
        if let Some((text, origin)) = own.text("ecdh-curve").filter(|(text, _)| *text != "auto") {
            self.out.curves(&mut section, text, origin);
        }
        match own.text("client-verify") {
            None | Some(("none", _)) => {}
            Some((word @ ("optional" | "required"), origin)) => {
                section.set("client-certificates", word, origin);
                if let Some((path, origin)) = own.text("client-verify-ca") {
                    section.set("client-ca", self.out.place(path), origin);
                }
            }
            Some((_, origin)) => {
                let accepted = "none, optional or required";
                self.out.refuse(origin, "not one of the choices", accepted);
            }
        }
        self.out.add(section);
    }

    fn versions(
        &mut self,
        section: &mut SectionBuilder,
        given: Option<(&str, SettingId)>,
    ) -> Vec<&'static str> {
        let Some((text, origin)) = given else {
            return vec!["1.2", "1.3"];
        };
        let mut versions = Vec::new();
        let mut old = Vec::new();
        for word in words(text) {
            match word {
                "TLSv1.2" => versions.push("1.2"),
                "TLSv1.3" => versions.push("1.3"),
                "SSLv3" | "TLSv1.0" | "TLSv1.1" => old.push(word),
                _ => return self.refuse_versions(origin, "not a version"),
            }
        }
        versions.sort_unstable();
        versions.dedup();
        if versions.is_empty() {
            return self.refuse_versions(origin, "none of these versions is supported");
        }
        if !old.is_empty() {
            let why = format!(
                "without {}, which is not supported; clients get {}",
                old.join(" and "),
                versions.join(" and ")
            );
            self.out.differs(origin, why);
        }
        section.set("versions", versions.clone(), origin);
        versions
    }

    fn refuse_versions(&mut self, origin: SettingId, fault: &str) -> Vec<&'static str> {
        self.out.refuse(
            origin,
            fault,
            "TLSv1.2, TLSv1.3 or both, optionally with SSLv3, TLSv1.0 and TLSv1.1",
        );
        vec!["1.2", "1.3"]
    }
}

/// Cipher string of hitch if only suites of TLS 1.3 are configured.
const DEFAULT_CIPHERS: &str = "EECDH+AESGCM:EDH+AESGCM:AES256+EECDH:AES256+EDH";
