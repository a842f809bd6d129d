//! Why a transaction failed.
//!
//! Every transaction that does not get its whole, right response ends in exactly one of these; the
//! report counts them by kind. What the generator lacks (ports, descriptors) is a failure too, with
//! a name that says so, for it must not pass for the server's.

use std::fmt;
use std::io;

use rustls::Error as TlsError;

/// The kinds of failure, as counted in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Failure {
    /// The connection was refused.
    Refused,
    /// The connection was reset.
    Reset,
    /// The network or host cannot be reached.
    Unreachable,
    /// The server sent a fatal alert with this number (RFC 8446, 6).
    Alert(u8),
    /// The handshake or a record could not be understood by the client.
    Tls(&'static str),
    /// The time was up in this phase.
    TimeOut(&'static str),
    /// The server closed before a response began.
    ClosedEarly,
    /// The server closed before the whole body had come.
    ShortBody,
    /// The body was whole, but not of the length that was expected.
    WrongBody,
    /// The response was not HTTP/1.
    BadResponse,
    /// The status was not 2xx.
    Status(u16),
    /// The server chose a protocol by ALPN that is not HTTP/1.
    Alpn,
    /// The client has no local port left for this pair of addresses.
    NoPort,
    /// The client has no file descriptor left.
    NoDescriptor,
    /// The start was due, but until the end all connections were busy or the client was.
    NotStarted,
    /// Another error of the operating system, by number.
    Os(i32),
}

impl Failure {
    /// Names the kind of an operating system's error.
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

    /// Names the kind of a TLS error.
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

    /// Says what the operator can do, where that is known.
    pub fn hint(self) -> Option<&'static str> {
        match self {
            Self::NoPort => Some(
                "the client ran out of local ports: use --source 127.0.0.2-127.0.0.50, or let the server close first",
            ),
            Self::NoDescriptor => {
                Some("the client ran out of file descriptors: raise `ulimit -n`, or lower -c")
            }
            Self::NotStarted => Some(
                "starts were due while all connections were busy, or the client had no time for them: raise -c or -t, or lower the rate",
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

/// Too many open files, per process and in all (errno 24 and 23 on every Linux).
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_client_lacks_does_not_pass_for_the_servers_fault() {
        let none_left = Failure::from_io(&io::Error::from_raw_os_error(EMFILE));
        assert_eq!(none_left, Failure::NoDescriptor);
        assert!(none_left.to_string().starts_with("client:"));
        assert!(none_left.hint().is_some());
    }
}
