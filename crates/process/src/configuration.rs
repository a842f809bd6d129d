//! The configuration in the supervisor: reads what the supervisor needs of it, watches its files, and
//! writes the PID file.

use becket_keys::watch::WatchedPlaces;
use becket_sys::pid_file::PidFile;

use super::listing::{PendingRenewal, places_of};
use super::needs::Needs;
use super::resources::FoundConfig;
use super::run::Runner;

impl Runner {
    pub(super) fn look(&self) -> (FoundConfig, Needs) {
        let source = &self.setup.source;
        let seen = FoundConfig::by(source, self.setup.identity.is_some());
        let needs = Needs::by(&seen.file, &source.folder());
        (seen, needs)
    }

    /// Returns the configuration, and the stamps of the files whose changes cause a reload.
    pub(super) fn look_and_watch(&self) -> (FoundConfig, Needs, WatchedPlaces) {
        let (seen, needs) = self.look();
        if !seen.file.process.watch_config {
            return (seen, needs, WatchedPlaces::default());
        }
        let file = self.setup.source.file();
        let places = WatchedPlaces::of(file.into_iter().chain(needs.reloaded).collect());
        // Reads the file again, so that no change between the two is missed.
        let (seen, needs) = self.look();
        (seen, needs, places)
    }

    pub(super) fn commit(&mut self, process: u32) {
        self.held.commit(process);
        self.renewing = PendingRenewal::default();
        self.watches.renewed.stop();
        let places = std::mem::take(&mut self.held.current.places);
        if !places.is_empty() {
            self.watches.renewed.replace(places);
        }
        let reloaded = std::mem::take(&mut self.held.current.reloaded);
        self.watch_for_reloads(reloaded);
        if self.pid_file.is_none() {
            self.write_pid();
        }
    }

    fn watch_for_reloads(&mut self, places: WatchedPlaces) {
        self.watches.reloaded.stop();
        if !places.is_empty() {
            self.watches.reloaded.replace(places);
        }
    }

    /// Reads the supervisor's settings from the configuration, for a process that already serves.
    pub(super) fn adopt_configuration(&mut self) {
        let (seen, needs, reloaded) = self.look_and_watch();
        self.watch_for_reloads(reloaded);
        if seen.is_roots {
            self.held.current.logs = needs.logs;
            self.watches.renewed.replace(places_of(&needs.watched));
            self.held.current.watched = needs.watched;
            // The previous program may have missed changes at its end.
            self.renewing = PendingRenewal::unknown();
        }
        self.held.current.keys = seen.file.process;
        self.held.current.acme = seen.file.acme;
        self.write_pid();
    }

    /// Writes the supervisor's PID to the PID file, for scripts that send signals. As root, writes
    /// only if root alone controls the configuration and the path.
    fn write_pid(&mut self) {
        let (seen, _) = self.look();
        let Some(path) = &seen.file.process.pid_file else {
            return;
        };
        if self.setup.identity.is_some() && !seen.is_roots {
            tracing::warn!(name: "pid-file-refused", "cannot write the pid file: a user other than root can change its path");
            return;
        }
        match PidFile::write(&self.setup.source.folder().join(path)) {
            Ok(file) => self.pid_file = Some(file),
            Err(error) => {
                tracing::error!(name: "pid-file-failed", %error, "cannot write the pid file")
            }
        }
    }
}
