//! hitch: its command line, its file, and what they mean here.
//!
//! `lexer` reads the file, `table` has the settings, `scope` keeps what was said where, `reader` makes listeners and a
//! backend of it, `policy` policies, `shared_cache` what comes from other hosts. stud, of which
//! hitch descends, has the same settings in a grammar of its own, and the same reader.

mod lexer;
mod policy;
mod reader;
mod scope;
mod shared_cache;
mod table;
#[cfg(test)]
mod tests;

use std::path::Path;

use self::lexer::{Given, Read, Value};
pub(super) use self::reader::Reader;
pub(super) use self::scope::Written;
use self::scope::{Pem, Scope};
pub(super) use self::table::{CONFIG, DEFAULTS, HELP, OPTIONS, SETTINGS, TEST, VERSION};
use super::getopt::{self, Found, Opt};
use super::setting::{Kind, Setting};
use super::{Command, Invocation, Step, Translation};
use becket_config::error::{Problem, shortened};
use becket_config::notation::meant;

/// Reads a command line of hitch.
pub(super) fn command(arguments: &[String]) -> Result<Command, String> {
    command_of("hitch", OPTIONS, arguments)
}

/// Reads a command line of hitch or stud.
pub(super) fn command_of(
    program: &str,
    options: &'static [Opt],
    arguments: &[String],
) -> Result<Command, String> {
    let invalid = |said: String| {
        format!("{said}\nInvalid command line parameters. Run {program} --help for instructions.")
    };
    let mut invocation = Invocation::default();
    let mut certificates = Vec::new();
    for found in getopt::read(program, options, arguments).map_err(invalid)? {
        match found {
            Found::Opt(VERSION, _) => return Ok(Command::Version),
            Found::Opt(HELP, _) => return Ok(Command::Help),
            Found::Opt(DEFAULTS, _) => return Ok(Command::Defaults),
            Found::Opt(TEST, _) => invocation.is_test = true,
            Found::Opt(CONFIG, file) => {
                if invocation.file.is_some() {
                    return Err("one --config is read, and there are two".to_owned());
                }
                invocation.file = file;
                invocation.steps.push(Step::File);
            }
            Found::Opt(name, value) => {
                let value = value.unwrap_or_else(|| "on".to_owned());
                invocation.steps.push(Step::Set(name, value));
            }
            Found::Operand(path) => certificates.push(Step::Set("pem-file", path)),
        }
    }
    // As getopt(3) has it, operands come last; the last of all is the default.
    invocation.steps.extend(certificates);
    Ok(Command::Run(invocation))
}

/// Reads a configuration of hitch.
pub(super) fn translate(invocation: &Invocation, text: &[u8], folder: &Path) -> Translation {
    let mut reader = Reader::new(folder, "hitch", SETTINGS, "v2");
    for step in &invocation.steps {
        match step {
            Step::Set(name, value) => reader.option(name, value),
            Step::File => {
                let text = String::from_utf8_lossy(text);
                let mut is_empty = true;
                lexer::read(&text, |found| {
                    match found {
                        Read::Given(given) => {
                            is_empty = false;
                            file(&mut reader, given);
                        }
                        Read::Fault(problem) => reader.draft.problem(problem),
                    }
                    !reader.draft.is_full()
                });
                if is_empty {
                    let problem = Problem {
                        line: Some(1),
                        ..Problem::new("", "no setting")
                    };
                    reader.draft.problem(
                        problem.accepted("a setting such as backend = \"[127.0.0.1]:8000\""),
                    );
                }
            }
        }
    }
    reader.finish()
}

