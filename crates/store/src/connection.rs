//! Connections to the store, through the crate `redis`.
//!
//! Each command returns within the time that its caller allows, because the library reads answers in a task of its
//! own. A value is read with GETRANGE, which bounds what a foreign writer can make becket receive.

use becket_config::store_address::{StoreAddress, StoreTopology};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    Pipeline, RedisConnectionInfo, RedisError, RedisResult, TlsCertificates, TlsMode,
};
use tokio::task::JoinSet;
use zeroize::Zeroizing;

use crate::vault::MOST_VALUE;

/// Server of the store, and what a connection needs. Equal settings need no new connection.
#[derive(Clone, PartialEq)]
pub struct StoreServer {
    pub address: StoreAddress,
    pub user: Option<String>,
    pub password: Option<Zeroizing<String>>,
    /// CA certificates as PEM; `None` for the system's.
    pub authorities: Option<Vec<u8>>,
}

#[derive(Clone)]
pub(crate) enum StoreConnection {
    /// One server, or the primary that the sentinels named.
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// A command that changes one key. Its answer is not needed.
pub(crate) enum Write {
    Set {
        key: String,
        value: Vec<u8>,
        millis: u64,
        /// `true` if an existing value stays.
        is_new: bool,
    },
    Delete(String),
}

impl StoreServer {
    /// Connects, and waits until the server answers.
    pub(crate) async fn connect(&self) -> RedisResult<StoreConnection> {
        let mut connection = match &self.address.topology {
            StoreTopology::Single => StoreConnection::Single(self.single().await?),
            StoreTopology::Sentinel(name) => StoreConnection::Single(self.primary(name).await?),
            StoreTopology::Cluster => StoreConnection::Cluster(self.cluster().await?),
        };
        connection.ping().await?;
        Ok(connection)
    }

    async fn single(&self) -> RedisResult<MultiplexedConnection> {
        let Some(info) = self.nodes()?.pop() else {
            return Err(io_error("no host"));
        };
        let client = match self.certificates() {
            Some(certificates) => Client::build_with_tls(info, certificates)?,
            None => Client::open(info)?,
        };
        client
            .get_multiplexed_async_connection_with_config(&patient())
            .await
    }

    async fn primary(&self, name: &str) -> RedisResult<MultiplexedConnection> {
        let nodes = self.address.nodes.iter().map(|node| self.address_of(node));
        let mut builder = SentinelClientBuilder::new(nodes, name, SentinelServerType::Master)?;
        if self.address.has_tls {
            builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        }
        if let Some(certificates) = self.certificates() {
            builder = builder
                .set_client_to_redis_certificates(certificates.clone())
                .set_client_to_sentinel_certificates(certificates);
        }
        if let Some(user) = &self.user {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = &self.password {
            builder = builder.set_client_to_redis_password(password.as_str());
        }
        let mut client = builder.build()?;
        client.get_async_connection_with_config(&patient()).await
    }

    async fn cluster(&self) -> RedisResult<ClusterConnection> {
        let mut builder = ClusterClient::builder(self.nodes()?);
        if let Some(certificates) = self.certificates() {
            builder = builder.certs(certificates);
        }
        builder.retries(1).build()?.get_async_connection().await
    }

    fn nodes(&self) -> RedisResult<Vec<ConnectionInfo>> {
        let mut redis = RedisConnectionInfo::default();
        if let Some(user) = &self.user {
            redis = redis.set_username(user);
        }
        if let Some(password) = &self.password {
            redis = redis.set_password(password.as_str());
        }
        let nodes = self.address.nodes.iter().map(|node| {
            let info = self.address_of(node).into_connection_info()?;
            Ok(info.set_redis_settings(redis.clone()))
        });
        nodes.collect()
    }

    fn address_of(&self, (host, port): &(String, u16)) -> ConnectionAddr {
        let (host, port) = (host.clone(), *port);
        if self.address.has_tls {
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            }
        } else {
            ConnectionAddr::Tcp(host, port)
        }
    }

