//! Resources of this process, from the kernel: memory, descriptors, CPU time.
//!
//! They are read from `/proc/self` on each scrape, which takes about 50 us. If a file cannot be
//! read or parsed (another kernel, a hidden `/proc`), the value is `None`, and the metric is left
//! out. Source: proc(5).

use std::fs;

use becket_sys::memory::open_descriptors;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessUsage {
    pub open_descriptors: Option<u64>,
    /// Soft limit of open files (RLIMIT_NOFILE).
    pub descriptor_limit: Option<u64>,
    pub resident_bytes: Option<u64>,
    /// User and system time of all threads in seconds.
    pub cpu_seconds: Option<f64>,
}

impl ProcessUsage {
    pub fn read() -> Self {
        let text = |name| fs::read_to_string(name).ok();
        Self {
            open_descriptors: open_descriptors().ok().map(|n| n as u64),
            descriptor_limit: text("/proc/self/limits").and_then(|text| descriptor_limit(&text)),
            resident_bytes: text("/proc/self/status").and_then(|text| resident_bytes(&text)),
            cpu_seconds: text("/proc/self/stat").and_then(|text| cpu_seconds(&text)),
        }
    }
}

/// Parses the soft limit in the line `Max open files`.
fn descriptor_limit(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the value of the line `VmRSS:`, which is in kB.
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Returns the sum of fields 14 and 15 (utime, stime) of `/proc/self/stat`, in seconds. Field 2,
/// the program name, may contain spaces and parentheses; it ends at the last `)`.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user.saturating_add(system) as f64 / TICKS_PER_SECOND)
}

/// USER_HZ, the unit of times in /proc: 100 on every supported architecture.
const TICKS_PER_SECOND: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_read_on_linux() {
        let process = ProcessUsage::read();
        assert!(process.open_descriptors.is_some_and(|n| n >= 1));
        assert!(process.descriptor_limit >= process.open_descriptors);
        assert!(process.resident_bytes.is_some_and(|n| n > 1024 * 1024));
        assert!(process.cpu_seconds.is_some());
    }

    #[test]
    fn a_command_with_brackets_and_spaces_does_not_shift_the_fields() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194304 90 0 0 0 250 50 0 0 20 0 1 0 100";
        assert_eq!(cpu_seconds(stat), Some(3.0));
    }

    #[test]
    fn text_of_another_shape_gives_nothing() {
        for text in [
            "",
            ")",
            "VmRSS:",
            "VmRSS: x kB",
            "Max open files unlimited",
            "(a) S 1",
        ] {
            assert_eq!(cpu_seconds(text), None);
            assert_eq!(resident_bytes(text), None);
            assert_eq!(descriptor_limit(text), None);
        }
        assert_eq!(resident_bytes("VmRSS: 18446744073709551615 kB"), None);
    }
}
