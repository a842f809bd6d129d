//! What no terminator can beat, measured in the same rounds as the terminators.
//!
//! * `relay`: a plain TCP relay. It copies every byte and has no TLS.
//! * `round-trip`: a relay that also takes a hello-sized flight and answers with one of the size that TLS has in
//!   that case, as often as TLS does, before it connects to its backend. Nobody ends TLS with fewer system calls.
//! * `answer`: in place of a relay where files are served: a plain socket that answers, from memory.
//! * `library`: the library's handshake and records in memory.
//!
//! The limit of a case is relay + library, the true limit is round-trip + library, round by round: see
//! [`crate::figure::eta`].

use std::time::Duration;

use becket_load::preface::Preface;

use crate::Error;
use crate::figures;
use crate::figures::{ANSWER, LIBRARY, RELAY, ROUND_TRIP};
use crate::library::Library;
use crate::peer::Server;
use crate::result::{Column, Sample};
use crate::scenario::Files;

/// The floors of a case.
#[derive(Debug)]
pub struct Floors {
    /// Relays without TLS, by the names of their columns.
    pub relays: Vec<Server>,
    /// What the relay that answers is told before each request.
    pub preface: Option<Preface>,
    /// The handshakes in memory, where they are those of the servers.
    pub library: Option<Library>,
}

impl Floors {
    /// Returns the columns to fill, the relays first.
    pub fn columns(&self) -> Vec<Column> {
        let relays = self.relays.iter().map(|relay| relay.name.as_str());
        let names = relays.chain(self.library.iter().map(|_| LIBRARY));
        names.map(Column::new).collect()
    }

    /// Measures the library for one turn.
    pub fn measure_library(&self, time: Duration) -> Result<Option<Sample>, Error> {
        let Some(library) = &self.library else {
            return Ok(None);
        };
        let mut sample = Sample::default();
        sample.put(figures::CPU, library.transaction_us(time)?);
        Ok(Some(sample))
    }

    /// Returns the names of the relays of a case.
    pub fn names(files: Files, answers: bool) -> &'static [&'static str] {
        match (files, answers) {
            (Files::None, true) => &[RELAY, ROUND_TRIP],
            (Files::None, false) => &[RELAY],
            _ => &[ANSWER],
        }
    }
}
