//! `becket ctl connections`: lists, counts and ends connections.

use becket_control::replies::{ConnectionList, KilledConnections};
use serde_json::{Map, Value, json};

use super::request::{NotDone, Printed, answer, ask, query, shown};
use super::table;
use super::tasks::{ConnectionTask, FilterFlags};
use crate::admin::AdminAddress;

pub(super) fn of_connections(
    place: &AdminAddress,
    filter: &FilterFlags,
    limit: usize,
    task: Option<&ConnectionTask>,
) -> Result<Printed, NotDone> {
    match task {
        None => connections(place, filter.fields(), limit),
        Some(ConnectionTask::Kill { filter, all }) => {
            let mut body = filter.fields();
            if *all {
                body.insert("all".to_owned(), true.into());
            }
            let object = ask(place, "POST", "/connections/kill", Some(&body.into()))?;
            shown(object, |answer: &KilledConnections| {
                format!("{} connections ended\n", answer.killed)
            })
        }
        Some(ConnectionTask::Top { filter }) => {
            let path = format!("/connections/top?{}", query(filter.fields()));
            shown(ask(place, "GET", &path, None)?, table::top)
        }
    }
}

/// As many connections as are wanted, page by page.
fn connections(
    place: &AdminAddress,
    filter: Map<String, Value>,
    limit: usize,
) -> Result<Printed, NotDone> {
    let mut all = ConnectionList {
        connections: Vec::new(),
        next: None,
    };
    loop {
        let left = limit.saturating_sub(all.connections.len()).min(PAGE);
        if left == 0 {
            break;
        }
        let mut words = filter.clone();
        words.insert("limit".to_owned(), left.to_string().into());
        if let Some(cursor) = all.next.take() {
            words.insert("cursor".to_owned(), cursor.into());
        }
        let path = format!("/connections?{}", query(words));
        let mut page: ConnectionList<table::Row> = answer(ask(place, "GET", &path, None)?)?;
        all.connections.append(&mut page.connections);
        all.next = page.next;
        if all.next.is_none() {
            break;
        }
    }
    let text = table::connections(&all);
    Ok((json!(all), text))
}

/// Rows that becket gives at once.
const PAGE: usize = 1000;
