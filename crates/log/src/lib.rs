//! Log lines and access records, and the threads that write them.
//!
//! This crate owns the `tracing` subscriber of the process: its format (text or JSON), its filter,
//! and its output (stderr, a file or a syslog daemon). It escapes peer bytes and limits the lines
//! that a peer can cause. Callers never wait for a disk: they push lines into a bounded queue, and
//! a thread writes them. The crate neither chooses the logged events nor handles signals.
//!
//! Main types: [`Logging`] is the installed log, [`access_log::AccessSender`] sends the records of
//! one worker, and [`RateLimit`] limits the lines of one call site.
//!
//! ```
//! use becket_log::Escaped;
//! assert_eq!(Escaped::word("a b\n").to_string(), r"a\x20b\x0a");
//! ```
#![forbid(unsafe_code)]

pub mod access;
pub mod access_log;
mod escape;
pub mod facts;
mod line;
pub mod output;
mod queue;
mod rate;
mod syslog;
mod timestamp;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use becket_config::process::{Log, LogTarget};
use becket_sys::log_file::{stderr_is_journal, write_if_ready};
use tracing::Subscriber;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::{Registry, fmt, reload};

pub use self::escape::{Escaped, shortened};
use self::line::LineFormat;
pub use self::output::{Output, PATIENCE};
use self::queue::LineQueue;
pub use self::rate::{KeyedRateLimit, RateLimit};
use self::syslog::SyslogFormat;
pub use self::timestamp::Timestamp;

use becket_keys::files::Files;

/// The installed log. Dropping it waits up to [`PATIENCE`] for its last lines to be written.
#[derive(Debug)]
pub struct Logging {
    queue: LineQueue,
    syslog: Option<LineQueue>,
    filter: reload::Handle<Targets, Registry>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    #[error("log.level: {0}")]
    Filter(String),
    #[error("log.file: {0}")]
    File(#[source] io::Error),
    #[error("starting the log: {0}")]
    Thread(#[source] io::Error),
    #[error("a log is already installed")]
    Installed,
}

/// Installs the log for the whole process. `files` provides the files that this process cannot open
/// by path. Call it once, before the first thread is started.
///
/// # Errors
/// Fails if the filter does not parse, if the file cannot be opened, or if a log is already
/// installed.
pub fn install(log: &Log, files: &Files) -> Result<Logging, LogError> {
    let output = Output::open(log.file.file(), files).map_err(LogError::File)?;
    let (subscriber, logging) = subscriber(log, output)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::Installed)?;
    Ok(logging)
}

/// Checks that `level` is a valid filter.
pub fn check_level(level: &str) -> Result<(), LogError> {
    filter(level).map(drop)
}

impl Logging {
    /// Starts the threads that write the lines. Call it after the process drops its privileges.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn start(&self) -> Result<(), LogError> {
        for queue in [&self.queue].into_iter().chain(&self.syslog) {
            queue.start().map_err(LogError::Thread)?;
        }
        report_panics();
        Ok(())
    }

    /// Waits up to `patience` until all queued lines are written.
    pub fn flush(&self, patience: Duration) {
        self.queue.flush(patience);
    }

    /// Opens the log file again after a rotation. A failure is logged, and the old file stays in
    /// use.
    pub fn reopen(&self) {
        self.queue.reopen();
    }

    pub fn dropped(&self) -> Arc<AtomicU64> {
        self.queue.dropped()
    }

    /// Returns the counter of lines that the syslog daemon did not accept.
    pub fn syslog_dropped(&self) -> Arc<AtomicU64> {
        let syslog = self.syslog.as_ref();
        syslog.map(LineQueue::dropped).unwrap_or_default()
    }

    /// Replaces the filter, for example on a reload.
    ///
    /// # Errors
    /// Returns [`LogError::Filter`] if the filter does not parse; the old filter stays in use.
    pub fn set_level(&self, level: &str) -> Result<(), LogError> {
        let filter = filter(level)?;
        let refused = |error: reload::Error| LogError::Filter(error.to_string());
        self.filter.reload(filter).map_err(refused)
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        for queue in [&self.queue].into_iter().chain(&self.syslog) {
            queue.flush(PATIENCE);
        }
    }
}

/// Writes a line to stderr, or drops it if the write would block. A process that starts or exits
/// must not wait for a reader.
pub fn write_to_stderr(line: &str) {
    // Ignore a failed write, because it cannot be reported anywhere else.
    let _lost = write_if_ready(io::stderr(), format!("{line}\n").as_bytes());
}

/// Reports panics without blocking. The standard library's hook waits for the reader of stderr,
/// which would block the exit of the process.
fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        write_to_stderr(&format!("\nthread '{name}' {panic}"));
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            write_to_stderr(&backtrace.to_string());
        }
    }));
}

