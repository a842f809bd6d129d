//! Conditions of `use_backend` that a route can have: server names and protocols, in `{ .. }` or in an `acl`.

use std::collections::BTreeMap;

use super::super::builder::{SettingId, TranslationBuilder};
use super::super::directive::Directive;
use becket_config::address::NamePattern;
use becket_config::notation::Text;

/// Clients that one route takes: those with one of the names that offer one of the protocols.
#[derive(Debug, Default)]
pub(super) struct SelectedClients {
    pub(super) names: Vec<String>,
    pub(super) alpn: Vec<String>,
    /// The names are those of a ClientHello that HAProxy passes on.
    pub(super) passes: bool,
}

/// Translates the condition after `if` into one element per alternative. Counts words of ACLs, and adds ACLs to `used`.
/// Returns `None` for other conditions.
pub(super) fn selected(
    acls: &BTreeMap<&str, Vec<&Directive>>,
    words: &[String],
    out: &mut TranslationBuilder,
    used: &mut Vec<SettingId>,
) -> Option<Vec<SelectedClients>> {
    let mut all = Vec::new();
    for mut rest in words.split(|word| word == "or" || word == "||") {
        let mut one = SelectedClients::default();
        while let Some((first, tail)) = rest.split_first() {
            rest = tail;
            let mut lines = Vec::new();
            if first == "{" {
                let end = rest.iter().position(|word| word == "}")?;
                lines.push(&rest[..end]);
                rest = &rest[end + 1..];
            } else {
                for acl in acls.get(first.as_str())? {
                    out.count(acl.words.len()).then_some(())?;
                    lines.push(acl.words.get(1..)?);
                    used.push(acl.origin);
                }
            }
            one.narrow(&lines)?;
        }
        let is_any = one.names.is_empty() && one.alpn.is_empty();
        (!is_any).then(|| all.push(one))?;
    }
    Some(all)
}

impl SelectedClients {
    /// Restricts the clients to the matches of the lines.
    fn narrow(&mut self, lines: &[&[String]]) -> Option<()> {
        let (mut names, mut alpn) = (Vec::new(), Vec::new());
        for line in lines {
            let (fetch, values) = line.split_first()?;
            self.passes |= fetch.starts_with("req");
            let found = match fetch.strip_suffix(",lower").unwrap_or(fetch) {
                "ssl_fc_sni" | "req.ssl_sni" | "req_ssl_sni" => &mut names,
                "ssl_fc_alpn" | "req.ssl_alpn" => &mut alpn,
                _ => return None,
            };
            found.extend(values.iter().filter(|it| *it != "-i").cloned());
        }
        // Neither other flags nor patterns are supported.
        let is_name = |name: &String| !name.starts_with('*') && NamePattern::parse(name).is_ok();
        let is_flag = |word: &String| word.starts_with('-');
        let is_one = names.is_empty() != alpn.is_empty();
        if !is_one || names.iter().chain(&alpn).any(is_flag) || !names.iter().all(is_name) {
            return None;
        }
        for (kept, found) in [(&mut self.names, names), (&mut self.alpn, alpn)] {
            if !found.is_empty() {
                // Two conditions on one thing exclude each other.
                kept.is_empty().then(|| *kept = found)?;
            }
        }
        Some(())
    }
}
