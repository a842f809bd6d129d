//! `/metrics`: all metrics in the Prometheus text format.
//!
//! The page is created from a [`Snapshot`], and counters are summed over the workers.
//! `becket_connections` is also shown per worker, because it shows how evenly the workers are
//! loaded.
//!
//! Clients cannot increase the number of series. Labels are configured names, fixed words, and node
//! numbers of a limited number of peers. Histogram buckets end at powers of two of microseconds,
//! which are also limits of the internal buckets, so the counts are exact.
//!
//! OpenMetrics is not used: it omits `_total` in HELP and TYPE, so tools for the older format, such
//! as promtool, do not find the help of counters.
//!
//! `docs/reference/metrics.md` describes every metric; a test compares it with the page. Source:
//! Prometheus, "Exposition formats", text-based format 0.0.4.

use std::collections::BTreeMap;
use std::fmt;

use becket_cluster::ClusterStatus;
use becket_cluster::replica::{DropCause, PeerState, PeerStatus, WarmUp};
use becket_http::status::StatusCode;
use becket_store::StoreStatus;
use becket_sys::kernel_tls::{Cipher, TlsVersion};
use becket_sys::memory::{ResidentMemory, open_descriptors};
use becket_sys::{clock, rlimit};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelValue, EncodeMetric, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::page_refusals::PageRefusal;
use super::snapshot::Snapshot;
use super::status::{BackendStatus, ServerStatus, ServingState};
use becket_keys::signing::token::TokenStatus;
use becket_proto::close_reason::CloseReason;
use becket_proxy::metrics::{
    AtomicHistogram, BUCKETS, Counter, Counters, KernelTlsRefusal, PipeRefusal, Times, bucket_limit,
};
use becket_tls::resumption::{Offer, Resumption};

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the page `/metrics`.
///
/// # Errors
/// Fails if a value cannot be formatted, which is a bug in becket.
pub fn exposition(snapshot: Snapshot) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(snapshot));
    let mut page = String::with_capacity(16 * 1024);
    text::encode_registry(&mut page, &registry)?;
    Ok(page)
}

/// Writes metric families to a page. Each line contains the kind, the name without `_total`, the
/// help, the label names if any, and the value, or one value per set of labels.
macro_rules! families {
    ($page:ident: $($kind:ident $name:ident $help:literal $([$($label:ident),+])? = $values:expr;)+) => {
        $(families!(@one $page $kind $name $help $([$($label),+])? = $values);)+
    };
    (@one $page:ident $kind:ident $name:ident $help:literal = $value:expr) => {
        $page.one(MetricType::$kind, stringify!($name), $help, $value)?
    };
    (@one $page:ident $kind:ident $name:ident $help:literal [$($label:ident),+] = $values:expr) => {
        $page.each(MetricType::$kind, stringify!($name), $help, [$(stringify!($label)),+], $values)?
    };
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = MetricsPage(encoder);
        for (name, help, counter) in Counters::PLAIN {
            page.one(MetricType::Counter, name, help.trim(), self.sum(counter))?;
        }
        self.connections(&mut page)?;
        self.trials(&mut page)?;
        self.kernel_tls(&mut page)?;
        self.process(&mut page)?;
        self.backends(&mut page)?;
        self.tokens(&mut page)?;
        if let Some(of) = &self.cluster {
            self.cluster(of, &mut page)?;
        }
        if let Some(of) = &self.status.sessions.store {
            Self::store(of, &mut page)?;
        }
        Ok(())
    }
}

impl Snapshot {
    fn trials(&self, page: &mut MetricsPage<'_>) -> fmt::Result {
        let trials = self
            .status
            .traffic
            .trials
            .iter()
            .flat_map(|(policy, counts)| {
                let each = counts.iter();
                each.map(move |(outcome, count)| ([&**policy, &**outcome], *count))
            });
        families! { page:
            Counter becket_trial "Handshakes under a policy that has a trial, by result of the trial" [policy, outcome] = trials;
        }
        Ok(())
    }

