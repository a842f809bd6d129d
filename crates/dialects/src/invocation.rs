//! Parsed command lines of other programs.

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialectCommand {
    /// Serve, or test the configuration.
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
    /// More than one configuration file was given.
    #[error("--config is given twice")]
    TwoFiles,
    #[error("Invalid configuration file name \"{0}\"")]
    FileName(String),
}

/// A parsed command line; its settings are not translated yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Invocation {
    /// The configuration file; `-` is standard input.
    pub file: Option<String>,
    /// `true` if the program only tests the configuration.
    pub is_test: bool,
    /// Options with values, and the configuration file, in command-line order.
    pub(crate) steps: Vec<InvocationStep>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvocationStep {
    /// Read the configuration file.
    File,
    Set(&'static str, String),
}

impl Invocation {
    /// Returns the invocation of a program whose only argument is a file.
    pub fn of_file(file: &str) -> Self {
        Self {
            file: Some(file.to_owned()),
            is_test: false,
            steps: vec![InvocationStep::File],
        }
    }
}
