//! `openssl s_client` as a client of becket.

use std::env;
use std::net::SocketAddr;

use crate::place::Place;
use crate::tool::{Finished, Tool};

#[derive(Clone, Debug)]
pub struct OpenSsl(pub Tool);

impl OpenSsl {
    /// Finds openssl. Records the test as skipped if it is not installed.
    pub fn find() -> Option<Self> {
        Tool::find("openssl").map(Self)
    }

    /// Returns an OpenSSL with ML-DSA (3.5) and zlib, at the path in `BECKET_NEWER_OPENSSL`; `.ci/run guest` provides it. Otherwise
    /// lists the test as skipped, also in CI, where this program is optional.
    pub fn newer() -> Option<Self> {
        let path = env::var_os("BECKET_NEWER_OPENSSL");
        if path.is_none() {
            becket_tidy::lacks("NOT CHECKED: needs BECKET_NEWER_OPENSSL, which is OpenSSL 3.5");
        }
        path.map(|path| Self(Tool::at(path.into())))
    }

    /// Requests `/` from `www.example.org` over HTTP/1.0 and waits for the end.
    #[track_caller]
    pub fn ask(&self, place: &Place, to: SocketAddr, flags: &[&str]) -> Finished {
        let named = [&["-servername", "www.example.org"], flags].concat();
        self.ask_unnamed(place, to, &named)
    }

    /// Returns the first 16 bytes of the ticket in a file written by `-sess_out`.
    #[track_caller]
    pub fn ticket(&self, session: &str) -> [u8; 16] {
        let flags = ["sess_id", "-noout", "-text", "-in", session];
        let run = self.0.run(flags, "");
        let dump = run.stdout.lines();
        let mut dump = dump.skip_while(|line| !line.contains("TLS session ticket:"));
        let line = dump.nth(1).and_then(|line| line.split_once(" - "));
        // The line contains 16 bytes in hex, then the same bytes as text.
        let hex = line
            .and_then(|(_, bytes)| bytes.get(..47))
            .expect("a ticket");
        let bytes = hex
            .split([' ', '-'])
            .map(|byte| u8::from_str_radix(byte, 16));
        let bytes: Result<Vec<u8>, _> = bytes.collect();
        let ticket = bytes.ok().and_then(|bytes| bytes.try_into().ok());
        ticket.expect("sixteen bytes")
    }

    /// Sends a request with these flags, which may contain a server name. Fails if the certificate cannot be verified.
    #[track_caller]
    pub fn ask_unnamed(&self, place: &Place, to: SocketAddr, flags: &[&str]) -> Finished {
        let (to, ca) = (to.to_string(), place.text("ca.pem"));
        let fixed = ["s_client", "-connect", &to, "-CAfile", &ca];
        let fixed = [&fixed[..], &["-verify_return_error", "-ign_eof"], flags];
        self.0.run(fixed.concat(), "GET / HTTP/1.0\r\n\r\n")
    }
}
