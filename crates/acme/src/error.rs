//! Errors of the companion.
//!
//! Texts of an authority are shortened when an error is created, and the log escapes its fields.

use std::fmt::Display;
use std::io;

use becket_log::shortened;
use instant_acme::Problem;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key of the configuration has a value that cannot be used.
    #[error("{key}: {fault}")]
    Config { key: &'static str, fault: String },
    #[error("cannot {action}: {error}")]
    Os { action: String, error: io::Error },
    /// The authority answered with a problem document (RFC 8555, section 6.7).
    #[error("{text}")]
    Refused { text: String, kind: String },
    /// The exchange with the authority failed, or its answer is not usable.
    #[error("{0}")]
    Authority(String),
    /// The certificate of the authority is not the ordered one.
    #[error("certificate rejected: {0}")]
    Certificate(String),
    /// A DNS record forbids the order, or is missing.
    #[error("{0}")]
    Dns(String),
    /// No certificate may be ordered for this name.
    #[error("not allowed: {0}")]
    NotAllowed(String),
    /// The serving process does not answer the challenges.
    #[error("{0}")]
    Challenge(String),
}

impl Error {
    pub fn config(key: &'static str, fault: impl Display) -> Self {
        let fault = fault.to_string();
        Self::Config { key, fault }
    }

    /// Adds the failed action to a system error.
    pub fn os(action: impl Into<String>, error: io::Error) -> Self {
        let action = action.into();
        Self::Os { action, error }
    }

    /// Creates an error with a text that contains words of the authority.
    pub fn authority(text: impl Display) -> Self {
        Self::Authority(shortened(text.to_string().as_bytes()))
    }

    pub fn problem(subject: &str, problem: &Problem) -> Self {
        let text = problem.to_string();
        let text = text.strip_prefix("API error: ").unwrap_or(&text);
        let text = format!("{subject}{text}");
        Self::Refused {
            text: shortened(text.as_bytes()),
            kind: problem.r#type.clone().unwrap_or_default(),
        }
    }

    /// Returns whether the authority answered with this error of the namespace
    /// `urn:ietf:params:acme:error`.
    pub fn is(&self, name: &str) -> bool {
        match self {
            Self::Refused { kind, .. } => kind.strip_prefix(NAMESPACE) == Some(name),
            _ => false,
        }
    }
}

impl From<instant_acme::Error> for Error {
    fn from(error: instant_acme::Error) -> Self {
        match error {
            instant_acme::Error::Api(problem) => Self::problem("", &problem),
            error => Self::authority(error),
        }
    }
}

const NAMESPACE: &str = "urn:ietf:params:acme:error:";