    fn connections(&self, page: &mut MetricsPage<'_>) -> fmt::Result {
        let (traffic, sessions) = (&self.status.traffic, &self.status.sessions);
        let open = self.counters.iter().enumerate().map(|(worker, c)| {
            // `closed` is read before `accepted`, so that their difference is never negative.
            let closed = c.closed.total();
            let open = c.accepted.value().saturating_sub(closed);
            ([worker.to_string()], open)
        });
        let handshakes = [(0, false), (0, true), (1, false), (1, true)].map(|(tls13, resumed)| {
            let count = self.sum(|c| &c.handshakes[tls13][usize::from(resumed)]);
            ([["1.2", "1.3"][tls13], kind(resumed)], count)
        });
        let offers = Offer::ALL.iter().flat_map(|&offer| {
            let each = Resumption::ALL.iter();
            each.map(move |&became| {
                let count = self.sum(|c| c.resumptions.of(offer, became));
                ([offer.label(), became.label()], count)
            })
        });
        let certificates = &self.status.certificates;
        // The expiry of a temporary certificate means nothing.
        let issued = || certificates.iter().filter(|c| !c.temporary);
        families! { page:
            Gauge becket_connections "Connections open" [worker] = open;
            Counter becket_connections_closed "Connections ended, by reason" [reason]
                = CloseReason::ALL.iter().map(|&why| ([why.label()], self.sum(|c| c.closed.of(why))));
            Gauge becket_handshakes_in_flight "Handshakes begun and not ended yet" = traffic.totals.handshakes_in_flight;
            Gauge becket_signatures_in_flight "Signatures in progress on crypto threads" = traffic.totals.signatures_in_flight;
            Counter becket_handshakes "Handshakes completed" [version, kind] = handshakes;
            Counter becket_resumptions_offered "Sessions and tickets that clients offered, by outcome" [kind, outcome]
                = offers;
            Counter becket_early_data "Handshakes for which the client announced early data, by outcome" [outcome]
                = [(["accepted"], self.sum(|c| &c.early_accepted)), (["rejected"], self.sum(|c| &c.early_rejected))];
            Counter becket_server_handshakes "Completed TLS handshakes with servers" [kind]
                = [false, true].map(|resumed| ([kind(resumed)], self.sum(|c| &c.server_handshakes[usize::from(resumed)])));
            Gauge becket_pipes_in_use "Pipes in use for transfers without a copy" = traffic.totals.pipes_lent;
            Counter becket_pipe_refusals "Times that bulk data was copied because no pipe was available" [reason]
                = PipeRefusal::ALL.iter().map(|&why| ([why.label()], self.sum(|c| &c.pipe_refusals[why as usize])));
            Gauge becket_sessions "TLS 1.2 sessions in the table" = sessions.table.entries;
            Gauge becket_sessions_capacity "TLS 1.2 sessions that the table may hold" = sessions.table.capacity;
            Gauge becket_early_sessions "TLS 1.3 sessions that admit early data" = sessions.early_sessions;
            Gauge becket_ticket_epoch "Number of the ticket key in use" = sessions.tickets.epoch;
            Gauge becket_ticket_rotation_seconds "Time until the ticket key changes" = sessions.tickets.next_rotation_seconds;
            Gauge becket_certificate_expiry_timestamp_seconds "When a certificate expires" [listener, name, key]
                = issued().map(|c| ([&*c.listener, &*c.name, &*c.key], c.not_after.unix_seconds()));
            Gauge becket_certificate_temporary "Always 1: clients get a temporary certificate, because the ACME authority has not issued one" [listener, name, key]
                = certificates.iter().filter(|c| c.temporary).map(|c| ([&*c.listener, &*c.name, &*c.key], 1_u64));
            Gauge becket_certificates_omitted "Certificates without these metrics, which at most the 10 000 that expire first have" = self.status.certificates_omitted;
            Gauge becket_certificate_renewal_timestamp_seconds "Time by which a certificate should be renewed: a third of its lifetime before its end, at most 14 days" [listener, name, key]
                = issued().map(|c| ([&*c.listener, &*c.name, &*c.key], c.renew_by.unix_seconds()));
            Gauge becket_ocsp_expiry_timestamp_seconds "When the OCSP response of a certificate expires" [listener, name, key]
                = certificates.iter().filter_map(|c| Some(([&*c.listener, &*c.name, &*c.key], c.ocsp_until?.unix_seconds())));
            Gauge becket_full_handshakes_in_flight "Full handshakes in progress, if they are limited"
                = traffic.admission.full_handshakes_in_flight;
            Gauge becket_sources "Sources that admission tracks" = traffic.admission.sources;
            Counter becket_sources_untracked "Times that a client was not counted for its source" = traffic.admission.untracked;
        }
        let (full, resumed) = (
            self.histogram(|c| &c.handshake_full),
            self.histogram(|c| &c.handshake_resumed),
        );
        page.histogram(
            "becket_signature_seconds",
            "Time that a signature took a crypto thread",
            &[(None, self.histogram(|c| &c.signature))],
        )?;
        page.histogram(
            "becket_signature_wait_seconds",
            "Time that a signature waited for a crypto thread",
            &[(None, self.histogram(|c| &c.signature_wait))],
        )?;
        page.histogram(
            "becket_handshake_seconds",
            "Time from accept to traffic keys",
            &[(Some(kind(false)), full), (Some(kind(true)), resumed)],
        )
    }

