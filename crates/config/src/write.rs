//! Writes a [`File`] as TOML: only values that differ from the defaults, each with a comment that
//! the caller supplies.

use serde::Serialize;
use toml::{Table, Value};

use crate::backend::{Backend, HealthSection, ServerSection};
use crate::cluster::Cluster;
use crate::file::File;
use crate::listener::{ListenerSection, Route};
use crate::policy::{Policy, ServerTls};

/// Comments on sections and keys.
pub trait Comments {
    /// Returns the comment on the section, key or list element at a key path such as
    /// `listener[web].bind[0]`, with two spaces and `#` before it; empty if there is none.
    fn at(&self, path: &str) -> String;

    /// Returns the comment on a key of `section` that has none of its own.
    fn otherwise(&self, _section: &str) -> String {
        String::new()
    }
}

/// No comments.
impl Comments for () {
    fn at(&self, _path: &str) -> String {
        String::new()
    }
}

/// Writes a configuration after `title`, which is empty or lines of comments.
pub fn write(file: &File, title: String, comments: &dyn Comments) -> String {
    let writer = TomlWriter {
        text: title,
        comments,
    };
    writer.write(file)
}

struct TomlWriter<'a> {
    text: String,
    comments: &'a dyn Comments,
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
            table(&Route::default()),
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
        self.text += &format!("{header}{}\n", self.comments.at(path));
        // Sorted by name, but the name and address of the section come first.
        let mut keys: Vec<(&String, &Value)> = section.iter().collect();
        keys.sort_by_key(|(key, _)| (*key != "name", *key != "bind", *key != "address", *key));
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
            self.key(path, key, value);
        }
    }

    fn key(&mut self, section: &str, key: &str, value: &Value) {
        let path = format!("{section}.{key}");
        let mut comment = self.comments.at(&path);
        match value {
            Value::Array(list) if list.len() > 1 => {
                self.text += &format!("{key} = [{comment}\n");
                for (index, one) in list.iter().enumerate() {
                    let comment = self.comments.at(&format!("{path}[{index}]"));
                    self.text += &format!("    {one},{comment}\n");
                }
                self.text += "]\n";
            }
            value => {
                if comment.is_empty() {
                    comment = self.comments.at(&format!("{path}[0]"));
                }
                if comment.is_empty() && !["name", "backend", "policy"].contains(&key) {
                    comment = self.comments.otherwise(section);
                }
                self.text += &format!("{key} = {value}{comment}\n");
            }
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
