//! Random clusters on a random network, from a seed: trouble, then quiet, then assertions.
//!
//! `BECKET_SIM_SEED=n` runs one seed, and `BECKET_SIM_RUNS=n` runs n seeds; a failure shows its seed. During
//! trouble, nodes are killed and restarted, partitioned, and given other lists and secrets, and the network
//! loses, repeats, reorders, damages, delays and replays. Each accepted record is checked on arrival
//! (`cluster`): never twice, never changed, at most one decryption per datagram, no nonce used twice.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{available_parallelism, scope};
use std::time::Duration;

use becket_cluster::replica::DropCause;

use crate::cluster::{Census, Cluster, OTHER, SECRET};

/// Runs in CI: about eleven seconds on two cores. Elsewhere a tenth of them, which has the same trouble.
const RUNS: u64 = 5000;

/// Events, each of which one of [`RUNS`] runs must have.
const MET: [&str; 17] = [
    "of 2 nodes",
    "of 16 nodes",
    "skewed clocks",
    "lost",
    "repeated",
    "replayed",
    "bad-seal",
    "bad-join",
    "unknown-key",
    "kills",
    "restarts",
    "goodbyes",
    "islands",
    "lists",
    "secrets",
    "strangers",
    "records",
];

#[test]
fn clusters_converge_after_faults_and_then_lose_nothing() {
    let seeds = match variable("BECKET_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("BECKET_SIM_RUNS").unwrap_or_else(runs),
    };
    let (first, end) = (seeds.start, seeds.end);
    let next = AtomicU64::new(first);
    let threads = available_parallelism().map_or(1, NonZero::get);
    let mut census = Census::default();
    scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| scope.spawn(|| work(&next, end)))
            .collect();
        for worker in workers {
            match worker.join() {
                Ok(counts) => counts
                    .0
                    .into_iter()
                    .for_each(|(what, count)| census.note(what, count)),
                Err(failure) => resume_unwind(failure),
            }
        }
    });
    println!("{:?}", census.0);
    if end - first >= RUNS {
        for what in MET {
            let count = census.0.get(what).copied().unwrap_or(0);
            assert!(count > 0, "no run met: {what}");
        }
    }
}

fn runs() -> u64 {
    if std::env::var_os("CI").is_some() {
        RUNS
    } else {
        RUNS / 10
    }
}