    fn kernel_tls(&self, page: &mut MetricsPage<'_>) -> fmt::Result {
        let kernel_tls = TlsVersion::ALL.iter().flat_map(|&version| {
            Cipher::ALL.map(|cipher| {
                let kernel = self.kernel_tls;
                let has = kernel.is_some_and(|kernel| kernel.has(version, cipher));
                ([version.label(), cipher.label()], u32::from(has))
            })
        });
        families! { page:
            Gauge becket_kernel_tls_supported "1 if the kernel supports this combination and kernel TLS is enabled" [version, cipher] = kernel_tls;
            Gauge becket_kernel_tls_rekeys "1 if the kernel can replace keys"
                = u32::from(self.kernel_tls.is_some_and(|kernel| kernel.rekey));
            Counter becket_kernel_tls_refusals "Times that the kernel did not take over the TLS of a leg" [reason]
                = KernelTlsRefusal::ALL.iter().map(|&why| ([why.label()], self.sum(|c| &c.kernel_tls_refusals[why as usize])));
        }
        Ok(())
    }

    fn process(&self, page: &mut MetricsPage<'_>) -> fmt::Result {
        let (process, changes) = (&self.status.process, &self.status.changes);
        let (tried, ok) = match &changes.reload {
            None => (process.started, true),
            Some(reload) => (reload.time, reload.errors.is_empty()),
        };
        let batches = self.status.signing.rsa_batches.unwrap_or_default();
        let memory = process.memory.unwrap_or_default();
        families! { page:
            Counter becket_file_requests "Requests for files, and redirected requests, by status" [status]
                = StatusCode::ALL.iter().map(|&status| ([status.number()], self.sum(|c| &c.file_requests[status as usize])));
            Gauge becket_build_info "Always 1; the label says what runs" [version] = [([&*process.version], 1_u64)];
            Gauge becket_workers "Worker threads" = process.workers;
            Gauge becket_crypto_threads "Threads that sign for the workers" = process.crypto_threads;
            Counter becket_rsa_batches "Batches of RSA signatures" = batches.made;
            Counter becket_rsa_batch_signatures "RSA signatures that were made in batches" = batches.signatures;
            Counter becket_rsa_batch_fallbacks "RSA signatures of failed batches that were made again one by one"
                = batches.repeated;
            Gauge becket_memory_used_bytes "Memory in use, as limits.memory measures it; 0 without a limit" = memory.used;
            Gauge becket_memory_watermark_bytes "Memory use above which becket frees memory; 0 without a limit" = memory.watermark;
            Gauge becket_memory_shortage "0: no shortage; 1: idle connections are closed; 2: new clients are rejected as well"
                = memory.shortage as u64;
            Counter becket_sandbox_refusals "System calls that the sandbox refused" [call]
                = process.refused_calls.iter().map(|(call, count)| ([call.as_str()], *count));
            Counter becket_restarts "Serving processes that died and were replaced" = process.restarts;
            Gauge becket_draining "1 while the process drains" = u32::from(process.state == ServingState::Draining);
            Counter becket_log_lines_dropped "Lines of the log that were dropped" = self.status.dropped.log;
            Counter becket_syslog_lines_dropped "Lines of the log that the syslog daemon did not take" = self.status.dropped.syslog;
            Counter becket_access_lines_dropped "Lines of the access log that were dropped" = self.status.dropped.access;
            Gauge becket_reload_ok "1 if the last reload, or the start, succeeded" = u32::from(ok);
            Gauge becket_reload_timestamp_seconds "Time of the last reload, or of the start" = tried.unix_seconds();
            Counter becket_watch_reloads "Times that changed files were loaded" = changes.watch.renewals;
            Counter becket_watch_failures "Times that a changed file was rejected" = changes.watch.failures;
            Gauge becket_watch_rejected "Rejected files whose previous contents are still in use" = changes.watch.rejected.len();
            Counter becket_admin_refused "Connections to the admin pages that were not served" [reason]
                = PageRefusal::ALL.iter().zip(self.admin_refused).map(|(why, count)| ([why.label()], count));
            Counter becket_cancels "Cancels of PostgreSQL clients, counted for each server" [outcome]
                = [(["passed"], self.cancels.0), (["failed"], self.cancels.1)];
            Gauge process_start_time_seconds "When the process started" = process.started.unix_seconds();
        }
        if let Ok(count) = open_descriptors() {
            families! { page: Gauge process_open_fds "Open file descriptors" = count; }
        }
        if let Some(most) = rlimit::open_files() {
            families! { page: Gauge process_max_fds "Limit of open file descriptors" = most; }
        }
        if let Ok(bytes) = ResidentMemory::open().and_then(|memory| memory.read()) {
            families! { page: Gauge process_resident_memory_bytes "Resident memory" = bytes; }
        }
        families! { page:
            Counter process_cpu_seconds "User and system time of all threads" = clock::cpu_time().as_secs_f64();
        }
        Ok(())
    }

