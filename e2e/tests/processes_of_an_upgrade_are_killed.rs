//! Each process of an upgrade is killed at each of its steps: clients are served again, no slot of a server is lost or there twice,
//! and the log says what happened.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;

use becket_e2e::{Becket, Client, Place, Shape, Signal, Trust, eventually, until};

use crate::slots_are_shared_in_an_upgrade::{Counting, come, greeted};
use crate::upgrades_lose_nothing::{children, install, install_script, launch, signal, start};

/// How far an upgrade is when a process is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// The new process loads.
    Loading,
    /// It could serve, and the supervisor has not read so.
    Prepared,
    /// The old one does not accept any more, and the new one does not serve yet.
    MadeWay,
    /// The new one serves, and the supervisor has not read so.
    Serving,
}

const STEPS: [Step; 4] = [Step::Loading, Step::Prepared, Step::MadeWay, Step::Serving];

/// A becket with a client, and an upgrade of it that stands still.
struct Scene {
    server: Counting,
    shape: Shape,
    becket: Becket,
    trust: Trust,
    /// It came before the upgrade.
    client: Client,
    old: u32,
    new: u32,
    step: Step,
    /// The last to go: a failure shows the logs that are in it.
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
        let new = until("there are two", || children(&becket).get(1).copied());
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
        // It has its orders by then.
        scene.logged("the new process is loading", 1);
        scene.advance();
        scene
    }

    /// Goes on from the first step to that which was asked for: who is to be one step behind is stopped before the others go on.
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
        self.logged("serve command sent", 2);
        if self.step == Step::MadeWay {
            return;
        }
        stop(parent);
        signal(self.new, Signal::CONT);
        self.logged("\"serving\"", 2);
    }

    /// Lets all go on that stand still, but one that was killed.
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

    /// The client that came before is served still.
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

    /// So many clients are served at a time as there are slots.
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

    /// How many upgrades were done and refused, and how many processes died.
    fn counts(&self) -> [u64; 3] {
        let status = self.becket.status();
        let upgrades = &status["upgrades"];
        [&upgrades["done"], &upgrades["refused"], &status["restarts"]]
            .map(|count| count.as_u64().unwrap())
    }
}

/// Lets a new process wait before it is becket.
pub(crate) fn close_gate(place: &Place) {
    let made = Command::new("mkfifo").arg(place.path("gate")).status();
    assert!(made.unwrap().success());
    install_script(place, "read -r _ < gate; exec ./becket \"$@\"");
}

/// Lets it become the program that is there now.
pub(crate) fn open_gate(place: &Place) {
    install(place);
    fs::write(place.path("gate"), "\n").unwrap();
}

/// Stops a process, and waits until it is.
#[track_caller]
pub(crate) fn stop(pid: u32) {
    signal(pid, Signal::STOP);
    eventually("it is stopped", || state(pid) == Some('T'));
}

/// The letter of proc(5); nothing for a process that is gone.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_old_process_is_followed_by_the_new_one_at_each_step() {
    for step in STEPS {
        let scene = Scene::at(step);
        signal(scene.old, Signal::KILL);
        eventually("it is dead", || {
            matches!(state(scene.old), None | Some('Z'))
        });
        scene.go_on_without(scene.old);
        eventually(&format!("the new one is alone, {step:?}"), || {
            children(&scene.becket) == [scene.new]
        });
        scene.logged("upgraded", 1);
        until("it serves", || {
            Client::connect(scene.becket.web, &scene.trust).ok()
        });
        assert_eq!(scene.counts()[..2], [1, 0], "{step:?}");
        scene.all_slots_are_there();
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn the_old_process_goes_on_without_the_new_one_as_long_as_that_has_not_served() {
    for step in STEPS {
        let scene = Scene::at(step);
        signal(scene.new, Signal::KILL);
        scene.go_on_without(scene.new);
        if step == Step::Serving {
            // The old one leaves, as it is told, and a third one follows.
            scene.logged("the serving process died", 1);
            scene.logged("\"serving\"", 3);
        } else {
            scene.logged(
                "upgrade failed, nothing changed: the new process exited before it served (signal: 9",
                2,
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
fn without_the_supervisor_what_serves_drains_and_the_next_becket_binds() {
    for step in STEPS {
        let mut scene = Scene::at(step);
        let children = [scene.old, scene.new];
        scene.becket.signal(Signal::KILL);
        assert_eq!(scene.becket.ended(), None);
        scene.go_on_without(scene.becket.pid());
        // A process that has not served dies with its supervisor.
        let ends = if step == Step::Serving { 2 } else { 1 };
        scene.logged("the supervisor exited", ends);
        scene.client_stays();
        scene.client.close_notify().unwrap();
        scene.client.read_to_end(&mut Vec::new()).unwrap();
        for pid in children {
            eventually(&format!("both have ended, {step:?}"), || {
                matches!(state(pid), None | Some('Z'))
            });
        }
        scene.becket = launch(&scene.place, &scene.shape, None);
        scene.all_slots_are_there();
    }
}

const MAXCONN: u32 = 3;
