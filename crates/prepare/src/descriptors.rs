//! Computes how many descriptors a configuration needs, and how many connections a descriptor limit
//! permits.
//!
//! A connection takes two descriptors. Listening sockets and the descriptors of each worker do not
//! depend on the number of connections. A few spare descriptors are reserved for pages, health
//! checks, lookups and files read by a reload; their number grows with the number of connections,
//! up to a limit.

use std::io;
use std::sync::Arc;

use becket_config::choices::KernelTls;
use becket_config::process::LimitsSection;
use becket_sys::rlimit;

use becket_tls::config::{Backend, Config, Listener};

/// Returns the number of descriptors that are needed without connections: one listening socket per
/// address and worker, the poll, waker and reserve of each worker, and the files that each worker
/// keeps open.
pub fn fixed(listeners: &[Arc<Listener>], backends: &[Arc<Backend>], workers: usize) -> u64 {
    let addresses: usize = listeners.iter().map(|listener| listener.bind.len()).sum();
    let files = backends.iter().filter_map(|it| it.keys.files.as_ref());
    let open: usize = files.map(|files| files.open_files).sum();
    ((addresses + open + OF_WORKER) * workers) as u64
}

/// Returns the number of descriptors for the pipes of all workers. Returns 0 if Becket decrypts all
/// connections in user space, because decrypted data cannot be spliced.
pub fn of_pipes(listeners: &[Arc<Listener>], limits: &LimitsSection, workers: usize) -> u64 {
    let mut routes = listeners.iter().flat_map(|listener| &listener.routes);
    let pass = routes.any(|route| route.policy.is_none());
    let in_kernel = |listener: &Arc<Listener>| listener.keys.kernel_tls == KernelTls::Bulk;
    if pass || listeners.iter().any(in_kernel) {
        (2 * limits.pipes * workers) as u64
    } else {
        0
    }
}

/// Returns the number of descriptors to reserve for pipes. It is at most an eighth of the
/// descriptors above [`FEW`].
pub fn spared_for_pipes(limit: u64, of_pipes: u64) -> u64 {
    of_pipes.min(limit.saturating_sub(FEW) / 8)
}

/// Returns the number of pipes per worker. The number is below the configured one if the
/// connections leave too few descriptors.
pub fn pipes(config: &Config, workers: usize) -> usize {
    let fixed = fixed(&config.listeners, &config.backends, workers);
    let left = rlimit::most_open_files().saturating_sub(needed(config.connections, fixed));
    let asked = of_pipes(&config.listeners, &config.file.limits, workers);
    usize::try_from(asked.min(left)).map_or(0, |all| all / (2 * workers))
}

/// Returns the number of descriptors for `connections` connections, including the [`fixed`] ones.
pub fn needed(connections: usize, fixed: u64) -> u64 {
    let connections = connections as u64;
    let spare = LEAST_SPARE + connections.div_ceil(PER_SPARE);
    fixed + connections * 2 + spare.min(MOST_SPARE)
}

pub fn fitting(limit: u64, fixed: u64) -> usize {
    let left = limit.saturating_sub(fixed);
    let many = left.saturating_sub(MOST_SPARE) / 2;
    let few = left.saturating_sub(LEAST_SPARE);
    let few = few.saturating_mul(PER_SPARE) / (2 * PER_SPARE + 1);
    usize::try_from(many.max(few)).unwrap_or(usize::MAX)
}

/// Raises the limit of open files to the number that a configuration needs.
///
/// # Errors
/// Fails if the hard limit is too low.
pub fn raise(config: &Config, workers: usize) -> io::Result<()> {
    let fixed = fixed(&config.listeners, &config.backends, workers);
    let wanted = needed(config.connections, fixed) + (2 * pipes(config, workers) * workers) as u64;
    let raised = rlimit::raise_open_files(wanted);
    raised.map(drop).map_err(|error| {
        let fits = fitting(rlimit::most_open_files(), fixed);
        let text = format!("{error}; raise it ({HOW_TO_RAISE}), or set at most {fits} connections");
        io::Error::new(error.kind(), text)
    })
}

/// Hint for error messages: where to raise the limit of open files.
pub const HOW_TO_RAISE: &str = "LimitNOFILE= in a service, ulimit -Hn in a shell";

/// Descriptors per worker in addition to its listening sockets and open files.
const OF_WORKER: usize = 8;
/// Minimum number of spare descriptors: standard streams, the control loop, logs, one page request.
const LEAST_SPARE: u64 = 16;
/// Maximum number of spare descriptors, of which 64 are for pages, health checks and certificate
/// files.
const MOST_SPARE: u64 = 128;
/// Limit of open files above which descriptors are reserved for pipes. Without pipes, bulk data is
/// copied.
const FEW: u64 = 4096;
/// Number of connections per spare descriptor.
const PER_SPARE: u64 = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_limits_leave_room_for_clients() {
        let fixed = (1 + OF_WORKER as u64) * 2;
        let fitting = |limit| fitting(limit, fixed);
        let fits = [50, 200, 256, 1024, 1100, 2048, 65_536].map(fitting);
        assert_eq!(fits, [7, 78, 104, 465, 501, 951, 32_695]);
        assert_eq!(fitting(0), 0);
    }

    #[test]
    fn connections_have_priority_over_pipes() {
        let spared = [48, 4096, 8192, 65_536, 1 << 19].map(|limit| spared_for_pipes(limit, 1024));
        assert_eq!(spared, [0, 0, 512, 1024, 1024]);
    }

    proptest! {
        #[test]
        fn the_largest_number_of_connections_within_the_limit_is_found(limit in 0_u64..1 << 20, fixed in 0_u64..5000) {
            let fits = fitting(limit, fixed);
            prop_assert!(fits == 0 || needed(fits, fixed) <= limit);
            prop_assert!(needed(fits + 1, fixed) > limit);
        }
    }
}