/// Runs the next seed until none is left.
fn work(next: &AtomicU64, end: u64) -> Census {
    let mut census = Census::default();
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            return census;
        }
        let run = catch_unwind(AssertUnwindSafe(|| run(seed, &mut census)));
        if let Err(failure) = run {
            eprintln!("failed with BECKET_SIM_SEED={seed}");
            resume_unwind(failure);
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn run(seed: u64, census: &mut Census) {
    let mut cluster = Cluster::new(seed);
    let count = match cluster.random.below(16) {
        0 => 8 + cluster.random.below(9),
        1..=3 => 5 + cluster.random.below(3),
        _ => 2 + cluster.random.below(3),
    } as usize;
    for _ in 0..count {
        cluster.add(&[SECRET]);
    }
    match count {
        2 => census.note("of 2 nodes", 1),
        16 => census.note("of 16 nodes", 1),
        _ => {}
    }
    if cluster.random.percent(30) {
        let rejoin_after = Duration::from_secs(20 + cluster.random.below(40));
        for node in 0..count {
            cluster.set_limits(node, |limits| limits.rejoin_after = rejoin_after);
        }
    }
    let way = cluster.random.below(2);
    discover(&mut cluster, count, way);
    let stranger = cluster.random.percent(30).then(|| {
        let secret = (SECRET.0 + cluster.random.below(2) as u32, 99);
        let stranger = cluster.add(&[secret]);
        let all: Vec<usize> = (0..count).collect();
        cluster.list(stranger, &all);
        census.note("strangers", 1);
        stranger
    });
    trouble(&mut cluster, count, census);
    quiet(&mut cluster, count, way);
    together(&cluster, count);
    exactly_once(&mut cluster, count, census);
    if let Some(stranger) = stranger {
        assert!(cluster.live(stranger).is_empty());
        assert_eq!(cluster.nodes[stranger].sink.taken, 0);
    }
    take_census(&cluster, census);
}

/// Lets every two nodes find each other: by lists of all, or by lists of one side.
fn discover(cluster: &mut Cluster, count: usize, way: u64) {
    match way {
        0 => {
            let all: Vec<usize> = (0..count).collect();
            (0..count).for_each(|node| cluster.list(node, &all));
        }
        _ => {
            for node in 0..count {
                let others: Vec<usize> = (0..count)
                    .filter(|other| {
                        *other != node && (node + other).is_multiple_of(2) == (node < *other)
                    })
                    .collect();
                cluster.list(node, &others);
            }
        }
    }
}

fn trouble(cluster: &mut Cluster, count: usize, census: &mut Census) {
    let some = |cluster: &mut Cluster, most: u64| {
        let chosen = cluster.random.below(most + 1);
        if cluster.random.percent(50) {
            chosen
        } else {
            0
        }
    };
    cluster.network.loss_percent = some(cluster, 40);
    cluster.network.repeat_percent = some(cluster, 20);
    cluster.network.damage_percent = some(cluster, 10);
    cluster.network.replay_percent = some(cluster, 20);
    cluster.network.delay_at_most = Duration::from_millis(1 + some(cluster, 2000));
    for _ in 0..cluster.random.below(30) {
        let node = cluster.random.below(count as u64) as usize;
        strike(cluster, node, census);
        let pause = cluster.random.below(3000);
        cluster.run(Duration::from_millis(pause));
    }
}

/// Causes one disturbance of a node, or creates a few sessions there.
fn strike(cluster: &mut Cluster, node: usize, census: &mut Census) {
    match cluster.random.below(15) {
        0 => {
            cluster.kill(node);
            census.note("kills", 1);
        }
        1 => {
            cluster.restart(node);
            census.note("restarts", 1);
        }
        2 => {
            cluster.network.island = vec![node];
            census.note("islands", 1);
        }
        3 => cluster.network.island.clear(),
        4 => {
            let other = cluster.random.below(cluster.nodes.len() as u64) as usize;
            cluster.list(node, &[other]);
            census.note("lists", 1);
        }
        5 => {
            let ways: [&[(u32, u64)]; 4] =
                [&[SECRET], &[SECRET, OTHER], &[OTHER, SECRET], &[OTHER]];
            let way = cluster.random.below(ways.len() as u64) as usize;
            cluster.set_secrets(node, ways[way]);
            census.note("secrets", 1);
        }
        6 if cluster.nodes[node].running => {
            cluster.leave(node);
            census.note("goodbyes", 1);
        }
        _ => {
            for _ in 0..cluster.random.below(20) {
                cluster.offer(node);
            }
        }
    }
}

/// Repairs the network, except for repetitions and new replays. All processes run, with their previous lists
/// and with secrets that open each other's joins.
fn quiet(cluster: &mut Cluster, count: usize, way: u64) {
    cluster.network.loss_percent = 0;
    cluster.network.damage_percent = 0;
    cluster.network.island.clear();
    // A recorded datagram that never arrived counts as a late one: sent now, it would keep an ended process alive.
    cluster.network.recorded.clear();
    for node in 0..count {
        if !cluster.nodes[node].running {
            cluster.restart(node);
        }
        cluster.set_secrets(node, &[OTHER, SECRET]);
    }
    discover(cluster, count, way);
    cluster.run(Duration::from_secs(40));
}

fn together(cluster: &Cluster, count: usize) {
    for node in 0..count {
        let mut expected: Vec<_> = (0..count)
            .filter(|other| *other != node)
            .map(|other| cluster.nodes[other].name)
            .collect();
        expected.sort_unstable();
        let live = cluster.live(node);
        assert_eq!(live, expected, "node {node} does not know the others");
        let status = cluster.status(node);
        assert!(status.collisions.is_empty());
        for peer in &status.peers {
            assert!(peer.queued_bytes <= cluster.nodes[node].limits.queue_bytes);
        }
    }
}

fn exactly_once(cluster: &mut Cluster, count: usize, census: &mut Census) {
    let mut offered = Vec::new();
    for _ in 0..3 {
        for node in 0..count {
            offered.push((node, cluster.offer(node)));
        }
        cluster.run(Duration::from_millis(1));
    }
    cluster.run(Duration::from_secs(4));
    for (from, id) in offered {
        for node in (0..count).filter(|node| *node != from) {
            assert_eq!(cluster.came(node, &id), 1, "of node {from}, at node {node}");
            census.note("records", 1);
        }
    }
}

fn take_census(cluster: &Cluster, census: &mut Census) {
    for node in 0..cluster.nodes.len() {
        let total = cluster.status(node).total;
        for cause in DropCause::ALL {
            census.note(cause.label(), total.drops.of(cause));
        }
        census.note("missed", total.lost);
        census.note("datagrams", total.sent);
    }
    census.note("lost", cluster.network.lost);
    census.note("repeated", cluster.network.repeated);
    census.note("skewed clocks", u64::from(cluster.skew() >= 150));
}
