//! Directives of HAProxy and nginx, and the translation of simple directives. Each dialect has a
//! table with a row for each directive. A directive is simple if its row specifies becket's key and
//! the conversion of the value; the modules of the dialect translate all other directives.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use toml::Value;

use super::builder::{SectionBuilder, SettingId, TranslationBuilder, address};
use super::setting::{Setting, SettingSupport, ValueKind};
use becket_config::address::{Address, ListenAddress, SectionName, ServerAddress};
use becket_config::notation::{Text, duration};

/// A directive, or an option on a directive's line.
#[derive(Clone, Debug)]
pub(super) struct Directive {
    pub(super) name: &'static str,
    pub(super) setting: &'static Setting,
    pub(super) words: Rc<[String]>,
    pub(super) origin: SettingId,
    /// Options on the same line, or directives in the block.
    pub(super) inner: Rc<Directives>,
}

impl Directive {
    pub(super) fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }

    pub(super) fn text(&self) -> &str {
        self.word(0)
    }

    /// Converts the value as the directive's table row specifies. Returns `None` after an error, if
    /// no key is needed, or if a module of the dialect translates the directive.
    fn value(&self, out: &mut TranslationBuilder) -> Option<Value> {
        let text = self.text();
        let value: Option<Value> = match self.setting.kind {
            ValueKind::Text => Some(text.into()),
            ValueKind::Path => Some(out.place(text).into()),
            ValueKind::Flag => Some(true.into()),
            ValueKind::Number => text.parse().ok().map(Value::Integer),
            ValueKind::Millis | ValueKind::Seconds => {
                self.time().map(|time| format!("{time}ms").into())
            }
            ValueKind::List => Some(text.split(',').collect::<Vec<_>>().into()),
            ValueKind::Const(value) => Some(constant(value)),
            ValueKind::Choice(choices) => {
                let all = self.words.join(" ");
                let (_, ours) = choices.iter().find(|(theirs, _)| *theirs == all)?;
                if ours.is_empty() {
                    out.used(self.origin);
                    return None;
                }
                Some(constant(ours))
            }
            _ => return None,
        };
        let is_whole = matches!(
            self.setting.kind,
            ValueKind::Text | ValueKind::Const(_) | ValueKind::Choice(_)
        );
        if value.is_none() {
            let accepted = "a whole number, or a time such as 30s";
            out.refuse(self.origin, "not of the shape that is needed", accepted);
        } else if !is_whole && self.words.len() > 1 {
            out.lost(self.origin, "without its further words");
        } else if self.setting.verdict == SettingSupport::Lost {
            out.same(self.origin);
        }
        value
    }

    /// Returns the directive's key and value if the key is directly below `prefix`, such as
    /// `backend.health.`.
    pub(super) fn entry(
        &self,
        out: &mut TranslationBuilder,
        prefix: &str,
    ) -> Option<(&'static str, Value)> {
        let key = self.setting.ours.strip_prefix(prefix)?;
        if key.contains('.') {
            return None;
        }
        if self.text() == "0" && ["passive-failures", "maxconn", "slow-start"].contains(&key) {
            out.used(self.origin);
            return None;
        }
        let value = self.value(out)?;
        Some(match key {
            "crl" => (key, Value::Array(vec![value])),
            _ => (key, value),
        })
    }

    /// Parses a time such as `1h30m` to milliseconds. The table row determines the unit of a bare
    /// number.
    fn time(&self) -> Option<u64> {
        let text = self.text();
        let is_seconds = self.setting.kind == ValueKind::Seconds;
        if let Ok(number) = text.parse::<u64>() {
            return number.checked_mul(if is_seconds { 1000 } else { 1 });
        }
        if let Some(number) = text.strip_suffix("us") {
            return Some(number.parse::<u64>().ok()?.div_ceil(1000));
        }
        u64::try_from(duration(text).ok()?.as_millis()).ok()
    }
}

