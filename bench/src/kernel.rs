//! What the kernel did meanwhile that no process is charged for: work on packets, and connections refused.

use std::fs;
use std::time::Duration;

use becket_sys::kernel_tls::{self, Cipher, Version};

use crate::scenario::Settings;

/// A reading of the kernel's counters, or what they grew by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Time of all CPUs in softirq.
    softirq: Duration,
    /// Time of all CPUs in anything, idling included.
    all: Duration,
    /// SYNs and connections dropped at listening sockets (`ListenDrops`).
    pub drops: u64,
}

impl Kernel {
    /// Reads the counters; what cannot be read is zero.
    pub fn read() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        Self::parse(&text("/proc/stat"), &text("/proc/net/netstat"))
    }

    /// See proc(5) for the first line of `stat`: user, nice, system, idle, iowait, irq, softirq, steal, in ticks.
    fn parse(stat: &str, netstat: &str) -> Self {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "));
        let ticks: Vec<u64> = line
            .unwrap_or_default()
            .split_ascii_whitespace()
            .take(8)
            .filter_map(|number| number.parse().ok())
            .collect();
        let time = |ticks: u64| Duration::from_millis(ticks * 10);
        Self {
            softirq: time(ticks.get(6).copied().unwrap_or(0)),
            all: time(ticks.iter().sum()),
            drops: counter(netstat, "ListenDrops").unwrap_or(0),
        }
    }

    /// Returns what was added since an earlier reading.
    #[must_use]
    pub fn since(self, earlier: &Self) -> Self {
        Self {
            softirq: self.softirq.saturating_sub(earlier.softirq),
            all: self.all.saturating_sub(earlier.all),
            drops: self.drops.saturating_sub(earlier.drops),
        }
    }

    /// Returns the share of all CPUs' time that went into softirq.
    pub fn softirq_share(&self) -> f64 {
        self.softirq.as_secs_f64() / self.all.as_secs_f64()
    }
}

/// Returns why the kernel cannot take over the TLS of a case.
pub fn without_tls(settings: &Settings) -> Option<String> {
    let version = match settings.tls.as_str() {
        "1.2" => Version::Tls12,
        _ => Version::Tls13,
    };
    let cipher = match settings.suite.as_str() {
        "aes256" => Cipher::Aes256Gcm,
        "chacha20" => Cipher::ChaCha20Poly1305,
        _ => Cipher::Aes128Gcm,
    };
    let support = kernel_tls::support();
    let lacks = settings.ktls && !support.covers(version, cipher, false);
    lacks.then(|| format!("this kernel does not take over TLS: {support}"))
}

/// Finds a counter in lines of names that are followed by lines of values.
fn counter(netstat: &str, wanted: &str) -> Option<u64> {
    let lines: Vec<&str> = netstat.lines().collect();
    lines.chunks_exact(2).find_map(|pair| {
        let [names, values] = pair else { return None };
        let place = names.split(' ').position(|name| name == wanted)?;
        values.split(' ').nth(place)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name_and_ticks_by_place() {
        let stat = "cpu  10 0 10 70 0 0 10 0 5 5\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        let netstat =
            "TcpExt: A ListenOverflows ListenDrops B\nTcpExt: 1 2 30 4\nIpExt: X\nIpExt: 9\n";
        let kernel = Kernel::parse(stat, netstat);
        assert_eq!(kernel.drops, 30);
        assert!((kernel.softirq_share() - 0.1).abs() < 1e-9);
        assert_eq!(Kernel::parse("", ""), Kernel::default());
    }
}
