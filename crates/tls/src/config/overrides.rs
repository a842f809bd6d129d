//! What an operator changed of a running server; it overrides the configuration file.

use becket_config::choices::ServerMode;
use becket_config::edits::{ServerAction, ServerEdit};

use super::server_address::{MOST_ADDRESSES, ServerAddress};

/// What was changed; what is absent is as the file has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Mode of the server.
    pub mode: Option<ServerMode>,
    /// Weight in balancing.
    pub weight: Option<u32>,
    /// Most connections at a time; 0 is no limit.
    pub maxconn: Option<u32>,
    /// At least one.
    pub addresses: Option<Vec<ServerAddress>>,
}

impl Overrides {
    /// The overrides that a kept edit makes. A server that the edit adds has its weight and limit in the file of kept edits.
    pub fn of(edit: &ServerEdit) -> Self {
        let is_changed = edit.action == ServerAction::Change;
        let addresses = edit.addresses.iter();
        let addresses = addresses.filter_map(|it| ServerAddress::fixed(&it.address));
        let addresses: Vec<_> = addresses.take(MOST_ADDRESSES).collect();
        Self {
            mode: edit.mode,
            weight: edit.weight.filter(|_| is_changed),
            maxconn: edit.maxconn.filter(|_| is_changed),
            addresses: (!addresses.is_empty()).then_some(addresses),
        }
    }

    /// Each override that differs from the kept one, as text.
    pub fn temporary(&self, kept: &Self) -> Vec<String> {
        fn text<T: PartialEq>(
            key: &str,
            now: &Option<T>,
            kept: &Option<T>,
            show: impl Fn(&T) -> String,
        ) -> Option<String> {
            let value = now
                .as_ref()
                .map_or_else(|| "as in the file".to_owned(), show);
            (now != kept).then(|| format!("{key} {value}"))
        }
        let addresses = |all: &Vec<ServerAddress>| {
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            all.join(" ")
        };
        let each = [
            text("mode", &self.mode, &kept.mode, |mode| {
                mode.word().to_owned()
            }),
            text("weight", &self.weight, &kept.weight, u32::to_string),
            text("maxconn", &self.maxconn, &kept.maxconn, u32::to_string),
            text("addresses", &self.addresses, &kept.addresses, addresses),
        ];
        each.into_iter().flatten().collect()
    }
}