    fn backends(&self, page: &mut MetricsPage<'_>) -> fmt::Result {
        let all = &self.status.backends;
        let backends = |number: fn(&BackendStatus) -> u64| {
            let each = all.iter();
            each.map(move |one| ([one.name.as_str()], number(one)))
        };
        let servers = |number: fn(&ServerStatus) -> u64| {
            all.iter().flat_map(move |backend| {
                let each = backend.servers.iter();
                each.map(move |one| ([backend.name.as_str(), &one.name], number(one)))
            })
        };
        families! { page:
            Gauge becket_queue "Connections that wait for a slot of a server" [backend] = backends(|one| one.waiting as u64);
            Counter becket_queue_hand_overs "Slots handed to a connection that waited" [backend] = backends(|one| one.hand_overs);
            Counter becket_idle_reclaims "Idle connections closed for a client that waited for a slot" [backend] = backends(|one| one.idle_reclaims);
            Gauge becket_stick_entries "Clients whose server is remembered" [backend] = backends(|one| one.stick_entries as u64);
            Gauge becket_server_in_service "1 if the server can get connections" [backend, server]
                = servers(|one| (one.health.state == "passing").into());
            Gauge becket_server_connections "Connections to the server, including pending connects" [backend, server]
                = servers(|one| one.in_use.into());
            Counter becket_server_connects "Connects to the server that succeeded" [backend, server]
                = servers(|one| one.connections);
            Counter becket_server_connect_failures "Failed connects to the server" [backend, server]
                = servers(|one| one.failures);
            Counter becket_server_checks "Completed health checks of the server" [backend, server]
                = servers(|one| one.health.checks);
            Counter becket_server_check_failures "Failed health checks of the server" [backend, server]
                = servers(|one| one.health.check_failures);
            Counter becket_server_outages "Times that the server went out of service" [backend, server]
                = servers(|one| one.health.outages);
            Gauge becket_server_dns_stale "1 if the server's name did not resolve when it was last looked up" [backend, server]
                = servers(|one| one.health.dns_stale.into());
        }
        page.histogram(
            "becket_connect_seconds",
            "Time of successful connects to servers, TLS included",
            &[(None, self.histogram(|c| &c.connect_time))],
        )?;
        page.histogram(
            "becket_queue_wait_seconds",
            "Time from asking for a slot to getting one, of connections that waited",
            &[(None, self.histogram(|c| &c.queue_waited))],
        )
    }

