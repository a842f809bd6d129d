//! Edits of an operator while an upgrade is under way: each has one answer, and lasts as long as the answer says.
//!
//! A kept edit that is confirmed after the new process has read the file is in use after a reload, which becket makes on its own.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::{self, JoinHandle};

use becket_e2e::{Finished, ctl, eventually};
use serde_json::Value;

use super::clients::Load;
use super::stage::{SPARE, Stage};

/// Edits of the backend `spare`. The `maxconn` of its two servers rises, for the first with `--keep`.
pub(super) struct Edits<'a> {
    stage: &'a Stage,
    kept: Number,
    temporary: Number,
    added: AtomicU64,
    refused: AtomicU64,
}

/// How far an upgrade is when servers are added.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// The new process has read nothing yet.
    Loading,
    /// The new process has read everything, and the old one still serves.
    Ready,
}

const MOMENTS: [Moment; 2] = [Moment::Loading, Moment::Ready];

/// The `maxconn` that was confirmed last, and the last one of earlier upgrades.
#[derive(Default)]
struct Number {
    last: AtomicU64,
    before: AtomicU64,
}

impl<'a> Edits<'a> {
    pub(super) fn new(stage: &'a Stage) -> Self {
        Self {
            stage,
            kept: Number::default(),
            temporary: Number::default(),
            added: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Adds two servers, the first with `--keep`.
    #[track_caller]
    pub(super) fn add(&self, round: usize, moment: Moment) {
        if moment == Moment::Loading {
            for number in [&self.kept, &self.temporary] {
                number.before.store(number.last.load(SeqCst), SeqCst);
            }
        }
        assert!(self.make(&["servers", "add", &moment.kept(round), "--keep"]));
        assert!(self.make(&["servers", "add", &moment.temporary(round)]));
        self.added.fetch_add(2, SeqCst);
    }

    /// Two operators make edits until the upgrade has an outcome.
    pub(super) fn make_until_answered(&self, asked: &JoinHandle<Finished>, begin: impl FnOnce()) {
        let operators = [
            (SPARE[0], &self.kept, &["--keep"][..]),
            (SPARE[1], &self.temporary, &[]),
        ];
        thread::scope(|scope| {
            for (server, number, flags) in operators {
                scope.spawn(move || {
                    let server = format!("spare/{server}");
                    while !asked.is_finished() {
                        let next = number.last.load(SeqCst) + 1;
                        let words = ["servers", "maxconn", &server, &next.to_string()];
                        if self.make(&[&words, flags].concat()) {
                            number.last.store(next, SeqCst);
                        }
                    }
                });
            }
            begin();
        });
    }

    /// Makes an edit, which has one answer. Returns `false` if the old process refuses it because it has stopped accepting.
    #[track_caller]
    fn make(&self, words: &[&str]) -> bool {
        let found = ctl(&self.stage.place, words);
        if found.code == 3
            && found
                .stderr
                .contains("an upgrade is under way, nothing changed")
        {
            self.refused.fetch_add(1, SeqCst);
            return false;
        }
        let log = || self.stage.becket.log();
        assert_eq!(found.code, 0, "{words:?}: {}\n{}", found.all(), log());
        // A line of what is changed, and one of where that is kept.
        let (lines, is_kept) = (found.stdout.lines().count(), words.contains(&"--keep"));
        assert_eq!(
            lines,
            1 + usize::from(is_kept),
            "{words:?}: {}",
            found.all()
        );
        assert_eq!(found.stdout.contains("kept in "), is_kept);
        true
    }

    /// Fails unless kept edits are in use after an upgrade, and all other edits are not.
    #[track_caller]
    pub(super) fn hold(&self, round: usize) {
        eventually("all kept servers are in use", || {
            let servers = self.servers();
            let is_kept = |name: &str| server(&servers, name).is_some_and(|it| it["kept"] == true);
            let mut rounds = 1..=round;
            rounds.all(|made| MOMENTS.iter().all(|moment| is_kept(&moment.kept(made))))
        });
        let servers = self.servers();
        for (made, moment) in (1..=round).flat_map(|it| MOMENTS.map(|moment| (it, moment))) {
            assert_eq!(server(&servers, &moment.temporary(made)), None, "{round}");
        }
        let maxconn = |name: &str| server(&servers, name).unwrap()["maxconn"].as_u64();
        let (found, number) = (maxconn(SPARE[0]).unwrap_or(0), &self.kept);
        assert!(found >= number.before.load(SeqCst), "{round}: {servers:?}");
        let (found, number) = (maxconn(SPARE[1]).unwrap_or(0), &self.temporary);
        assert!(
            found == 0 || found > number.before.load(SeqCst),
            "{round}: {servers:?}"
        );
    }

    /// The servers of the backend `spare`.
    fn servers(&self) -> Vec<Value> {
        let status = self.stage.becket.status();
        let mut backends = status["backends"].as_array().unwrap().iter();
        let spare = backends.find(|it| it["name"] == "spare").unwrap();
        spare["servers"].as_array().unwrap().clone()
    }

    pub(super) fn count(&self, load: &Load<'_>) {
        let sum = [&self.added, &self.kept.last, &self.temporary.last].map(|it| it.load(SeqCst));
        load.add("edits", sum.iter().sum::<u64>() as usize);
        load.add(
            "edits that were refused",
            self.refused.load(SeqCst) as usize,
        );
    }
}

/// A server by its backend and name.
fn server<'a>(servers: &'a [Value], name: &str) -> Option<&'a Value> {
    let name = name.trim_start_matches("spare/");
    servers.iter().find(|it| it["name"] == name)
}

impl Moment {
    fn kept(self, round: usize) -> String {
        self.server(1, round)
    }

    fn temporary(self, round: usize) -> String {
        self.server(2, round)
    }

    fn server(self, host: usize, round: usize) -> String {
        let port = if self == Self::Loading { 9 } else { 10 };
        format!("spare/127.{host}.{}.{}:{port}", round / 256, round % 256)
    }
}
