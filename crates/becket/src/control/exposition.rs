//! `/metrics`: every number in the text form that Prometheus reads (OpenMetrics 1.0).
//!
//! A [`Scrape`] holds what one page shows; [`Scrape::render`] sums the workers and writes it. Only
//! `becket_connections` is shown per worker, since the balance between workers is what one looks for;
//! the number of series does not depend on what peers do. Histograms are coarsened to powers of two of
//! microseconds, whose limits fall on limits of the counting buckets, so that nothing is guessed.
//!
//! `docs/metrics.md` has every name with its meaning; a test holds page and text together.
//! Source: OpenMetrics 1.0, section "Text Format".

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeMetric, MetricEncoder, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::process::Process;
use super::view::{Condition, View};
use super::visits::Refusal;
use crate::backend::backend_state::BackendState;
use crate::close_reason::CloseReason;
use crate::metrics::{
    BUCKETS, Counter, Counters, HandshakeClass, Histogram, Offer, Resumption, bucket_limit,
};

/// The content type of what [`Scrape::render`] returns.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What one page shows.
#[derive(Debug)]
pub struct Scrape {
    /// One per worker.
    pub counters: Vec<Arc<Counters>>,
    /// The server's condition.
    pub condition: Condition,
    /// Backends, in the order of the configuration.
    pub backends: Vec<Arc<BackendState>>,
    /// What the kernel says.
    pub process: Process,
    /// Visits of the pages that did not get what they were for, in the order of [`Refusal::ALL`].
    pub refusals: [u64; Refusal::ALL.len()],
}

impl Scrape {
    /// Takes the numbers of a running server, and of this process.
    pub fn of(view: &dyn View) -> Self {
        Self {
            counters: view.counters(),
            condition: view.condition(),
            backends: view.backends(),
            process: Process::read(),
            refusals: Refusal::ALL.map(|refusal| view.refusals().of(refusal).value()),
        }
    }

    /// Writes the page.
    ///
    /// # Errors
    /// Only if a value cannot be formatted, which is a fault of ours.
    pub fn render(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut page = String::with_capacity(16 * 1024);
        text::encode(&mut page, &registry)?;
        Ok(page)
    }

    /// Sum over the workers.
    pub(super) fn sum(&self, counter: impl Fn(&Counters) -> &Counter) -> u64 {
        self.counters.iter().map(|c| counter(c).value()).sum()
    }

    fn connections(&self, page: &mut Page<'_>) -> fmt::Result {
        page.counter(
            "becket_connections_accepted",
            "Connections accepted",
            self.sum(|c| &c.accepted),
        )?;
        let open = self.counters.iter().enumerate().map(|(worker, c)| {
            // Closed first: an end that is counted in between must not outnumber the beginnings.
            let closed = c.closed.total();
            let open = c.accepted.value().saturating_sub(closed);
            ([("worker", worker.to_string())], open)
        });
        page.gauges("becket_connections", "Connections open", open)?;
        let closed = CloseReason::ALL.iter().map(|&reason| {
            let count = self.sum(|c| c.closed.of(reason));
            ([("reason", reason.label())], count)
        });
        page.counters(
            "becket_connections_closed",
            "Connections ended, by reason",
            closed,
        )?;
        page.counter(
            "becket_connections_truncated",
            "Clients that ended their stream without close_notify",
            self.sum(|c| &c.truncated),
        )?;
        page.counter(
            "becket_accept_pauses",
            "Times that accepting paused for want of descriptors",
            self.sum(|c| &c.accept_pauses),
        )?;
        page.counter(
            "becket_connection_limit_pauses",
            "Times that accepting paused because limits.connections was reached",
            self.sum(|c| &c.connection_limit_pauses),
        )
    }

