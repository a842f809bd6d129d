//! Tests whether a server offers TLS 1.0 or 1.1. rustls does not implement these versions, so the test sends its own
//! ClientHello and reads only the ServerHello.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use becket_proto::server_hello::{ServerHelloPeek, peek};
use rustls_pki_types::ServerName;

use crate::failure::Failure;
use crate::probe::peer::{Peer, failure};

/// Sends a ClientHello of version 3.`minor`. Returns an error if the server does not answer with a ServerHello.
pub(super) fn is_offered(
    address: SocketAddr,
    name: &ServerName<'_>,
    minor: u8,
    time_out: Duration,
) -> Result<(), Failure> {
    let mut peer = Peer::connect(address, time_out)?;
    peer.say(&hello(name, minor))?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let [ALERT, 3, _, 0, 2, _, number, ..] = *answer {
            return Err(Failure::Alert(number));
        }
        match peek(&answer) {
            ServerHelloPeek::Hello(_) => return Ok(()),
            ServerHelloPeek::Other if *answer.first().unwrap_or(&0) != ALERT => {
                return Err(Failure::Tls("not TLS".into()));
            }
            _ if answer.len() > MOST_BYTES => return Err(Failure::Tls("not TLS".into())),
            _ => {}
        }
        match peer.read(&mut buffer).map_err(failure)? {
            0 => return Err(Failure::ClosedEarly),
            count => answer.extend_from_slice(buffer.get(..count).unwrap_or_default()),
        }
    }
}

/// Encodes a ClientHello (RFC 4346, 7.4.1.2) with the cipher suites that were common with TLS 1.0 and 1.1.
fn hello(name: &ServerName<'_>, minor: u8) -> Vec<u8> {
    let mut extensions = Vec::new();
    if let ServerName::DnsName(name) = name {
        let host = [&[0][..], &with_length(name.as_ref().as_bytes())].concat();
        extensions.extend([0, 0]);
        extensions.extend(with_length(&with_length(&host)));
    }
    // Groups x25519, secp256r1 and secp384r1, and uncompressed points (RFC 8422, 5.1).
    extensions.extend([0, 10, 0, 8, 0, 6, 0, 29, 0, 23, 0, 24]);
    extensions.extend([0, 11, 0, 2, 1, 0]);
    let random = [
        fastrand::u128(..).to_be_bytes(),
        fastrand::u128(..).to_be_bytes(),
    ]
    .concat();
    let body = [
        &[3, minor][..],
        &random,
        &[0],
        &with_length(&SUITES),
        &[1, 0],
        &with_length(&extensions),
    ]
    .concat();
    let message = [&[1, 0][..], &with_length(&body)].concat();
    [&[22, 3, 1][..], &with_length(&message)].concat()
}

/// Prepends the length in two bytes. A ClientHello is always shorter than 64 KiB, because a server name has at most 253 bytes.
fn with_length(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

/// ECDHE, DHE and RSA cipher suites with AES-CBC, 3DES and RC4.
const SUITES: [u8; 22] = [
    0xc0, 0x09, 0xc0, 0x0a, 0xc0, 0x13, 0xc0, 0x14, 0, 0x33, 0, 0x39, 0, 0x2f, 0, 0x35, 0, 0x0a, 0,
    0x05, 0, 0x04,
];
const ALERT: u8 = 21;
/// Maximum bytes read while waiting for the ServerHello. A typical ServerHello is a few hundred
/// bytes long.
const MOST_BYTES: usize = 16 * 1024;