    fn tokens(&self, page: &mut MetricsPage<'_>) -> fmt::Result {
        let tokens = |number: fn(&TokenStatus) -> u64| {
            let each = self.status.signing.tokens.iter();
            each.map(move |one| ([one.module.as_str(), &one.token], number(one)))
        };
        families! { page:
            Gauge becket_token_available "1 if the token signs with every key that is in use" [module, token]
                = tokens(|one| one.available.into());
            Gauge becket_token_in_flight "Signatures in progress on the token" [module, token]
                = tokens(|one| one.in_flight as u64);
            Counter becket_token_signatures "Signatures that the token made" [module, token] = tokens(|one| one.signatures);
            Counter becket_token_failures "Signatures that the token failed to make in time" [module, token]
                = tokens(|one| one.failures);
            Counter becket_token_starts "Processes that were started for the token" [module, token] = tokens(|one| one.starts);
        }
        Ok(())
    }

    fn cluster(&self, cluster: &ClusterStatus, page: &mut MetricsPage<'_>) -> fmt::Result {
        let (sessions, total) = (&cluster.sessions, &cluster.replica.total);
        let states = PeerState::ALL.map(|state| {
            let peers = cluster.replica.peers.iter();
            (
                [state.label()],
                peers.filter(|peer| peer.state == state).count(),
            )
        });
        let lost_names = cluster.names.iter().filter(|name| name.problem.is_some());
        families! { page:
            Counter becket_cluster_sessions "Sessions sent to peers, stored from peers, and dropped because control was overloaded" [outcome]
                = [(["sent"], sessions.told), (["stored"], sessions.stored), (["dropped"], sessions.untold)];
            Counter becket_cluster_sessions_ended "Sessions ended by a fatal alert: reported to peers, and removed on their report" [outcome]
                = [(["sent"], sessions.ends_told), (["removed"], sessions.ended)];
            Counter becket_cluster_stick_entries "Stickiness entries sent to peers, and stored from peers" [outcome]
                = [(["sent"], sessions.sticks_told), (["stored"], sessions.sticks)];
            Counter becket_cluster_datagrams "Datagrams sent to peers, and genuine ones received" [direction]
                = [(["out"], total.sent), (["in"], total.received)];
            Counter becket_cluster_bytes "Bytes of these datagrams" [direction]
                = [(["out"], total.sent_bytes), (["in"], total.received_bytes)];
            Counter becket_cluster_records "Records in these datagrams; received ones count if they were used" [direction]
                = [(["out"], total.sent_records), (["in"], total.received_records)];
            Counter becket_cluster_datagrams_lost "Datagrams of peers that were lost" = total.lost;
            Counter becket_cluster_dropped "Datagrams and records that were dropped" [cause]
                = DropCause::ALL.map(|cause| ([cause.label()], total.drops.of(cause)));
            Gauge becket_cluster_peers "Peers" [state] = states;
            Gauge becket_cluster_peers_configured "Peers of the configuration" = cluster.names.len();
            Gauge becket_cluster_collisions "Node numbers that several processes use" = cluster.replica.collisions.len();
            Gauge becket_cluster_names_unresolved "Names of peers that do not resolve" = lost_names.count();
            Gauge becket_cluster_synced "1 after the sessions of other nodes were received" = u32::from(cluster.replica.warm_up == WarmUp::Done);
            Gauge becket_cluster_peer_last_received_seconds "Time since the last datagram of a node" [node]
                = by_node(cluster, |peer| peer.heard_ago.as_secs_f64(), f64::min);
            Gauge becket_cluster_peer_datagrams_lost "Lost datagrams of a node since it became a peer" [node]
                = by_node(cluster, |peer| peer.traffic.lost, |a, b| a + b);
        }
        Ok(())
    }

    fn store(store: &StoreStatus, page: &mut MetricsPage<'_>) -> fmt::Result {
        let counts = &store.counts;
        families! { page:
            Gauge becket_store_available "1 while the store is used" = u32::from(store.available);
            Counter becket_store_outages "Times that the store became unavailable" = counts.outages;
            Counter becket_store_writes "New sessions for the store, by outcome" [outcome]
                = [(["written"], counts.written), (["dropped"], counts.dropped), (["overflowed"], counts.overflowed), (["refused"], counts.refused)];
            Counter becket_store_lookups "Sessions that a client offered and this host lacked, by outcome" [outcome]
                = [(["found"], counts.found), (["missing"], counts.missing), (["rejected"], counts.rejected), (["failed"], counts.failed), (["skipped"], counts.skipped)];
        }
        Ok(())
    }

