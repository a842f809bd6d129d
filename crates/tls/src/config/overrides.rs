//! What an operator changed of a running server; it overrides the configuration file.

use becket_config::choices::ServerMode;

use super::server_address::ServerAddress;

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
    /// Each override, as text.
    pub fn lines(&self) -> Vec<String> {
        let addresses = self.addresses.as_ref().map(|all| {
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            format!("addresses {}", all.join(" "))
        });
        let each = [
            self.mode.map(|mode| format!("mode {}", mode.word())),
            self.weight.map(|weight| format!("weight {weight}")),
            self.maxconn.map(|most| format!("maxconn {most}")),
            addresses,
        ];
        each.into_iter().flatten().collect()
    }
}
