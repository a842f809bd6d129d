//! Writes the configuration of another program as `becket.toml`: only values that differ from the
//! defaults, each with its origin.

use serde::Serialize;
use toml::{Table, Value};

use super::{MigrationSource, Remark, SettingSupport, Translation};
use becket_config::backend::{Backend, HealthSection, ServerSection};
use becket_config::cluster::Cluster;
use becket_config::error::{Problem, Report};
use becket_config::file::File;
use becket_config::listener::ListenerSection;
use becket_config::policy::{Policy, ServerTls};
use becket_config::read::read;

#[derive(Debug, Serialize)]
pub struct Migration {
    /// Content of the new `becket.toml`; `None` if there are errors.
    pub toml: Option<String>,
    pub settings: Vec<Remark>,
    pub errors: Vec<Problem>,
}

/// Writes a translated configuration as `becket.toml`; `name` is the original file.
pub fn migrate(source: MigrationSource, name: &str, translation: &Translation) -> Migration {
    let reading = read("", &translation.table);
    let mut errors = reading.problems;
    let mut report = Report::default();
    if let Some(file) = &reading.file {
        file.check(&mut report);
    }
    errors.extend(report.errors);
    if !translation.problems.is_empty() {
        // A key may be missing only because its setting was rejected, which is reported already.
        errors.retain(|problem| !problem.fault.starts_with("missing"));
    }
    errors
        .iter_mut()
        .for_each(|problem| translation.place(problem));
    errors.extend(translation.problems.iter().cloned());
    errors.sort_by(|one, other| one.place().cmp(&other.place()));
    let file = reading.file.filter(|_| errors.is_empty());
    Migration {
        toml: file.map(|file| {
            let program = source.name();
            let title = format!("# Written by \"becket migrate --from {program}\" from {name}.\n");
            let is_drop_in = matches!(source, MigrationSource::DropIn(_));
            let default = is_drop_in.then(|| format!("  # default of {program}"));
            let writer = TomlWriter {
                translation,
                name,
                text: title + &lost(translation),
                default: default.unwrap_or_default(),
            };
            writer.write(&file)
        }),
        settings: translation.report.clone(),
        errors,
    }
}

/// Formats a comment for each setting without a counterpart.
fn lost(translation: &Translation) -> String {
    let mut text = String::new();
    for remark in &translation.report {
        if remark.verdict == SettingSupport::Lost {
            let (place, why) = (remark.place(), &remark.why);
            let shown = shown(remark);
            let line = format!("# Lost, {place}: {shown}: {why}");
            text.extend(line.chars().filter(|c| !c.is_control()));
            text += "\n";
        }
    }
    text
}

fn shown(remark: &Remark) -> String {
    match &*remark.value {
        "" => remark.theirs.to_owned(),
        value => format!("{} = {value}", remark.theirs),
    }
}

impl Migration {
    /// Returns `true` if at least one setting could not be translated.
    pub fn has_lost(&self) -> bool {
        let mut settings = self.settings.iter();
        settings.any(|remark| remark.verdict == SettingSupport::Lost)
    }

    /// Formats the report, one wrapped line per setting.
    pub fn page(&self) -> String {
        let place = |remark: &Remark| match (&remark.file, remark.line) {
            (_, None) => String::new(),
            (None, Some(line)) => line.to_string(),
            (Some(file), Some(line)) => format!("{file}:{line}"),
        };
        // Locations in included files do not determine the column width, because they may be long.
        let places = self.settings.iter().filter(|it| it.file.is_none());
        let places = places.map(|it| place(it).chars().count());
        let width = places.max().unwrap_or_default();
        let mut page = String::new();
        for remark in &self.settings {
            let (shown, verdict) = (shown(remark), remark.verdict.word());
            let mut text = match remark.ours {
                "" => format!("{shown}: {verdict}"),
                ours => format!("{shown}: {verdict} ({ours})"),
            };
            if !remark.why.is_empty() {
                text += &format!(": {}", remark.why);
            }
            let mut line = format!("{:>width$} ", place(remark));
            for word in text.split(|c: char| c.is_whitespace() || c.is_control()) {
                let room = COLUMNS - width - 6;
                for part in word.chars().collect::<Vec<char>>().chunks(room) {
                    if line.chars().count() + 1 + part.len() > COLUMNS {
                        page += line.trim_end();
                        page += "\n";
                        line = " ".repeat(width + 4);
                    }
                    line.push(' ');
                    line.extend(part);
                }
            }
            page += &line;
            page += "\n";
        }
        page
    }
}

struct TomlWriter<'a> {
    translation: &'a Translation,
    name: &'a str,
    text: String,
    /// Comment on keys that are written only because the original program has another default.
    default: String,
}

