//! Names of figures in [`crate::result::Sample`], of their loads and phases, and of the columns of floors. Units are in the names, as in
//! the reports of `becket-load`.

/// Server CPU microseconds (user and system, all processes) per completed transaction.
pub const CPU: &str = "cpu_us";
/// CPUs' worth of time that the server used.
pub const CPUS_USED: &str = "cpus_used";
/// Completed transactions per second.
pub const RATE: &str = "rate_per_s";
/// Median of the whole transaction.
pub const P50: &str = "p50_us";
/// Mean of the whole transaction, beside the quantiles.
pub const MEAN: &str = "mean_us";
/// 99 in 100.
pub const P99: &str = "p99_us";
/// 999 in 1000.
pub const P999: &str = "p999_us";
/// The longest.
pub const MAX: &str = "max_us";
/// Share of attempted transactions that failed, 0 to 1.
pub const FAILED: &str = "failed_share";
/// Share of handshakes that were resumed, counted and not assumed, 0 to 1.
pub const RESUMED: &str = "resumed_share";
/// Share of the time in which the busiest client thread ran or waited for a CPU, 0 to 1.
pub const CLIENT_BUSY: &str = "client_busy";
/// Client CPU microseconds per transaction.
pub const CLIENT_CPU: &str = "client_cpu_us";
/// Transactions that were to begin in a second.
pub const OFFERED: &str = "offered_per_s";
/// 99 in 100 transactions of an open loop began at most this late, because the client was not ready.
pub const LATE: &str = "late_start_p99_us";
/// Share of the time in which the busiest CPU of the client's was at work, for whomever, 0 to 1.
pub const CLIENT_CPU_BUSY: &str = "client_cpu_busy_share";
/// Megabytes (10^6) of response bodies per second of server CPU.
pub const MB_PER_CPU_S: &str = "mb_per_cpu_s";
/// Megabytes (10^6) of response bodies per second, as a client sees them.
pub const MB_PER_S: &str = "mb_per_s";
/// Proportional set size of all processes of the server, bytes.
pub const PSS: &str = "pss_bytes";
/// Turns in which a round was measured, the servers one after the other.
pub const TURNS: &str = "turns";
/// The control's CPU per transaction in the first, third... turn of a round, as a ratio to that in the others.
pub const MOVED: &str = "cpu_moved_ratio";
/// Threads of all processes of the server.
pub const THREADS: &str = "threads";
/// Growth of the proportional set size per idle connection, bytes.
pub const PSS_PER_CONNECTION: &str = "pss_per_connection_bytes";
/// Idle connections that were held.
pub const HELD: &str = "held_connections";
/// The highest rate with at most 1 failure in 1000 and p99 under 100 ms, confirmed.
pub const CAPACITY: &str = "capacity_per_s";
/// 1 when the client was what was slow, so that the capacity is a lower bound.
pub const CAPACITY_BOUND: &str = "capacity_is_lower_bound";
/// Bytes of TCP payload of a transaction, both ways: what TLS and HTTP add to the body is in them.
pub const WIRE: &str = "wire_bytes";
/// Bytes that are not of the body, as a share of the body.
pub const OVERHEAD: &str = "overhead_share";
/// Marks of a ramp: the highest rate,
pub const MARK_MOST: &str = "mark_most_per_s";
/// that with a mean below 100 ms and at most 1 in 1000 lost,
pub const MARK_100: &str = "mark_mean_100ms_per_s";
/// with a mean below 500 ms,
pub const MARK_500: &str = "mark_mean_500ms_per_s";
/// and with fewer than 1 in 10 000 lost.
pub const MARK_LOST: &str = "mark_lost_per_s";
/// What was served under a flood, as a share of what closed loops got just before it and just after.
pub const KEPT: &str = "goodput_kept_share";
/// Seconds from the end of the overload until a quarter of a second passed the criteria again.
pub const RECOVERY: &str = "recovery_s";