    fn handshakes(&self, page: &mut Page<'_>) -> fmt::Result {
        let ended = self.sum(|c| &c.handshakes_ended);
        let in_flight = self.sum(|c| &c.handshakes_begun).saturating_sub(ended);
        page.gauge(
            "becket_handshakes_in_flight",
            "Handshakes begun and not ended yet",
            in_flight,
        )?;
        let done = (0..HandshakeClass::COUNT).map(|index| {
            let class = HandshakeClass::at(index);
            let version = if class.tls13 { "1.3" } else { "1.2" };
            let labels = [("version", version), ("kind", kind(class.resumed))];
            let count = self.counters.iter().filter_map(|c| c.handshakes.get(index));
            (labels, count.map(Counter::value).sum())
        });
        page.counters("becket_handshakes", "Handshakes completed", done)?;
        page.family(
            "becket_handshake_seconds",
            "Time from accept to traffic keys",
            MetricType::Histogram,
            |metric| {
                self.times(metric, false, |c| &c.handshake_full)?;
                self.times(metric, true, |c| &c.handshake_resumed)
            },
        )?;
        let pairs = Offer::ALL
            .iter()
            .flat_map(|offer| Resumption::ALL.iter().map(|outcome| (*offer, *outcome)));
        let offered = pairs.map(|(offer, outcome)| {
            let labels = [("kind", offer.label()), ("outcome", outcome.label())];
            (labels, self.sum(|c| c.resumptions.of(offer, outcome)))
        });
        page.counters(
            "becket_resumptions_offered",
            "Sessions and tickets that clients offered, by what became of them",
            offered,
        )?;
        page.counter(
            "becket_tickets_withheld",
            "Handshakes that gave no ticket, because it would be too long to come back",
            self.sum(|c| &c.tickets_withheld),
        )?;
        let early = [
            ("accepted", self.sum(|c| &c.early_accepted)),
            ("rejected", self.sum(|c| &c.early_rejected)),
        ];
        page.counters(
            "becket_early_data",
            "Handshakes for which the client announced early data, by what became of it",
            early.map(|(outcome, count)| ([("outcome", outcome)], count)),
        )
    }

    /// One histogram of all workers.
    fn times(
        &self,
        metric: &mut MetricEncoder<'_>,
        resumed: bool,
        histogram: impl Fn(&Counters) -> &Histogram,
    ) -> fmt::Result {
        let (counts, seconds) = self.histogram(histogram);
        let count = counts.iter().sum();
        let labels = [("kind", kind(resumed))];
        metric
            .encode_family(&labels)?
            .encode_histogram::<NoLabelSet>(seconds, count, &coarse(&counts), None)
    }

    /// Counts and the sum in seconds of a histogram of all workers.
    pub(super) fn histogram(
        &self,
        histogram: impl Fn(&Counters) -> &Histogram,
    ) -> ([u64; BUCKETS], f64) {
        let mut counts = [0; BUCKETS];
        let mut seconds = 0.0;
        for worker in &self.counters {
            let histogram = histogram(worker);
            for (sum, count) in counts.iter_mut().zip(histogram.counts()) {
                *sum += count;
            }
            seconds += histogram.sum().as_secs_f64();
        }
        (counts, seconds)
    }

    fn traffic(&self, page: &mut Page<'_>) -> fmt::Result {
        page.counter(
            "becket_client_received_bytes",
            "Ciphertext received from clients",
            self.sum(|c| &c.client_bytes_in),
        )?;
        page.counter(
            "becket_client_sent_bytes",
            "Ciphertext sent to clients",
            self.sum(|c| &c.client_bytes_out),
        )?;
        page.counter(
            "becket_server_received_bytes",
            "Plaintext received from servers",
            self.sum(|c| &c.server_bytes_in),
        )?;
        page.counter(
            "becket_server_sent_bytes",
            "Plaintext sent to servers",
            self.sum(|c| &c.server_bytes_out),
        )?;
        page.counter(
            "becket_connects",
            "Connects to servers that succeeded",
            self.sum(|c| &c.connects),
        )?;
        page.counter(
            "becket_connect_failures",
            "Connects to servers that failed or timed out",
            self.sum(|c| &c.connect_failures),
        )?;
        let secured = [false, true]
            .into_iter()
            .enumerate()
            .map(|(index, resumed)| {
                let count = self.counters.iter();
                let count = count.filter_map(|c| c.server_handshakes.get(index));
                ([("kind", kind(resumed))], count.map(Counter::value).sum())
            });
        page.counters(
            "becket_server_handshakes",
            "TLS handshakes with servers that were completed",
            secured,
        )
    }

