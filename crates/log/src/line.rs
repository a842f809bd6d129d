//! The format of a log line, as text or JSON; `docs/reference/log-lines.md` describes it.
//!
//! A line at `info` and above contains the name of its event, which stays the same when the message is reworded. A line
//! at `debug` or `trace` contains the path of its Rust module instead.

use std::fmt::{self, Debug, Write};

use becket_config::choices::LogFormat;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::escape::{escape, quote};

#[derive(Clone, Copy, Debug)]
pub(super) struct LineFormat {
    pub(super) format: LogFormat,
    pub(super) timed: bool,
    pub(super) coloured: bool,
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = FieldText {
            is_json: self.format == LogFormat::Json,
            text: String::new(),
        };
        event.record(&mut fields);
        if fields.is_json {
            self.write_json(out, event.metadata(), &fields.text)
        } else {
            self.write_text(out, event.metadata(), &fields.text)
        }
    }
}

impl LineFormat {
    fn write_text(
        self,
        mut out: Writer<'_>,
        event: &Metadata<'static>,
        fields: &str,
    ) -> fmt::Result {
        let (colour, dim, off) = if self.coloured {
            (colour(*event.level()), "\x1b[2m", "\x1b[0m")
        } else {
            ("", "", "")
        };
        if self.timed {
            out.write_str(dim)?;
            SystemTime.format_time(&mut out)?;
            write!(out, "{off} ")?;
        }
        write!(out, "{colour}{:>5}{off}", event.level())?;
        if let Some((_, name)) = name(event) {
            write!(out, " {dim}{name}:{off}")?;
        }
        writeln!(out, "{fields}")
    }

    fn write_json(
        self,
        mut out: Writer<'_>,
        event: &Metadata<'static>,
        fields: &str,
    ) -> fmt::Result {
        out.write_char('{')?;
        if self.timed {
            out.write_str("\"time\":\"")?;
            SystemTime.format_time(&mut out)?;
            out.write_str("\",")?;
        }
        write!(out, "\"level\":\"{}\"", event.level())?;
        if let Some((key, name)) = name(event) {
            write!(out, ",\"{key}\":\"{name}\"")?;
        }
        writeln!(out, "{fields}}}")
    }
}

/// Returns the name of an event, or its module path, with the corresponding JSON key.
fn name(event: &Metadata<'static>) -> Option<(&'static str, &'static str)> {
    if *event.level() > Level::INFO {
        return Some(("target", event.target()));
    }
    // `tracing` assigns `event FILE:LINE` to an event without a name.
    let name = Some(event.name()).filter(|name| !name.starts_with("event "));
    name.map(|name| ("event", name))
}

fn colour(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        Level::DEBUG => "\x1b[34m",
        Level::TRACE => "\x1b[35m",
    }
}

/// Text of an event's fields, each after a separator. The message comes first.
struct FieldText {
    is_json: bool,
    text: String,
}

impl FieldText {
    fn put(&mut self, field: &Field, value: &Value) {
        // A write to a `String` cannot fail.
        self.write(field.name().trim_start_matches("r#"), value)
            .ok();
    }

    fn write(&mut self, name: &str, value: &Value) -> fmt::Result {
        let out = &mut self.text;
        if self.is_json {
            write!(out, ",\"{name}\":")?;
            // JSON permits some control characters, such as U+009B, without an escape.
            return escape(&value.to_string(), out);
        }
        out.push(' ');
        match value {
            Value::String(text) if name == "message" => escape(text, out),
            Value::String(text) => {
                write!(out, "{name}=")?;
                let start = out.len();
                out.push_str(text);
                quote(out, start)
            }
            value => write!(out, "{name}={value}"),
        }
    }
}

impl Visit for FieldText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, &format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, &value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, &value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, &value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, &value.into());
    }
}
