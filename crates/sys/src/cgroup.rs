//! CPU quota and memory limit of the control group of this process.
//!
//! A limit of any ancestor applies as well. So each directory from the group of this process up to the mount point is
//! read, and the smallest limit is used. A file that cannot be read counts as no limit. Mount points come from
//! `mountinfo`, because hybrid set-ups and containers mount control groups in different places.
//!
//! Version 2 has `cpu.max` ("quota period" or "max period") in each group; version 1 has `cpu.cfs_quota_us` (-1: none)
//! and `cpu.cfs_period_us`. [`MemoryGroup`] reads the memory limit and usage.
//!
//! Sources: cgroups(7), proc(5), and the kernel's `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::memory::read_again;

/// Returns the CPU quota in CPUs, such as 1.5, or `None` without a limit.
///
/// Reads several files under `/proc` and `/sys`, so call it only at start-up and on a reload.
#[must_use]
pub fn cpu_quota() -> Option<f64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts
        .lines()
        .filter_map(|line| Hierarchy::parse(line, "cpu"))
        .filter_map(|hierarchy| hierarchy.quota(&groups))
        .reduce(f64::min)
}

/// The control group that limits the memory of this process: the group itself or the ancestor with
/// the smallest limit.
#[derive(Debug)]
pub struct MemoryGroup {
    version: CgroupVersion,
    limits: Vec<File>,
    usage: File,
    statistics: File,
}

impl MemoryGroup {
    /// Finds the group with the smallest memory limit and opens its files. They stay open, so that they can be read in
    /// a sandbox. Returns the group of this process if no group has a limit, or `None` if no group counts memory.
    #[must_use]
    pub fn own() -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let hierarchies = mounts.lines();
        let hierarchies = hierarchies.filter_map(|line| Hierarchy::parse(line, "memory"));
        least(&groups, hierarchies)
    }

    fn open(version: CgroupVersion, group: &Path) -> Option<Self> {
        let (limits, usage): (&[_], _) = match version {
            CgroupVersion::Two => (&["memory.max", "memory.high"], "memory.current"),
            CgroupVersion::One => (&["memory.limit_in_bytes"], "memory.usage_in_bytes"),
        };
        let open = |name: &str| File::open(group.join(name)).ok();
        Some(Self {
            version,
            limits: limits.iter().filter_map(|name| open(name)).collect(),
            usage: open(usage)?,
            statistics: open("memory.stat")?,
        })
    }

    /// Returns the bytes that the group may use before the kernel throttles or kills its processes,
    /// or `None` without a limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        let limits = self.limits.iter();
        let limits = limits.filter_map(|limit| read_again(limit).ok()?.trim().parse().ok());
        // Version 1 has no value for "no limit". It shows the largest number of whole pages
        // instead.
        limits.filter(|&bytes: &u64| bytes < 1 << 60).min()
    }

    /// Returns the used memory in bytes. It includes the kernel's structures for sockets, but not memory that the
    /// kernel can reclaim immediately, such as the page cache.
    ///
    /// With version 1, the kernel's structures cannot be separated from its caches. They are estimated as
    /// [`CONNECTION`] bytes for each of `connections`, up to the total usage.
    ///
    /// # Errors
    /// Returns the errors of reading the files.
    pub fn used(&self, connections: usize) -> io::Result<u64> {
        let usage = read_again(&self.usage)?.trim().parse();
        let usage: u64 = usage.map_err(|_| io::ErrorKind::InvalidData)?;
        let statistics = read_again(&self.statistics)?;
        let sum = |names: &[&str]| -> u64 {
            let lines = statistics.lines().filter_map(|line| line.split_once(' '));
            let lines = lines.filter(|(name, _)| names.contains(name));
            lines
                .filter_map(|(_, bytes)| bytes.parse::<u64>().ok())
                .sum()
        };
        Ok(match self.version {
            CgroupVersion::Two => {
                usage.saturating_sub(sum(&["inactive_file", "active_file", "slab_reclaimable"]))
            }
            CgroupVersion::One => {
                let without_files =
                    usage.saturating_sub(sum(&["total_inactive_file", "total_active_file"]));
                let processes = sum(&["total_rss", "total_shmem"]);
                without_files.min(processes + connections as u64 * CONNECTION)
            }
        })
    }
}

/// Returns the group with the smallest limit; among equal limits, the group nearest to the process.
fn least(groups: &str, hierarchies: impl Iterator<Item = Hierarchy>) -> Option<MemoryGroup> {
    let opened = hierarchies.flat_map(|hierarchy| {
        let own = hierarchy.groups(groups, "memory");
        let opened = own
            .iter()
            .map(|group| MemoryGroup::open(hierarchy.version, group));
        opened.collect::<Vec<_>>()
    });
    opened
        .flatten()
        .min_by_key(|group| group.limit().unwrap_or(u64::MAX))
}

