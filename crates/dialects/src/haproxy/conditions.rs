//! Conditions of `use_backend` that becket's routes support: server names and protocols, in
//! `{ .. }` or in an `acl`.

use std::collections::BTreeMap;

use toml::Table;

use super::super::builder::{SettingId, TranslationBuilder};
use super::super::directive::Directive;
use becket_config::address::NamePattern;
use becket_config::notation::Text;

/// Translates the condition after `if` into one route per alternative, without backends. Adds the
/// ACLs to `used`. Returns `None` for unsupported conditions.
pub(super) fn selected(
    acls: &BTreeMap<&str, Vec<&Directive>>,
    words: &[String],
    out: &mut TranslationBuilder,
    used: &mut Vec<SettingId>,
) -> Option<Vec<Table>> {
    let mut all = Vec::new();
    for mut rest in words.split(|word| word == "or" || word == "||") {
        let mut route = Table::new();
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
            narrow(&mut route, &lines)?;
        }
        (!route.is_empty()).then(|| all.push(route))?;
    }
    Some(all)
}

/// Restricts a route to clients that match at least one line of the ACL.
fn narrow(route: &mut Table, lines: &[&[String]]) -> Option<()> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in lines {
        let (fetch, values) = line.split_first()?;
        let key = match fetch.strip_suffix(",lower").unwrap_or(fetch) {
            "ssl_fc_sni" | "req.ssl_sni" | "req_ssl_sni" => "names",
            "ssl_fc_alpn" | "req.ssl_alpn" => "alpn",
            _ => return None,
        };
        let values = values.iter().map(String::as_str).filter(|it| *it != "-i");
        found.entry(key).or_default().extend(values);
    }
    let (key, values) = found.pop_first()?;
    // Rejects all flags except `-i`, and patterns that routes do not support. A route accepts one
    // condition per property.
    let is_name = |it: &&str| key == "alpn" || NamePattern::parse(it).is_ok();
    let is_plain = |it: &&str| !it.starts_with(['-', '*']) && is_name(it);
    let is_usable = !values.is_empty() && values.iter().all(is_plain);
    let is_new = found.is_empty() && !route.contains_key(key);
    (is_usable && is_new).then(|| route.insert(key.to_owned(), values.into()))?;
    Some(())
}
