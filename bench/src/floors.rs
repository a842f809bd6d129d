//! Floors: programs without the work of a terminator, measured in the same rounds as the terminators. Their CPU time is
//! a lower bound for that of a terminator.
//!
//! * `relay`: a plain TCP relay without TLS. It copies every byte.
//! * `round-trip`: a relay that also answers messages of the size of TLS handshake flights before it connects to its
//!   backend. No terminator can make fewer system calls.
//! * `answer`: a plain socket server that responds from memory. It replaces the relays if files are served.
//! * `library`: handshakes and records of the TLS library in memory.
//!
//! [`crate::figure::eta`] compares a server with the limit of a case in each round. The limit is the sum of `relay` and
//! `library`; the stricter limit is the sum of `round-trip` and `library`.

use std::time::Duration;

use becket_load::preface::Preface;

use crate::Error;
use crate::figures;
use crate::figures::{ANSWER, LIBRARY, RELAY, ROUND_TRIP};
use crate::library::Library;
use crate::peer::Server;
use crate::result::{Column, Sample};
use crate::scenario::Files;

#[derive(Debug)]
pub struct Floors {
    pub relays: Vec<Server>,
    /// Sizes of the handshake flights that the client exchanges with the `round-trip` relay before each request.
    pub preface: Option<Preface>,
    /// TLS library in memory; `None` if it does not support the handshakes of the case.
    pub library: Option<Library>,
}

impl Floors {
    /// Returns the columns of the floors, the relays first.
    pub fn columns(&self) -> Vec<Column> {
        let relays = self.relays.iter().map(|relay| relay.name.as_str());
        let names = relays.chain(self.library.iter().map(|_| LIBRARY));
        names.map(Column::new).collect()
    }

    /// Measures the library for one turn. Returns `None` if the case has no library floor.
    pub fn measure_library(&self, time: Duration) -> Result<Option<Sample>, Error> {
        let Some(library) = &self.library else {
            return Ok(None);
        };
        let mut sample = Sample::default();
        sample.put(figures::CPU, library.transaction_us(time)?);
        Ok(Some(sample))
    }

    /// Returns the names of a case's relays. `answers` adds the `round-trip` relay.
    pub fn names(files: Files, answers: bool) -> &'static [&'static str] {
        match (files, answers) {
            (Files::None, true) => &[RELAY, ROUND_TRIP],
            (Files::None, false) => &[RELAY],
            _ => &[ANSWER],
        }
    }
}
