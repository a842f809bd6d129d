//! Lists, counts and closes open connections on request of the admin pages.
//!
//! The workers own the connections. Each worker returns its list in parts; a worker that exits
//! counts as having no connections.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::SocketAddr;
use std::sync::Arc;

use becket_proto::admission::{Holding, Prefixes};
use becket_proto::networks::Network;
use becket_tls::config::Config;
use becket_tls::limit_key::{KeyRules, LimitKey};
use tokio::sync::oneshot;

use super::api::Refused;
use super::replies::{
    ConnectionList, KilledConnections, SourceList, SourceRow, TopConnections, TopRow,
};
use super::state::AdminState;
use becket_proxy::worker::listing::{
    BadField, ConnectionRow, Filter, Killing, ListedPage, Listing, ReplySender,
};
use becket_proxy::worker::mailbox::{Mailbox, WorkerMessage};

#[derive(Debug)]
pub(super) struct ListRequest {
    filter: Filter,
    limit: usize,
}

impl ListRequest {
    /// Parses the query of a request: the fields of a filter, and `limit`.
    pub(super) fn of(query: Vec<(String, String)>, default: usize) -> Result<Self, Refused> {
        let mut wanted = Self {
            filter: Filter::default(),
            limit: default,
        };
        for (field, value) in query {
            if field == "limit" {
                wanted.limit = limit(&value)?;
            } else {
                wanted.filter.set(&field, &value)?;
            }
        }
        Ok(wanted)
    }
}

fn limit(value: &str) -> Result<usize, Refused> {
    let limit = value.parse().ok().filter(|it| (1..=MOST_ROWS).contains(it));
    let refused = || Refused::unusable(format!("limit: {value:?}"), format!("1 to {MOST_ROWS}"));
    limit.ok_or_else(refused)
}

/// Returns `answer`, or the error `unknown` if the answer is empty. A removed server is unknown but
/// may still have connections, so a non-empty answer takes precedence.
fn known<T>(answer: T, is_empty: bool, unknown: Option<BadField>) -> Result<T, Refused> {
    match unknown {
        Some(bad) if is_empty => Err(bad.into()),
        _ => Ok(answer),
    }
}

/// Returns the matching connections, up to the limit.
///
/// # Errors
/// Fails if the filter contains an unknown name and no connection matches.
pub(super) async fn list(
    workers: &[Arc<Mailbox>],
    config: &Config,
    wanted: ListRequest,
) -> Result<ConnectionList<ConnectionRow>, Refused> {
    let unknown = wanted.filter.unknown(config);
    let mut connections = Vec::new();
    let complete = walk(workers, wanted, |rows| connections.extend(rows)).await;
    let is_empty = connections.is_empty();
    let list = ConnectionList {
        connections,
        complete,
    };
    known(list, is_empty, unknown)
}

/// Returns the tracked sources, names and fingerprints, most connections first, and the limits that
/// each has reached.
pub(super) fn sources(state: &AdminState, wanted: ListRequest) -> SourceList {
    let (shared, config) = (state.shared(), state.config());
    let keys = &config.file.admission;
    let rules = KeyRules::new(keys);
    let mut held: Vec<Holding<LimitKey>> = Vec::new();
    let (mut tracked, now) = (0_u64, shared.clock.mono());
    let by_most = |a: &Holding<LimitKey>, b: &Holding<LimitKey>| {
        (b.connections, b.in_flight).cmp(&(a.connections, a.in_flight))
    };
    shared.admission.visit(&rules, now, |holding| {
        tracked += 1;
        held.push(holding);
        // Discard the entries with the fewest connections early, because the table may have
        // millions of entries.
        if held.len() >= 2 * wanted.limit + 1000 {
            held.select_nth_unstable_by(wanted.limit, by_most);
            held.truncate(wanted.limit);
        }
    });
    held.sort_unstable_by(by_most);
    held.truncate(wanted.limit);
    let rows = held.iter().map(|it| {
        let most = rules.of(&it.source).connections.unwrap_or(u32::MAX);
        let limited = [
            (it.connections >= most, "connections"),
            (!it.may_begin, "full-handshakes"),
        ];
        let limited = limited.into_iter().filter(|(is, _)| *is);
        let (kind, of) = match &it.source {
            LimitKey::Source(of) => {
                let network = source(SocketAddr::new(of.address(), 0), keys.prefixes());
                ("source", network.map(|it| it.to_string()))
            }
            LimitKey::Name(name) => ("name", Some(name.to_string())),
            LimitKey::Ja4(ja4) => ("ja4", Some(ja4.to_string())),
            LimitKey::Queue(name) => ("queue", Some(name.to_string())),
        };
        SourceRow {
            kind: kind.into(),
            source: of,
            connections: it.connections,
            full_handshakes_in_flight: it.in_flight,
            refused: it.refused,
            limited: limited.map(|(_, what)| what.into()).collect(),
        }
    });
    SourceList {
        tracked,
        limits: !rules.is_empty(),
        sources: rows.collect(),
    }
}