/// Parses a constant of a table row: a number, `false`, or otherwise a string.
fn constant(text: &str) -> Value {
    match text {
        "false" => false.into(),
        _ => text.parse().map_or_else(|_| text.into(), Value::Integer),
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Directives(BTreeMap<&'static str, Vec<Directive>>);

impl Directives {
    pub(super) fn push(&mut self, directive: Directive) {
        self.0.entry(directive.name).or_default().push(directive);
    }

    pub(super) fn replace(&mut self, directive: Directive) {
        self.0.insert(directive.name, vec![directive]);
    }

    /// Prepends `base` to the relative paths of the directives with this name.
    pub(super) fn rebase(&mut self, name: &str, base: &str) {
        for given in self.0.get_mut(name).into_iter().flatten() {
            let path = Path::new(base).join(given.text());
            given.words = Rc::new([path.to_string_lossy().into_owned()]);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    pub(super) fn all(&self, name: &str) -> &[Directive] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    pub(super) fn last(&self, name: &str) -> Option<&Directive> {
        self.all(name).last()
    }
}

/// Returns the last directive with this name, from the first scope that contains one.
pub(super) fn find<'d>(name: &str, scopes: &[&'d Directives]) -> Option<&'d Directive> {
    scopes.iter().find_map(|scope| scope.last(name))
}

/// Returns the last directive of each name. If several scopes contain the name, the first scope
/// applies.
pub(super) fn each<'d>(scopes: &[&'d Directives]) -> impl Iterator<Item = &'d Directive> + use<'d> {
    let mut all = BTreeMap::new();
    for (name, given) in scopes.iter().flat_map(|scope| &scope.0) {
        all.entry(*name).or_insert(given);
    }
    all.into_values().filter_map(|given| given.last())
}

/// Sets the keys below `prefix` that the table rows of the directives specify. Skips directives
/// that need special code.
pub(super) fn apply<'d>(
    out: &mut TranslationBuilder,
    section: &mut SectionBuilder,
    prefix: &str,
    directives: impl Iterator<Item = &'d Directive>,
) {
    for given in directives {
        if let Some((key, value)) = given.entry(out, prefix) {
            section.set(key, value, given.origin);
        }
    }
}

/// Sets keys of tables that exist once, such as `[timeouts]`. If several directives set the same
/// time, the longest applies.
pub(super) fn apply_once<'d>(
    out: &mut TranslationBuilder,
    directives: impl Iterator<Item = &'d Directive>,
) {
    let mut times: BTreeMap<&str, Vec<(u64, SettingId)>> = BTreeMap::new();
    for given in directives {
        let (table, _) = given.setting.ours.split_once('.').unwrap_or_default();
        if ["", "listener", "policy", "backend"].contains(&table) {
            continue;
        }
        let unit = given.setting.kind;
        if ![ValueKind::Millis, ValueKind::Seconds].contains(&unit) {
            if let Some(value) = given.value(out) {
                out.put_own(value, given.origin);
            }
            continue;
        }
        let Some(time) = given.time() else {
            out.refuse(given.origin, "not a time", "a time such as 30s");
            continue;
        };
        // In HAProxy, 0 means no timeout.
        let is_endless = time == 0 && unit == ValueKind::Millis;
        let time = if is_endless { YEAR } else { time.min(YEAR) };
        let found = times.entry(given.setting.ours).or_default();
        found.push((time, given.origin));
    }
    for (key, times) in times {
        let most = times
            .iter()
            .map(|(time, _)| *time)
            .max()
            .unwrap_or_default();
        let mut is_set = most == 0;
        for (time, origin) in times {
            if time != most {
                out.differs(origin, format!("{key} is one time for all, the longest"));
            } else if is_set {
                out.used(origin);
            } else {
                out.put(key, format!("{most}ms"), origin);
                is_set = true;
            }
        }
    }
}

/// Finds a name in a table. A row may have several names, separated by `|`.
pub(super) fn named(
    table: &'static [Setting],
    name: &str,
) -> Option<(&'static Setting, &'static str)> {
    table.iter().find_map(|setting| {
        let found = setting.theirs.split('|').find(|one| *one == name)?;
        Some((setting, found))
    })
}

