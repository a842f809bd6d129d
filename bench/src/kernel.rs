//! What the kernel did meanwhile that no process is charged for: work on packets, and connections refused.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use becket_sys::kernel_tls::{self, Cipher, TlsVersion};

use crate::scenario::Settings;

/// A reading of the kernel's counters, or what they grew by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Time of all CPUs in softirq.
    softirq: Duration,
    /// Time of all CPUs in anything, idling included.
    all: Duration,
    /// Time of each CPU by its number: at work for whomever, and in anything.
    cpus: BTreeMap<usize, (Duration, Duration)>,
    /// SYNs and connections dropped at listening sockets (`ListenDrops`).
    pub drops: u64,
}

impl Kernel {
    /// Reads the counters; what cannot be read is zero.
    pub fn read() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        Self::parse(&text("/proc/stat"), &text("/proc/net/netstat"))
    }

    /// See proc(5) for the lines of `stat`: user, nice, system, idle, iowait, irq, softirq, steal, in ticks. The first
    /// line is the sum of all CPUs.
    fn parse(stat: &str, netstat: &str) -> Self {
        let times = |line: &str| {
            let numbers = line.split_ascii_whitespace().take(8);
            let ticks = numbers.filter_map(|number| number.parse().ok());
            let times = ticks.map(|ticks: u64| Duration::from_millis(ticks * 10));
            times.collect::<Vec<Duration>>()
        };
        let of = |times: &[Duration], places: &[usize]| -> Duration {
            places.iter().filter_map(|place| times.get(*place)).sum()
        };
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "));
        let sum = times(line.unwrap_or_default());
        let cpus = stat.lines().filter_map(|line| {
            let (number, rest) = line.strip_prefix("cpu")?.split_once(' ')?;
            let times = times(rest);
            let all: Duration = times.iter().sum();
            Some((number.parse().ok()?, (all - of(&times, &[3, 4]), all)))
        });
        Self {
            softirq: of(&sum, &[6]),
            all: sum.iter().sum(),
            cpus: cpus.collect(),
            drops: counter(netstat, "ListenDrops").unwrap_or(0),
        }
    }

    /// Returns what was added since an earlier reading.
    #[must_use]
    pub fn since(self, earlier: &Self) -> Self {
        let cpus = self.cpus.into_iter().map(|(number, (busy, all))| {
            let before = earlier.cpus.get(&number).copied().unwrap_or_default();
            let grown = (busy.saturating_sub(before.0), all.saturating_sub(before.1));
            (number, grown)
        });
        Self {
            cpus: cpus.collect(),
            softirq: self.softirq.saturating_sub(earlier.softirq),
            all: self.all.saturating_sub(earlier.all),
            drops: self.drops.saturating_sub(earlier.drops),
        }
    }

    /// Returns the share of all CPUs' time that went into softirq.
    pub fn softirq_share(&self) -> f64 {
        self.softirq.as_secs_f64() / self.all.as_secs_f64()
    }

    /// Returns the share of the time in which the busiest of these CPUs was at work.
    pub fn busiest(&self, cpus: &[usize]) -> f64 {
        let times = cpus.iter().filter_map(|number| self.cpus.get(number));
        let shares = times.map(|(busy, all)| busy.as_secs_f64() / all.as_secs_f64());
        shares.fold(f64::NAN, f64::max)
    }
}

/// Returns why the kernel cannot take over the TLS of a case.
pub fn without_tls(settings: &Settings) -> Option<String> {
    let version = match settings.tls.as_str() {
        "1.2" => TlsVersion::Tls12,
        _ => TlsVersion::Tls13,
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
        let stat =
            "cpu  10 0 10 70 0 0 10 0 5 5\ncpu0 1 1 1 1 1 1 1 1 1 1\ncpu1 50 0 0 40 5 0 5 0 0 0\n";
        let netstat =
            "TcpExt: A ListenOverflows ListenDrops B\nTcpExt: 1 2 30 4\nIpExt: X\nIpExt: 9\n";
        let kernel = Kernel::parse(stat, netstat);
        assert_eq!(kernel.drops, 30);
        assert!((kernel.softirq_share() - 0.1).abs() < 1e-9);
        assert!((kernel.busiest(&[1]) - 0.55).abs() < 1e-9);
        assert!((kernel.busiest(&[0, 1]) - 0.75).abs() < 1e-9);
        assert!(kernel.busiest(&[7]).is_nan());
        let later = "cpu1 60 0 0 130 5 0 5 0 0 0\n";
        let since = Kernel::parse(later, "").since(&kernel);
        assert!((since.busiest(&[1]) - 0.1).abs() < 1e-9);
        assert_eq!(Kernel::parse("", ""), Kernel::default());
    }
}