/// Counts connections by source, by server name, and by server.
///
/// # Errors
/// Fails if the filter contains an unknown name and no connection matches.
pub(super) async fn top(
    workers: &[Arc<Mailbox>],
    config: &Config,
    wanted: ListRequest,
) -> Result<TopConnections, Refused> {
    let unknown = wanted.filter.unknown(config);
    let prefixes = config.file.admission.prefixes();
    let (mut sources, mut names, mut servers) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut counted = 0;
    let walked = ListRequest {
        limit: MOST_COUNTED,
        ..wanted
    };
    let complete = walk(workers, walked, |rows| {
        counted += rows.len();
        for row in rows {
            let bytes = row.client_bytes_in + row.client_bytes_out;
            count(&mut sources, source(row.client, prefixes), bytes);
            if let Some(name) = row.sni {
                count(&mut names, name, bytes);
            }
            if let (Some(backend), Some(server)) = (row.backend, row.server) {
                count(&mut servers, (backend, server), bytes);
            }
        }
    })
    .await;
    let source = |source: &Option<Network>| source.map_or_else(String::new, |it| it.to_string());
    let top = TopConnections {
        counted,
        complete,
        sources: first(sources, wanted.limit, source),
        names: first(names, wanted.limit, ToString::to_string),
        servers: first(servers, wanted.limit, |(backend, server)| {
            format!("{backend}/{server}")
        }),
    };
    known(top, counted == 0, unknown)
}

type Sum = (u64, u64);

fn source(client: SocketAddr, prefixes: Prefixes) -> Option<Network> {
    let length = match client {
        SocketAddr::V4(_) => prefixes.v4,
        SocketAddr::V6(_) => prefixes.v6,
    };
    Network::around(client.ip(), length)
}

fn count<K: Hash + Eq>(sums: &mut HashMap<K, Sum>, key: K, bytes: u64) {
    let sum = sums.entry(key).or_default();
    *sum = (sum.0 + 1, sum.1 + bytes);
}

/// Returns the `limit` rows with the most connections, most first.
fn first<K>(sums: HashMap<K, Sum>, limit: usize, text: impl Fn(&K) -> String) -> Vec<TopRow> {
    let mut sums: Vec<(K, Sum)> = sums.into_iter().collect();
    sums.sort_unstable_by_key(|(_, sum)| Reverse(*sum));
    sums.truncate(limit);
    let rows = sums.iter().map(|(key, (connections, bytes))| TopRow {
        of: text(key),
        connections: *connections,
        bytes: *bytes,
    });
    let mut rows: Vec<TopRow> = rows.collect();
    rows.sort_by(|a, b| (b.connections, b.bytes, &a.of).cmp(&(a.connections, a.bytes, &b.of)));
    rows
}

/// Passes the matching connections of all workers to a closure, up to the limit in `wanted`.
/// Returns whether all connections were visited.
async fn walk(
    workers: &[Arc<Mailbox>],
    wanted: ListRequest,
    mut take: impl FnMut(Vec<ConnectionRow>),
) -> bool {
    let (filter, mut left) = (Arc::new(wanted.filter), wanted.limit);
    let (mut worker, mut from) = (0, 0);
    while let Some(mailbox) = workers.get(worker) {
        if left == 0 {
            return false;
        }
        let (reply, page) = answered();
        let listing = Listing {
            filter: Arc::clone(&filter),
            from,
            most: left,
            reply,
        };
        mailbox.post(WorkerMessage::List(listing));
        let ListedPage { rows, next } = page.await.unwrap_or_default();
        left -= rows.len();
        take(rows);
        (worker, from) = match next {
            Some(next) => (worker, next),
            None => (worker + 1, 0),
        };
    }
    true
}