/// Server CPU per client who is served in a flood, as a share of what it is in the closed loops before and after.
pub const COST: &str = "cpu_per_served_share";
/// What the closed loops between floods got in a second, on average.
pub const LOOP: &str = "closed_loop_per_s";
/// Latency of clients who were served, from when they came into the accept queue.
pub const QUEUED_P99: &str = "queued_p99_us";
/// Share of all CPUs' time in which the kernel worked on packets.
pub const SOFTIRQ: &str = "softirq_share";
/// Connections that the kernel refused because a queue was full.
pub const DROPS: &str = "listen_drops";
/// What is served after the floods, by what was served before.
pub const AFTER: &str = "capacity_after_share";
/// Full handshakes of a storm that began in a second.
pub const FLOOD: &str = "flood_rate_per_s";
/// Microseconds of CPU time in a second.
pub const CPU_PER_S: &str = "cpu_us_per_s";
/// Microseconds of CPU time in a second, of threads that are no workers.
pub const OTHER_THREADS: &str = "other_threads_us_per_s";
/// From the first question of a scrape to its last answer.
pub const SCRAPE: &str = "scrape_us";
/// Bytes of all pages of a scrape.
pub const SCRAPE_BYTES: &str = "scrape_bytes";
/// Before the figures of a probe.
pub const PROBE: &str = "probe_";
/// Before the figures of a client that returns.
pub const RETURNING: &str = "returning_";

/// From the start of a transaction to the first byte of its answer, median and 99 in 100.
pub const FIRST_P50: &str = "first_byte_p50_us";
pub const FIRST_P99: &str = "first_byte_p99_us";
/// The medians to the first byte and to the last one, by the round trip of the network.
pub const ROUND_TRIPS_TO_FIRST: &str = "first_byte_round_trips";
pub const ROUND_TRIPS_TO_LAST: &str = "last_byte_round_trips";
/// Share of connections whose early data the server took, 0 to 1.
pub const EARLY: &str = "early_data_share";
/// The round trip of the network, measured by datagrams.
pub const RTT: &str = "round_trip_us";

/// Loads of `latency`: per cent of the server's own capacity, and one rate for all.
pub const LATENCY_LOADS: &[&str] = &["1", "50", "80", SAME];
/// Loads of `storm`.
pub const STORM_LOADS: &[&str] = &["80", "150", SAME];
/// A load that is the same for all servers.
pub const SAME: &str = "same";
/// Floods of `overload`: per cent of the capacity, and the share of it that becket is to keep.
pub const FLOODS: &[(&str, f64)] = &[("150", 0.97), ("300", 0.95), ("1000", 0.85)];

/// Phases of `failover`: at the node that made the session, at the first return after its loss, at the second.
pub const BEFORE: &str = "before";
pub const DURING: &str = "during";
pub const AFTERWARDS: &str = "after";
/// Phases of `queued`.
pub const EMPTY: &str = "empty";
pub const FULL: &str = "queued";

/// Columns of floors: a plain TCP relay,
pub const RELAY: &str = "relay";
/// a plain socket that answers,
pub const ANSWER: &str = "answer";
/// a relay that also answers as TLS must,
pub const ROUND_TRIP: &str = "round-trip";
/// and the library in memory.
pub const LIBRARY: &str = "library";

/// Returns whether a column is a floor and not a server.
pub fn is_floor(peer: &str) -> bool {
    [RELAY, ROUND_TRIP, ANSWER, LIBRARY, "direct"].contains(&peer)
}

/// A figure under one of several loads, such as `recovery_s_at_300`, or in one phase of a measure, such as `cpu_us_before`.
pub fn at(name: &str, load: &str) -> String {
    match load {
        BEFORE | DURING | AFTERWARDS | EMPTY | FULL => format!("{name}_{load}"),
        load => format!("{name}_at_{load}"),
    }
}
