//! Files of certificates that change are taken by themselves.
//!
//! A look at the files is prepared on a thread of its own, beside everything else, and committed if the configuration is still the
//! one that it began with. Each look begins to watch anew: what links lead to may be elsewhere. The first one follows the
//! start, and each reload: files may have changed between the reading and the watching.
//!
//! With a supervisor its looks are that one's commands, since only the supervisor can open all files. This process reports when files
//! change that it opens by its own rights.

use std::io;
use std::sync::Arc;

use rustls::pki_types::UnixTime;
use tokio::task::{JoinHandle, spawn_blocking};

use super::Control;
use crate::reload::build;
use becket_keys::files::Files;
use becket_keys::signing::token::Tokens;
use becket_keys::watch::{Places, Watch};
use becket_log::Timestamp;
use becket_prepare::renewal::Renewal;
use becket_process::protocol::Event;
use becket_tls::config::Config;

/// What control knows of files that change.
#[derive(Debug, Default)]
pub struct Watching {
    watch: Watch,
    /// A look on its way.
    running: Option<JoinHandle<Look>>,
    /// What is to be looked at next.
    again: Option<Files>,
}

/// What came of a look.
#[derive(Debug)]
pub(super) struct Look {
    /// What it began with.
    config: Arc<Config>,
    files: Files,
    /// Where changes are told from now on; absent where this process opens none of the files.
    places: Option<io::Result<Places>>,
    renewal: Renewal,
    /// Why it cannot be used as a whole.
    fault: Option<String>,
}

/// What happens to files.
pub(super) enum Seen {
    /// Some have changed.
    Changed,
    /// They were looked at; nothing where that failed.
    Look(Option<Box<Look>>),
}

impl Watching {
    /// Waits for the next thing that happens. Nothing is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> Seen {
        let Self { watch, running, .. } = self;
        tokio::select! {
            () = watch.settled() => Seen::Changed,
            Some(looked) = async { Some(running.as_mut()?.await) } => {
                *running = None;
                let looked = looked.inspect_err(|error| tracing::error!(%error, "files not looked at"));
                Seen::Look(looked.ok().map(Box::new))
            }
        }
    }
}

impl Control {
    /// Looks at the files for the first time by this configuration, unless the supervisor commands it.
    pub(super) fn look_first(&mut self) {
        if !self.state.config().file.process.watch {
            self.watching.watch.stop();
        } else if self.commands.supervisor().is_none() {
            self.look(Files::default());
        }
    }

    /// Begins to look at the files, or remembers to.
    pub(super) fn look(&mut self, files: Files) {
        let config = self.state.config();
        if self.state.is_draining() || !config.file.process.watch {
            return self.commands.report(&Event::Renewed);
        }
        if self.watching.running.is_some() {
            self.watching.again = Some(files);
            return;
        }
        let config = Arc::clone(self.edits.of_file());
        let unix = self.state.shared().clock.now().unix;
        let secrets = Arc::clone(self.rotation.secrets());
        let source = self.source.with(files.clone(), Tokens::default());
        self.watching.running = Some(spawn_blocking(move || {
            let own = source.watched(&config.file);
            let places = (!own.is_empty()).then(|| Places::of(&own));
            let renewal = source.renew(&config, UnixTime::since_unix_epoch(unix));
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
                renewal,
            }
        }));
    }

    pub(super) fn handle_seen(&mut self, seen: Seen) {
        match seen {
            Seen::Changed if self.commands.supervisor().is_some() => {
                self.commands.report(&Event::Changed)
            }
            Seen::Changed => self.look(Files::default()),
            Seen::Look(look) => {
                if let Some(look) = look {
                    self.finish_look(*look);
                }
                match self.watching.again.take() {
                    Some(files) => self.look(files),
                    None if self.watching.running.is_some() => {}
                    None => self.commands.report(&Event::Renewed),
                }
            }
        }
    }

    fn finish_look(&mut self, look: Look) {
        let config = self.state.config();
        if self.state.is_draining() || !config.file.process.watch {
            return;
        }
        if let Some(places) = look.places {
            let folders = self.watching.watch.over(places, &config.file.process);
            tracing::debug!(folders, "files are watched");
        }
        if !Arc::ptr_eq(&look.config, self.edits.of_file()) {
            // A reload was faster.
            self.watching.again.get_or_insert(look.files);
            return;
        }
        let Renewal {
            config: new,
            kept_out,
            warnings,
            taken,
        } = look.renewal;
        let mut kept_out: Vec<String> = kept_out.iter().map(ToString::to_string).collect();
        let refused = match (new, look.fault) {
            (None, _) => None,
            (Some(_), Some(fault)) => Some(fault),
            (Some(new), None) => {
                for warning in &warnings {
                    tracing::warn!("{warning}");
                }
                self.commit_renewed(new).err()
            }
        };
        let is_taken = refused.is_none() && !taken.is_empty();
        kept_out.extend(refused);
        let mut status = self.state.watch();
        for fault in kept_out.iter().filter(|it| !status.kept_out.contains(it)) {
            tracing::error!("kept out, what was in use stays: {fault}");
        }
        if is_taken {
            tracing::info!(what = taken.join(", "), "files that changed are taken");
            status.renewals += 1;
            status.time = Some(Timestamp::from_unix(self.state.shared().clock.now().unix));
        }
        status.failures += u64::from(!kept_out.is_empty());
        status.kept_out = kept_out;
        self.state.set_watch(status);
    }

    /// Has workers serve by what is new. Everything else stays as it is, also what was changed beside the file.
    fn commit_renewed(&mut self, of_file: Config) -> Result<(), String> {
        let edited = self.edits.renewed(Arc::new(of_file));
        let (edits, config) = edited.map_err(|refused| refused.error)?;
        let prepared = self.workers.prepare_for(&config);
        prepared.map_err(|error| error.to_string())?;
        self.edits = edits;
        let adopted = self.state.shared().backends.keep(&config);
        self.exchange(config, &adopted, self.no_sockets());
        Ok(())
    }
}