/// Takes a setting of the file.
fn file(reader: &mut Reader, given: Given) {
    let is_of_block = |name: &str| {
        [FRONTEND, CERTIFICATE]
            .iter()
            .any(|names| names.contains(&name))
            && !GLOBAL_TOO.contains(&name)
    };
    let Some(setting) = setting(reader, &given, |name| !is_of_block(name)) else {
        return;
    };
    match (given.value, setting.theirs) {
        (Value::Block(inner), "frontend") => {
            let origin = reader.draft.note(setting, Some(given.line), "{ .. }");
            let mut scope = Scope::new(origin);
            for given in inner {
                let Some(setting) = self::setting(reader, &given, |name| FRONTEND.contains(&name))
                else {
                    continue;
                };
                match given.value {
                    Value::Block(inner) => scope
                        .certificates
                        .extend(certificate(reader, setting, given.line, inner)),
                    value => reader.take(&mut scope, setting, Some(given.line), &written(value)),
                }
            }
            reader.frontend(scope);
        }
        (Value::Block(inner), _) => {
            let entry = certificate(reader, setting, given.line, inner);
            reader.global.certificates.extend(entry);
        }
        (value, _) => reader.take_global(setting, Some(given.line), &written(value)),
    }
}

/// The block of a certificate.
fn certificate(
    reader: &mut Reader,
    setting: &'static Setting,
    line: usize,
    inner: Vec<Given>,
) -> Option<Pem> {
    let origin = reader.draft.note(setting, Some(line), "{ .. }");
    let mut scope = Scope::new(origin);
    for given in inner {
        if let Some(setting) = self::setting(reader, &given, |name| CERTIFICATE.contains(&name)) {
            reader.take(&mut scope, setting, Some(given.line), &written(given.value));
        }
    }
    reader.pem(&scope)
}

fn written(value: Value) -> Written {
    match value {
        Value::Text(text) => Written::Text(text),
        Value::Words(words) => Written::Words(words),
        Value::Block(_) => Written::Words(Vec::new()),
    }
}

/// The setting of a name that may stand where it does.
fn setting(
    reader: &mut Reader,
    given: &Given,
    fits: impl Fn(&str) -> bool,
) -> Option<&'static Setting> {
    let known = SETTINGS
        .iter()
        .filter(|setting| !OPTION_ONLY.contains(&setting.theirs));
    let mut known = known.filter(|setting| fits(setting.theirs));
    let found = known.clone().find(|setting| setting.theirs == given.name);
    let is_block = matches!(given.value, Value::Block(_));
    let (fault, accepted) = match found {
        Some(setting) if is_block && setting.kind != Kind::Block => ("a block", "a value"),
        Some(setting) => return Some(setting),
        None => (
            "unknown, or not known here",
            "the settings of hitch.conf(5)",
        ),
    };
    if reader.draft.is_full() {
        return None;
    }
    let close = Some(&given.name).filter(|name| found.is_none() && name.len() < 64);
    let close = close.and_then(|name| meant(name, known.by_ref().map(|setting| setting.theirs)));
    let fault = match close {
        Some(name) => format!("{fault} (did you mean {name}?)"),
        None => fault.to_owned(),
    };
    let problem = Problem {
        line: Some(given.line),
        ..Problem::new(shortened(&given.name), fault)
    };
    reader.draft.problem(problem.accepted(accepted));
    None
}

/// What may stand in the block of a frontend.
const FRONTEND: &[&str] = &[
    "host",
    "port",
    "pem-file",
    "match-global-certs",
    "sni-nomatch-abort",
    "tls",
    "ssl",
    "tls-protos",
    "ciphers",
    "ciphersuites",
    "prefer-server-ciphers",
    "client-verify",
    "client-verify-ca",
];
/// What may stand in the block of a certificate.
const CERTIFICATE: &[&str] = &[
    "cert",
    "private-key",
    "ocsp-resp-file",
    "ocsp-verify-staple",
    "client-verify",
    "client-verify-ca",
];
/// What may stand in a block and outside of all.
const GLOBAL_TOO: &[&str] = &[
    "pem-file",
    "sni-nomatch-abort",
    "tls",
    "ssl",
    "tls-protos",
    "ciphers",
    "ciphersuites",
    "prefer-server-ciphers",
    "client-verify",
    "client-verify-ca",
    "ocsp-verify-staple",
];
/// What only the command line knows.
const OPTION_ONLY: &[&str] = &["client", "dbg-listen"];
