//! Kills each process of an upgrade at each step: clients are served again, the number of slots stays correct, and the log shows
//! the cause.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;

use becket_e2e::{Becket, Client, Place, Shape, Signal, Trust, eventually, until};

use crate::slots_are_shared_in_an_upgrade::{Counting, come, greeted};
use crate::upgrades_lose_nothing::{children, install, install_script, launch, signal, start};

/// Progress of an upgrade at the time of the kill.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// The new process is loading.
    Loading,
    /// The new process is ready, and the supervisor has not read its message.
    Prepared,
    /// The old process has stopped accepting, and the new one does not serve yet.
    MadeWay,
    /// The new process serves, and the supervisor has not read its message.
    Serving,
}

const STEPS: [Step; 4] = [Step::Loading, Step::Prepared, Step::MadeWay, Step::Serving];

/// A becket with a client and a paused upgrade.
struct Scene {
    server: Counting,
    shape: Shape,
    becket: Becket,
    trust: Trust,
    /// Client that connected before the upgrade.
    client: Client,
    old: u32,
    new: u32,
    step: Step,
    /// Dropped last, because a failure prints the logs in this folder.
    place: Place,
}

impl Scene {
    #[track_caller]
    fn at(step: Step) -> Self {
        let (place, server) = (Place::new(), Counting::new());
        let shape = server.shape(MAXCONN);
        let becket = start(&place, &shape);
        let trust = Trust::new(&place);
        let mut client = come(&becket, &trust);
        greeted(&mut client).unwrap();
        let old = becket.child();
        close_gate(&place);
        becket.signal(Signal::USR2);
        let new = until("two processes run", || children(&becket).get(1).copied());
        let scene = Self {
            place,
            server,
            shape,
            becket,
            trust,
            client,
            old,
            new,
            step,
        };
        // The new process has received its commands.
        scene.logged("the new process is loading", 1);
        scene.advance();
        scene
    }

    /// Advances from the first step to the requested one. Processes that must stay behind are stopped before the others
    /// continue.
    #[track_caller]
    fn advance(&self) {
        if self.step == Step::Loading {
            return;
        }
        let parent = self.becket.pid();
        stop(parent);
        open_gate(&self.place);
        self.logged("ready; waiting", 1);
        if self.step == Step::Prepared {
            return;
        }
        stop(self.new);
        signal(parent, Signal::CONT);
        self.logged("sent the command to accept clients", 2);
        if self.step == Step::MadeWay {
            return;
        }
        stop(parent);
        signal(self.new, Signal::CONT);
        self.logged("\"event\":\"serving\"", 2);
    }

    /// Continues all stopped processes except the killed one.
    fn go_on_without(&self, killed: u32) {
        if self.step == Step::Loading && killed != self.new {
            open_gate(&self.place);
        }
        for pid in [self.becket.pid(), self.new] {
            if pid != killed {
                signal(pid, Signal::CONT);
            }
        }
    }

    #[track_caller]
    fn logged(&self, what: &str, times: usize) {
        let step = self.step;
        eventually(&format!("{what:?} in the log, {step:?}"), || {
            self.becket.log().matches(what).count() >= times
        });
    }

    /// Checks that the connection of the earlier client is open.
    #[track_caller]
    fn client_stays(&self) {
        self.client.socket.set_nonblocking(true).unwrap();
        let heard = self
            .client
            .socket
            .peek(&mut [0])
            .map_err(|error| error.kind());
        assert_eq!(heard, Err(ErrorKind::WouldBlock), "{:?}", self.step);
        self.client.socket.set_nonblocking(false).unwrap();
    }