impl TomlWriter<'_> {
    fn write(mut self, file: &File) -> String {
        let whole = table(file);
        let defaults = table(&File::default());
        // Compares `[cluster]` with its own defaults, because `File::default` contains no cluster.
        let cluster = table(&Cluster::default());
        for (kind, default) in [
            ("listener", table(&ListenerSection::default())),
            ("policy", table(&Policy::default())),
            ("backend", table(&Backend::default())),
        ] {
            for section in array(&whole, kind) {
                let name = section.get("name").and_then(Value::as_str);
                let path = format!("{kind}[{}]", name.unwrap_or_default());
                self.section(&format!("\n[[{kind}]]"), &path, section, &default);
                self.nested(&path, kind, section);
            }
        }
        for (name, section) in &whole {
            let default = match name.as_str() {
                "cluster" => Some(&cluster),
                name => defaults.get(name).and_then(Value::as_table),
            };
            if let (Value::Table(section), Some(default)) = (section, default)
                && section != default
            {
                self.section(&format!("\n[{name}]"), name, section, default);
            }
        }
        self.text
    }

    fn nested(&mut self, path: &str, kind: &str, section: &Table) {
        let defaults = [
            table(&ServerTls::default()),
            table(&HealthSection::default()),
            table(&ServerSection::default()),
            Table::new(),
        ];
        for (name, default) in NESTED.into_iter().zip(defaults) {
            let path = format!("{path}.{name}");
            match section.get(name) {
                Some(Value::Table(inner)) if name == "tls" || *inner != default => {
                    self.section(&format!("[{kind}.{name}]"), &path, inner, &default);
                }
                _ => {
                    for (index, inner) in array(section, name).enumerate() {
                        let path = format!("{path}[{index}]");
                        self.section(&format!("[[{kind}.{name}]]"), &path, inner, &default);
                    }
                }
            }
        }
    }

    /// Writes a header, and the keys of its table that differ from their defaults.
    fn section(&mut self, header: &str, path: &str, section: &Table, default: &Table) {
        self.text += &format!("{header}{}\n", self.comment(path));
        // Sorted by name, but the name and address of the section come first.
        let mut keys: Vec<(&String, &Value)> = section.iter().collect();
        keys.sort_by_key(|(key, _)| (*key != "name", *key != "bind", *key != "address", *key));
        // A section with an origin was configured, so its keys are not defaults of the original
        // program.
        let is_known = self.translation.origins.contains_key(path);
        for (key, value) in keys {
            let is_nested =
                NESTED.contains(&key.as_str()) && (value.is_table() || value.is_array());
            let is_empty = value.as_array().is_some_and(Vec::is_empty);
            if default.get(key) == Some(value)
                || is_nested
                || (is_empty && !default.contains_key(key))
            {
                continue;
            }
            let path = format!("{path}.{key}");
            let mut comment = self.comment(&path);
            match value {
                Value::Array(list) if list.len() > 1 => {
                    self.text += &format!("{key} = [{comment}\n");
                    for (index, one) in list.iter().enumerate() {
                        let comment = self.comment(&format!("{path}[{index}]"));
                        self.text += &format!("    {one},{comment}\n");
                    }
                    self.text += "]\n";
                }
                value => {
                    let is_link = ["name", "backend", "policy"].contains(&key.as_str());
                    if comment.is_empty() {
                        comment = self.comment(&format!("{path}[0]"));
                    }
                    if comment.is_empty() && !is_link && !is_known {
                        comment.clone_from(&self.default);
                    }
                    self.text += &format!("{key} = {value}{comment}\n");
                }
            }
        }
    }

    fn comment(&self, path: &str) -> String {
        let Some(remarks) = self.translation.origins.get(path) else {
            return String::new();
        };
        let remarks = remarks.iter().map(|it| &self.translation.report[*it]);
        let origin = |remark: &Remark| {
            let file = remark.file.as_deref().unwrap_or(self.name);
            let line = remark.line.map(|line| format!(":{line}"));
            format!("{file}{} {}", line.unwrap_or_default(), remark.theirs)
        };
        let mut origins: Vec<String> = remarks.map(origin).collect();
        origins.dedup();
        match &*origins.join(", ") {
            "" => String::new(),
            origins => format!("  # {origins}"),
        }
    }
}

/// Serializes a section with all keys, including default values.
fn table<T: Serialize>(section: &T) -> Table {
    // Serialization cannot fail: a test serializes every value that the parser accepts.
    Table::try_from(section).unwrap_or_default()
}

fn array<'t>(table: &'t Table, key: &str) -> impl Iterator<Item = &'t Table> {
    let list = table.get(key).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_table)
}

/// Tables and arrays of tables within a section.
const NESTED: [&str; 4] = ["tls", "health", "server", "route"];
/// Width of the report in columns.
const COLUMNS: usize = 120;
