//! TLS towards the client: what is offered, to whom, and what may be resumed. TLS towards servers.
//!
//! * [`hello_router`]: the routes of one listener: from a peeked hello to a configuration, or a refusal;
//! * [`route_configs`]: the few `ServerConfig`s of one route, and which of them answers a hello;
//! * [`policy`]: the digest of a policy, the border that sessions never cross;
//! * [`verifier`]: client certificates; [`chain`]: what is refused before that; [`path`]: what
//!   verifies them, of all that was shown;
//! * [`deferred`]: keys whose signatures crypto threads make;
//! * [`metered`]: keys that cost a token, where full handshakes are limited;
//! * [`engine`]: rustls' unbuffered connections as "bytes in, bytes out"; [`skipping`]: early data
//!   that it does not take;
//! * [`to_servers`]: TLS towards the servers of a backend;
//! * [`key_log`]: the file that `SSLKEYLOGFILE` names;
//! * [`names`]: what versions, suites and groups are called.
//!
//! Every worker builds its own [`hello_router::HelloRouter`]s from the shared configuration: what a handshake
//! touches (configurations, ticket keys) is then owned by one thread, and no reference count is fought over.

pub mod chain;
pub(crate) mod deferred;
pub mod engine;
pub mod hello_router;
pub mod key_log;
pub(crate) mod metered;
pub mod names;
pub mod path;
pub mod policy;
pub mod route_configs;
pub(crate) mod side;
pub(crate) mod skipping;
pub(crate) mod to_servers;
pub mod verifier;
