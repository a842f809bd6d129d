//! Log lines and access records, and the threads that write them.
//!
//! This crate owns the `tracing` subscriber of the process: text or JSON, a filter, and standard error, a file or a syslog daemon. It bounds the
//! lines that a peer can cause, and escapes the bytes that a peer sent. No caller waits for a disk: a [`Backlog`] takes lines, and a
//! thread writes them. The crate does not decide which events are logged, and takes no signal.
//!
//! Main types: [`Logging`] is the installed log, [`access_log::AccessSender`] takes the records of one worker, and [`RateLimit`] bounds the lines of
//! one call site.
//!
//! * [`install`] makes the subscriber from [`Log`];
//! * [`access`]: the record of a connection; [`access_log`]: its way to the file;
//! * [`output`]: streams and files, which SIGUSR1 opens again;
//! * [`Escaped`]: bytes of a peer in a line.
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    reason = "a crate of one program: a name that says what it is needs no comment"
)]

pub mod access;
pub mod access_log;
mod backlog;
mod escape;
mod last_words;
pub mod output;
mod rate;
mod syslog;
mod syslog_daemon;
mod timestamp;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use becket_config::choices::LogFormat;
use becket_config::process::{Log, LogTarget};
use becket_sys::log_file::{stderr_is_journal, write_if_ready};
use tracing::Subscriber;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use self::backlog::Backlog;
pub use self::escape::Escaped;
pub use self::output::Output;
pub use self::rate::RateLimit;
pub use self::timestamp::Timestamp;

use becket_keys::files::Files;

/// The installed log: what a signal or a reload may change about it. Dropped, it waits a moment for the last lines to be written.
#[derive(Debug)]
pub struct Logging {
    backlog: Backlog,
    syslog: Option<Backlog>,
    filter: reload::Handle<EnvFilter, Registry>,
}

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The level is not a filter that `tracing` knows.
    #[error("log.level: {0}")]
    Filter(String),
    /// The file cannot be opened for appending.
    #[error("log.file: {0}")]
    File(#[source] io::Error),
    /// There is no thread to write it.
    #[error("starting the log: {0}")]
    Thread(#[source] io::Error),
    /// The process already has a subscriber.
    #[error("a log is already installed")]
    Installed,
}

/// Installs the log for the whole process; `files` has it where it is not to be opened by its path. Called once, before the first thread is started.
///
/// # Errors
/// A filter that does not parse, a file that does not open, or a second call.
pub fn install(log: &Log, files: &Files) -> Result<Logging, LogError> {
    let output = Output::open(log.file.file(), files).map_err(LogError::File)?;
    let (subscriber, logging) = subscriber(log, output)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::Installed)?;
    Ok(logging)
}

/// Says whether a level would be accepted, and if not, why; for `prepare`.
///
/// # Errors
/// [`LogError::Filter`] with the reason.
pub fn check_level(level: &str) -> Result<(), LogError> {
    filter(level).map(drop)
}

impl Logging {
    /// From now on a thread writes, and nobody else waits for it. Called when privileges were given up.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn start(&self) -> Result<(), LogError> {
        for backlog in [&self.backlog].into_iter().chain(&self.syslog) {
            backlog.start().map_err(LogError::Thread)?;
        }
        last_words::hasten(PATIENCE);
        Ok(())
    }

    /// Waits until the lines so far are written, but not for longer than this.
    pub fn flush(&self, patience: Duration) {
        self.backlog.flush(patience);
    }

    /// Opens the log file anew after it was rotated. A failure keeps the old file and is logged.
    pub fn reopen(&self) {
        self.backlog.reopen();
    }

    /// Lines that could not be written, so far.
    pub fn dropped(&self) -> Arc<AtomicU64> {
        self.backlog.dropped()
    }

    /// Lines that the syslog daemon did not take, so far.
    pub fn syslog_dropped(&self) -> Arc<AtomicU64> {
        self.syslog
            .as_ref()
            .map(Backlog::dropped)
            .unwrap_or_default()
    }

    /// Changes the filter, as a reload of the configuration may.
    ///
    /// # Errors
    /// [`LogError::Filter`] if it does not parse; the old filter stays then.
    pub fn set_level(&self, level: &str) -> Result<(), LogError> {
        let filter = filter(level)?;
        let refused = |error: reload::Error| LogError::Filter(error.to_string());
        self.filter.reload(filter).map_err(refused)
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        for backlog in [&self.backlog].into_iter().chain(&self.syslog) {
            backlog.end(PATIENCE);
        }
    }
}

