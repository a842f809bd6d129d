//! Settings of a server that an operator changed at run time. They have precedence over the
//! configuration file.

use becket_config::choices::ServerMode;

use super::server_address::ServerAddress;

/// Changed settings of one server. `None` means that the value in the file applies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    pub mode: Option<ServerMode>,
    pub weight: Option<u32>,
    /// Maximum number of connections; 0 for no limit.
    pub maxconn: Option<u32>,
    /// Addresses, at least one.
    pub addresses: Option<Vec<ServerAddress>>,
}

impl Overrides {
    pub fn lines(&self) -> Vec<String> {
        let addresses = self.addresses.as_ref().map(|all| {
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            format!("addresses {}", all.join(" "))
        });
        let each = [
            self.mode.map(|mode| format!("mode {}", mode.label())),
            self.weight.map(|weight| format!("weight {weight}")),
            self.maxconn.map(|most| format!("maxconn {most}")),
            addresses,
        ];
        each.into_iter().flatten().collect()
    }
}
