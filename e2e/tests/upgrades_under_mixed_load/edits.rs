//! Edits of an operator while an upgrade is under way: each has one answer, and lasts as long as the answer says.
//!
//! A kept edit that is confirmed after the new process has read the file is in use from the next upgrade on. The test counts how often
//! the new process uses it at once.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::{self, JoinHandle};

use becket_e2e::{Finished, ctl};

use super::clients::Load;
use super::stage::{SPARE, Stage};

/// Edits of the backend `spare`. The `maxconn` of its two servers rises, for the first with `--keep`.
pub(super) struct Edits<'a> {
    stage: &'a Stage,
    kept: Number,
    temporary: Number,
    /// Upgrades after which the new process uses a kept edit that was confirmed when it was ready.
    in_use_at_once: AtomicU64,
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
            in_use_at_once: AtomicU64::new(0),
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

    /// Fails unless earlier kept edits are in use after an upgrade, and all other edits are not.
    #[track_caller]
    pub(super) fn hold(&self, round: usize) {
        let status = self.stage.becket.status();
        let mut backends = status["backends"].as_array().unwrap().iter();
        let spare = backends.find(|it| it["name"] == "spare").unwrap();
        let servers = spare["servers"].as_array().unwrap();
        let server = |name: &str| {
            let name = name.trim_start_matches("spare/");
            servers.iter().find(|it| it["name"] == name)
        };
        let is_kept = |name: &str| server(name).is_some_and(|it| it["kept"] == true);
        for (moment, made) in (1..=round).flat_map(|it| MOMENTS.map(|moment| (moment, it))) {
            assert_eq!(server(&moment.temporary(made)), None, "{round}, {made}");
            if moment == Moment::Ready && made == round {
                let is_in_use = is_kept(&moment.kept(made));
                self.in_use_at_once.fetch_add(is_in_use.into(), SeqCst);
            } else {
                assert!(is_kept(&moment.kept(made)), "{round}, {made}: {spare}");
            }
        }
        let maxconn = |name: &str| server(name).unwrap()["maxconn"].as_u64().unwrap_or(0);
        let (found, number) = (maxconn(SPARE[0]), &self.kept);
        assert!(found >= number.before.load(SeqCst), "{round}: {spare}");
        let (found, number) = (maxconn(SPARE[1]), &self.temporary);
        assert!(
            found == 0 || found > number.before.load(SeqCst),
            "{round}: {spare}"
        );
    }

    pub(super) fn count(&self, load: &Load<'_>) {
        let sum = [&self.added, &self.kept.last, &self.temporary.last].map(|it| it.load(SeqCst));
        load.add("edits", sum.iter().sum::<u64>() as usize);
        load.add(
            "edits that were refused",
            self.refused.load(SeqCst) as usize,
        );
        let at_once = self.in_use_at_once.load(SeqCst) as usize;
        load.add("upgrades whose kept edits were in use at once", at_once);
    }
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
