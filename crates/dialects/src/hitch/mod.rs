//! Translates hitch's command line and configuration file.
//!
//! `lexer` parses the file, `table` lists the settings, `scope` collects them by block, `reader`
//! translates them to listeners and a backend, `policy` to policies, and `shared_cache` translates
//! session sharing. hitch descends from stud, which has the same settings with its own grammar, so
//! `stud` uses the same reader.

mod lexer;
mod policy;
mod reader;
mod scope;
mod shared_cache;
mod table;
#[cfg(test)]
mod tests;

use std::path::Path;

use self::lexer::Assignment;
pub(super) use self::lexer::Value;
pub(super) use self::reader::HitchTranslator;
use self::scope::{CertificateEntry, Scope};
use self::table::{CONFIG, DEFAULTS, HELP, TEST, VERSION};
pub(super) use self::table::{SETTINGS, options};
use super::command_line;
use super::invocation::{CommandLineError, DialectCommand, Invocation, InvocationStep};
use super::setting::{Setting, ValueKind};
use super::translation::Translation;
use becket_config::error::Problem;

/// Parses a command line of hitch or stud.
pub(super) fn command(
    program: &'static str,
    settings: &[Setting],
    arguments: &[String],
) -> Result<DialectCommand, CommandLineError> {
    let mut invocation = Invocation::default();
    for (name, value) in command_line::read(program, &options(settings), arguments)? {
        match name {
            VERSION => return Ok(DialectCommand::Version),
            HELP => return Ok(DialectCommand::Help),
            DEFAULTS => return Ok(DialectCommand::Defaults),
            TEST => invocation.is_test = true,
            CONFIG if invocation.file.is_some() => return Err(CommandLineError::TwoFiles),
            CONFIG => {
                invocation.file = Some(value);
                invocation.steps.push(InvocationStep::File);
            }
            name => invocation.steps.push(InvocationStep::Set(name, value)),
        }
    }
    Ok(DialectCommand::Run(invocation))
}

/// Translates a configuration of hitch.
pub(super) fn translate(invocation: &Invocation, text: &[u8], folder: &Path) -> Translation {
    let mut reader = HitchTranslator::new(folder, "hitch", SETTINGS, "v2");
    for step in &invocation.steps {
        match step {
            InvocationStep::Set(name, value) => reader.option(name, value),
            InvocationStep::File => match lexer::read(&String::from_utf8_lossy(text)) {
                Ok(settings) if settings.is_empty() => {
                    let problem = Problem::new("", "no setting");
                    let accepted = "the settings of hitch.conf(5)";
                    reader.out.problem(problem.accepted(accepted));
                }
                Ok(settings) => settings.into_iter().for_each(|it| file(&mut reader, it)),
                Err(problem) => reader.out.problem(problem),
            },
        }
    }
    reader.finish()
}

/// Translates a configuration of hitch, and omits frontends with faults, which are reported as
/// lost. Returns every fault if one is outside of frontends, or if all frontends have faults.
pub(super) fn migrated(text: &[u8], folder: &Path) -> Translation {
    let whole = translate(&Invocation::of_file(""), text, folder);
    let settings = lexer::read(&String::from_utf8_lossy(text)).unwrap_or_default();
    let mut reader = HitchTranslator::new(folder, "hitch", SETTINGS, "v2");
    let (mut kept, mut explained) = (0, 0);
    for given in settings {
        let is_frontend = given.name.eq_ignore_ascii_case(LEFT_OUT.theirs);
        let lines = given.line..=given.last_line();
        let is_of = |it: &&Problem| it.line.is_some_and(|line| lines.contains(&line));
        let faults = whole.problems.iter().filter(|_| is_frontend).filter(is_of);
        let faults: Vec<String> = faults.map(Problem::to_string).collect();
        if faults.is_empty() {
            kept += usize::from(is_frontend);
            file(&mut reader, given);
        } else {
            explained += faults.len();
            let origin = reader.out.note(&LEFT_OUT, Some(given.line), "");
            let why = format!("left out: {}", faults.join("; "));
            reader.out.lost(origin, why);
        }
    }
    if whole.problems.is_empty() || kept == 0 || explained < whole.problems.len() {
        return whole;
    }
    reader.finish()
}

/// Setting of the remark about an omitted frontend.
static LEFT_OUT: Setting = Setting::lost(ValueKind::Block, "frontend", "");

/// Processes a setting or block of the file.
fn file(reader: &mut HitchTranslator, given: Assignment) {
    let Some(setting) = setting(reader, &given, |name| !BLOCK_ONLY.contains(&name)) else {
        return;
    };
    match (given.value, setting.theirs) {
        (Value::Block(inner), "frontend") => {
            let origin = reader.out.note(setting, Some(given.line), "{ .. }");
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
                    value => reader.take(&mut scope, setting, Some(given.line), &value),
                }
            }
            reader.frontends.push(scope);
        }
        (Value::Block(inner), _) => {
            let entry = certificate(reader, setting, given.line, inner);
            reader.global.certificates.extend(entry);
        }
        (value, _) => reader.take_global(setting, Some(given.line), &value),
    }
}

/// Returns the certificate of a block.
fn certificate(
    reader: &mut HitchTranslator,
    setting: &'static Setting,
    line: usize,
    inner: Vec<Assignment>,
) -> Option<CertificateEntry> {
    let origin = reader.out.note(setting, Some(line), "{ .. }");
    let mut scope = Scope::new(origin);
    for given in inner {
        if let Some(setting) = self::setting(reader, &given, |name| CERTIFICATE.contains(&name)) {
            reader.take(&mut scope, setting, Some(given.line), &given.value);
        }
    }
    let Some((path, at)) = scope.text("cert") else {
        let accepted = "{ cert = \"site.pem\" }";
        reader.out.refuse(origin, "without cert", accepted);
        return None;
    };
    let mut entry = CertificateEntry::new(path.to_owned(), at);
    entry.block = scope;
    Some(entry)
}

/// Returns the setting with this name, if it is allowed here.
fn setting(
    reader: &mut HitchTranslator,
    given: &Assignment,
    fits: impl Fn(&str) -> bool,
) -> Option<&'static Setting> {
    let known = SETTINGS.iter().filter(|setting| {
        let name = setting.theirs;
        !OPTION_ONLY.contains(&name) && fits(name)
    });
    let place = (given.name.as_str(), given.line);
    let accepted = "the settings of hitch.conf(5)";
    let fault = "unknown, or not allowed here";
    let setting = reader.out.find(known, place, fault, accepted)?;
    if matches!(given.value, Value::Block(_)) && setting.kind != ValueKind::Block {
        let problem = Problem::new(setting.theirs, "a block").line(given.line);
        reader.out.problem(problem.accepted("a value"));
        return None;
    }
    Some(setting)
}

/// Settings that are allowed in a frontend block.
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
/// Settings that are allowed in a certificate block.
const CERTIFICATE: &[&str] = &[
    "cert",
    "private-key",
    "ocsp-resp-file",
    "ocsp-verify-staple",
    "client-verify",
    "client-verify-ca",
];
/// Settings that are allowed only in a block.
const BLOCK_ONLY: &[&str] = &[
    "host",
    "port",
    "match-global-certs",
    "cert",
    "private-key",
    "ocsp-resp-file",
];
/// Settings that exist only on the command line.
const OPTION_ONLY: &[&str] = &["client", "dbg-listen"];
