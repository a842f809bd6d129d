//! Processes under one supervisor that take, give back, yield, fail and die in any order.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// Message between a process and the supervisor.
#[derive(Clone, Debug)]
enum Message {
    Released(Counts),
    Wanted(u32, Counts),
    Granted(u32, Counts),
}

#[derive(Debug)]
enum Role {
    Serving(Lender),
    Leaving(Borrower),
    /// Loaded, but not serving yet.
    Waiting,
}

#[derive(Debug)]
struct Process {
    count: SharedCount,
    role: Role,
    waiting: u32,
    is_alive: bool,
    up: VecDeque<Message>,
    down: VecDeque<Message>,
}

/// Processes under one supervisor; the last one serves or is about to.
#[derive(Debug)]
struct World {
    most: u32,
    processes: Vec<Process>,
    ledger: Ledger,
    serving: usize,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take(usize),
    Give(usize),
    Wait(usize, u32),
    Settle(usize),
    Up(usize),
    Down(usize),
    Upgrade,
    /// The new process fails after the old one has yielded.
    FailedUpgrade,
    Kill(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let process = 0..4_usize;
    prop_oneof![
        6 => process.clone().prop_map(Step::Take),
        4 => process.clone().prop_map(Step::Give),
        2 => (process.clone(), 0..3_u32).prop_map(|(process, waiting)| Step::Wait(process, waiting)),
        5 => process.clone().prop_map(Step::Settle),
        6 => process.clone().prop_map(Step::Up),
        6 => process.clone().prop_map(Step::Down),
        1 => Just(Step::Upgrade),
        1 => Just(Step::FailedUpgrade),
        1 => process.prop_map(Step::Kill),
    ]
}

const KEY: u64 = 7;

impl World {
    fn new(most: u32) -> Self {
        let mut world = Self {
            most,
            processes: Vec::new(),
            ledger: Ledger::default(),
            serving: 0,
        };
        world.start();
        world.serve(0);
        world
    }

    fn start(&mut self) {
        let count = SharedCount::default();
        count.set_share(0);
        self.processes.push(Process {
            count,
            role: Role::Waiting,
            waiting: 0,
            is_alive: true,
            up: VecDeque::new(),
            down: VecDeque::new(),
        });
    }

    fn serve(&mut self, index: usize) {
        let mut lender = Lender::new(self.ledger.held());
        lender.settle(KEY, Some(self.most), &self.processes[index].count);
        self.processes[index].role = Role::Serving(lender);
        self.serving = index;
    }

    /// Maps any number to an existing process.
    fn index(&self, process: usize) -> usize {
        process % self.processes.len()
    }

    fn used(&self) -> u32 {
        let alive = self.processes.iter().filter(|process| process.is_alive);
        alive.map(|process| process.count.count()).sum()
    }

    fn yields(&mut self) {
        let old = self.serving;
        while !self.processes[old].up.is_empty() {
            self.up(old);
        }
        let process = &mut self.processes[old];
        let mut borrower = Borrower::default();
        let held = borrower.hold(KEY, self.most, &process.count, 1);
        process.role = Role::Leaving(borrower);
        self.ledger.set(old as u32, [(KEY, held)].into());
    }

    fn handle(&mut self, step: Step) {
        match step {
            Step::Take(one) => {
                let one = self.index(one);
                let process = &mut self.processes[one];
                if process.is_alive && process.count.take(self.most) {
                    process.waiting = process.waiting.saturating_sub(1);
                }
            }
            Step::Give(one) => {
                let one = self.index(one);
                let process = &self.processes[one];
                if process.is_alive && process.count.count() > 0 {
                    process.count.give_back();
                }
            }
            Step::Wait(one, waiting) => {
                let one = self.index(one);
                self.processes[one].waiting = waiting;
            }
            Step::Settle(one) => self.settle(self.index(one)),
            Step::Up(one) => self.up(self.index(one)),
            Step::Down(one) => self.down(self.index(one)),
            Step::Upgrade if self.processes[self.serving].is_alive => {
                self.yields();
                self.start();
                self.serve(self.processes.len() - 1);
            }
            Step::FailedUpgrade if self.processes[self.serving].is_alive => {
                self.yields();
                let old = self.serving;
                // The command to resume follows all messages sent before.
                while !self.processes[old].down.is_empty() {
                    self.down(old);
                }
                self.ledger.remove(old as u32);
                self.serve(old);
            }
            Step::Upgrade | Step::FailedUpgrade => {}
            Step::Kill(one) => self.kill(self.index(one)),
        }
        assert!(self.used() <= self.most, "{step:?}: {self:#?}");
    }

    fn settle(&mut self, one: usize) {
        let most = self.most;
        let process = &mut self.processes[one];
        if !process.is_alive {
            return;
        }
        match &mut process.role {
            Role::Serving(lender) => {
                for (to, count) in lender.settle(KEY, Some(most), &process.count).granted {
                    process
                        .up
                        .push_back(Message::Granted(to, [(KEY, count)].into()));
                }
            }
            Role::Leaving(borrower) => {
                let settled = borrower.settle(KEY, &process.count, process.waiting, 0);
                if settled.released > 0 {
                    let released = [(KEY, settled.released)].into();
                    process.up.push_back(Message::Released(released));
                }
                let wanted = [(KEY, settled.wanted)].into_iter().filter(|it| it.1 > 0);
                process
                    .up
                    .push_back(Message::Wanted(one as u32, wanted.collect()));
            }
            Role::Waiting => {}
        }
    }

