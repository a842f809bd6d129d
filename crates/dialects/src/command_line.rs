//! Reads command lines of hitch and stud with clap: options at any position, joined short options,
//! and unambiguous prefixes of long options.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};

#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramOption {
    pub(super) long: &'static str,
    pub(super) short: Option<char>,
    pub(super) value: OptionValue,
    /// Name of the setting that this option sets, or an action such as `--config`.
    pub(super) sets: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OptionValue {
    Absent,
    /// The value may be omitted. If present, it must be joined to the option: `--daemon=on`.
    Optional,
    Required,
}

pub(super) fn grammar(program: &'static str, options: &[ProgramOption]) -> Command {
    let arguments = options.iter().map(|option| {
        let argument = Arg::new(option.long)
            .long(option.long)
            .short(option.short)
            .action(ArgAction::Append);
        match option.value {
            OptionValue::Absent => argument.num_args(0).default_missing_value("on"),
            OptionValue::Optional => {
                let argument = argument.num_args(0..=1).require_equals(true);
                argument.default_missing_value("on").value_name("on|off")
            }
            OptionValue::Required => argument.allow_hyphen_values(true).value_name("VALUE"),
        }
    });
    let operands = Arg::new(PEM).num_args(0..).action(ArgAction::Append);
    Command::new(program)
        .no_binary_name(true)
        .infer_long_args(true)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(arguments)
        .arg(operands.value_name("PEM"))
        .after_help(format!(
            "This is becket, a drop-in replacement for {program}. See docs/reference/drop-in.md for differences."
        ))
}

/// Reads options in command-line order, followed by operands. Returns pairs of setting and value.
pub(super) fn read(
    program: &'static str,
    options: &[ProgramOption],
    arguments: &[String],
) -> Result<Vec<(&'static str, String)>, clap::Error> {
    let arguments = arguments.iter().map(OsString::from);
    let matches = grammar(program, options).try_get_matches_from(arguments)?;
    let mut found = Vec::new();
    let known = options.iter().map(|option| (option.long, option.sets, 0));
    for (id, sets, at_end) in known.chain([(PEM, PEM, usize::MAX)]) {
        let indices = matches.indices_of(id).into_iter().flatten();
        let values = matches.get_many::<String>(id).into_iter().flatten();
        found.extend(
            indices
                .zip(values)
                .map(|(index, value)| (index.max(at_end), sets, value)),
        );
    }
    found.sort_by_key(|(index, ..)| *index);
    let found = found.into_iter();
    Ok(found
        .map(|(_, sets, value)| (sets, value.clone()))
        .collect())
}

/// Setting for operands, which are certificate files.
const PEM: &str = "pem-file";

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: &[ProgramOption] = &[
        option("quiet", Some('q'), OptionValue::Optional),
        option("user", Some('u'), OptionValue::Required),
        option("test", Some('t'), OptionValue::Absent),
        option("tls", None, OptionValue::Absent),
    ];

    const fn option(long: &'static str, short: Option<char>, value: OptionValue) -> ProgramOption {
        ProgramOption {
            long,
            short,
            value,
            sets: long,
        }
    }

    #[test]
    fn options_are_found_in_every_position_and_form() {
        let line = "a -tqu me --user=you --use him --quiet=off - -uthem -- --test";
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let found = read("p", OPTIONS, &words).unwrap();
        let shown: Vec<String> = found
            .iter()
            .map(|(sets, it)| format!("{sets}={it}"))
            .collect();
        assert_eq!(
            shown.join(" "),
            "test=on quiet=on user=me user=you user=him quiet=off user=them pem-file=a pem-file=- pem-file=--test"
        );
        for refused in ["--t", "--nothing=1", "-x", "--user", "-u", "--test=off"] {
            assert!(
                read("p", OPTIONS, &[refused.to_owned()]).is_err(),
                "{refused}"
            );
        }
    }
}
