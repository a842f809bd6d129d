//! Bodies of the fuzz targets: functions that take bytes and panic if a property is violated.
//!
//! As functions they run in three ways: under libFuzzer (`targets/`, with `cargo +nightly fuzz run NAME`), in tests on mutated
//! inputs (`tests/fuzz_bodies.rs` of `becket-proto`, `becket-http`, `becket-config`, `becket-cluster`, `becket-gateway` and `becket`, with any
//! compiler), and on a single input when a finding is examined. Files that these tests include must not depend on libFuzzer.
//!
//! `crates/proto/testdata` has real inputs; pass that directory as the second corpus.
#![forbid(unsafe_code)]

pub mod client_hello;
pub mod config;
pub mod connection;
pub mod dialect;
pub mod gateway_manifests;
pub mod handover;
pub mod http_request;
pub mod ja4;
pub mod key_uri;
pub mod load_agent;
pub mod mutations;
pub mod ocsp;
pub mod pem;
pub mod post_handshake;
pub mod proxy_header;
pub mod replica;
pub mod rsa_key;
#[path = "../../crates/becket/tests/script/mod.rs"]
#[expect(dead_code, reason = "shared with the tests of connections")]
mod script;
pub mod server_hello;
pub mod session_state;
pub mod starttls;
pub mod stored_value;
pub mod ticket;
pub mod token;
