//! Directives of HAProxy and nginx, and the translation that both share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use toml::{Table, Value};

use super::builder::{SectionBuilder, SettingId, TranslationBuilder, address};
use super::setting::{Setting, ValueKind};
use becket_config::address::{Address, ListenAddress, SectionName, ServerAddress};
use becket_config::notation::{Text, duration};

/// One directive, or one option of a line.
#[derive(Clone, Debug)]
pub(super) struct Directive {
    pub(super) name: &'static str,
    pub(super) setting: &'static Setting,
    pub(super) words: Rc<[String]>,
    pub(super) origin: SettingId,
    /// Options of the line, or directives of the block.
    pub(super) inner: Rc<Directives>,
}

impl Directive {
    pub(super) fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }

    pub(super) fn text(&self) -> &str {
        self.word(0)
    }

    /// Returns name and value of its key, if the key is right below `prefix`, such as `backend.health.`. Returns `None` also if code
    /// translates the directive, or the value is refused.
    pub(super) fn entry(
        &self,
        out: &mut TranslationBuilder,
        prefix: &str,
    ) -> Option<(&'static str, Value)> {
        let key = self.setting.ours.strip_prefix(prefix)?;
        let text = self.text();
        let time = |unit| milliseconds(text, unit).map(|time| format!("{time}ms").into());
        let value: Option<Value> = match self.setting.kind {
            _ if key.contains('.') => return None,
            ValueKind::Text => Some(text.into()),
            ValueKind::Path if key == "crl" => Some(vec![out.place(text)].into()),
            ValueKind::Path => Some(out.place(text).into()),
            ValueKind::Flag => Some(true.into()),
            ValueKind::Number => text.parse().ok().map(Value::Integer),
            ValueKind::Millis => time(1),
            ValueKind::Seconds => time(1000),
            ValueKind::List => Some(text.split(',').collect::<Vec<_>>().into()),
            _ => return None,
        };
        if value.is_none() {
            let accepted = "a whole number, or a time such as 30s";
            out.refuse(self.origin, "not of the shape that is needed", accepted);
        }
        Some((key, value?))
    }
}

/// Directives of a section, a block or a line, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Directives(BTreeMap<&'static str, Vec<Directive>>);

impl Directives {
    pub(super) fn push(&mut self, directive: Directive) {
        self.0.entry(directive.name).or_default().push(directive);
    }

    pub(super) fn replace(&mut self, directive: Directive) {
        self.0.insert(directive.name, vec![directive]);
    }

    /// Replaces directives by the last one of each name in `others`.
    pub(super) fn merge(&mut self, others: &Self) {
        for last in each(&[others]) {
            self.replace(last.clone());
        }
    }

    /// Puts relative paths of a name below `base`.
    pub(super) fn rebase(&mut self, name: &str, base: &str) {
        for given in self.0.get_mut(name).into_iter().flatten() {
            let path = Path::new(base).join(given.text());
            given.words = Rc::new([path.to_string_lossy().into_owned()]);
        }
    }

    pub(super) fn all(&self, name: &str) -> &[Directive] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    pub(super) fn last(&self, name: &str) -> Option<&Directive> {
        self.all(name).last()
    }
}

/// Returns the last directive of a name in the first scope that has one.
pub(super) fn find<'d>(name: &str, scopes: &[&'d Directives]) -> Option<&'d Directive> {
    scopes.iter().find_map(|scope| scope.last(name))
}

/// Returns the last directive of each name in the first scope that has one.
pub(super) fn each<'d>(scopes: &[&'d Directives]) -> impl Iterator<Item = &'d Directive> + use<'d> {
    let mut all = BTreeMap::new();
    for (name, given) in scopes.iter().flat_map(|scope| &scope.0) {
        all.entry(*name).or_insert(given);
    }
    all.into_values().filter_map(|given| given.last())
}

/// Sets the keys below `prefix` that directives translate to without code.
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

/// Sets a key if a directive is given.
pub(super) fn set_if(
    section: &mut SectionBuilder,
    key: &str,
    value: impl Into<Value>,
    given: Option<&Directive>,
) {
    if let Some(given) = given {
        section.set(key, value, given.origin);
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

/// Records each option of a line.
pub(super) fn options<'w>(
    out: &mut TranslationBuilder,
    table: &'static [Setting],
    mut words: impl Iterator<Item = &'w str>,
    line: usize,
) -> Directives {
    let mut options = Directives::default();
    while let Some(word) = words.next() {
        let Some((setting, name)) = named(table, word) else {
            out.note(&UNKNOWN_OPTION, Some(line), word);
            continue;
        };
        let value = match setting.kind {
            ValueKind::Flag | ValueKind::Mark => "",
            _ => words.next().unwrap_or_default(),
        };
        let origin = out.note_as((setting, name), line, value);
        let words = Rc::new([value.to_owned()]);
        let inner = Rc::default();
        options.push(Directive {
            name,
            setting,
            words,
            origin,
            inner,
        });
    }
    options
}

/// Names of sections: names of the other program, if they are valid and free.
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
            name = format!("{otherwise}-{}", self.number);
        }
        name
    }
}

