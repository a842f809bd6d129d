//! Changes through the admin API during an upgrade: each is answered once, and the new process does not keep it.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::{self, JoinHandle};

use becket_e2e::{Finished, ctl};
use serde_json::Value;

use super::clients::Load;
use super::stage::{SPARE, Stage};

/// Changes of the backend `spare`: the `maxconn` of its server rises, and servers are added.
pub(super) struct Edits<'a> {
    stage: &'a Stage,
    /// The last confirmed `maxconn`.
    last: AtomicU64,
    added: AtomicU64,
    refused: AtomicU64,
}

impl<'a> Edits<'a> {
    pub(super) fn new(stage: &'a Stage) -> Self {
        Self {
            stage,
            last: AtomicU64::new(0),
            added: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    #[track_caller]
    pub(super) fn add_server(&self) {
        let number = self.added.fetch_add(1, SeqCst);
        let server = format!("spare/127.1.{}.{}:9", number / 256, number % 256);
        assert!(self.make(&["servers", "add", &server]));
    }

    /// Makes changes until the upgrade is answered.
    pub(super) fn make_until_answered(&self, asked: &JoinHandle<Finished>, begin: impl FnOnce()) {
        thread::scope(|scope| {
            scope.spawn(|| {
                let server = format!("spare/{SPARE}");
                while !asked.is_finished() {
                    let next = self.last.load(SeqCst) + 1;
                    if self.make(&["servers", "maxconn", &server, &next.to_string()]) {
                        self.last.store(next, SeqCst);
                    }
                }
            });
            begin();
        });
    }

    /// Makes a change and asserts that it has one answer. Returns `false` if the old process rejects it because it has stopped accepting.
    #[track_caller]
    fn make(&self, words: &[&str]) -> bool {
        let found = ctl(&self.stage.place, words);
        let refusal = "an upgrade is in progress, nothing changed";
        if found.code == 3 && found.stderr.contains(refusal) {
            self.refused.fetch_add(1, SeqCst);
            return false;
        }
        let log = || self.stage.becket.log();
        assert_eq!(found.code, 0, "{words:?}: {}\n{}", found.all(), log());
        let lines = found.stdout.lines().count();
        assert_eq!(lines, 1, "{words:?}: {}", found.all());
        true
    }

    /// Fails if a change from before the upgrade is in use. `before` is the last `maxconn` of earlier upgrades.
    #[track_caller]
    pub(super) fn have_ended(&self, before: u64) {
        let status = self.stage.becket.status();
        let mut backends = status["backends"].as_array().unwrap().iter();
        let spare = backends.find(|it| it["name"] == "spare").unwrap();
        let servers: &Vec<Value> = spare["servers"].as_array().unwrap();
        assert_eq!(servers.len(), 1, "{servers:?}");
        // The new process may have accepted the last changes.
        let maxconn = servers[0]["maxconn"].as_u64();
        assert!(maxconn.is_none_or(|most| most > before), "{servers:?}");
    }

    pub(super) fn last(&self) -> u64 {
        self.last.load(SeqCst)
    }

    pub(super) fn count(&self, load: &Load<'_>) {
        let made = self.last() + self.added.load(SeqCst);
        load.add("edits", made as usize);
        let refused = self.refused.load(SeqCst);
        load.add("edits that were refused", refused as usize);
    }
}