    fn state(&self, page: &mut Page<'_>) -> fmt::Result {
        let condition = &self.condition;
        page.gauges(
            "becket_build_info",
            "Always 1; the label says what runs",
            [([("version", env!("CARGO_PKG_VERSION"))], 1_u64)],
        )?;
        let workers = self.counters.len() as u64;
        page.gauge("becket_workers", "Worker threads", workers)?;
        page.gauge(
            "becket_draining",
            "1 while the process finishes what it has and accepts nothing",
            u64::from(condition.draining),
        )?;
        page.counter(
            "becket_turns",
            "Turns of the event loops",
            self.sum(|c| &c.turns),
        )?;
        page.counter(
            "becket_log_lines_dropped",
            "Lines of the log that were dropped",
            condition.log_lines_dropped,
        )?;
        page.counter(
            "becket_access_lines_dropped",
            "Lines of the access log that were dropped",
            condition.access_lines_dropped,
        )?;
        let (time, ok) = match &condition.reload {
            None => (condition.started, true),
            Some(reload) => (reload.time, reload.errors.is_empty()),
        };
        page.gauge(
            "becket_reload_ok",
            "1 if the last reload, or the start, succeeded",
            u64::from(ok),
        )?;
        page.gauge(
            "becket_reload_timestamp_seconds",
            "Time of the last reload, or of the start",
            time.unix_seconds(),
        )
    }

    fn sessions(&self, page: &mut Page<'_>) -> fmt::Result {
        let condition = &self.condition;
        page.gauge(
            "becket_sessions",
            "TLS 1.2 sessions in the table",
            condition.sessions.entries as u64,
        )?;
        page.gauge(
            "becket_sessions_capacity",
            "TLS 1.2 sessions that the table may hold",
            condition.sessions.capacity as u64,
        )?;
        page.gauge(
            "becket_early_sessions",
            "TLS 1.3 sessions that admit early data",
            condition.early_sessions as u64,
        )?;
        page.gauge(
            "becket_ticket_epoch",
            "Number of the ticket key in use",
            condition.tickets.standing.epoch,
        )?;
        page.gauge(
            "becket_ticket_rotation_seconds",
            "Time until the ticket key changes",
            condition.tickets.next_rotation.as_secs_f64(),
        )?;
        let expiry = condition.certificates.iter().map(|certificate| {
            let labels = [
                ("listener", &*certificate.listener),
                ("name", &*certificate.name),
                ("key", certificate.key),
            ];
            (labels, certificate.not_after.unix_seconds())
        });
        page.gauges(
            "becket_certificate_expiry_timestamp_seconds",
            "When a certificate expires",
            expiry,
        )
    }

    fn admission(&self, page: &mut Page<'_>) -> fmt::Result {
        let admission = &self.condition.admission;
        page.gauge(
            "becket_full_handshakes_in_flight",
            "Full handshakes begun and not ended, where they are limited",
            u64::from(admission.full_handshakes_in_flight),
        )?;
        page.gauge(
            "becket_sources",
            "Sources that admission tracks",
            admission.sources as u64,
        )?;
        page.counter(
            "becket_sources_untracked",
            "Times that a client was not counted for its source",
            admission.untracked,
        )
    }

    fn refusals(&self, page: &mut Page<'_>) -> fmt::Result {
        let reasons = Refusal::ALL.iter().zip(self.refusals);
        page.counters(
            "becket_admin_refused",
            "Visits of the admin pages that did not get what they were for",
            reasons.map(|(refusal, count)| ([("reason", refusal.label())], count)),
        )
    }

    fn cancels(&self, page: &mut Page<'_>) -> fmt::Result {
        let (passed, failed) = self.condition.cancels;
        let outcomes = [("passed", passed), ("failed", failed)];
        page.counters(
            "becket_cancels",
            "Cancels of PostgreSQL clients, for each server that was to be told",
            outcomes.map(|(outcome, count)| ([("outcome", outcome)], count)),
        )
    }

    fn process(&self, page: &mut Page<'_>) -> fmt::Result {
        page.gauge(
            "process_start_time_seconds",
            "When the process started",
            self.condition.started.unix_seconds(),
        )?;
        if let Some(value) = self.process.open_descriptors {
            page.gauge("process_open_fds", "Open file descriptors", value)?;
        }
        if let Some(value) = self.process.descriptor_limit {
            page.gauge("process_max_fds", "Limit of open file descriptors", value)?;
        }
        if let Some(value) = self.process.resident_bytes {
            page.gauge("process_resident_memory_bytes", "Resident memory", value)?;
        }
        if let Some(value) = self.process.cpu_seconds {
            let help = "User and system time of all threads";
            page.family("process_cpu_seconds", help, MetricType::Counter, |metric| {
                metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
            })?;
        }
        Ok(())
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        self.connections(&mut page)?;
        self.handshakes(&mut page)?;
        self.traffic(&mut page)?;
        self.backends(&mut page)?;
        self.sessions(&mut page)?;
        self.cluster(&mut page)?;
        self.stud(&mut page)?;
        self.admission(&mut page)?;
        self.state(&mut page)?;
        self.refusals(&mut page)?;
        self.cancels(&mut page)?;
        self.process(&mut page)
    }
}

