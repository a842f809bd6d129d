//! Counters summed over all workers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use becket_proto::close_reason::CloseReason;
use becket_proxy::metrics::Counters;

#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Totals {
    pub accepted: u64,
    pub connections: u64,
    pub handshakes_in_flight: u64,
    /// Signatures requested from crypto threads but not yet returned.
    pub signatures_in_flight: u64,
    pub handshakes_full: u64,
    pub handshakes_resumed: u64,
    /// Handshakes that failed because of the client.
    pub handshakes_failed: u64,
    /// Failed handshakes whose server name (SNI) is configured.
    pub handshakes_failed_by_name: u64,
    /// Number of closed connections by close reason; reasons that never occurred are omitted.
    pub closed: BTreeMap<Cow<'static, str>, u64>,
    /// Number of ciphertext bytes received from clients.
    pub client_bytes_in: u64,
    /// Number of ciphertext bytes sent to clients.
    pub client_bytes_out: u64,
    /// Number of plaintext bytes received from servers.
    pub server_bytes_in: u64,
    /// Number of plaintext bytes sent to servers.
    pub server_bytes_out: u64,
    /// Bytes transferred with splice(2), without a copy to user space.
    pub spliced_bytes: u64,
    /// Number of pipes in use for splice(2).
    pub pipes_lent: u64,
}

impl Totals {
    pub fn of<'a>(workers: impl IntoIterator<Item = &'a Arc<Counters>>) -> Self {
        let mut sum = Self::default();
        for worker in workers {
            // Reads the counts of ended handshakes and connections first, so that no difference
            // below is negative.
            let (closed, ended) = (worker.closed.total(), worker.handshakes_ended.value());
            let (accepted, begun) = (worker.accepted.value(), worker.handshakes_begun.value());
            sum.accepted += accepted;
            sum.connections += accepted.saturating_sub(closed);
            sum.handshakes_in_flight += begun.saturating_sub(ended);
            let answered = worker.signatures_ended.value();
            let asked = worker.signatures_begun.value();
            sum.signatures_in_flight += asked.saturating_sub(answered);
            sum.handshakes_failed_by_name += worker.handshakes_failed_by_name.value();
            for [full, resumed] in &worker.handshakes {
                sum.handshakes_full += full.value();
                sum.handshakes_resumed += resumed.value();
            }
            for reason in CloseReason::ALL {
                let count = worker.closed.of(reason).value();
                if reason.is_failed_handshake() {
                    sum.handshakes_failed += count;
                }
                if count > 0 {
                    *sum.closed.entry(reason.label().into()).or_default() += count;
                }
            }
            sum.client_bytes_in += worker.client_bytes_in.value();
            sum.client_bytes_out += worker.client_bytes_out.value();
            sum.server_bytes_in += worker.server_bytes_in.value();
            sum.server_bytes_out += worker.server_bytes_out.value();
            sum.spliced_bytes += worker.spliced_bytes.value();
            let returned = worker.pipes_returned.value();
            sum.pipes_lent += worker.pipes_lent.value().saturating_sub(returned);
        }
        sum
    }
}
