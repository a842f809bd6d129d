//! Reasons why a transaction failed.
//!
//! Each transaction that does not receive a complete and correct response ends with exactly one [`Failure`], and the report counts
//! failures by kind. If the client lacks ports or descriptors, the kind starts with `client:`, so that it is not mistaken for a failure of
//! the server.

use std::borrow::Cow;
use std::io;

use rustix::io::Errno;
use rustls::Error as TlsError;
use serde::{Deserialize, Serialize};

#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum Failure {
    #[error("refused")]
    Refused,
    #[error("reset")]
    Reset,
    #[error("unreachable")]
    Unreachable,
    /// The server sent the fatal alert with this number (RFC 8446, section 6).
    #[error("alert {0}")]
    Alert(u8),
    /// TLS failed in the client for this reason, without an alert from the server.
    #[error("tls: {0}")]
    Tls(Cow<'static, str>),
    /// The transaction timed out during this phase.
    #[error("time-out: {0}")]
    TimeOut(Cow<'static, str>),
    /// The server closed the connection before a response began.
    #[error("closed early")]
    ClosedEarly,
    /// The server closed the connection before the body was complete.
    #[error("short body")]
    ShortBody,
    /// The body was complete, but had an unexpected length.
    #[error("wrong body length")]
    WrongBody,
    /// The response was not HTTP/1.
    #[error("not HTTP/1")]
    BadResponse,
    #[error("status {0}")]
    Status(u16),
    /// The server selected an ALPN protocol other than HTTP/1.
    #[error("alpn: not HTTP/1")]
    Alpn,
    /// The client has no free local port for this pair of addresses.
    #[error("client: no port left")]
    NoPort,
    /// The client has no free file descriptor.
    #[error("client: no descriptor left")]
    NoDescriptor,
    /// The transaction was due before the end of the run, but all connections or the client's thread were busy.
    #[error("client: not started in time")]
    NotStarted,
    /// Another operating system error (errno).
    #[error("os error {0}")]
    Os(i32),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted => Self::Reset,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Self::Unreachable,
            io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse => Self::NoPort,
            io::ErrorKind::TimedOut => Self::TimeOut("connect".into()),
            _ => match Errno::from_io_error(&error) {
                Some(Errno::MFILE | Errno::NFILE) => Self::NoDescriptor,
                other => Self::Os(other.map_or(0, Errno::raw_os_error)),
            },
        }
    }
}

impl From<TlsError> for Failure {
    fn from(error: TlsError) -> Self {
        match error {
            TlsError::AlertReceived(alert) => Self::Alert(u8::from(alert)),
            TlsError::PeerIncompatible(_) => Self::Tls("nothing in common".into()),
            TlsError::PeerMisbehaved(_) => Self::Tls("peer misbehaved".into()),
            TlsError::DecryptError => Self::Tls("record does not decrypt".into()),
            TlsError::InvalidMessage(_) => Self::Tls("not TLS".into()),
            TlsError::NoApplicationProtocol => Self::Alpn,
            TlsError::InappropriateMessage { .. }
            | TlsError::InappropriateHandshakeMessage { .. } => {
                Self::Tls("unexpected message".into())
            }
            _ => Self::Tls("other error".into()),
        }
    }
}

impl Failure {
    /// Returns advice on how to remove the cause, if it is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoPort => Some(
                "the client ran out of local ports: add addresses with --source 127.0.0.2-127.0.0.50, or configure the server to close first",
            ),
            Self::NoDescriptor => {
                Some("the client ran out of file descriptors: raise `ulimit -n` or lower -c")
            }
            Self::NotStarted => Some(
                "transactions did not start on time because all connections or the client's threads were busy: raise -c or -t, or lower the rate",
            ),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_the_client_is_named_as_such() {
        let none_left = Failure::from(io::Error::from_raw_os_error(24));
        assert_eq!(none_left, Failure::NoDescriptor);
        assert!(none_left.to_string().starts_with("client:"));
        assert!(none_left.hint().is_some());
    }
}