/// The page while it is written. Names of counters are given without `_total`.
pub(super) struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.family(name, help, MetricType::Counter, |metric| {
            metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
        })
    }

    pub(super) fn counters<K, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, K); N], u64)>,
    ) -> fmt::Result
    where
        [(&'static str, K); N]: prometheus_client::encoding::EncodeLabelSet,
    {
        self.family(name, help, MetricType::Counter, |metric| {
            for (labels, value) in values {
                ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
            }
            Ok(())
        })
    }

    pub(super) fn gauge(
        &mut self,
        name: &str,
        help: &str,
        value: impl EncodeGaugeValue,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Gauge, |metric| {
            metric.encode_gauge(&value)
        })
    }

    pub(super) fn gauges<K, V: EncodeGaugeValue, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([(&'static str, K); N], V)>,
    ) -> fmt::Result
    where
        [(&'static str, K); N]: prometheus_client::encoding::EncodeLabelSet,
    {
        self.family(name, help, MetricType::Gauge, |metric| {
            for (labels, value) in values {
                ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
            }
            Ok(())
        })
    }

    /// One histogram without labels, of counts and the sum in seconds.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        (counts, seconds): ([u64; BUCKETS], f64),
    ) -> fmt::Result {
        let count = counts.iter().sum();
        self.family(name, help, MetricType::Histogram, |metric| {
            metric.encode_histogram::<NoLabelSet>(seconds, count, &coarse(&counts), None)
        })
    }

    fn family(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        samples: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        samples(&mut self.0.encode_descriptor(name, help, None, kind)?)
    }
}

fn kind(resumed: bool) -> &'static str {
    if resumed { "resumed" } else { "full" }
}

/// Counting buckets gathered between powers of two of microseconds, with their limits in seconds;
/// the last one is open.
fn coarse(counts: &[u64; BUCKETS]) -> Vec<(f64, u64)> {
    let mut buckets: Vec<(f64, u64)> = (FIRST_POWER..=LAST_POWER)
        .map(|power| ((1_u64 << power) as f64 / 1e6, 0))
        .chain([(f64::INFINITY, 0)])
        .collect();
    for (index, count) in counts.iter().enumerate() {
        let limit = bucket_limit(index) as f64 / 1e6;
        if let Some((_, sum)) = buckets.iter_mut().find(|(end, _)| limit <= *end) {
            *sum += count;
        }
    }
    buckets
}

/// 64 us: no handshake is faster.
const FIRST_POWER: u32 = 6;
/// 16.8 s: beyond the default time-out of handshakes.
const LAST_POWER: u32 = 24;

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use becket_proto::replica::Cause;
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    /// Name, as queried, with type and label names.
    type Families = BTreeMap<String, (String, BTreeSet<String>)>;

    fn page(counters: Vec<Arc<Counters>>) -> String {
        let view = sample::Sample::new(counters);
        Scrape::of(&view).render().unwrap()
    }

    /// The families of a rendered page.
    fn rendered(page: &str) -> Families {
        let mut families = Families::new();
        let mut name = String::new();
        for line in page.lines() {
            if let Some(described) = line.strip_prefix("# TYPE ") {
                let (base, kind) = described.split_once(' ').unwrap();
                let suffix = if kind == "counter" { "_total" } else { "" };
                name = format!("{base}{suffix}");
                families.insert(name.clone(), (kind.to_owned(), BTreeSet::new()));
            } else if let Some((_, labels)) =
                line.split_once('{').filter(|_| !line.starts_with('#'))
            {
                let names = labels
                    .split("=\"")
                    .filter_map(|part| part.rsplit(['{', ',']).next());
                let names =
                    names.filter(|n| n.chars().all(|c| c.is_ascii_lowercase()) && *n != "le");
                let family = families.get_mut(&name).unwrap();
                family.1.extend(names.map(str::to_owned));
            }
        }
        families
    }

    /// The families of the table in `docs/metrics.md`.
    fn documented() -> Families {
        let text = include_str!("../../../../docs/metrics.md");
        let rows = text.lines().filter(|line| line.starts_with("| `"));
        let rows = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
        let rows = rows.filter(|row| matches!(row[2], "counter" | "gauge" | "histogram"));
        rows.map(|row| {
            let labels = row[4].split(", ").filter(|label| !label.is_empty());
            let labels = labels.map(|label| label.trim_matches('`').to_owned());
            assert!(!row[3].is_empty() && row[5].len() > 10, "{row:?}");
            (
                row[1].trim_matches('`').to_owned(),
                (row[2].to_owned(), labels.collect()),
            )
        })
        .collect()
    }

    #[test]
    fn the_page_about_metrics_has_every_name_type_and_label_and_no_other() {
        let page = page(vec![Arc::default(), Arc::default()]);
        assert_eq!(rendered(&page), documented());
    }

    #[test]
    fn the_page_about_metrics_has_every_reason_and_no_other() {
        let page = include_str!("../../../../docs/metrics.md");
        let (_, section) = page.split_once("### Reasons").unwrap();
        let (section, _) = section.split_once("###").unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let documented: Vec<_> = rows.filter_map(|row| row.split('`').next()).collect();
        let labels: Vec<_> = CloseReason::ALL
            .iter()
            .map(|reason| reason.label())
            .collect();
        assert_eq!(labels, documented);
    }

    #[test]
    fn the_page_about_metrics_has_every_cause_and_no_other() {
        let page = include_str!("../../../../docs/metrics.md");
        let (_, section) = page.split_once("### Causes").unwrap();
        let (section, _) = section.split_once("###").unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let documented: Vec<_> = rows.filter_map(|row| row.split('`').next()).collect();
        assert_eq!(Cause::ALL.map(Cause::name), documented[..]);
    }

    #[test]
    fn workers_are_summed_and_open_connections_shown_for_each() {
        let workers: Vec<Arc<Counters>> = vec![Arc::default(), Arc::default()];
        workers[0].accepted.add(5);
        workers[1].accepted.add(2);
        workers[1].closed.of(CloseReason::NotTls).add(2);
        workers[0].handshakes[HandshakeClass {
            tls13: true,
            resumed: true,
        }
        .index()]
        .add(3);
        workers[1].handshakes_begun.add(4);
        workers[1].handshakes_ended.add(1);
        let page = page(workers);
        for line in [
            "becket_connections_accepted_total 7",
            "becket_connections{worker=\"0\"} 5",
            "becket_connections{worker=\"1\"} 0",
            "becket_connections_closed_total{reason=\"not-tls\"} 2",
            "becket_connections_closed_total{reason=\"finished\"} 0",
            "becket_handshakes_total{version=\"1.3\",kind=\"resumed\"} 3",
            "becket_handshakes_in_flight 3",
            "becket_workers 2",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
        }
        assert!(page.ends_with("# EOF\n"));
    }

    #[test]
    fn coarse_buckets_keep_every_time_on_its_side_of_every_limit() {
        let times = [
            0,
            7,
            63,
            64,
            65,
            127,
            128,
            1_000,
            1_024,
            16_777_215,
            16_777_216,
            u64::MAX / 2,
        ];
        for us in times {
            let histogram = Histogram::default();
            histogram.record(Duration::from_micros(us));
            let buckets = coarse(&histogram.counts());
            assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), 1);
            let (limit, _) = buckets.iter().find(|(_, count)| *count == 1).unwrap();
            let seconds = us as f64 / 1e6;
            assert!(seconds < *limit, "{us} us in the bucket up to {limit} s");
            assert!(seconds >= limit / 2.0 || *limit < 1e-4 || limit.is_infinite());
        }
    }

    #[test]
    fn the_histogram_ends_with_all_of_them() {
        let worker = Counters::default();
        worker.handshake_full.record(Duration::from_micros(900));
        worker.handshake_full.record(Duration::from_secs(60));
        let page = page(vec![Arc::new(worker)]);
        for line in [
            "becket_handshake_seconds_bucket{le=\"0.001024\",kind=\"full\"} 1",
            "becket_handshake_seconds_bucket{le=\"+Inf\",kind=\"full\"} 2",
            "becket_handshake_seconds_count{kind=\"full\"} 2",
            "becket_handshake_seconds_sum{kind=\"full\"} 60.0009",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
        }
    }
}
