//! Where memory is short, connections at rest end and new clients are refused; who is being served stays, and the kernel kills nobody.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;

use becket_tidy::lacks;

use becket_e2e::{Backend, Becket, Client, Place, Shape, Trust, eventually, until};

/// Reloads with another limit.
fn limit(becket: &Becket, place: &Place, from: &str, to: &str) {
    let text = place.read("becket.toml");
    let (from, to) = (format!("memory = {from:?}"), format!("memory = {to:?}"));
    assert!(text.contains(&from), "{text}");
    place.write("becket.toml", &text.replace(&from, &to));
    assert!(becket.reload(), "{}", becket.log());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn those_at_rest_end_and_newcomers_are_refused_until_there_is_memory_again() {
    let place = Place::new();
    // It answers what begins with a question mark never.
    let backend = Backend::new(|mut stream| {
        let mut word = [0];
        while stream.read(&mut word)? == 1 {
            if word != *b"?" {
                stream.write_all(&word)?;
            }
        }
        Ok(())
    });
    let shape = Shape::new(backend.address).limits("memory = \"off\"");
    let becket = Becket::start(&place, &shape);
    assert!(becket.status()["memory"].is_null());
    let trust = Trust::new(&place);
    let client = |word: &[u8]| {
        let mut client = Client::connect(becket.web, &trust).unwrap();
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
        client.write_all(word).unwrap();
        client
    };
    let resting: Vec<Client> = (0..8).map(|_| client(b"")).collect();
    let mut asking = client(b"?");
    // Less than any program has.
    limit(&becket, &place, "off", "1MiB");
    eventually("those at rest have ended", || {
        becket.metrics().closed("memory-rest") == 8
    });
    until("newcomers are refused", || {
        (becket.status()["memory"]["shortage"] == "refusing").then_some(())
    });
    assert!(Client::connect(becket.web, &trust).is_err());
    let metrics = becket.metrics();
    assert!(metrics.closed("memory-limit") >= 1);
    assert!(metrics.sum("becket_memory_shortage", &[]) >= 2.0);
    assert_eq!(metrics.open(), 1, "who asks stays");
    limit(&becket, &place, "1MiB", "off");
    eventually("there is memory", || becket.status()["memory"].is_null());
    asking.write_all(b"x").unwrap();
    asking.read_exact(&mut [0]).unwrap();
    client(b"");
    eventually("the end of each shortage is said", || {
        let log = becket.log();
        let said = |words: &str| log.matches(words).count();
        said("memory is short") == said("memory pressure ended")
    });
    drop((resting, asking));
    becket.idle();
}

/// A control group of the test's own, below the one that the test is in.
struct Group(PathBuf);

impl Group {
    /// What is missing for one otherwise.
    fn new() -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
        let own = |prefix: &str| {
            groups
                .lines()
                .find_map(|line| line.split_once(prefix)?.1.strip_prefix('/'))
        };
        let folders = [
            ("::", "/sys/fs/cgroup"),
            (":memory:", "/sys/fs/cgroup/memory"),
        ];
        let mut missing = "no group that counts memory".to_owned();
        for (prefix, mount) in folders {
            let Some(own) = own(prefix) else { continue };
            let parent = PathBuf::from(mount).join(own);
            let folder = parent.join(format!("becket-test-{}", std::process::id()));
            match fs::create_dir(&folder) {
                Ok(()) => {
                    let group = Self(folder);
                    if group.0.join(group.usage()).exists() {
                        return Ok(group);
                    }
                    missing = format!("{}: memory is not counted below it", parent.display());
                }
                Err(error) => missing = format!("{}: {error}", parent.display()),
            }
        }
        Err(missing)
    }

    fn is_second(&self) -> bool {
        self.0.join("memory.max").exists()
    }

    fn usage(&self) -> &str {
        if self.is_second() {
            "memory.current"
        } else {
            "memory.usage_in_bytes"
        }
    }

    fn limit(&self, bytes: u64) {
        let file = if self.is_second() {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        fs::write(self.0.join(file), bytes.to_string()).unwrap();
    }

    /// How often the kernel has killed for it.
    fn kills(&self) -> u64 {
        let file = if self.is_second() {
            "memory.events"
        } else {
            "memory.oom_control"
        };
        let text = fs::read_to_string(self.0.join(file)).unwrap();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.unwrap().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _in_use = fs::remove_dir(&self.0);
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_crowd_at_rest_does_not_have_the_kernel_kill_in_a_group() {
    let group = match Group::new() {
        Ok(group) => group,
        Err(missing) => {
            lacks(&format!("a control group of its own: {missing}"));
            return;
        }
    };
    let place = Place::new();
    let backend = Backend::echo();
    let shape = Shape::new(backend.address)
        .plain()
        .listener("defer-accept = \"0s\"")
        .process("workers = 1");
    let enter = format!(
        "echo $$ > '{}/cgroup.procs' && exec \"$@\"",
        group.0.display()
    );
    let launcher = ["sh", "-c", &enter, "sh"].map(str::to_owned);
    let becket = Becket::start_by(&place, &shape, &launcher);
    // No limit yet that it could reach.
    group.limit(1 << 40);
    let used = until("it measures", || becket.status()["memory"]["used"].as_u64());
    // Room for fewer than there come.
    let limit = used + (16 << 20);
    group.limit(limit);
    let (mut held, mut most) = (Vec::new(), used);
    // No faster than becket looks: a crowd that comes between two looks is the kernel's.
    until("memory is short", || {
        let memory = &becket.status()["memory"];
        let now = memory["used"].as_u64().unwrap();
        if now != most {
            held.extend((0..20).map(|_| TcpStream::connect(becket.web).unwrap()));
        }
        most = now;
        (memory["shortage"] != "none").then_some(())
    });
    eventually("those at rest end", || {
        let used = becket.status()["memory"]["used"].as_u64().unwrap();
        most = most.max(used);
        becket.metrics().closed("memory-rest") > 0
    });
    assert!(becket.is_alive());
    assert_eq!(group.kills(), 0);
    assert!(most < limit, "{most} of {limit}");
    drop(held);
    eventually("there is memory again", || {
        becket.status()["memory"]["shortage"] == "none"
    });
    drop(becket);
}
