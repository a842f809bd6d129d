//! Command lines of other programs, as they are asked for.

/// What a command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialectCommand {
    /// To serve, or to test the configuration.
    Run(Invocation),
    /// Its version.
    Version,
    /// How it is used.
    Help,
    /// The configuration that holds without any.
    Defaults,
}

/// Why a command line is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandLineError {
    /// It does not fit the grammar.
    #[error("{0}\nInvalid command line parameters.")]
    Grammar(#[from] clap::Error),
    /// It names two files.
    #[error("one --config is read, and there are two")]
    TwoFiles,
    /// It names no file.
    #[error("Invalid configuration file name \"{0}\"")]
    FileName(String),
}

/// A command line of the program, read but not yet understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Invocation {
    /// The configuration file; `-` is standard input.
    pub file: Option<String>,
    /// Whether the configuration is only tested.
    pub is_test: bool,
    /// Options and their values, in their order; the file stands where it was named.
    pub(crate) steps: Vec<InvocationStep>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvocationStep {
    /// The configuration file is read here.
    File,
    /// A setting and its value.
    Set(&'static str, String),
}

impl Invocation {
    /// That of a program which is given nothing but a file.
    pub fn of_file(file: &str) -> Self {
        Self {
            file: Some(file.to_owned()),
            is_test: false,
            steps: vec![InvocationStep::File],
        }
    }
}