/// Writes a line to standard error if that takes it at once: a process that starts must not wait for a reader.
pub fn say(line: &str) {
    let mut line = line.to_owned();
    line.push('\n');
    // There is no other place to say that it was lost.
    let _lost = write_if_ready(io::stderr(), line.as_bytes());
}

/// How long the end waits for a log: with that of the access log a second.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// Filter, format and output as one subscriber.
fn subscriber(log: &Log, output: Output) -> Result<(impl Subscriber + use<>, Logging), LogError> {
    let (filter, handle) = reload::Layer::new(filter(&log.level)?);
    let colour = colour(&output);
    let is_journal = matches!(output, Output::Stderr) && stderr_is_journal();
    let backlog = Backlog::new(output);
    let lines = (log.file != LogTarget::Off).then(|| {
        if is_journal {
            return unstamped(log.format, syslog::Messages::of_journal(backlog.clone()));
        }
        let lines = fmt::layer().with_writer(backlog.clone());
        match log.format {
            LogFormat::Text => lines.with_ansi(colour).boxed(),
            LogFormat::Json => lines.json().flatten_event(true).boxed(),
        }
    });
    let (messages, syslog) = syslog_daemon::Daemon::of(log)
        .map(|daemon| messages(log, daemon))
        .unzip();
    let messages = messages.map(|messages| unstamped(log.format, messages));
    let subscriber = Registry::default().with(filter).with(lines).with(messages);
    let logging = Logging {
        backlog,
        syslog,
        filter: handle,
    };
    Ok((subscriber, logging))
}

/// Lines without a time: who gets them knows it.
fn unstamped<S>(format: LogFormat, messages: syslog::Messages) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    let lines = fmt::layer().with_writer(messages).without_time();
    match format {
        LogFormat::Text => lines.with_ansi(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}

fn messages(log: &Log, daemon: syslog_daemon::Daemon) -> (syslog::Messages, Backlog) {
    let is_remote = daemon.is_remote();
    let backlog = Backlog::new(Output::Syslog(daemon));
    let messages = syslog::Messages::new(backlog.clone(), log, is_remote);
    (messages, backlog)
}

fn filter(level: &str) -> Result<EnvFilter, LogError> {
    EnvFilter::builder()
        .parse(level)
        .map_err(|error| LogError::Filter(error.to_string()))
}

/// Colours are for terminals, and only where NO_COLOR is not set.
fn colour(output: &Output) -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    wanted && matches!(output, Output::Stderr) && io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    use becket_config::process::LogTarget;

    fn log(format: LogFormat, level: &str, file: &Path) -> Log {
        Log {
            level: level.to_owned(),
            format,
            file: LogTarget::File(file.to_owned()),
            ..Log::default()
        }
    }

    /// Runs `act` under the subscriber of `log` and returns what was written.
    fn written(log: &Log, act: impl FnOnce(&Logging)) -> String {
        let path = log.file.file().unwrap();
        let output = Output::open(Some(path), &Files::default()).unwrap();
        let (subscriber, logging) = subscriber(log, output).unwrap();
        tracing::subscriber::with_default(subscriber, || act(&logging));
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn text_lines_carry_level_and_fields_and_the_filter_holds() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(LogFormat::Text, "info", &dir.path().join("log"));
        let text = written(&log, |_| {
            tracing::info!(port = 8443, sni = %Escaped::new("a\nb"), "listening");
            tracing::debug!("not wanted");
        });
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains("INFO"), "{text}");
        assert!(text.contains(r"port=8443 sni=a\x0ab"), "{text}");
    }

    #[test]
    fn json_lines_are_objects_with_the_fields_on_top() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(LogFormat::Json, "becket=debug", &dir.path().join("log"));
        let text = written(&log, |_| tracing::debug!(port = 8443, "listening"));
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["port"], 8443);
        assert_eq!(line["message"], "listening");
        assert_eq!(line["level"], "DEBUG");
    }

    #[test]
    fn the_level_changes_while_running_and_a_bad_one_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(LogFormat::Text, "warn", &dir.path().join("log"));
        let text = written(&log, |logging| {
            tracing::info!("first");
            logging.set_level("info").unwrap();
            assert!(logging.set_level("becket=loud").is_err());
            tracing::info!("second");
        });
        assert!(!text.contains("first") && text.contains("second"), "{text}");
    }

    #[test]
    fn levels_are_checked_before_use() {
        assert!(check_level("info,becket=debug").is_ok());
        assert!(check_level("becket=loud").is_err());
    }
}
