//! TLS towards the client: what is offered, to whom, and what may be resumed. TLS towards servers.
//!
//! * [`certs`]: chains and keys by server name, and the choice among them;
//! * [`metered`]: keys that cost a token, where full handshakes are limited;
//! * [`presented`]: what the PROXY header says of our certificate; [`identity`]: of the client's;
//! * [`policy`]: the digest of a policy, the border that sessions never cross;
//! * [`verifier`]: client certificates; [`chain`]: what is refused before that; [`path`]: what
//!   verifies them, of all that was shown;
//! * [`twins`]: the few `ServerConfig`s of one route, and which of them answers a hello;
//! * [`front`]: the routes of one listener: from a peeked hello to a twin, or a refusal;
//! * [`context`]: what the running handshake tells the store and the ticketer, and back;
//! * [`sessions`], [`tickets`]: resumption by ID and by ticket; [`early`]: where early data is taken;
//!   [`session_name`]: policy and ID; [`stored`]: whether the client may come back;
//! * [`engine`]: rustls' unbuffered connections as "bytes in, bytes out";
//! * [`onward`]: TLS towards the servers of a backend;
//! * [`key_log`]: the file that `SSLKEYLOGFILE` names;
//! * [`names`]: what versions, suites and groups are called;
//! * [`rehearsal`]: handshakes in memory, for `becket check`.
//!
//! Every worker builds its own [`front::Front`]s from the shared configuration: what a handshake
//! touches (twins, ticket keys) is then owned by one thread, and no reference count is fought over.

pub mod certs;
pub mod chain;
pub mod context;
pub mod early;
pub mod engine;
pub mod front;
pub mod identity;
pub mod key_log;
pub mod metered;
pub mod names;
pub mod onward;
pub mod path;
pub mod policy;
pub mod presented;
pub mod rehearsal;
pub mod session_name;
pub mod sessions;
pub mod skipping;
pub mod stored;
pub mod tickets;
pub mod twins;
pub mod verifier;