/// Kernel memory of one connection with its two sockets, in bytes: 5.2 to 7.5 KiB, measured on
/// Linux 6.18.
const CONNECTION: u64 = 8 * 1024;

/// A mounted cgroup hierarchy. A version 1 hierarchy has the required controller; a version 2
/// hierarchy may lack it.
#[derive(Debug, PartialEq)]
struct Hierarchy {
    version: CgroupVersion,
    /// Path of the mounted group within the hierarchy.
    root: PathBuf,
    mount_point: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum CgroupVersion {
    One,
    Two,
}

impl Hierarchy {
    /// Parses a line of `mountinfo`:
    /// `id parent major:minor root mount-point options [tags] - type source super-options`.
    fn parse(line: &str, controller: &str) -> Option<Self> {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, mount_point) = (unescape(place.next()?), unescape(place.next()?));
        let mut kind = kind.split(' ');
        let version = match kind.next()? {
            "cgroup2" => CgroupVersion::Two,
            "cgroup" if kind.nth(1)?.split(',').any(|option| option == controller) => {
                CgroupVersion::One
            }
            _ => return None,
        };
        Some(Self {
            version,
            root,
            mount_point,
        })
    }

    /// Returns the smallest CPU quota of the group of this process and its ancestors, in CPUs.
    fn quota(&self, groups: &str) -> Option<f64> {
        let groups = self.groups(groups, "cpu");
        let quotas = groups
            .iter()
            .filter_map(|group| self.version.quota_of(group));
        quotas.reduce(f64::min)
    }

    /// Returns the directories from the group of this process up to the mount point. `groups` contains the text of
    /// `/proc/self/cgroup`.
    fn groups(&self, groups: &str, controller: &str) -> Vec<PathBuf> {
        let Some(group) = own_group(groups, self.version, controller) else {
            return Vec::new();
        };
        // If the group is outside the mounted part of the hierarchy, for example after a bind mount
        // or in a namespace, only the mount point is visible.
        let below = Path::new(group)
            .strip_prefix(&self.root)
            .unwrap_or(Path::new(""));
        let own = self.mount_point.join(below);
        own.ancestors()
            .take_while(|directory| directory.starts_with(&self.mount_point))
            .map(Path::to_path_buf)
            .collect()
    }
}

impl CgroupVersion {
    fn quota_of(self, group: &Path) -> Option<f64> {
        let read = |name: &str| fs::read_to_string(group.join(name)).ok();
        match self {
            Self::Two => {
                let text = read("cpu.max")?;
                let (quota, period) = text.split_once(' ')?;
                divide(quota, period)
            }
            Self::One => divide(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?),
        }
    }
}

/// Returns the path of the group of this process. `groups` contains the lines of `/proc/self/cgroup`, which have the
/// form `id:controllers:path`.
fn own_group<'g>(groups: &'g str, version: CgroupVersion, controller: &str) -> Option<&'g str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let ours = match version {
            CgroupVersion::Two => controllers.is_empty(),
            CgroupVersion::One => controllers.split(',').any(|name| name == controller),
        };
        ours.then_some(path)
    })
}

/// Divides a quota by its period, both in microseconds. Returns `None` unless both are positive.
fn divide(quota: &str, period: &str) -> Option<f64> {
    let positive = |text: &str| text.trim().parse::<u64>().ok().filter(|&number| number > 0);
    Some(positive(quota)? as f64 / positive(period)? as f64)
}

