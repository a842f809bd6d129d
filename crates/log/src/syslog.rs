//! Lines as messages for a syslog daemon or for systemd's journal.
//!
//! A local socket gets the format of syslog(3) without a time, because the daemon adds one. Another
//! host gets an RFC 5424 message with a time and the name of this host. [`SyslogDaemon`] sends one
//! datagram for each line.
//!
//! Source: RFC 5424, section 6; RFC 3164, section 4.1.

use std::io::{self, Write};

use becket_config::process::Log;
use becket_sys::process;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use super::output::{Output, SyslogDaemon};
use super::queue::LineQueue;

/// Converts written lines to syslog messages, and queues them.
#[derive(Debug)]
pub(super) struct SyslogFormat {
    queue: LineQueue,
    form: MessageForm,
}

#[derive(Debug, Default)]
pub(super) struct MessageForm {
    facility: u8,
    /// `true` if the daemon is on another host. Each message then contains a version and a time.
    is_remote: bool,
    /// Text between the priority (or the time) and the line.
    header: String,
}

#[derive(Debug)]
pub(super) struct SyslogWriter<'m> {
    format: &'m SyslogFormat,
    severity: u8,
}

impl MessageForm {
    /// Returns the message format and the output for the configured daemon, or `None` without a
    /// daemon.
    pub(super) fn of(log: &Log) -> Option<(Self, Output)> {
        let daemon = SyslogDaemon::new(log.syslog.clone()?);
        let is_remote = daemon.is_remote();
        let (tag, pid) = (&log.syslog_tag, std::process::id());
        let header = if is_remote {
            format!(" {} {tag} {pid} - - ", host_name())
        } else {
            format!("{tag}[{pid}]: ")
        };
        let form = Self {
            facility: log.syslog_facility as u8,
            is_remote,
            header,
        };
        Some((form, Output::Syslog(daemon)))
    }

    pub(super) fn message(&self, severity: u8, text: &[u8]) -> Vec<u8> {
        let mut head = format!("<{}>", u32::from(self.facility) * 8 + u32::from(severity));
        if self.is_remote {
            head += "1 ";
            if SystemTime.format_time(&mut Writer::new(&mut head)).is_err() {
                head += "-";
            }
        }
        head += &self.header;
        let text = text.trim_ascii_end();
        let mut message = head.into_bytes();
        message.extend(text.iter().take(LONGEST).map(|byte| match byte {
            b'\n' => b' ',
            byte => *byte,
        }));
        message.push(b'\n');
        message
    }
}

impl SyslogFormat {
    pub(super) fn of(log: &Log) -> Option<(Self, LineQueue)> {
        let (form, daemon) = MessageForm::of(log)?;
        let queue = LineQueue::new(daemon);
        let format = Self {
            queue: queue.clone(),
            form,
        };
        Some((format, queue))
    }

    /// Creates the formatter for a stderr that systemd's journal reads. The journal parses a
    /// priority in angle brackets at the start of a line (sd-daemon(3)). The journal's own protocol
    /// would need another socket, which may be full.
    pub(super) fn of_journal(queue: LineQueue) -> Self {
        let form = MessageForm::default();
        Self { queue, form }
    }
}

impl<'m> MakeWriter<'m> for SyslogFormat {
    type Writer = SyslogWriter<'m>;

    fn make_writer(&'m self) -> Self::Writer {
        let (format, severity) = (self, INFO);
        SyslogWriter { format, severity }
    }

    fn make_writer_for(&'m self, event: &Metadata<'_>) -> Self::Writer {
        let severity = match *event.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => INFO,
            Level::DEBUG | Level::TRACE => 7,
        };
        let format = self;
        SyslogWriter { format, severity }
    }
}

impl Write for SyslogWriter<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let format = self.format;
        format.queue.push(&format.form.message(self.severity, line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn host_name() -> String {
    let name = process::host_name();
    match name.trim_ascii() {
        "" => "-".to_owned(),
        name => name.to_owned(),
    }
}

/// Severity "Informational" (RFC 5424, table 2).
pub(super) const INFO: u8 = 6;
/// Maximum size of a line in bytes; daemons accept this size by default.
const LONGEST: usize = 8000;

#[cfg(test)]
mod tests {
    use super::*;
    use becket_config::choices::Facility;
    use becket_config::notation::Text as _;

    fn format(at: &str) -> MessageForm {
        let log = Log {
            syslog: Some(becket_config::address::SyslogAddress::parse(at).unwrap()),
            syslog_facility: Facility::Local1,
            ..Log::default()
        };
        MessageForm::of(&log).unwrap().0
    }

    #[test]
    fn local_and_remote_messages_have_their_syslog_formats() {
        let pid = std::process::id();
        let local = format("/dev/log").message(3, b"one\ntwo\n");
        let expected = format!("<139>becket[{pid}]: one two\n");
        assert_eq!(String::from_utf8(local).unwrap(), expected);
        let remote = format("127.0.0.1:514").message(INFO, &[b'x'; 9000]);
        let remote = String::from_utf8(remote).unwrap();
        let words: Vec<&str> = remote.trim_end().split(' ').collect();
        assert_eq!(words[0], "<142>1", "{remote}");
        assert!(
            words[1].contains('T') && words[1].ends_with('Z'),
            "{remote}"
        );
        assert_eq!(&words[3..7], ["becket", &pid.to_string(), "-", "-"]);
        assert_eq!(words[7].len(), LONGEST);
    }
}
