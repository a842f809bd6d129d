//! System-wide kernel counters: packet processing, dropped connections and kernel TLS.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use becket_sys::kernel_tls::{self, Cipher, TlsVersion};

use crate::scenario::Settings;

/// Values of the counters, or their differences between two readings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Ticks by CPU number: user, nice, system, idle, iowait, irq, softirq, steal (proc(5)).
    cpus: BTreeMap<usize, [u64; 8]>,
    /// SYNs and connections that listening sockets dropped (`ListenDrops`).
    pub drops: u64,
}

impl Kernel {
    /// Reads all counters. A counter that cannot be read is zero.
    pub fn read() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        Self::parse(&text("/proc/stat"), &text("/proc/net/netstat"))
    }

    fn parse(stat: &str, netstat: &str) -> Self {
        let cpus = stat.lines().filter_map(|line| {
            // Skips the `cpu` line with the totals, because it has no CPU number to parse.
            let (number, rest) = line.strip_prefix("cpu")?.split_once(' ')?;
            let mut ticks = [0; 8];
            for (tick, text) in ticks.iter_mut().zip(rest.split_ascii_whitespace()) {
                *tick = text.parse().ok()?;
            }
            Some((number.parse().ok()?, ticks))
        });
        Self {
            cpus: cpus.collect(),
            drops: counter(netstat, "ListenDrops").unwrap_or(0),
        }
    }

    #[must_use]
    pub fn since(mut self, earlier: &Self) -> Self {
        for (number, ticks) in &mut self.cpus {
            let before = earlier.cpus.get(number).copied().unwrap_or_default();
            for (tick, before) in ticks.iter_mut().zip(before) {
                *tick = tick.saturating_sub(before);
            }
        }
        self.drops = self.drops.saturating_sub(earlier.drops);
        self
    }

    /// Returns the softirq share of total CPU time, 0 to 1.
    pub fn softirq_share(&self) -> f64 {
        let sum = |ticks: fn(&[u64; 8]) -> u64| self.cpus.values().map(ticks).sum::<u64>() as f64;
        sum(|ticks| ticks[6]) / sum(|ticks| ticks.iter().sum())
    }

    /// Returns the highest busy share of any of these CPUs, 0 to 1.
    pub fn busiest(&self, cpus: &[usize]) -> f64 {
        let shares = self.of(cpus).map(|ticks| {
            let all = ticks.iter().sum::<u64>() as f64;
            (all - (ticks[3] + ticks[4]) as f64) / all
        });
        shares.fold(f64::NAN, f64::max)
    }

    /// Returns the sum of user, nice, system and steal time of these CPUs.
    pub fn worked(&self, cpus: &[usize]) -> Duration {
        let ticks = self.of(cpus).map(|t| t[0] + t[1] + t[2] + t[7]);
        Duration::from_millis(ticks.sum::<u64>() * 10)
    }

    fn of(&self, cpus: &[usize]) -> impl Iterator<Item = &[u64; 8]> {
        cpus.iter().filter_map(|number| self.cpus.get(number))
    }
}

/// Returns a description of the required kernel if a case uses kernel TLS and this kernel does not support its TLS
/// version and cipher suite. Otherwise returns `None`.
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
    lacks.then(|| {
        format!("needs a kernel that takes over TLS with this version and suite, here: {support}")
    })
}

/// Returns the number of connections since boot for which the kernel encrypted sent data. Returns `None` if kernel TLS
/// is not available.
pub fn taken_over() -> Option<u64> {
    let text = fs::read_to_string("/proc/net/tls_stat").ok()?;
    let counted = text.lines().filter_map(|line| {
        let (name, count) = line.split_once(char::is_whitespace)?;
        let is_sending = ["TlsTxSw", "TlsTxDevice"].contains(&name);
        count.trim().parse::<u64>().ok().filter(|_| is_sending)
    });
    Some(counted.sum())
}

/// Returns the memory of the kernel's own objects in bytes, such as sockets.
pub fn slab() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    crate::process::field(&text, "Slab:") * 1024
}

/// Finds a counter in the format of `/proc/net/netstat`: lines of names alternate with lines of values.
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
    fn counters_are_found_by_name_and_ticks_by_position() {
        let stat = "cpu  9 9 9 9 9 9 9 9 5 5\ncpu0 10 20 30 30 0 0 10 0 1 1\ncpu1 50 0 0 40 5 0 5 0 0 0\nintr 5\n";
        let netstat =
            "TcpExt: A ListenOverflows ListenDrops B\nTcpExt: 1 2 30 4\nIpExt: X\nIpExt: 9\n";
        let kernel = Kernel::parse(stat, netstat);
        assert_eq!(kernel.drops, 30);
        assert!((kernel.softirq_share() - 0.075).abs() < 1e-9);
        assert!((kernel.busiest(&[1]) - 0.55).abs() < 1e-9);
        assert!((kernel.busiest(&[0, 1]) - 0.7).abs() < 1e-9);
        assert!(kernel.busiest(&[7]).is_nan());
        assert_eq!(kernel.worked(&[0]), Duration::from_millis(600));
        let later = "cpu1 60 0 0 130 5 0 5 0 0 0\n";
        let since = Kernel::parse(later, "").since(&kernel);
        assert!((since.busiest(&[1]) - 0.1).abs() < 1e-9);
        assert_eq!(Kernel::parse("", ""), Kernel::default());
    }
}
