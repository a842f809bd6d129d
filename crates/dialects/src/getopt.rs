//! Command lines as getopt_long(3) reads them: options anywhere, short ones joined, long ones shortened as far as they are
//! clear, and `--` before what only looks like one.

/// Whether an option has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Argument {
    No,
    Needed,
    /// Only joined: `--daemon=on`.
    Optional,
}

/// An option of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opt {
    pub(super) long: &'static str,
    pub(super) short: Option<char>,
    pub(super) argument: Argument,
    /// The setting that it gives, or a word for what it does.
    pub(super) sets: &'static str,
}

/// What was found, in its order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// An option: what it sets, and its value.
    Opt(&'static str, Option<String>),
    /// What is no option.
    Operand(String),
}

/// Reads a command line of `program`.
pub(super) fn read(
    program: &str,
    options: &'static [Opt],
    arguments: &[String],
) -> Result<Vec<Found>, String> {
    let mut found = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == "--" {
            found.extend(rest.by_ref().cloned().map(Found::Operand));
        } else if let Some(long) = argument.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            let option = named(options, name)
                .ok_or_else(|| format!("{program}: unrecognized option '{argument}'"))?;
            let value = match (option.argument, value) {
                (Argument::No, Some(_)) => {
                    return Err(format!(
                        "{program}: option '--{}' doesn't allow an argument",
                        option.long
                    ));
                }
                (Argument::Needed, None) => {
                    let next = rest.next().cloned();
                    Some(next.ok_or_else(|| {
                        format!("{program}: option '--{}' requires an argument", option.long)
                    })?)
                }
                (_, value) => value,
            };
            found.push(Found::Opt(option.sets, value));
        } else if argument.len() > 1 && argument.starts_with('-') {
            let mut letters = argument[1..].chars();
            while let Some(letter) = letters.next() {
                let option = options.iter().find(|option| option.short == Some(letter));
                let option =
                    option.ok_or_else(|| format!("{program}: invalid option -- '{letter}'"))?;
                let value = match option.argument {
                    Argument::No | Argument::Optional => None,
                    Argument::Needed => {
                        let joined = letters.as_str().to_owned();
                        letters = "".chars();
                        let value = if joined.is_empty() {
                            rest.next().cloned()
                        } else {
                            Some(joined)
                        };
                        Some(value.ok_or_else(|| {
                            format!("{program}: option requires an argument -- '{letter}'")
                        })?)
                    }
                };
                found.push(Found::Opt(option.sets, value));
            }
        } else {
            found.push(Found::Operand(argument.clone()));
        }
    }
    Ok(found)
}

/// The option of a name, or the only one that begins so.
fn named(options: &'static [Opt], name: &str) -> Option<&'static Opt> {
    let exact = options.iter().find(|option| option.long == name);
    let mut begun = options
        .iter()
        .filter(|option| option.long.starts_with(name));
    exact.or_else(|| {
        let only = begun.next()?;
        let sets = only.sets;
        begun.all(|other| other.sets == sets).then_some(only)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: &[Opt] = &[
        Opt {
            long: "quiet",
            short: Some('q'),
            argument: Argument::Optional,
            sets: "quiet",
        },
        Opt {
            long: "user",
            short: Some('u'),
            argument: Argument::Needed,
            sets: "user",
        },
        Opt {
            long: "test",
            short: Some('t'),
            argument: Argument::No,
            sets: "test",
        },
        Opt {
            long: "tls",
            short: None,
            argument: Argument::No,
            sets: "tls",
        },
    ];

    fn of(line: &str) -> Result<Vec<Found>, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        read("p", OPTIONS, &words)
    }

    #[test]
    fn options_are_found_wherever_and_however_they_stand() {
        let opt = |name, value: Option<&str>| Found::Opt(name, value.map(str::to_owned));
        let operand = |text: &str| Found::Operand(text.to_owned());
        let found = of("a -tqu me --user=you --use him --quiet=off - -uthem -- --test").unwrap();
        let expected = [
            operand("a"),
            opt("test", None),
            opt("quiet", None),
            opt("user", Some("me")),
            opt("user", Some("you")),
            opt("user", Some("him")),
            opt("quiet", Some("off")),
            operand("-"),
            opt("user", Some("them")),
            operand("--test"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_no_option_is_said_as_getopt_says_it() {
        for (line, said) in [
            ("--t", "p: unrecognized option '--t'"),
            ("--nothing=1", "p: unrecognized option '--nothing=1'"),
            ("-x", "p: invalid option -- 'x'"),
            ("--test=1", "p: option '--test' doesn't allow an argument"),
            ("--user", "p: option '--user' requires an argument"),
            ("-u", "p: option requires an argument -- 'u'"),
        ] {
            assert_eq!(of(line), Err(said.to_owned()));
        }
    }
}
