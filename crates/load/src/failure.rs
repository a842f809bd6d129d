//! Reasons why a transaction failed.
//!
//! Each transaction that does not receive a complete and correct response ends with exactly one [`Failure`], and the report counts
//! failures by kind. If the client lacks ports or descriptors, the kind starts with `client:`, so that it is not mistaken for a failure of
//! the server.

use std::fmt;
use std::io;

use rustls::Error as TlsError;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Failure {
    Refused,
    Reset,
    Unreachable,
    /// The server sent the fatal alert with this number (RFC 8446, section 6).
    Alert(u8),
    /// TLS failed in the client for this reason, without an alert from the server.
    Tls(&'static str),
    /// The transaction timed out during this phase.
    TimeOut(&'static str),
    /// The server closed the connection before a response began.
    ClosedEarly,
    /// The server closed the connection before the body was complete.
    ShortBody,
    /// The body was complete, but had an unexpected length.
    WrongBody,
    /// The response was not HTTP/1.
    BadResponse,
    Status(u16),
    /// The server selected an ALPN protocol other than HTTP/1.
    Alpn,
    /// The client has no free local port for this pair of addresses.
    NoPort,
    /// The client has no free file descriptor.
    NoDescriptor,
    /// The transaction was due before the end of the run, but all connections or the client's thread were busy.
    NotStarted,
    /// Another operating system error (errno).
    Os(i32),
}

impl Failure {
    pub fn from_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted => Self::Reset,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Self::Unreachable,
            io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse => Self::NoPort,
            io::ErrorKind::TimedOut => Self::TimeOut("connect"),
            _ => match error.raw_os_error() {
                Some(EMFILE | ENFILE) => Self::NoDescriptor,
                other => Self::Os(other.unwrap_or(0)),
            },
        }
    }

    pub fn from_tls(error: &TlsError) -> Self {
        match error {
            TlsError::AlertReceived(alert) => Self::Alert(u8::from(*alert)),
            TlsError::PeerIncompatible(_) => Self::Tls("nothing in common"),
            TlsError::PeerMisbehaved(_) => Self::Tls("peer misbehaved"),
            TlsError::DecryptError => Self::Tls("record does not decrypt"),
            TlsError::InvalidMessage(_) => Self::Tls("not TLS"),
            TlsError::NoApplicationProtocol => Self::Alpn,
            TlsError::InappropriateMessage { .. }
            | TlsError::InappropriateHandshakeMessage { .. } => Self::Tls("unexpected message"),
            _ => Self::Tls("other error"),
        }
    }

    /// Returns advice on how to remove the cause, if it is known.
    pub fn hint(self) -> Option<&'static str> {
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

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("refused"),
            Self::Reset => f.write_str("reset"),
            Self::Unreachable => f.write_str("unreachable"),
            Self::Alert(number) => write!(f, "alert {number}"),
            Self::Tls(what) => write!(f, "tls: {what}"),
            Self::TimeOut(phase) => write!(f, "time-out: {phase}"),
            Self::ClosedEarly => f.write_str("closed early"),
            Self::ShortBody => f.write_str("short body"),
            Self::WrongBody => f.write_str("wrong body length"),
            Self::BadResponse => f.write_str("not HTTP/1"),
            Self::Status(code) => write!(f, "status {code}"),
            Self::Alpn => f.write_str("alpn: not HTTP/1"),
            Self::NoPort => f.write_str("client: no port left"),
            Self::NoDescriptor => f.write_str("client: no descriptor left"),
            Self::NotStarted => f.write_str("client: not started in time"),
            Self::Os(number) => write!(f, "os error {number}"),
        }
    }
}

/// Error number for too many open files in this process; identical on every Linux architecture.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_the_client_is_named_as_such() {
        let none_left = Failure::from_io(&io::Error::from_raw_os_error(EMFILE));
        assert_eq!(none_left, Failure::NoDescriptor);
        assert!(none_left.to_string().starts_with("client:"));
        assert!(none_left.hint().is_some());
    }
}
