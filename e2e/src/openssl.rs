//! `openssl s_client` against a becket.

use std::net::SocketAddr;

use crate::place::Place;
use crate::tool::{Finished, Tool};

/// The openssl program.
#[derive(Clone, Debug)]
pub struct OpenSsl(pub Tool);

impl OpenSsl {
    /// Looks for it; without it, prints the skip.
    pub fn find() -> Option<Self> {
        Tool::find("openssl").map(Self)
    }

    /// Asks `www.example.org` for `/` over HTTP/1.0 and waits for the end.
    #[track_caller]
    pub fn ask(&self, place: &Place, to: SocketAddr, flags: &[&str]) -> Finished {
        let named = [&["-servername", "www.example.org"], flags].concat();
        self.ask_unnamed(place, to, &named)
    }

    /// The same with what `flags` say of the name. A certificate that does not verify is an error.
    #[track_caller]
    pub fn ask_unnamed(&self, place: &Place, to: SocketAddr, flags: &[&str]) -> Finished {
        let (to, ca) = (to.to_string(), place.text("ca.pem"));
        let fixed = ["s_client", "-connect", &to, "-CAfile", &ca];
        let fixed = [&fixed[..], &["-verify_return_error", "-ign_eof"], flags];
        self.0.run(fixed.concat(), "GET / HTTP/1.0\r\n\r\n")
    }
}
