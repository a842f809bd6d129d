//! What `becket check` shows of `[admission]`.

use std::fmt::{self, Display, Formatter};

use becket_proto::admission::Share;
use serde::Serialize;

use crate::config::{Admission, Config};

/// Who is let in.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct AdmissionSummary {
    all: ShareSummary,
    source: ShareSummary,
    connections_per_source: Option<u32>,
    half_open_per_source: Option<u32>,
    prefix_v4: u8,
    prefix_v6: u8,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct ShareSummary {
    full_handshakes_per_second: Option<u64>,
    burst: Option<u64>,
    in_flight: Option<u32>,
}

impl AdmissionSummary {
    pub(super) fn of(config: &Config) -> Self {
        let admission: &Admission = &config.admission;
        Self {
            all: ShareSummary::of(&admission.all),
            source: ShareSummary::of(&admission.source),
            connections_per_source: admission.connections_per_source,
            half_open_per_source: admission.half_open_per_source,
            prefix_v4: admission.prefixes.v4,
            prefix_v6: admission.prefixes.v6,
        }
    }
}

impl ShareSummary {
    fn of(share: &Share) -> Self {
        Self {
            full_handshakes_per_second: share.rate.map(|rate| rate.per_second()),
            burst: share.rate.map(|rate| rate.burst()),
            in_flight: share.in_flight,
        }
    }
}

impl Display for AdmissionSummary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "admission")?;
        for (who, share) in [("all", &self.all), ("source", &self.source)] {
            let rate = share.full_handshakes_per_second;
            let rate = rate.map(|rate| format!("{rate} full handshakes a second"));
            let burst = share.burst.map(|burst| format!("{burst} at once"));
            let in_flight = share.in_flight.map(|most| format!("{most} unfinished"));
            let parts: Vec<String> = [rate, burst, in_flight].into_iter().flatten().collect();
            if !parts.is_empty() {
                writeln!(f, "  {who:<8}  {}", parts.join(", "))?;
            }
        }
        if let Some(most) = self.connections_per_source {
            writeln!(f, "  source    {most} connections")?;
        }
        if let Some(most) = self.half_open_per_source {
            writeln!(f, "  source    {most} half-open handshakes")?;
        }
        let (v4, v6) = (self.prefix_v4, self.prefix_v6);
        writeln!(f, "  sources   are networks: /{v4} of IPv4, /{v6} of IPv6")
    }
}
