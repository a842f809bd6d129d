//! `becket ctl connections`: lists, counts and closes connections.

use becket_control::replies::KilledConnections;

use super::request::{NotDone, Printed, ask, query, shown};
use super::table;
use super::tasks::{ConnectionTask, FilterFlags};
use crate::admin::AdminAddress;
use crate::status::counted;

pub(super) fn of_connections(
    place: &AdminAddress,
    filter: &FilterFlags,
    limit: usize,
    task: Option<&ConnectionTask>,
) -> Result<Printed, NotDone> {
    match task {
        None => {
            let mut words = filter.fields();
            words.insert("limit".to_owned(), limit.into());
            let path = format!("/connections?{}", query(words));
            shown(ask(place, "GET", &path, None)?, table::connections)
        }
        Some(ConnectionTask::Kill { filter, all }) => {
            let mut body = filter.fields();
            if *all {
                body.insert("all".to_owned(), true.into());
            }
            let object = ask(place, "POST", "/connections/kill", Some(&body.into()))?;
            shown(object, |answer: &KilledConnections| {
                format!("{} closed\n", counted(answer.killed, "connection"))
            })
        }
        Some(ConnectionTask::Top { filter }) => {
            let path = format!("/connections/top?{}", query(filter.fields()));
            shown(ask(place, "GET", &path, None)?, table::top)
        }
    }
}