/// Reads a time such as `1h30m`. A number without a unit counts `unit` milliseconds.
fn milliseconds(text: &str, unit: u64) -> Option<u64> {
    if let Ok(number) = text.parse::<u64>() {
        return number.checked_mul(unit);
    }
    if let Some(number) = text.strip_suffix("us") {
        return Some(number.parse::<u64>().ok()?.div_ceil(1000));
    }
    let time = duration(&text.replace(' ', "")).ok()?;
    u64::try_from(time.as_millis()).ok()
}

/// Sets a global time to the longest value, and records a difference for the others.
pub(super) fn longest<'d>(
    out: &mut TranslationBuilder,
    key: &str,
    given: impl Iterator<Item = &'d Directive>,
) {
    let mut times = Vec::new();
    for one in given {
        let unit = if one.setting.kind == ValueKind::Seconds {
            1000
        } else {
            1
        };
        match milliseconds(one.text(), unit) {
            // HAProxy waits without end.
            Some(0) if unit == 1 => times.push((YEAR, one.origin)),
            Some(time) => times.push((time.min(YEAR), one.origin)),
            None => out.refuse(one.origin, "not a time", "a time such as 30s"),
        }
    }
    let Some((most, origin)) = times.iter().max_by_key(|(time, _)| *time).copied() else {
        return;
    };
    for (_, origin) in times.into_iter().filter(|(time, _)| *time != most) {
        out.differs(origin, format!("{key} is one time for all, the longest"));
    }
    if most > 0 {
        out.put(key, format!("{most}ms"), origin);
    }
}

/// Adds a server with its own options. Options about health are set in the backend. A repeated address is lost.
pub(super) fn add_server<'d>(
    out: &mut TranslationBuilder,
    (section, health): (&mut SectionBuilder, &mut SectionBuilder),
    (at, server): (Option<String>, &Directive),
    options: impl Iterator<Item = &'d Directive>,
    seen: &mut BTreeSet<String>,
) {
    let Some(at) = at else {
        let accepted = "HOST:PORT, [V6]:PORT or the path of a socket";
        return out.refuse(server.origin, "not the address of a server", accepted);
    };
    if !seen.insert(at.clone()) {
        return out.lost(
            server.origin,
            "an earlier server of the backend has this address",
        );
    }
    let mut table = Table::from_iter([("address".to_owned(), at.into())]);
    for given in options {
        if let Some((key, value)) = given.entry(out, "backend.server.") {
            table.insert(key.to_owned(), value);
        } else if let Some((key, value)) = given.entry(out, "backend.health.")
            && !health.agree(key, value, given.origin)
        {
            out.differs(
                given.origin,
                "all servers of the backend have what the first has",
            );
        }
    }
    section.push("server", table, server.origin);
}

/// Returns host and port in becket's notation. `[::]` and `*` are every address.
fn endpoint(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some(address(if host == "::" { "" } else { host }, port))
}

/// Returns an address to listen on in becket's notation.
pub(super) fn listen_address(text: &str) -> Option<String> {
    let at = endpoint(text)?;
    let address = ListenAddress::parse(&at).ok()?.address;
    let is_usable = !matches!(address, Address::Name(name, _) if name != "localhost");
    is_usable.then_some(at)
}

/// Returns the address of a server in becket's notation.
pub(super) fn server_address(text: &str) -> Option<String> {
    let path = Some(text.to_owned()).filter(|_| text.starts_with('/'));
    let at = path.or_else(|| endpoint(text))?;
    ServerAddress::parse(&at).is_ok().then_some(at)
}

static UNKNOWN_OPTION: Setting = Setting::lost(
    ValueKind::Mark,
    "unknown option",
    "becket has no such option: see docs/reference/configuration.md",
);
/// A directive that is in no table.
pub(super) static UNKNOWN_DIRECTIVE: Setting = Setting::lost(
    ValueKind::Own,
    "unknown directive",
    "no counterpart: leave it to the server behind becket, or see docs/out-of-scope.md",
);
/// A directive in a section or block that is not translated.
pub(super) static WITHIN: Setting =
    Setting::lost(ValueKind::Own, "directive", "as the block around it");
/// Maximum bytes of a configuration file.
pub(super) const MOST_TEXT: usize = 1 << 20;
const YEAR: u64 = 365 * 86_400_000;
