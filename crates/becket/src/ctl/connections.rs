//! `becket ctl connections`: lists, counts and ends connections.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::{NotDone, ask, query, shown, table};
use crate::status::Place;

/// Which connections.
#[derive(Clone, Debug, Default, Args)]
pub struct FilterFlags {
    /// The one with this id
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Only connections from this client address or network
    #[arg(long, value_name = "NETWORK")]
    client: Option<String>,
    /// Only connections of this listener
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// Only connections that asked for this server name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Only connections to a server of this backend
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Those that are at this server
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Those in this phase, such as relaying or queued
    #[arg(long, value_name = "PHASE")]
    phase: Option<String>,
    /// Those that have been open for so many seconds
    #[arg(long, value_name = "SECONDS")]
    age: Option<u64>,
}

impl FilterFlags {
    fn fields(&self) -> Map<String, Value> {
        let age = self.age.map(|seconds| seconds.to_string());
        let fields = [
            ("id", &self.id),
            ("client", &self.client),
            ("listener", &self.listener),
            ("name", &self.name),
            ("backend", &self.backend),
            ("server", &self.server),
            ("phase", &self.phase),
            ("age", &age),
        ];
        let set = fields.into_iter().filter_map(|(field, value)| {
            let value = value.clone()?;
            Some((field.to_owned(), Value::String(value)))
        });
        set.collect()
    }
}

/// What to do with connections.
#[derive(Clone, Debug, Subcommand)]
pub enum ConnectionTask {
    /// End them: clients and servers see a reset, or an end without close_notify
    Kill {
        /// Which.
        #[command(flatten)]
        filter: Box<FilterFlags>,
        /// All of them, where nothing else says which
        #[arg(long)]
        all: bool,
    },
    /// Count them by source, server name and server
    Top {
        /// Which.
        #[command(flatten)]
        filter: Box<FilterFlags>,
    },
}

pub(super) fn of_connections(
    place: &Place,
    filter: &FilterFlags,
    limit: usize,
    task: Option<&ConnectionTask>,
) -> Result<(Value, String), NotDone> {
    Ok(match task {
        None => shown(
            connections(place, filter.fields(), limit)?,
            table::connections,
        ),
        Some(ConnectionTask::Kill { filter, all }) => {
            let mut body = filter.fields();
            if *all {
                body.insert("all".to_owned(), true.into());
            }
            let object = ask(place, "POST", "/connections/kill", Some(&body.into()))?;
            let text = format!("{} connections ended\n", object["killed"]);
            (object, text)
        }
        Some(ConnectionTask::Top { filter }) => {
            let path = format!("/connections/top?{}", query(filter.fields()));
            shown(ask(place, "GET", &path, None)?, table::top)
        }
    })
}

/// As many connections as are wanted, page by page.
fn connections(place: &Place, filter: Map<String, Value>, limit: usize) -> Result<Value, NotDone> {
    let (mut all, mut next) = (Vec::new(), Value::Null);
    loop {
        let left = limit.saturating_sub(all.len()).min(PAGE);
        if left == 0 {
            break;
        }
        let mut words = filter.clone();
        words.insert("limit".to_owned(), left.to_string().into());
        if let Some(cursor) = next.as_str() {
            words.insert("cursor".to_owned(), cursor.into());
        }
        let mut page = ask(
            place,
            "GET",
            &format!("/connections?{}", query(words)),
            None,
        )?;
        if let Some(rows) = page["connections"].as_array_mut() {
            all.append(rows);
        }
        next = page["next"].take();
        if next.is_null() {
            break;
        }
    }
    Ok(json!({"connections": all, "next": next}))
}

/// Rows that becket gives at once.
const PAGE: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use becket_proxy::worker::listing::Filter;

    #[test]
    fn every_field_of_a_filter_has_a_flag() {
        let text = || Some("1".to_owned());
        let flags = FilterFlags {
            id: text(),
            client: text(),
            listener: text(),
            name: text(),
            backend: text(),
            server: text(),
            phase: text(),
            age: Some(1),
        };
        let mut fields = Filter::FIELDS.map(str::to_owned);
        fields.sort();
        let given: Vec<String> = flags.fields().keys().cloned().collect();
        assert_eq!(given, fields);
        assert!(query(flags.fields()).contains("age=1&"));
    }
}
