//! Names of figures in [`crate::result::Sample`], of loads and phases, and of the columns for floors (lower bounds of
//! the CPU cost).
//!
//! The name of a figure includes its unit, as in the reports of `becket-load`.

/// Server CPU time per completed transaction (user and system, all processes).
pub const CPU: &str = "cpu_us";
/// Average number of CPUs that the server used.
pub const CPUS_USED: &str = "cpus_used";
/// Completed transactions per second.
pub const RATE: &str = "rate_per_s";
pub const P50: &str = "p50_us";
pub const MEAN: &str = "mean_us";
pub const P99: &str = "p99_us";
pub const P999: &str = "p999_us";
pub const MAX: &str = "max_us";
/// Share of attempted transactions that failed, 0 to 1.
pub const FAILED: &str = "failed_share";
/// Share of handshakes that were resumed, 0 to 1.
pub const RESUMED: &str = "resumed_share";
/// Share of the time in which the busiest client thread ran or waited for a CPU, 0 to 1.
pub const CLIENT_BUSY: &str = "client_busy";
pub const CLIENT_CPU: &str = "client_cpu_us";
/// Rate at which the client should start transactions.
pub const OFFERED: &str = "offered_per_s";
/// 99th percentile of the start delay: the time from the intended to the actual start of a transaction in an open loop.
pub const LATE: &str = "late_start_p99_us";
/// Share of the time in which the busiest of the client's CPUs was busy with any process, 0 to 1.
pub const CLIENT_CPU_BUSY: &str = "client_cpu_busy_share";
/// Megabytes (10^6) of response bodies per second of server CPU.
pub const MB_PER_CPU_S: &str = "mb_per_cpu_s";
/// Megabytes (10^6) of response bodies per second that the client received.
pub const MB_PER_S: &str = "mb_per_s";
/// Sum of the proportional set sizes of the server's processes, in bytes.
pub const PSS: &str = "pss_bytes";
/// Number of turns (short interleaved measurements) in a round.
pub const TURNS: &str = "turns";
/// CPU time per transaction of the control in the odd turns of a round, divided by that in the even turns.
pub const MOVED: &str = "cpu_moved_ratio";
pub const THREADS: &str = "threads";
/// Growth of the proportional set size in bytes per idle connection.
pub const PSS_PER_CONNECTION: &str = "pss_per_connection_bytes";
/// Growth of the kernel's memory in bytes for the server's two sockets of an idle connection.
pub const KERNEL_PER_CONNECTION: &str = "kernel_per_connection_bytes";
/// Largest distance of the memory from a straight line over the number of connections, relative to the largest memory.
pub const DEVIATION: &str = "growth_deviation_share";
/// Rate at which idle connections were opened, each with a request.
pub const OPENED: &str = "opened_per_s";
/// Server CPU time to open an idle connection, with its request.
pub const OPEN_CPU: &str = "open_cpu_us";
/// Number of connections that did not survive a reload or an upgrade.
pub const LOST: &str = "lost_connections";
/// Time from SIGTERM to the end of the server.
pub const DRAIN: &str = "drain_us";
pub const HELD: &str = "held_connections";
/// Time from the start of the server to the first completed handshake.
pub const START: &str = "start_us";
/// CPU time of all processes of the server until then.
pub const START_CPU: &str = "start_cpu_us";
/// As [`START`], after an earlier start with the same files.
pub const RESTART: &str = "restart_us";
pub const RESTART_CPU: &str = "restart_cpu_us";
/// Proportional set size in bytes per certificate, above that of a server with one certificate.
pub const PSS_PER_CERTIFICATE: &str = "pss_per_certificate_bytes";
/// As [`PSS_PER_CERTIFICATE`], without the bytes of the certificate itself.
pub const PSS_ABOVE_CERTIFICATE: &str = "pss_above_certificate_bytes";
/// CPU time per changed certificate file, above that without changes.
pub const CHANGE_CPU: &str = "change_cpu_us";
/// Longest work of becket's workers for changed files.
pub const WORKER_LONGEST: &str = "worker_longest_us";
/// Prefix of figures while files change.
pub const CHANGING: &str = "changing_";
/// Memory after reloads with changed files, relative to that before.
pub const RELOADED: &str = "reloaded_pss_ratio";
/// Capacity: the highest confirmed rate with at most 1 failure in 1000 and a p99 below 100 ms.
pub const CAPACITY: &str = "capacity_per_s";
/// 1 if the capacity is a lower bound because the client was the bottleneck.
pub const CAPACITY_BOUND: &str = "capacity_is_lower_bound";
/// TCP payload bytes per transaction in both directions, including TLS and HTTP overhead.
pub const WIRE: &str = "wire_bytes";
/// TLS and HTTP overhead, relative to the size of the body.
pub const OVERHEAD: &str = "overhead_share";
/// Highest rate of successful transactions in a ramp, which is an open loop with an increasing rate.
pub const MARK_MOST: &str = "mark_most_per_s";
/// Highest ramp rate with a mean latency below 100 ms and at most 1 in 1000 transactions lost.
pub const MARK_100: &str = "mark_mean_100ms_per_s";
/// Highest ramp rate with a mean latency below 500 ms.
pub const MARK_500: &str = "mark_mean_500ms_per_s";
/// Highest ramp rate with fewer than 1 in 10 000 transactions lost.
pub const MARK_LOST: &str = "mark_lost_per_s";
/// Clients served per second under a flood, relative to the mean rate of the closed loops before and after.
pub const KEPT: &str = "goodput_kept_share";
/// Time in seconds from the end of a flood until the server meets the capacity criteria again, measured in intervals of
/// 250 ms.
pub const RECOVERY: &str = "recovery_s";