    fn histogram(&self, histogram: impl Fn(&Counters) -> &AtomicHistogram) -> Times {
        AtomicHistogram::gather(self.counters.iter().map(|worker| histogram(worker)))
    }

    fn sum(&self, counter: impl Fn(&Counters) -> &Counter) -> u64 {
        self.counters.iter().map(|c| counter(c).value()).sum()
    }
}

/// Returns one value per node number. `join` combines the values of processes with one node number.
fn by_node<T: Copy>(
    cluster: &ClusterStatus,
    value: impl Fn(&PeerStatus) -> T,
    join: impl Fn(T, T) -> T,
) -> impl Iterator<Item = ([String; 1], T)> {
    let mut nodes: BTreeMap<u16, T> = BTreeMap::new();
    for peer in &cluster.replica.peers {
        let one = value(peer);
        let joined = nodes
            .get(&peer.node.0)
            .map_or(one, |other| join(*other, one));
        nodes.insert(peer.node.0, joined);
    }
    nodes
        .into_iter()
        .map(|(node, value)| ([node.to_string()], value))
}

struct MetricsPage<'a>(DescriptorEncoder<'a>);

impl MetricsPage<'_> {
    fn one(
        &mut self,
        kind: MetricType,
        name: &str,
        help: &str,
        value: impl EncodeGaugeValue,
    ) -> fmt::Result {
        let name = queried_name(kind, name);
        let metric = self.0.encode_descriptor(&name, help, None, kind)?;
        // A counter as well is encoded as a gauge, because the library would add `_total` to the
        // name of a counter.
        ConstGauge::new(value).encode(metric)
    }

    fn each<K: EncodeLabelValue, const N: usize>(
        &mut self,
        kind: MetricType,
        name: &str,
        help: &str,
        labels: [&'static str; N],
        values: impl IntoIterator<Item = ([K; N], impl EncodeGaugeValue)>,
    ) -> fmt::Result {
        let name = queried_name(kind, name);
        let mut metric = self.0.encode_descriptor(&name, help, None, kind)?;
        for (of, value) in values {
            let set: Vec<(&str, K)> = labels.into_iter().zip(of).collect();
            ConstGauge::new(value).encode(metric.encode_family(&set)?)?;
        }
        Ok(())
    }

    /// Writes a histogram family. If the family has the label `kind`, writes one histogram per
    /// value of the label.
    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        histograms: &[(Option<&'static str>, Times)],
    ) -> fmt::Result {
        let kind = MetricType::Histogram;
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (label, Times { counts, seconds }) in histograms {
            let (count, buckets) = (counts.iter().sum(), coarse(counts));
            let Some(label) = label else {
                metric.encode_histogram::<NoLabelSet>(*seconds, count, &buckets, None)?;
                continue;
            };
            let labels = [("kind", *label)];
            let mut family = metric.encode_family(&labels)?;
            family.encode_histogram::<NoLabelSet>(*seconds, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// Returns the name used in queries, in which a counter ends in `_total`.
fn queried_name(kind: MetricType, name: &str) -> String {
    let is_counter = matches!(kind, MetricType::Counter);
    format!("{name}{}", if is_counter { "_total" } else { "" })
}

fn kind(resumed: bool) -> &'static str {
    if resumed { "resumed" } else { "full" }
}

/// Merges the internal buckets up to each power of two of microseconds. Returns the count of each
/// merged bucket and its upper limit in seconds, of which the last is infinite.
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

/// Exponent of the first limit: 2^6 us = 64 us, less than any handshake takes.
const FIRST_POWER: u32 = 6;
/// Exponent of the last finite limit: 2^24 us = 16.8 s, more than the default handshake timeout.
const LAST_POWER: u32 = 24;

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::super::totals::Totals;
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    /// Name as queried, with type and label names.
    type Families = BTreeMap<String, (String, BTreeSet<String>)>;

    fn page(counters: Vec<Arc<Counters>>) -> String {
        let mut snapshot = sample::state().snapshot();
        snapshot.counters = counters;
        snapshot.cluster = Some(sample::cluster());
        snapshot.status.sessions.store = Some(Default::default());
        let status = &mut snapshot.status;
        status.traffic.totals = Totals::of(&snapshot.counters);
        status.process.workers = snapshot.counters.len();
        let mut certificates = status.certificates.to_vec();
        certificates[0].ocsp_until = Some(certificates[0].not_after);
        certificates[1].temporary = true;
        status.certificates = certificates.into();
        status.signing.tokens = vec![TokenStatus::default()];
        let calls = &mut status.process.refused_calls;
        calls.insert("ptrace".to_owned(), 1);
        exposition(snapshot).unwrap()
    }

    /// Returns the families of a rendered page.
    fn rendered(page: &str) -> Families {
        let mut families = Families::new();
        let mut name = String::new();
        for line in page.lines() {
            if let Some(described) = line.strip_prefix("# TYPE ") {
                let (of, kind) = described.split_once(' ').unwrap();
                name = of.to_owned();
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

    /// Returns the families in the table of `docs/reference/metrics.md`.
    fn documented() -> Families {
        let text = include_str!("../../../docs/reference/metrics.md");
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
    fn every_sample_has_help_and_type_under_its_own_name() {
        let page = page(vec![Arc::default()]);
        let (mut name, mut kind) = ("", "");
        for line in page.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (of, text) = help.split_once(' ').unwrap();
                assert!(!text.is_empty(), "{line}");
                name = of;
            } else if let Some(described) = line.strip_prefix("# TYPE ") {
                let (of, is) = described.split_once(' ').unwrap();
                assert_eq!(of, name, "{line}");
                assert_eq!(is == "counter", name.ends_with("_total"), "{line}");
                kind = is;
            } else {
                let suffix = line.split(['{', ' ']).next().unwrap().strip_prefix(name);
                let accepted: &[_] = match kind {
                    "histogram" => &["_bucket", "_count", "_sum"],
                    _ => &[""],
                };
                assert!(suffix.is_some_and(|it| accepted.contains(&it)), "{line}");
            }
        }
    }

    #[test]
    fn a_temporary_certificate_has_a_metric_and_no_expiry() {
        let page = page(vec![Arc::default()]);
        let samples = page.lines().filter(|line| {
            line.starts_with("becket_certificate_") && line.contains("\"*.example.net\"")
        });
        let labels = "{listener=\"web\",name=\"*.example.net\",key=\"ecdsa\"}";
        let expected = format!("becket_certificate_temporary{labels} 1");
        assert_eq!(samples.collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn the_page_about_close_reasons_has_every_reason_and_no_other() {
        let page = include_str!("../../../docs/reference/close-reasons.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let mut documented: Vec<_> = rows.filter_map(|row| row.split('`').next()).collect();
        documented.sort_unstable();
        let labels = CloseReason::ALL.iter().map(|reason| reason.label());
        let mut labels: Vec<_> = labels.collect();
        labels.sort_unstable();
        assert_eq!(labels, documented);
    }

    #[test]
    fn the_page_about_metrics_has_every_cause_and_no_other() {
        let page = include_str!("../../../docs/reference/metrics.md");
        let (_, section) = page.split_once("### Causes").unwrap();
        let (section, _) = section.split_once("###").unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let documented: Vec<_> = rows.filter_map(|row| row.split('`').next()).collect();
        assert_eq!(DropCause::ALL.map(DropCause::label), documented[..]);
    }

    #[test]
    fn workers_are_summed_and_open_connections_shown_for_each() {
        let workers: Vec<Arc<Counters>> = vec![Arc::default(), Arc::default()];
        workers[0].accepted.add(5);
        workers[1].accepted.add(2);
        workers[1].closed.of(CloseReason::NotTls).add(2);
        workers[0].handshakes[1][1].add(3);
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
            let histogram = AtomicHistogram::default();
            histogram.record(Duration::from_micros(us));
            let buckets = coarse(&AtomicHistogram::gather([&histogram]).counts);
            assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), 1);
            let (limit, _) = buckets.iter().find(|(_, count)| *count == 1).unwrap();
            let seconds = us as f64 / 1e6;
            assert!(seconds < *limit, "{us} us in the bucket up to {limit} s");
            assert!(seconds >= limit / 2.0 || *limit < 1e-4 || limit.is_infinite());
        }
    }

    #[test]
    fn the_last_histogram_bucket_counts_all_samples() {
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
