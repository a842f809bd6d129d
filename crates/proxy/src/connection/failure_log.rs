//! Logs failed handshakes and connects at a limited rate.
//!
//! Each worker has one log. Every failure is also counted by its [`CloseReason`]; the log lines
//! help an operator to find out why a particular client cannot connect. Names sent by the peer are
//! escaped.

use becket_sys::clock::Now;

use becket_log::facts::Facts;
use becket_log::{Escaped, KeyedRateLimit, RateLimit};
use becket_proto::close_reason::CloseReason;
use becket_proto::networks::Network;

#[derive(Debug)]
pub struct FailureLog {
    clients: RateLimit,
    /// Limit for lines about servers. It is separate, so that a flood of client failures does not
    /// suppress these lines.
    servers: RateLimit,
    refused: KeyedRateLimit<Network>,
}

impl FailureLog {
    /// Writes a line, or counts it as suppressed. Failures of servers and of becket are logged as
    /// warnings, because an operator must fix the cause. Failures of clients have level info.
    pub fn note(&mut self, facts: &Facts, reason: CloseReason, detail: &str, now: Now) {
        let is_ours = reason.is_fault_of_servers() || reason == CloseReason::Internal;
        let limit = if is_ours {
            &mut self.servers
        } else {
            &mut self.clients
        };
        let Some(suppressed) = limit.admit(now.instant) else {
            return;
        };
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    name: "connection-failed",
                    client = %facts.client,
                    listener = %facts.listener,
                    sni = facts.server_name.as_deref().map(|name| display(Escaped::new(name))),
                    reason = reason.label(),
                    detail = (!detail.is_empty()).then(|| display(Escaped::new(detail))),
                    suppressed = (suppressed > 0).then_some(suppressed),
                    "connection failed",
                )
            };
        }
        if is_ours { line!(warn) } else { line!(info) }
    }

    /// Writes a line about a client that was refused before its first byte. Writes at most one line
    /// per minute and source network.
    pub fn refuse(&mut self, facts: &Facts, reason: CloseReason, now: Now) {
        let client = facts.client.ip().to_canonical();
        let length = if client.is_ipv4() { 24 } else { 48 };
        if let Some(network) = Network::around(client, length)
            && let Some(suppressed) = self.refused.admit(network, now.instant)
        {
            tracing::info!(
                name: "clients-refused",
                source = %network,
                listener = %facts.listener,
                reason = reason.label(),
                clients = suppressed + 1,
                "clients refused",
            );
        }
    }
}

impl Default for FailureLog {
    fn default() -> Self {
        Self {
            clients: RateLimit::per_second(LINES_PER_SECOND),
            servers: RateLimit::per_second(LINES_PER_SECOND),
            refused: KeyedRateLimit::default(),
        }
    }
}

/// Maximum rate of lines per worker and kind: enough to show a pattern, too low to fill a disk.
const LINES_PER_SECOND: u32 = 10;

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;
    use becket_sys::clock::Clock;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(line);
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_flood_of_clients_does_not_suppress_server_warnings() {
        let (lines, now) = (Lines::default(), Clock::start().now());
        let facts = Facts::new(([192, 0, 2, 1], 5).into(), "web".into(), now);
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false);
        let subscriber = subscriber.with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let mut log = FailureLog::default();
            for _ in 0..100 {
                log.note(&facts, CloseReason::NotTls, "", now);
            }
            for _ in 0..100 {
                log.refuse(&facts, CloseReason::SourceConnections, now);
            }
            log.note(
                &facts,
                CloseReason::ConnectFailed,
                "backend app: refused",
                now,
            );
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text.lines().count(),
            LINES_PER_SECOND as usize + 2,
            "{text}"
        );
        let (first, last) = (text.lines().next().unwrap(), text.lines().last().unwrap());
        assert!(
            first.contains(" INFO ") && !first.contains("detail="),
            "{first}"
        );
        let refused = "clients refused source=192.0.2.0/24 listener=web reason=\"source-connections\" clients=1";
        assert!(text.contains(refused), "{text}");
        assert!(last.contains(" WARN "), "{last}");
        assert!(
            last.contains("reason=\"connect-failed\" detail=backend app: refused"),
            "{last}"
        );
    }
}