/// Finds a directive by its first two words, otherwise by its first word. Returns the table row, the name and the
/// remaining words.
pub(super) fn lookup<'w>(
    table: &'static [Setting],
    words: &'w [String],
) -> Option<((&'static Setting, &'static str), &'w [String])> {
    let (first, rest) = words.split_first()?;
    let two = rest.split_first().and_then(|(second, rest)| {
        let found = named(table, &format!("{first} {second}"))?;
        Some((found, rest))
    });
    two.or_else(|| Some((named(table, first)?, rest)))
}

pub(super) fn options<'w>(
    out: &mut TranslationBuilder,
    table: &'static [Setting],
    mut words: impl Iterator<Item = &'w str>,
    line: usize,
) -> Directives {
    let mut options = Directives::default();
    while let Some(word) = words.next().filter(|_| out.count(1)) {
        let Some((setting, name)) = named(table, word) else {
            out.note(&UNKNOWN_OPTION, Some(line), word);
            continue;
        };
        let value = match setting.kind {
            ValueKind::Flag | ValueKind::Mark | ValueKind::Const(_) => "",
            _ => words.next().unwrap_or_default(),
        };
        options.push(Directive {
            name,
            setting,
            words: Rc::new([value.to_owned()]),
            origin: out.note_as((setting, name), line, value),
            inner: Rc::default(),
        });
    }
    options
}

/// Allocates unique section names. Prefers the original name, if it is valid and unused.
#[derive(Debug, Default)]
pub(super) struct FreeNames {
    taken: BTreeSet<String>,
    number: usize,
}

impl FreeNames {
    pub(super) fn take(&mut self, wanted: &str, otherwise: &str) -> String {
        let mut name = wanted.to_owned();
        while SectionName::parse(&name).is_err() || !self.taken.insert(name.clone()) {
            self.number += 1;
            // A longer name leaves no room for the number.
            let is_base = wanted.len() <= LONGEST_BASE && SectionName::parse(wanted).is_ok();
            let base = if is_base { wanted } else { otherwise };
            name = format!("{base}-{}", self.number);
        }
        name
    }
}

/// Returns host and port in becket's notation. `[::]` and `*` mean all addresses.
fn endpoint(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some(address(if host == "::" { "" } else { host }, port))
}

pub(super) fn listen_address(text: &str) -> Option<String> {
    let at = endpoint(text)?;
    let address = ListenAddress::parse(&at).ok()?.address;
    let is_usable = !matches!(address, Address::Name(name, _) if name != "localhost");
    is_usable.then_some(at)
}

/// Returns the address of a server in becket's notation; `port`, such as `:80`, is the default.
pub(super) fn server_address(text: &str, port: &str) -> Option<String> {
    let has_port = text.contains(':') && !text.ends_with(']');
    let at = match text {
        path if path.starts_with('/') => path.to_owned(),
        text if has_port => endpoint(text)?,
        text => endpoint(&format!("{text}{port}"))?,
    };
    ServerAddress::parse(&at).is_ok().then_some(at)
}

static UNKNOWN_OPTION: Setting = Setting::lost(
    ValueKind::Mark,
    "unknown option",
    "becket has no such option: see docs/reference/configuration.md",
);
pub(super) static UNKNOWN_DIRECTIVE: Setting = Setting::lost(
    ValueKind::Own,
    "unknown directive",
    "no counterpart: leave it to the server behind becket, or see docs/out-of-scope.md",
);
/// Maximum length of a configuration file in bytes.
pub(super) const MOST_TEXT: usize = 1 << 20;
/// Maximum length of a name to which a number may be added.
const LONGEST_BASE: usize = 48;
const YEAR: u64 = 365 * 86_400_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_length_become_unique() {
        for length in [1, 48, 49, 64, 65, 200] {
            let mut names = FreeNames::default();
            let wanted = "a".repeat(length);
            let taken: BTreeSet<_> = (0..300).map(|_| names.take(&wanted, "service")).collect();
            assert_eq!(taken.len(), 300);
            assert!(taken.iter().all(|name| SectionName::parse(name).is_ok()));
        }
    }
}
