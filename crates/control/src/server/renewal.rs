//! Loads changed certificate files without a command.
//!
//! A check reads the changed files on a separate thread. Its result is committed if the
//! configuration has not changed since the check began. A check also follows the start and each
//! reload, because a file may have changed between reading and watching. Files that were rejected
//! are read again at each check.
//!
//! Under a supervisor, each check is a command of the supervisor, because only the supervisor can
//! open all files. It lists its changed files. This process watches the files that it can open
//! itself, and reports changes to the supervisor.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use rustls::pki_types::UnixTime;
use tokio::task::spawn_blocking;

use super::watching::{Look, WatchResult};
use super::{Control, log_warnings};
use crate::reload::{build, save_checked};
use becket_config::error::{Problem, shortened};
use becket_keys::files::Files;
use becket_keys::signing::token::Tokens;
use becket_keys::watch::WatchedPlaces;
use becket_log::Timestamp;
use becket_prepare::renewal::Renewal;
use becket_process::link::resources::ProcessResources;
use becket_process::protocol::Event;
use becket_proxy::backend::registry::Backends;

impl Control {
    pub(super) fn look_first(&mut self) {
        if !self.state.config().file.process.watch {
            self.config.watching.watch.stop();
        } else if self.supervision.link.is_none() {
            self.look(Files::default());
        }
    }

    /// Checks the listed changes of the supervisor, and the files that this process watches.
    pub(super) fn look_at(&mut self, given: ProcessResources) {
        self.config.watching.changed.changes.add(given.changes);
        self.look(given.files);
    }

    /// Checks changed certificate files. Schedules another check if one is running.
    fn look(&mut self, files: Files) {
        let config = self.state.config();
        if self.state.is_draining() || !config.file.process.watch {
            return self.report(&Event::Renewed(false));
        }
        let watching = &mut self.config.watching;
        if watching.running.is_some() {
            watching.again = Some(files);
            return;
        }
        let own = watching.unwatched.take();
        let mut changed = mem::take(&mut watching.changed);
        changed.unknown.extend(own.iter().flatten().cloned());
        let unix = self.state.shared().clock.now().unix;
        let secrets = Arc::clone(self.rotation.secrets());
        let source = self.config.source.with(files.clone(), Tokens::default());
        self.config.watching.running = Some(spawn_blocking(move || {
            let places = own.map(WatchedPlaces::of);
            let renewal = source.renew(&config, &changed, UnixTime::since_unix_epoch(unix));
            let built = renewal.config.as_ref().map(|new| {
                let is_new =
                    |one: &&Arc<_>| !config.listeners.iter().any(|it| Arc::ptr_eq(it, one));
                build(new, new.listeners.iter().filter(is_new), &secrets)
            });
            Look {
                fault: built.and_then(Result::err),
                config,
                files,
                places,
                changed,
                renewal,
            }
        }));
    }

    pub(super) fn handle_seen(&mut self, seen: WatchResult) {
        match seen {
            WatchResult::Changed if self.supervision.link.is_some() => self.report(&Event::Changed),
            WatchResult::Changed => self.look(Files::default()),
            WatchResult::Look(look) => {
                if let Some(look) = look {
                    self.finish_look(*look);
                }
                match self.config.watching.again.take() {
                    Some(files) => self.look(files),
                    None if self.config.watching.running.is_some() => {}
                    None => {
                        let is_rejected = !self.config.watching.rejected.is_empty();
                        self.report(&Event::Renewed(is_rejected));
                    }
                }
            }
        }
    }