    fn certificates(&self) -> Option<TlsCertificates> {
        let root_cert = self.authorities.clone();
        self.address.has_tls.then_some(TlsCertificates {
            client_tls: None,
            root_cert,
        })
    }
}

impl StoreConnection {
    pub(crate) async fn ping(&mut self) -> RedisResult<()> {
        self.query(&redis::cmd("PING")).await
    }

    /// Returns the value of a key; `None` if it has none. A value that is longer than any genuine one is truncated.
    pub(crate) async fn get(&mut self, key: &str) -> RedisResult<Option<Vec<u8>>> {
        let mut range = redis::cmd("GETRANGE");
        range.arg(key).arg(0).arg(MOST_VALUE - 1);
        let value: Vec<u8> = self.query(&range).await?;
        Ok((!value.is_empty()).then_some(value))
    }

    /// Sends commands without waiting for each answer, and returns their results in the same order.
    pub(crate) async fn write(&mut self, writes: Vec<Write>) -> RedisResult<Vec<RedisResult<()>>> {
        let commands = writes.into_iter().map(Write::into_command);
        match self {
            Self::Single(connection) => {
                let mut pipeline = Pipeline::new();
                for command in commands {
                    pipeline.add_command(command);
                }
                pipeline.ignore_errors().query_async(connection).await
            }
            // The keys of a pipeline would have to be on one node.
            Self::Cluster(connection) => {
                let mut answers = JoinSet::new();
                for (number, command) in commands.enumerate() {
                    let mut connection = connection.clone();
                    answers
                        .spawn(async move { (number, command.query_async(&mut connection).await) });
                }
                let mut answers = answers.join_all().await;
                answers.sort_unstable_by_key(|(number, _)| *number);
                Ok(answers.into_iter().map(|(_, answer)| answer).collect())
            }
        }
    }

    async fn query<T: redis::FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        match self {
            Self::Single(connection) => query(command, connection).await,
            Self::Cluster(connection) => query(command, connection).await,
        }
    }
}

async fn query<T: redis::FromRedisValue>(
    command: &Cmd,
    connection: &mut impl ConnectionLike,
) -> RedisResult<T> {
    command.query_async(connection).await
}

impl Write {
    /// Number of new values.
    pub(crate) fn sessions(&self) -> u64 {
        u64::from(matches!(self, Self::Set { .. }))
    }

    fn into_command(self) -> Cmd {
        match self {
            Self::Set {
                key,
                value,
                millis,
                is_new,
            } => {
                let mut set = redis::cmd("SET");
                set.arg(key).arg(value).arg("PX").arg(millis);
                if is_new {
                    set.arg("NX");
                }
                set
            }
            Self::Delete(key) => {
                let mut delete = redis::cmd("DEL");
                delete.arg(key);
                delete
            }
        }
    }
}

/// Returns settings without time-outs, because the callers limit the time.
fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
}

fn io_error(what: &'static str) -> RedisError {
    RedisError::from(std::io::Error::other(what))
}

/// Returns `true` if the connection cannot be used any more: it ended, or the server became a replica.
pub(crate) fn is_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.code() == Some("READONLY")
}

/// Returns `true` if the server works, but does not accept this write.
pub(crate) fn is_refusal(error: &RedisError) -> bool {
    matches!(error.code(), Some("OOM" | "NOPERM" | "MISCONF"))
}

/// Describes an error. A server may have written it, so the length is bounded, and no character controls a terminal.
pub(crate) fn explained(error: &RedisError) -> String {
    let text = error.to_string();
    let text = text.chars().take(LONGEST_ERROR);
    text.map(|it| if it.is_control() { ' ' } else { it })
        .collect()
}

/// Maximum length of an error in characters.
const LONGEST_ERROR: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_a_server_is_short_and_controls_no_terminal() {
        let long = "\x1b[2J\n".to_owned() + &"x".repeat(1000);
        let text = explained(&std::io::Error::other(long).into());
        assert!(text.chars().count() == LONGEST_ERROR && !text.contains(char::is_control));
    }
}
