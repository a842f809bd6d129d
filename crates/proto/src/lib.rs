//! The pure part of becket: codecs, tables and policies.
//!
//! Nothing here does I/O, reads a clock, draws a random number or contains `unsafe`: bytes, times
//! and seeds are arguments, so that every rule can be tested without a socket and every parser can
//! be fuzzed. The other crates own the sockets and call this crate, which depends on none of them.
//!
//! Parsers of peer bytes share one contract: the input is the bytes received so far, the result is
//! "incomplete", the value, or the reason for refusing it. A final result never changes when more
//! bytes arrive, and no parser panics.
//!
//! ```
//! use becket_proto::client_hello::peek;
//!
//! assert!(matches!(peek(&[22, 3, 1]), Ok(None)));
//! assert!(matches!(peek(b"GET / HTTP/1.1"), Err(_)));
//! ```
#![forbid(unsafe_code)]

pub mod acme;
pub mod admission;
pub mod backlog;
pub mod balance;
pub mod bounded_table;
pub mod client_hello;
pub mod close_reason;
pub mod der;
pub mod epoch;
pub mod fair_queue;
pub mod fresh_queue;
pub mod half_pipe;
pub mod handover;
pub mod health;
pub mod http_status;
pub mod index_queue;
mod labelled;
pub mod limits;
pub mod networks;
pub mod own_line;
pub mod plain_http;
pub mod post_handshake;
pub mod private_key;
pub mod proxy_header;
pub mod queue;
pub mod reader;
pub mod records;
pub mod rest_queue;
pub mod rsa_key;
pub mod running_time;
pub mod server_hello;
pub mod session;
pub mod session_state;
pub mod session_table;
pub mod share;
pub mod sorted_chunks;
pub mod starttls;
pub mod stick;

pub mod ticket;
pub mod timers;
