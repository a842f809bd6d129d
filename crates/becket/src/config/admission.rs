//! The part of `prepare` that makes `[admission]`: rates, counts and how much of an address makes a source.

use std::num::NonZeroU32;

use becket_proto::admission::{Prefixes, Rate, Share};

use super::Admission;
use super::error::Problem;
use super::prepare::Draft;

impl Admission {
    /// Whether a full handshake needs anything.
    pub fn limits_handshakes(&self) -> bool {
        self.all != Share::default() || self.limits_source()
    }

    /// Whether a full handshake needs anything of its source.
    pub fn limits_source(&self) -> bool {
        self.source != Share::default()
    }
}

/// The keys of one rate and one count.
struct Keys<'a> {
    rate: (&'a str, Option<u64>),
    burst: (&'a str, Option<u64>),
    in_flight: (&'a str, Option<u64>),
}

impl Draft<'_> {
    /// Who is let in when more want to than can be served.
    pub(super) fn admission(&mut self) -> Admission {
        let file = self.file;
        let admission = &file.admission;
        let all = self.share(Keys {
            rate: (
                "full-handshakes-per-second",
                admission.full_handshakes_per_second,
            ),
            burst: ("burst", admission.burst),
            in_flight: (
                "full-handshakes-in-flight",
                admission.full_handshakes_in_flight,
            ),
        });
        let source = self.share(Keys {
            rate: (
                "source-full-handshakes-per-second",
                admission.source_full_handshakes_per_second,
            ),
            burst: ("source-burst", admission.source_burst),
            in_flight: (
                "source-full-handshakes-in-flight",
                admission.source_full_handshakes_in_flight,
            ),
        });
        let connections = admission.connections_per_source;
        let connections = self.number("connections-per-source", connections);
        let half_open = Some(admission.half_open_per_source);
        let half_open = self.number("half-open-per-source", half_open);
        Admission {
            all,
            source,
            connections_per_source: connections.map(NonZeroU32::get),
            half_open_per_source: half_open.map(NonZeroU32::get),
            prefixes: Prefixes {
                v4: self.prefix("prefix-v4", admission.prefix_v4, 32),
                v6: self.prefix("prefix-v6", admission.prefix_v6, 128),
            },
            sources: self.count("admission.sources", admission.sources),
        }
    }

    fn share(&mut self, keys: Keys<'_>) -> Share {
        let (key, written) = keys.burst;
        let per_second = self.number(keys.rate.0, keys.rate.1);
        let burst = self.number(key, written);
        if let (Some(burst), None) = (written, keys.rate.1) {
            let fault = format!("a burst of nothing: admission.{} is not set", keys.rate.0);
            let problem = Problem::new(format!("admission.{key}"), fault).value(burst.to_string());
            self.report.error(problem.accepted("both keys, or neither"));
        }
        let (key, written) = keys.in_flight;
        Share {
            rate: per_second.map(|rate| Rate::new(rate, burst.unwrap_or(rate))),
            in_flight: self.number(key, written).map(NonZeroU32::get),
        }
    }

    fn number(&mut self, key: &str, written: Option<u64>) -> Option<NonZeroU32> {
        let written = written?;
        let number = u32::try_from(written).ok().filter(|number| *number <= MOST);
        let number = number.and_then(NonZeroU32::new);
        if number.is_none() {
            let problem = Problem::new(format!("admission.{key}"), "not in range");
            let problem = problem.value(written.to_string());
            self.report.error(problem.accepted("1 to 10000000"));
        }
        number
    }

    fn prefix(&mut self, key: &str, bits: u64, most: u8) -> u8 {
        let found = u8::try_from(bits).ok().filter(|bits| *bits <= most);
        if found.is_none() {
            let problem = Problem::new(format!("admission.{key}"), "not the length of a prefix");
            let problem = problem.value(bits.to_string());
            self.report.error(problem.accepted(format!("0 to {most}")));
        }
        found.unwrap_or(most)
    }
}

/// More than any machine does in a second; a token then still takes 100 ns to grow.
const MOST: u32 = 10_000_000;
