//! Parsed command lines of other programs.

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialectCommand {
    Run(Invocation),
    Version,
    Help,
    Defaults,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandLineError {
    #[error("{0}\nInvalid command line parameters.")]
    Grammar(#[from] clap::Error),
    /// The command line names more than one configuration file.
    #[error("--config is given twice")]
    TwoFiles,
    #[error("Invalid configuration file name \"{0}\"")]
    FileName(String),
}

/// A parsed command line whose settings are not translated yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Invocation {
    /// The configuration file; `-` is standard input.
    pub file: Option<String>,
    /// `true` if the program only tests the configuration.
    pub is_test: bool,
    /// Options with their values, and the configuration file, in the order of the command line.
    pub(crate) steps: Vec<InvocationStep>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvocationStep {
    File,
    Set(&'static str, String),
}

impl Invocation {
    /// Returns the invocation with one argument, a configuration file.
    pub fn of_file(file: &str) -> Self {
        Self {
            file: Some(file.to_owned()),
            is_test: false,
            steps: vec![InvocationStep::File],
        }
    }
}
