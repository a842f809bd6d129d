//! Parsed command lines of other programs.

/// Action of a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialectCommand {
    /// Serve, or test the configuration.
    Run(Invocation),
    /// Print the version.
    Version,
    /// Print the help.
    Help,
    /// Print the default configuration.
    Defaults,
}

/// Reason why a command line is rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandLineError {
    /// The syntax is wrong.
    #[error("{0}\nInvalid command line parameters.")]
    Grammar(#[from] clap::Error),
    /// There are two configuration files.
    #[error("--config is given twice")]
    TwoFiles,
    /// A file name is not valid.
    #[error("Invalid configuration file name \"{0}\"")]
    FileName(String),
}

/// A parsed command line; its settings are not translated yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Invocation {
    /// The configuration file; `-` is standard input.
    pub file: Option<String>,
    /// The configuration is only tested.
    pub is_test: bool,
    /// Options and their values in order, with the file at its position.
    pub(crate) steps: Vec<InvocationStep>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvocationStep {
    /// Read the configuration file.
    File,
    /// A setting and its value.
    Set(&'static str, String),
}

impl Invocation {
    /// Returns the invocation of a program with only a file as argument.
    pub fn of_file(file: &str) -> Self {
        Self {
            file: Some(file.to_owned()),
            is_test: false,
            steps: vec![InvocationStep::File],
        }
    }
}