    /// The supervisor handles one message of a process.
    fn up(&mut self, one: usize) {
        let Some(message) = self.processes[one].up.pop_front() else {
            return;
        };
        match message {
            Message::Released(counts) => {
                let passed = self.ledger.release(one as u32, &counts);
                self.pass(self.serving, Message::Released(passed));
            }
            Message::Wanted(..) if one != self.serving => self.pass(self.serving, message),
            Message::Wanted(..) => {}
            Message::Granted(to, counts) if one == self.serving => {
                if self.ledger.grant(to, &counts) {
                    self.pass(to as usize, Message::Granted(to, counts));
                } else {
                    self.pass(one, Message::Released(counts));
                }
            }
            Message::Granted(..) => {}
        }
    }

    fn pass(&mut self, to: usize, message: Message) {
        if self.processes[to].is_alive {
            self.processes[to].down.push_back(message);
        }
    }

    fn down(&mut self, one: usize) {
        let process = &mut self.processes[one];
        let Some(message) = process.down.pop_front() else {
            return;
        };
        match (message, &mut process.role) {
            (Message::Released(counts), Role::Serving(lender)) => lender.release(&counts),
            (Message::Wanted(from, counts), Role::Serving(lender)) => {
                lender.set_wanted(from, counts);
            }
            (Message::Granted(_, counts), Role::Leaving(borrower)) => {
                borrower.granted(KEY, counts[&KEY], &process.count);
            }
            _ => {}
        }
    }

    fn kill(&mut self, one: usize) {
        if !self.processes[one].is_alive {
            return;
        }
        // Messages sent before its death are read first.
        while !self.processes[one].up.is_empty() {
            self.up(one);
        }
        self.processes[one].is_alive = false;
        self.processes[one].down.clear();
        let row = self.ledger.remove(one as u32);
        if one == self.serving {
            self.start();
            self.serve(self.processes.len() - 1);
        } else {
            self.pass(self.serving, Message::Released(row));
            self.pass(self.serving, Message::Wanted(one as u32, Counts::new()));
        }
    }

    /// Delivers all messages, repeatedly, until nothing changes.
    fn exchange(&mut self) {
        for _ in 0..3 {
            for one in 0..self.processes.len() {
                self.settle(one);
            }
            for one in 0..self.processes.len() {
                while !self.processes[one].up.is_empty() {
                    self.up(one);
                }
            }
            for one in 0..self.processes.len() {
                while !self.processes[one].down.is_empty() {
                    self.down(one);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..Default::default() })]

    #[test]
    fn processes_together_never_exceed_the_limit(
        most in 1..6_u32, steps in prop::collection::vec(step(), 0..300),
    ) {
        let mut world = World::new(most);
        steps.into_iter().for_each(|step| world.handle(step));
    }

    #[test]
    fn returned_shares_are_available_to_the_serving_process(
        most in 1..6_u32, steps in prop::collection::vec(step(), 0..300),
    ) {
        let mut world = World::new(most);
        steps.into_iter().for_each(|step| world.handle(step));
        for process in &mut world.processes {
            process.waiting = 0;
            while process.count.count() > 0 {
                process.count.give_back();
            }
        }
        world.exchange();
        let serving = &world.processes[world.serving];
        while serving.count.take(most) {}
        prop_assert_eq!(serving.count.count(), most, "{:#?}", world);
    }

    #[test]
    fn a_client_queued_in_a_leaving_process_receives_the_next_free_share(
        most in 1..6_u32, steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut world = World::new(most);
        steps.into_iter().for_each(|step| world.handle(step));
        if !world.processes[world.serving].is_alive {
            return Ok(());
        }
        let old = world.serving;
        world.handle(Step::Upgrade);
        for process in &mut world.processes {
            process.waiting = 0;
        }
        world.exchange();
        let new = world.serving;
        while world.processes[new].count.take(most) {}
        world.processes[old].waiting = 1;
        world.exchange();
        // The serving process cannot take any place that becomes free.
        let holder = (0..world.processes.len()).find(|one| {
            world.processes[*one].is_alive && world.processes[*one].count.count() > 0
        });
        if let Some(holder) = holder {
            world.processes[holder].count.give_back();
            prop_assert!(!world.processes[new].count.take(most));
            world.exchange();
            prop_assert!(world.processes[old].count.take(most), "{:#?}", world);
        }
    }
}

#[test]
fn an_excessive_release_frees_only_the_held_shares() {
    let mut ledger = Ledger::default();
    ledger.set(1, [(KEY, 2)].into());
    let passed = ledger.release(1, &[(KEY, 9), (8, 1)].into());
    assert_eq!(passed, [(KEY, 2)].into());
    assert!(ledger.held().is_empty());
}