fn answered<T: Send + 'static>() -> (ReplySender<T>, oneshot::Receiver<T>) {
    let (sender, receiver) = oneshot::channel();
    // Sending fails only if the request was cancelled, so the error is ignored.
    let send = |answer| drop(sender.send(answer));
    (ReplySender::new(send), receiver)
}

/// Closes all connections that match a filter. Returns their number.
///
/// # Errors
/// Fails if the filter contains an unknown name and no connection matches.
pub(super) async fn kill(
    workers: &[Arc<Mailbox>],
    config: &Config,
    filter: Filter,
) -> Result<KilledConnections, Refused> {
    let unknown = filter.unknown(config);
    let filter = Arc::new(filter);
    let ask = |mailbox: &Arc<Mailbox>| {
        let (reply, count) = answered();
        mailbox.post(WorkerMessage::Kill(Killing {
            filter: Arc::clone(&filter),
            count: 0,
            reply,
        }));
        count
    };
    let asked: Vec<_> = workers.iter().map(ask).collect();
    let mut killed = 0;
    for count in asked {
        killed += count.await.unwrap_or_default();
    }
    known(KilledConnections { killed }, killed == 0, unknown)
}

/// Maximum number of connections counted for one request; each uses about 100 bytes.
const MOST_COUNTED: usize = 100_000;

/// Maximum number of rows in one response, about five megabytes.
const MOST_ROWS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn words(text: &str) -> Vec<(String, String)> {
        super::super::api::query(Some(text))
    }

    #[test]
    fn invalid_parameters_are_rejected_with_the_accepted_values() {
        let wanted = ListRequest::of(words("limit=7&backend=app"), 100).unwrap();
        assert_eq!(wanted.limit, 7);
        assert!(!wanted.filter.is_empty());
        for (text, accepted) in [
            ("limit=0", "1 to 10000"),
            ("limit=10001", "1 to 10000"),
            ("colour=red", "backend"),
        ] {
            let refused = ListRequest::of(words(text), 100).unwrap_err();
            assert!(refused.accepted.contains(accepted), "{refused:?}");
        }
    }

    #[test]
    fn rows_are_sorted_by_connections_and_then_by_bytes() {
        let mut sums = HashMap::new();
        for (name, bytes) in [("a", 1), ("b", 1), ("b", 1), ("c", 9), ("d", 1)] {
            count(&mut sums, name, bytes);
        }
        let rows = first(sums, 3, ToString::to_string);
        let of: Vec<_> = rows.iter().map(|row| &*row.of).collect();
        assert_eq!(of[..2], ["b", "c"]);
        assert_eq!(rows.len(), 3);
    }

    #[tokio::test]
    async fn an_unknown_name_is_an_error_if_no_connection_has_it() {
        let config = sample::config();
        let wanted = |text| ListRequest::of(words(text), 10).unwrap();
        let refused = [
            list(&[], &config, wanted("listener=wbe")).await.map(drop),
            top(&[], &config, wanted("backend=?")).await.map(drop),
            kill(&[], &config, wanted("server=app/a:1").filter)
                .await
                .map(drop),
        ];
        for (refused, accepted) in
            refused
                .into_iter()
                .zip(["web, other", "app", "app/localhost:8080"])
        {
            let refused = refused.unwrap_err();
            assert_eq!((refused.code.as_u16(), &*refused.accepted), (422, accepted));
        }
        let known = wanted("listener=web&server=localhost:8080");
        assert!(list(&[], &config, known).await.unwrap().complete);
    }

    #[tokio::test]
    async fn a_worker_that_has_ended_has_no_connections() {
        let poll = mio::Poll::new().unwrap();
        let waker = mio::Waker::new(poll.registry(), mio::Token(0)).unwrap();
        let mailbox = Arc::new(Mailbox::new(waker));
        drop(mailbox.close());
        let (workers, config) = ([mailbox], Config::default());
        let wanted = || ListRequest::of(Vec::new(), 10).unwrap();
        let list = list(&workers, &config, wanted()).await.unwrap();
        assert!(list.connections.is_empty() && list.complete);
        let top = top(&workers, &config, wanted()).await.unwrap();
        assert!(top.complete);
        let killed = kill(&workers, &config, Filter::default()).await.unwrap();
        assert_eq!(killed, KilledConnections { killed: 0 });
    }
}
