//! Lines on their way to a syslog daemon: one datagram each, beside the log's own output.
//!
//! To a socket of this host goes what syslog(3) sends, without a time: the daemon stamps what it receives. To another host goes a message of
//! RFC 5424, which has a time and this host's name. The socket is connected when there is a line for it, and anew when the daemon was
//! started again. A daemon that takes nothing for half a second loses what waits; it is counted as for any other log.
//!
//! Source: RFC 5424, section 6; RFC 3164, section 4.1.

use std::fs;
use std::io::{self, Write};

use becket_config::process::Log;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use super::backlog::Backlog;

/// What lines are written to: each gets the head of a message.
#[derive(Debug)]
pub(super) struct Messages {
    backlog: Backlog,
    facility: u8,
    head: Head,
}

#[derive(Debug)]
enum Head {
    /// Behind the priority, up to the text.
    Local(String),
    /// Behind the time, up to the text.
    Remote(String),
}

/// One message in the making.
#[derive(Debug)]
pub(super) struct Message<'m> {
    messages: &'m Messages,
    severity: u8,
}

impl Messages {
    /// Messages of this process for a backlog whose output is [`Daemon`](super::syslog_daemon::Daemon).
    pub(super) fn new(backlog: Backlog, log: &Log, is_remote: bool) -> Self {
        let (tag, pid) = (&log.syslog_tag, std::process::id());
        let head = if is_remote {
            Head::Remote(format!(" {} {tag} {pid} - - ", host_name()))
        } else {
            Head::Local(format!("{tag}[{pid}]: "))
        };
        Self {
            backlog,
            facility: log.syslog_facility as u8,
            head,
        }
    }

    /// Messages for a standard error output that systemd's journal reads: it takes a number in angle brackets for the priority
    /// of a line (sd-daemon(3)), and knows the rest. Less than its own protocol, and no other socket that may be full.
    pub(super) fn of_journal(backlog: Backlog) -> Self {
        Self {
            backlog,
            facility: 0,
            head: Head::Local(String::new()),
        }
    }

    fn message(&self, severity: u8, text: &[u8]) -> Vec<u8> {
        let mut head = format!("<{}>", u32::from(self.facility) * 8 + u32::from(severity));
        match &self.head {
            Head::Local(rest) => head += rest,
            Head::Remote(rest) => {
                head += "1 ";
                if SystemTime.format_time(&mut Writer::new(&mut head)).is_err() {
                    head += "-";
                }
                head += rest;
            }
        }
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

impl<'m> MakeWriter<'m> for Messages {
    type Writer = Message<'m>;

    fn make_writer(&'m self) -> Self::Writer {
        let (messages, severity) = (self, INFO);
        Message { messages, severity }
    }

    fn make_writer_for(&'m self, event: &Metadata<'_>) -> Self::Writer {
        let severity = match *event.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => INFO,
            Level::DEBUG | Level::TRACE => 7,
        };
        let messages = self;
        Message { messages, severity }
    }
}

impl Write for Message<'_> {
    /// Each call is a line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let message = self.messages.message(self.severity, line);
        self.messages.backlog.push(&message);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Of this host, or `-`, which says that nobody knows.
fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim_ascii() {
        "" => "-".to_owned(),
        name => name.to_owned(),
    }
}

/// "Informational" of RFC 5424, table 2.
const INFO: u8 = 6;
/// Bytes of a line, as much as daemons take by default.
const LONGEST: usize = 8000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    use crate::syslog_daemon::Daemon;
    use becket_config::choices::Facility;
    use becket_config::notation::Text;

    fn log(at: &str) -> Log {
        Log {
            syslog: Some(Text::parse(at).unwrap()),
            syslog_facility: Facility::Local1,
            ..Log::default()
        }
    }

    fn messages(at: &str) -> Messages {
        let log = log(at);
        super::super::messages(&log, Daemon::of(&log).unwrap()).0
    }

    #[test]
    fn a_message_has_the_form_that_its_daemon_expects() {
        let pid = std::process::id();
        let local = messages("/dev/log").message(3, b"one\ntwo\n");
        let expected = format!("<139>becket[{pid}]: one two\n");
        assert_eq!(String::from_utf8(local).unwrap(), expected);
        let remote = messages("127.0.0.1:514").message(INFO, &[b'x'; 9000]);
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

    #[test]
    fn a_daemon_that_comes_late_or_again_gets_what_is_logged_from_then_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut daemon = Daemon::of(&log(path.to_str().unwrap())).unwrap();
        assert!(daemon.send_all(b"lost\n").is_err());
        for _ in 0..2 {
            let socket = UnixDatagram::bind(&path).unwrap();
            daemon.send_all(b"one\ntwo\n").unwrap();
            let mut bytes = [0; 16];
            for line in [b"one", b"two"] {
                let length = socket.recv(&mut bytes).unwrap();
                assert_eq!(&bytes[..length], line);
            }
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_daemon_that_reads_nothing_costs_lines_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut daemon = Daemon::of(&log(path.to_str().unwrap())).unwrap();
        let lines = b"line\n".repeat(100_000);
        let error = daemon.send_all(&lines).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(socket);
    }
}
