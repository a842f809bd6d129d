//! A test that fails on hosts of its own leaves nothing behind: no process, no mount, no namespace.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use becket_e2e::{Dns, Network, Node, eventually};

/// The network namespace of this thread, as the kernel names it.
fn namespace() -> String {
    let link = fs::read_link("/proc/thread-self/ns/net").expect("a namespace");
    link.to_string_lossy().into_owned()
}

/// Whether any thread of any process is in a namespace.
fn is_inhabited(namespace: &str) -> bool {
    let list = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let tasks = list(Path::new("/proc")).flat_map(|process| list(&process.path().join("task")));
    let mut spaces = tasks.filter_map(|task| fs::read_link(task.path().join("ns/net")).ok());
    spaces.any(|space| space.to_string_lossy() == namespace)
}

/// What is mounted at the resolver's files; a container has something there.
fn resolvers() -> usize {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let about = |line: &&str| line.contains("resolv.conf") || line.contains("nsswitch.conf");
    mounts.lines().filter(about).count()
}

#[test]
fn a_test_that_fails_ends_all_that_it_began() {
    let Some(network) = Network::of(1) else {
        return;
    };
    let before = resolvers();
    let (mut spaces, mut folder, mut pid) = (Vec::new(), None, 0);
    let test = AssertUnwindSafe(|| {
        let network = network;
        spaces.extend([&network.hub, &network.hosts[0]].map(|host| host.within(namespace)));
        let dns = Dns::on(&network.hub);
        let mut node = Node::new(&network, 1);
        let launcher = dns.launcher(&node.place);
        node.launcher = launcher.unwrap_or_default();
        node.secret("secret", &[]);
        node.start("secret = \"secret\"");
        folder = Some(node.place.folder().to_owned());
        pid = node.becket().pid();
        assert!(node.becket().is_alive() && is_inhabited(&spaces[1]));
        panic!("this one is to fail");
    });
    assert!(catch_unwind(test).is_err());
    let folder = folder.expect("a test that came to its end");
    assert!(!Path::new(&format!("/proc/{pid}")).exists() && !folder.exists());
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    for space in &spaces {
        eventually("the last thread is gone", || !is_inhabited(space));
        assert!(!mounts.contains(space.as_str()), "{mounts}");
    }
    assert_eq!(resolvers(), before, "bound only where becket saw it");
}
