//! What a handshake agreed on, in the words of the report.

use becket_stats::report::Negotiated;
use rustls::client::UnbufferedClientConnection;

use crate::tls::Tls;

/// Describes a finished handshake; a resumed TLS 1.2 one has no group and none has a signature.
pub fn of(connection: &UnbufferedClientConnection, tls: Option<&Tls>, resumed: bool) -> Negotiated {
    let group = connection
        .negotiated_key_exchange_group()
        .map(|group| format!("{:?}", group.name()));
    let alpn = connection
        .alpn_protocol()
        .map(|alpn| String::from_utf8_lossy(alpn).into_owned());
    Negotiated {
        version: connection
            .protocol_version()
            .map_or(String::new(), |version| format!("{version:?}")),
        suite: connection
            .negotiated_cipher_suite()
            .map_or(String::new(), |suite| format!("{:?}", suite.suite())),
        group,
        signature: tls.filter(|_| !resumed).and_then(Tls::signature),
        alpn,
        tickets_per_full: None,
        tickets_per_resumed: None,
    }
}