/// Server CPU time per served client under a flood, relative to the closed loops before and after.
pub const COST: &str = "cpu_per_served_share";
/// Mean rate of the closed loops between floods, per second.
pub const LOOP: &str = "closed_loop_per_s";
/// 99th percentile latency of served clients, measured from their arrival in the accept queue.
pub const QUEUED_P99: &str = "queued_p99_us";
/// Share of total CPU time that the kernel spent in softirq.
pub const SOFTIRQ: &str = "softirq_share";
/// Number of SYNs and connections that the kernel dropped at listening sockets.
pub const DROPS: &str = "listen_drops";
/// Closed-loop rate after the floods, relative to the rate before them.
pub const AFTER: &str = "capacity_after_share";
/// Rate at which the flood of the `storm` measure starts full handshakes.
pub const FLOOD: &str = "flood_rate_per_s";
pub const CPU_PER_S: &str = "cpu_us_per_s";
/// CPU time of all threads except workers, in microseconds per second.
pub const OTHER_THREADS: &str = "other_threads_us_per_s";
/// Time from the first request of a metrics scrape to its last response.
pub const SCRAPE: &str = "scrape_us";
pub const SCRAPE_BYTES: &str = "scrape_bytes";
/// Prefix of the figures of the probe, which sends requests on connections that are already open.
pub const PROBE: &str = "probe_";
/// Prefix of the figures of the returning client, which reconnects and resumes a session during a flood.
pub const RETURNING: &str = "returning_";

/// Median time from the start of a transaction to the first byte of the response.
pub const FIRST_P50: &str = "first_byte_p50_us";
pub const FIRST_P99: &str = "first_byte_p99_us";
/// Median time to the first byte, in network round-trip times.
pub const ROUND_TRIPS_TO_FIRST: &str = "first_byte_round_trips";
pub const ROUND_TRIPS_TO_LAST: &str = "last_byte_round_trips";
/// Number of IP packets that a client sends per full handshake with a request, with an MTU of 1500.
pub const CLIENT_PACKETS: &str = "client_packets";
pub const SERVER_PACKETS: &str = "server_packets";
/// Share of connections whose early data the server accepted, 0 to 1.
pub const EARLY: &str = "early_data_share";
/// Round-trip time of the network, measured with UDP datagrams.
pub const RTT: &str = "round_trip_us";

/// Loads of the `latency` measure: percentages of the server's own capacity, and [`SAME`].
pub const LATENCY_LOADS: &[&str] = &["1", "50", "80", SAME];
/// Loads of the `storm` measure, in the format of [`LATENCY_LOADS`].
pub const STORM_LOADS: &[&str] = &["80", "150", SAME];
/// Load with one request rate for all servers.
pub const SAME: &str = "same";
/// Floods of the `overload` measure: rate as a percentage of the closed-loop rate, and the share of the closed-loop
/// rate that becket must still serve.
pub const FLOODS: &[(&str, f64)] = &[("150", 0.97), ("300", 0.95), ("1000", 0.85)];

/// Phase of the `failover` measure before a node is killed.
pub const BEFORE: &str = "before";
pub const DURING: &str = "during";
pub const AFTERWARDS: &str = "after";
/// Phase of the `queued` measure in which the queue is empty.
pub const EMPTY: &str = "empty";
pub const FULL: &str = "queued";

/// Column of a floor: a plain TCP relay.
pub const RELAY: &str = "relay";
/// Column of a floor: a plain socket server that responds from memory.
pub const ANSWER: &str = "answer";
/// Column of a floor: a TCP relay that also makes the round trips of a TLS handshake.
pub const ROUND_TRIP: &str = "round-trip";
/// Column of a floor: the TLS library, measured in memory.
pub const LIBRARY: &str = "library";

pub fn is_floor(peer: &str) -> bool {
    [RELAY, ROUND_TRIP, ANSWER, LIBRARY, "direct"].contains(&peer)
}

/// Returns the name of a figure for a load, such as `recovery_s_at_300`, or for a phase, such as `cpu_us_before`.
pub fn at(name: &str, load: &str) -> String {
    match load {
        BEFORE | DURING | AFTERWARDS | EMPTY | FULL => format!("{name}_{load}"),
        load => format!("{name}_at_{load}"),
    }
}