    fn finish_look(&mut self, look: Look) {
        let config = self.state.config();
        if self.state.is_draining() || !config.file.process.watch {
            return;
        }
        match look.places {
            // Another configuration was loaded meanwhile.
            _ if self.config.watching.unwatched.is_some() => {}
            Some(places) if places.is_empty() => self.config.watching.watch.stop(),
            Some(places) => self.config.watching.watch.replace(places),
            None => {}
        }
        if !Arc::ptr_eq(&look.config, &config) {
            // Repeats the check, because the configuration changed while it ran and the result may
            // be outdated.
            self.config.watching.changed.add(look.changed);
            self.config.watching.again.get_or_insert(look.files);
            return;
        }
        let Renewal {
            config: new,
            kept_out: mut rejected,
            warnings,
            taken,
            checked,
        } = look.renewal;
        let committed = match (new, look.fault) {
            (None, _) => Ok(()),
            (Some(_), Some(fault)) => Err(fault),
            (Some(new), None) => {
                log_warnings(&warnings);
                // A renewal preserves server state and operator changes.
                let exchanged = self.exchange_edited(new, Backends::keep);
                exchanged.map_err(|error| Problem::new("", error.to_string()))
            }
        };
        let has_renewed = committed.is_ok() && !taken.is_empty();
        if has_renewed {
            tracing::info!(name: "files-loaded", files = listed(&taken), "changed files loaded");
        }
        spawn_blocking(move || save_checked(checked));
        rejected.extend(committed.err());
        if !rejected.is_empty() {
            let mut changed = look.changed;
            changed.limit();
            self.config.watching.changed.add(changed);
        }
        let before = mem::take(&mut self.config.watching.rejected);
        for fault in rejected.iter().filter(|it| !before.contains(it)) {
            tracing::error!(name: "file-rejected", "changed file rejected: {fault}; the loaded version stays in use");
        }
        for file in mended(&before, &rejected) {
            tracing::info!(name: "file-accepted", "file is valid again and in use: {file}");
        }
        let time = Timestamp::from_unix(self.state.shared().clock.now().unix);
        self.state.change(|it| {
            let status = &mut it.changes.watch;
            if has_renewed {
                status.renewals += 1;
                status.time = Some(time);
            }
            status.failures += u64::from(!rejected.is_empty());
            status.rejected = rejected.iter().map(ToString::to_string).collect();
        });
        self.config.watching.rejected = rejected;
    }
}

/// Lists the first [`MOST_LISTED`] files and the number of omitted files.
fn listed(files: &BTreeSet<String>) -> String {
    let first: Vec<String> = files
        .iter()
        .take(MOST_LISTED)
        .map(|it| shortened(it))
        .collect();
    match files.len() - first.len() {
        0 => first.join(", "),
        others => format!("{} and {others} more", first.join(", ")),
    }
}

const MOST_LISTED: usize = 8;

/// Returns the subjects of earlier problems that no longer exist. A subject is a configuration key
/// or a file.
fn mended(before: &[Problem], now: &[Problem]) -> Vec<String> {
    let mut mended: Vec<String> = before.iter().map(Problem::subject).collect();
    let is_current = |it: &String| now.iter().any(|fault| fault.subject() == *it);
    mended.retain(|it| !it.is_empty() && !is_current(it));
    mended.dedup();
    mended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_eight_files_are_listed() {
        let files = |count| (1..=count).map(|it| format!("/{it}.pem")).collect();
        assert_eq!(listed(&files(2)), "/1.pem, /2.pem");
        let of_nine = "/1.pem, /2.pem, /3.pem, /4.pem, /5.pem, /6.pem, /7.pem, /8.pem and 1 more";
        assert_eq!(listed(&files(9)), of_nine);
    }

    #[test]
    fn a_file_recovers_when_no_fault_refers_to_it() {
        let of = |file: &str, fault: &str| Problem::new("a.certificates[0]", fault).text(file);
        let before = [
            of("/a.pem", "no END CERTIFICATE"),
            of("/b.pem", "no private key"),
            Problem::new("policy[p]", "a fault"),
        ];
        let half = [of("/a.pem", "no private key")];
        let of_half = ["a.certificates[0] = \"/b.pem\"", "policy[p]"];
        assert_eq!(mended(&before, &half), of_half);
        assert_eq!(mended(&half, &[]), ["a.certificates[0] = \"/a.pem\""]);
        assert!(mended(&before, &before).is_empty());
    }
}
