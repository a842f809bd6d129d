//! Conditions of a run, which the report shows: machine, kernel, commit and load.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use becket_load::clock;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use time::OffsetDateTime;

use crate::Error;
use crate::place::Place;
use crate::result::Conditions;

pub fn now(place: &Place, open_files: u64) -> Conditions {
    let cpuinfo = read("/proc/cpuinfo");
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':'))
            .map_or("", |(_, value)| value.trim())
            .to_owned()
    };
    let flags = field("flags");
    let features = flags.split(' ').filter(|flag| FEATURES.contains(flag));
    let settings = SETTINGS.iter().map(|path| {
        let file = format!("/proc/sys/{}", path.replace('.', "/"));
        (
            (*path).to_owned(),
            read(&file).split_whitespace().collect::<Vec<_>>().join(" "),
        )
    });
    let memory = read("/proc/meminfo");
    let kib = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    Conditions {
        commit: commit(),
        started_unix_s: clock::unix_seconds(),
        cpu: field("model name"),
        cpu_features: features.map(str::to_owned).collect(),
        cpus: place.all(),
        cores: place.cores().to_vec(),
        server_cpus: place.one().server,
        client_cpus: place.one().client,
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        memory_bytes: kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024,
        load_before: load(),
        load_after: String::new(),
        others_before: None,
        open_files,
        settings: settings.chain(filters()).collect::<BTreeMap<_, _>>(),
    }
}

fn filters() -> impl Iterator<Item = (String, String)> {
    let or_absent = |text: String| match text.split_whitespace().collect::<Vec<_>>() {
        words if words.is_empty() => "none".to_owned(),
        words => words.join(" "),
    };
    let files = [
        (
            "connections tracked",
            "/proc/sys/net/netfilter/nf_conntrack_count",
        ),
        ("iptables tables", "/proc/net/ip_tables_names"),
        ("ip6tables tables", "/proc/net/ip6_tables_names"),
        ("uses of nftables", "/sys/module/nf_tables/refcnt"),
    ];
    let files = files.into_iter();
    files.map(move |(name, file)| (name.to_owned(), or_absent(read(file))))
}

pub fn load() -> String {
    read("/proc/loadavg")
        .split(' ')
        .take(3)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Raises the soft limit on open files to the hard limit, but not above `most`. Child processes inherit the limit.
pub fn raise_open_files(most: u64) -> Result<u64, Error> {
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    if hard < LEAST_FILES {
        let source = std::io::Error::other("too few");
        return Err(Error::os(
            format!(
                "the limit on open files is {hard}, but {LEAST_FILES} are needed; raise the hard limit (`ulimit -Hn`)"
            ),
            source,
        ));
    }
    let wanted = Rlimit {
        current: Some(hard.min(most)),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, wanted)
        .map_err(|e| Error::os("cannot raise the limit on open files", e.into()))?;
    Ok(hard.min(most))
}

/// Formats seconds since 1970 as `2026-01-31T1205Z`.
pub fn stamp(unix_s: u64) -> String {
    let at = i64::try_from(unix_s)
        .ok()
        .and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
    let at = at.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    format!(
        "{}-{:02}-{:02}T{:02}{:02}Z",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute()
    )
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn commit() -> String {
    let describe = [
        "describe",
        "--always",
        "--abbrev=12",
        "--dirty=+",
        "--exclude=*",
    ];
    let output = Command::new("git").args(describe).output();
    let output = output.ok().filter(|output| output.status.success());
    output.map_or_else(String::new, |o| {
        String::from_utf8_lossy(&o.stdout).trim().to_owned()
    })
}

const FEATURES: &[&str] = &[
    "aes",
    "vaes",
    "pclmulqdq",
    "vpclmulqdq",
    "avx2",
    "avx512f",
    "avx512ifma",
    "sha_ni",
    "asimd",
    "pmull",
    "sha2",
];
const SETTINGS: &[&str] = &[
    "net.core.somaxconn",
    "net.ipv4.ip_local_port_range",
    CONGESTION,
    "net.ipv4.tcp_tw_reuse",
];
/// Kernel setting for TCP congestion control. The report shows it because bbr paces TCP even over loopback.
pub const CONGESTION: &str = "net.ipv4.tcp_congestion_control";
/// Minimum limit on open files. An open loop has up to 4000 connections, and a server needs two descriptors for each.
const LEAST_FILES: u64 = 9_000;
/// Upper bound for the limit on open files, because some programs allocate a table with one entry per possible
/// descriptor.
pub const MOST_FILES: u64 = 65_536;
