//! Versions, suites and client certificates of frontends.

use std::collections::BTreeMap;

use super::super::ciphers::{self, Chosen, LEAVING, NOTHING_LEFT, TLS13};
use super::super::draft::{Origin, Section};
use super::super::setting::Verdict;
use super::reader::{MAIN, POLICY, Reader, TLS};
use super::scope::{Held, Scope};

impl Reader {
    /// The policy of a frontend, with what all have where it has nothing of its own.
    pub(super) fn policy(&mut self, name: &str, scope: &Scope) {
        let find = |global: &Scope, name: &str| {
            scope
                .held
                .get(name)
                .or_else(|| global.held.get(name))
                .cloned()
        };
        let held: BTreeMap<&str, (Held, Origin)> = POLICY
            .iter()
            .filter_map(|name| Some((*name, find(&self.global, name)?)))
            .collect();
        if held.is_empty() && self.frontends.is_empty() && name != MAIN {
            return;
        }
        let mut section = self.draft.section("policy", name);
        let versions = self.versions(
            &mut section,
            &held,
            TLS.iter()
                .any(|name| scope.held.contains_key(name))
                .then_some(scope),
        );
        self.suites(&mut section, &held, &versions);
        self.groups(&mut section, &held);
        if let Some((Held::Words(words), origin)) = held.get("client-verify") {
            match words.first().map(String::as_str) {
                Some("none") => {}
                Some(word @ ("optional" | "required")) => {
                    self.draft
                        .set(&mut section, "client-certificates", word, Some(*origin));
                }
                _ => self.draft.refuse(
                    *origin,
                    "not one of the choices",
                    "none, optional or required",
                ),
            }
            let is_asked = words.first().is_some_and(|word| word != "none");
            if let Some((Held::Text(path), origin)) =
                held.get("client-verify-ca").filter(|_| is_asked)
            {
                let path = self.draft.place(path);
                self.draft
                    .set(&mut section, "client-ca", path, Some(*origin));
            }
        }
        self.draft.add(section);
    }

    /// The versions that are served.
    fn versions(
        &mut self,
        section: &mut Section,
        held: &BTreeMap<&str, (Held, Origin)>,
        own: Option<&Scope>,
    ) -> Vec<&'static str> {
        let both = vec!["1.2", "1.3"];
        let words = match own {
            Some(scope) => scope.held.get("tls-protos"),
            None => held.get("tls-protos"),
        };
        let Some((Held::Words(words), origin)) = words else {
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
            self.draft.amend(*origin, Verdict::Different, why);
        }
        self.draft
            .set(section, "versions", versions.clone(), Some(*origin));
        versions
    }

    fn refuse_versions(&mut self, origin: Origin, fault: &str) -> Vec<&'static str> {
        self.draft.refuse(
            origin,
            fault,
            "TLSv1.2, TLSv1.3 or both, perhaps beside SSLv3, TLSv1.0 and TLSv1.1",
        );
        vec!["1.2", "1.3"]
    }

    fn suites(
        &mut self,
        section: &mut Section,
        held: &BTreeMap<&str, (Held, Origin)>,
        versions: &[&str],
    ) {
        let text = |name| match held.get(name) {
            Some((Held::Text(text), origin)) => Some((text.clone(), *origin)),
            _ => None,
        };
        let (older, newer) = (text("ciphers"), text("ciphersuites"));
        let of_older = older.as_ref().filter(|_| versions.contains(&"1.2"));
        let given = of_older.or(newer.as_ref()).or(older.as_ref());
        let Some(origin) = given.map(|(_, origin)| *origin) else {
            return;
        };
        let mut suites = Vec::new();
        for (version, given, default, choose) in [
            (
                "1.3",
                newer,
                TLS13.join(":"),
                ciphers::tls13 as fn(&str) -> Chosen,
            ),
            ("1.2", older, DEFAULT_CIPHERS.to_owned(), ciphers::tls12),
        ] {
            match given {
                _ if !versions.contains(&version) => {}
                None => suites.extend(choose(&default).suites),
                Some((text, origin)) => {
                    let chosen = choose(&text);
                    if chosen.suites.is_empty() {
                        return self.draft.refuse(origin, NOTHING_LEFT, LEAVING);
                    }
                    let (verdict, why) = chosen.verdict();
                    self.draft.amend(origin, verdict, why);
                    suites.extend(chosen.suites);
                }
            }
        }
        self.draft.set(section, "suites", suites, Some(origin));
    }

    fn groups(&mut self, section: &mut Section, held: &BTreeMap<&str, (Held, Origin)>) {
        let Some((Held::Text(text), origin)) = held.get("ecdh-curve") else {
            return;
        };
        if text != "auto" {
            self.draft.curves(section, text, *origin);
        }
    }
}

/// hitch's own, where only the suites of TLS 1.3 are given.
const DEFAULT_CIPHERS: &str = "EECDH+AESGCM:EDH+AESGCM:AES256+EECDH:AES256+EDH";