fn subscriber(log: &Log, output: Output) -> Result<(impl Subscriber + use<>, Logging), LogError> {
    let (filter, handle) = reload::Layer::new(filter(&log.level)?);
    let coloured = colour(&output);
    let is_journal = matches!(output, Output::Stderr) && stderr_is_journal();
    let queue = LineQueue::new(output);
    // Syslog daemons and the journal add the time themselves.
    let format = |timed| LineFormat {
        format: log.format,
        timed,
        coloured: timed && coloured,
    };
    let is_elsewhere = matches!(log.file, LogTarget::Off | LogTarget::Syslog);
    let lines = (!is_elsewhere).then(|| {
        let lines = fmt::layer().event_format(format(!is_journal));
        if is_journal {
            lines
                .with_writer(SyslogFormat::of_journal(queue.clone()))
                .boxed()
        } else {
            lines.with_writer(queue.clone()).boxed()
        }
    });
    let (messages, syslog) = SyslogFormat::of(log).unzip();
    let messages = messages.map(|messages| {
        let lines = fmt::layer().event_format(format(false));
        lines.with_writer(messages)
    });
    let subscriber = Registry::default().with(filter).with(lines).with(messages);
    let logging = Logging {
        queue,
        syslog,
        filter: handle,
    };
    Ok((subscriber, logging))
}

fn filter(level: &str) -> Result<Targets, LogError> {
    let parsed = level.parse::<Targets>();
    parsed.map_err(|error| LogError::Filter(error.to_string()))
}

/// Returns `true` if stderr is a terminal and `NO_COLOR` is not set.
fn colour(output: &Output) -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    wanted && matches!(output, Output::Stderr) && io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    use becket_config::choices::LogFormat;
    use serde_json::json;

    fn log(format: LogFormat, level: &str, file: &Path) -> Log {
        Log {
            level: level.to_owned(),
            format,
            file: LogTarget::File(file.to_owned()),
            ..Log::default()
        }
    }

    /// Runs `act` under the subscriber of `log` and returns the written text.
    fn written(log: &Log, act: impl FnOnce(&Logging)) -> String {
        let path = log.file.file().unwrap();
        let output = Output::open(Some(path), &Files::default()).unwrap();
        let (subscriber, logging) = subscriber(log, output).unwrap();
        tracing::subscriber::with_default(subscriber, || act(&logging));
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn text_lines_contain_level_name_and_fields_and_obey_the_filter() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(LogFormat::Text, "info", &dir.path().join("log"));
        let text = written(&log, |_| {
            let sni = "a\nb";
            tracing::info!(name: "ready", port = 8443, sni = %Escaped::new(sni), reason = "tcp", "listening");
            let body = shortened(b"{\"a\":\n\"\xc2\x9b\x7f\\\\\"}");
            tracing::info!(name: "asked", %body, "asked");
            tracing::warn!(name: "odd", %sni, empty = "", all = ?["x", "y"], is = true, "to {sni}");
            tracing::error!("no name");
            tracing::debug!("not wanted");
        });
        let lines: Vec<_> = text
            .lines()
            .map(|line| line.split_once("Z ").unwrap().1)
            .collect();
        assert_eq!(
            lines,
            [
                r" INFO ready: listening port=8443 sni=a\x0ab reason=tcp",
                r#" INFO asked: asked body="{\"a\":\n\"\u009b\u007f\\\\\"}""#,
                r#" WARN odd: to a\nb sni="a\nb" empty="" all="[\"x\", \"y\"]" is=true"#,
                "ERROR no name",
            ]
        );
    }

    #[test]
    fn json_lines_have_the_fields_at_the_top_level() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(LogFormat::Json, "becket=debug", &dir.path().join("log"));
        let text = written(&log, |_| {
            tracing::info!(name: "ready", port = 8443, sni = "\"a\n\u{7f}\"", "listening");
            tracing::debug!("detail");
        });
        assert!(!text.contains('\u{7f}'), "{text}");
        let mut lines = text.lines().map(|line| {
            let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
            let time = line.as_object_mut().unwrap().remove("time").unwrap();
            assert!(time.as_str().unwrap().ends_with('Z'), "{time}");
            line
        });
        let expected = json!({"level": "INFO", "event": "ready", "message": "listening", "port": 8443, "sni": "\"a\n\u{7f}\""});
        assert_eq!(lines.next().unwrap(), expected);
        let expected =
            json!({"level": "DEBUG", "target": "becket_log::tests", "message": "detail"});
        assert_eq!(lines.next().unwrap(), expected);
    }

    #[test]
    fn the_level_can_be_changed_at_runtime_and_invalid_ones_are_rejected() {
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
}
