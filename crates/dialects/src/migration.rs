//! Writes the configuration of another program as `becket.toml`: only values that differ from the
//! defaults, each with its origin.

use serde::Serialize;

use super::{MigrationSource, Remark, SettingSupport, Translation};
use becket_config::error::{Problem, Report};
use becket_config::read::read;
use becket_config::write::{Comments, write};

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
            let origins = Origins {
                translation,
                name,
                default: default.unwrap_or_default(),
            };
            write(&file, title + &lost(translation), &origins)
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

struct Origins<'a> {
    translation: &'a Translation,
    name: &'a str,
    /// Comment on keys that are written only because the original program has another default.
    default: String,
}

impl Comments for Origins<'_> {
    fn otherwise(&self, section: &str) -> String {
        // A section with an origin was configured, so its keys are not defaults of the original
        // program.
        if self.translation.origins.contains_key(section) {
            String::new()
        } else {
            self.default.clone()
        }
    }

    fn at(&self, path: &str) -> String {
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

/// Width of the report in columns.
const COLUMNS: usize = 120;