    /// Checks that the number of clients served at the same time equals the number of slots.
    #[track_caller]
    fn all_slots_are_there(self) {
        let step = self.step;
        self.client.socket.shutdown(Shutdown::Both).ok();
        self.server.has(0);
        let mut clients: Vec<Client> = until(&format!("clients are served, {step:?}"), || {
            let connect = || Client::connect(self.becket.web, &self.trust).ok();
            (0..MAXCONN).map(|_| connect()).collect()
        });
        for client in &mut clients {
            client.write_all(b"abc").unwrap();
            client.read_exact(&mut [0; 4]).unwrap();
        }
        let most = self.server.most.load(SeqCst);
        assert_eq!(most, MAXCONN as usize, "{step:?}");
    }

    /// Returns the numbers of completed upgrades, failed upgrades and restarts.
    fn counts(&self) -> [u64; 3] {
        let status = self.becket.status();
        let upgrades = &status["upgrades"];
        [&upgrades["done"], &upgrades["refused"], &status["restarts"]]
            .map(|count| count.as_u64().unwrap())
    }
}

/// Replaces the program by a script that waits before it executes becket.
pub(crate) fn close_gate(place: &Place) {
    let made = Command::new("mkfifo").arg(place.path("gate")).status();
    assert!(made.unwrap().success());
    install_script(place, "read -r _ < gate; exec ./becket \"$@\"");
}

/// Installs the program again and lets the waiting script execute it.
pub(crate) fn open_gate(place: &Place) {
    install(place);
    fs::write(place.path("gate"), "\n").unwrap();
}

/// Stops a process, and waits until it is stopped.
#[track_caller]
pub(crate) fn stop(pid: u32) {
    signal(pid, Signal::STOP);
    eventually("the process is stopped", || state(pid) == Some('T'));
}

/// Returns the state of a process as in proc(5); `None` if it does not exist.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_new_process_takes_over_after_the_death_of_the_old_one_at_each_step() {
    for step in STEPS {
        let scene = Scene::at(step);
        signal(scene.old, Signal::KILL);
        eventually("the old process is dead", || {
            matches!(state(scene.old), None | Some('Z'))
        });
        scene.go_on_without(scene.old);
        eventually(&format!("only the new process runs, {step:?}"), || {
            children(&scene.becket) == [scene.new]
        });
        scene.logged("upgraded", 1);
        until("the new process serves", || {
            Client::connect(scene.becket.web, &scene.trust).ok()
        });
        assert_eq!(scene.counts()[..2], [1, 0], "{step:?}");
        scene.all_slots_are_there();
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_old_process_continues_if_the_new_one_dies_before_it_serves() {
    for step in STEPS {
        let scene = Scene::at(step);
        signal(scene.new, Signal::KILL);
        scene.go_on_without(scene.new);
        if step == Step::Serving {
            // The old process has received its command to exit, and a third process starts.
            scene.logged("the serving process died", 1);
            scene.logged("\"event\":\"serving\"", 3);
        } else {
            scene.logged(
                "upgrade failed, nothing changed: the new process exited before it served (signal: 9",
                1,
            );
            assert_eq!(children(&scene.becket), [scene.old], "{step:?}");
            eventually("the upgrade is refused", || scene.counts() == [0, 1, 0]);
        }
        scene.client_stays();
        scene.all_slots_are_there();
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn processes_drain_and_free_their_ports_after_the_supervisor_died() {
    for step in STEPS {
        let mut scene = Scene::at(step);
        let children = [scene.old, scene.new];
        scene.becket.signal(Signal::KILL);
        assert_eq!(scene.becket.ended(), None);
        scene.go_on_without(scene.becket.pid());
        // A process that has not served yet exits with its supervisor.
        let ends = if step == Step::Serving { 2 } else { 1 };
        scene.logged("the supervisor exited", ends);
        scene.client_stays();
        scene.client.close_notify().unwrap();
        scene.client.read_to_end(&mut Vec::new()).unwrap();
        for pid in children {
            eventually(&format!("both processes have exited, {step:?}"), || {
                matches!(state(pid), None | Some('Z'))
            });
        }
        scene.becket = launch(&scene.place, &scene.shape, None);
        scene.all_slots_are_there();
    }
}

const MAXCONN: u32 = 3;