/// Decodes the octal escapes of `mountinfo`, such as `\040` for a space.
fn unescape(field: &str) -> PathBuf {
    let escapes = [
        (r"\040", " "),
        (r"\011", "\t"),
        (r"\012", "\n"),
        (r"\134", r"\"),
    ];
    let unescaped = escapes.iter();
    let unescaped = unescaped.fold(field.to_owned(), |text, (escape, character)| {
        text.replace(escape, character)
    });
    unescaped.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_quota_from_the_own_group_to_the_mount_point_is_used() {
        let mount = tempfile::tempdir().unwrap();
        let root = mount.path().join("my groups");
        fs::create_dir_all(root.join("a/b")).unwrap();
        for (group, max) in [("a/b", "max"), ("a", "200000"), ("", "300000")] {
            fs::write(root.join(group).join("cpu.max"), format!("{max} 100000\n")).unwrap();
        }
        let place = root.to_str().unwrap().replace(' ', r"\040");
        let line = format!("30 23 0:26 / {place} rw shared:4 - cgroup2 cgroup2 rw,nsdelegate");
        let two = Hierarchy::parse(&line, "cpu").unwrap();
        for (group, quota) in [("/a/b", 2.0), ("/", 3.0), ("/../elsewhere", 3.0)] {
            let groups = format!("3:cpuset:/c\n0::{group}\n");
            assert_eq!(two.quota(&groups), Some(quota), "{group}");
        }
        assert_eq!(two.quota("3:cpuset:/c\n"), None);

        // A container sees its own group at the mount point.
        let line = format!("31 23 0:27 /docker/a:b {place} rw - cgroup cgroup rw,cpuacct,cpu");
        let one = Hierarchy::parse(&line, "cpu").unwrap();
        for (text, quota) in [("50000\n", Some(0.5)), ("-1\n", None)] {
            fs::write(root.join("cpu.cfs_quota_us"), text).unwrap();
            fs::write(root.join("cpu.cfs_period_us"), "100000\n").unwrap();
            assert_eq!(one.quota("4:cpu,cpuacct:/docker/a:b\n"), quota);
        }
        for other in ["- cgroup cgroup rw,cpuset", "- tmpfs tmpfs rw", ""] {
            let line = format!("32 23 0:28 / /x rw {other}");
            assert_eq!(Hierarchy::parse(&line, "cpu"), None, "{other}");
        }
    }

    /// Creates files of groups, and returns the group of `a/b` with the smallest limit.
    fn group_of(mount: &Path, version: CgroupVersion, files: &[(&str, &str)]) -> MemoryGroup {
        fs::create_dir_all(mount.join("a/b")).unwrap();
        for (name, text) in files {
            fs::write(mount.join(name), text).unwrap();
        }
        let hierarchy = Hierarchy {
            version,
            root: "/".into(),
            mount_point: mount.to_path_buf(),
        };
        least("5:memory:/a/b\n0::/a/b\n", [hierarchy].into_iter()).unwrap()
    }

    #[test]
    fn the_lowest_memory_limit_applies_and_reclaimable_memory_is_excluded() {
        let statistics =
            "anon 9\ninactive_file 100000\nactive_file 200000\nslab_reclaimable 50000\nsock 9\n";
        let mount = tempfile::tempdir().unwrap();
        let files = [
            ("a/b/memory.max", "max\n"),
            ("a/b/memory.high", "max\n"),
            ("a/b/memory.current", "1000000\n"),
            ("a/b/memory.stat", statistics),
            ("a/memory.max", "max\n"),
            ("a/memory.high", "1048576\n"),
            ("a/memory.current", "1000000\n"),
            ("a/memory.stat", statistics),
        ];
        let group = group_of(mount.path(), CgroupVersion::Two, &files);
        assert_eq!(group.limit(), Some(1 << 20));
        assert_eq!(group.used(0).unwrap(), 650_000);
        // The limit is read each time.
        let write = |name: &str, text: &str| fs::write(mount.path().join(name), text).unwrap();
        write("a/memory.max", "500000\n");
        assert_eq!(group.limit(), Some(500_000));
        write("a/memory.current", "unknown\n");
        assert!(group.used(0).is_err());
    }

    #[test]
    fn version_1_usage_includes_sockets_and_excludes_cached_file_names() {
        let statistics = "cache 9\nrss 9\ntotal_rss 1000000\ntotal_shmem 200000\n\
            total_inactive_file 30000\ntotal_active_file 40000\n";
        let mount = tempfile::tempdir().unwrap();
        let files = [
            ("a/b/memory.limit_in_bytes", "9223372036854771712\n"),
            ("a/b/memory.usage_in_bytes", "1370000\n"),
            ("a/b/memory.stat", statistics),
        ];
        let group = group_of(mount.path(), CgroupVersion::One, &files);
        let write =
            |name: &str, text: &str| fs::write(mount.path().join("a/b").join(name), text).unwrap();
        assert_eq!(group.limit(), None);
        write("memory.limit_in_bytes", "8192\n");
        assert_eq!(group.limit(), Some(8192));
        assert_eq!(group.used(0).unwrap(), 1_200_000);
        assert_eq!(group.used(10).unwrap(), 1_200_000 + 10 * CONNECTION);
        assert_eq!(group.used(1000).unwrap(), 1_300_000, "all that there is");
        // The kernel has cached names of files that do not exist.
        write("memory.usage_in_bytes", "900000000\n");
        assert_eq!(group.used(10).unwrap(), 1_200_000 + 10 * CONNECTION);
    }
}
