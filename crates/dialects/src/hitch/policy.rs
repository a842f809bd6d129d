//! Versions, suites and client certificates of frontends.

use super::super::builder::{SectionBuilder, SettingId};
use super::super::setting::SettingSupport;
use super::reader::{HitchTranslator, MAIN, POLICY, TLS};
use super::scope::{Scope, SettingValue, SettingValues};

impl HitchTranslator {
    /// The policy of a frontend, with what all have where it has nothing of its own.
    pub(super) fn policy(&mut self, name: &str, scope: &Scope) {
        let find = |global: &Scope, name: &str| {
            scope
                .held
                .get(name)
                .or_else(|| global.held.get(name))
                .cloned()
        };
        let held: SettingValues = POLICY
            .iter()
            .filter_map(|name| Some((*name, find(&self.global, name)?)))
            .collect();
        if held.is_empty() && self.frontends.is_empty() && name != MAIN {
            return;
        }
        let mut section = self.out.section("policy", name);
        let versions = self.versions(
            &mut section,
            &held,
            TLS.iter()
                .any(|name| scope.held.contains_key(name))
                .then_some(scope),
        );
        let text = |name| match held.get(name) {
            Some((SettingValue::Text(text), origin)) => Some((text.as_str(), *origin)),
            _ => None,
        };
        let (older, newer) = (text("ciphers"), text("ciphersuites"));
        self.out
            .suites(&mut section, &versions, older, newer, DEFAULT_CIPHERS);
        self.groups(&mut section, &held);
        if let Some((SettingValue::Words(words), origin)) = held.get("client-verify") {
            match words.first().map(String::as_str) {
                Some("none") => {}
                Some(word @ ("optional" | "required")) => {
                    section.set("client-certificates", word, *origin);
                }
                _ => self.out.refuse(
                    *origin,
                    "not one of the choices",
                    "none, optional or required",
                ),
            }
            let is_asked = words.first().is_some_and(|word| word != "none");
            if let Some((SettingValue::Text(path), origin)) =
                held.get("client-verify-ca").filter(|_| is_asked)
            {
                let path = self.out.place(path);
                section.set("client-ca", path, *origin);
            }
        }
        self.out.add(section);
    }

    /// The versions that are served.
    fn versions(
        &mut self,
        section: &mut SectionBuilder,
        held: &SettingValues,
        own: Option<&Scope>,
    ) -> Vec<&'static str> {
        let both = vec!["1.2", "1.3"];
        let words = match own {
            Some(scope) => scope.held.get("tls-protos"),
            None => held.get("tls-protos"),
        };
        let Some((SettingValue::Words(words), origin)) = words else {
            return both;
        };
        let mut versions = Vec::new();
        let mut old = Vec::new();
        for word in words {
            match word.as_str() {
                "TLSv1.2" => versions.push("1.2"),
                "TLSv1.3" => versions.push("1.3"),
                "SSLv3" | "TLSv1.0" | "TLSv1.1" => old.push(word.as_str()),
                _ => return self.refuse_versions(*origin, "not a version"),
            }
        }
        versions.sort_unstable();
        versions.dedup();
        if versions.is_empty() {
            return self.refuse_versions(*origin, "none of these versions exists here");
        }
        if !old.is_empty() {
            let why = format!(
                "without {}, which does not exist here: clients get {}",
                old.join(" and "),
                versions.join(" and ")
            );
            self.out.amend(*origin, SettingSupport::Different, why);
        }
        section.set("versions", versions.clone(), *origin);
        versions
    }

    fn refuse_versions(&mut self, origin: SettingId, fault: &str) -> Vec<&'static str> {
        self.out.refuse(
            origin,
            fault,
            "TLSv1.2, TLSv1.3 or both, perhaps beside SSLv3, TLSv1.0 and TLSv1.1",
        );
        vec!["1.2", "1.3"]
    }

    fn groups(&mut self, section: &mut SectionBuilder, held: &SettingValues) {
        let Some((SettingValue::Text(text), origin)) = held.get("ecdh-curve") else {
            return;
        };
        if text != "auto" {
            self.out.curves(section, text, *origin);
        }
    }
}

/// hitch's own, where only the suites of TLS 1.3 are given.
const DEFAULT_CIPHERS: &str = "EECDH+AESGCM:EDH+AESGCM:AES256+EECDH:AES256+EDH";
