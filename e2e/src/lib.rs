//! Infrastructure of the end-to-end tests: becket as just built, certificates, scripted servers and clients, and real ones if
//! they are installed.
//!
//! A test creates a [`Place`] (folder, certificates, addresses), writes a configuration with [`Shape`] and starts a [`Becket`]. It
//! then checks what clients receive and what becket reports: access log, metrics and exit code.
//!
//! Tests do not sleep to wait: [`eventually`] polls a condition until it is true or the deadline has passed. Tests use no fixed
//! ports: every address is on a separate host of 127.0.0.0/8, so that parallel tests do not conflict. Programs stop when their value
//! is dropped. If a test fails, all logs are printed first.
//!
//! This crate imports no tested crate: it runs the built programs.
#![forbid(unsafe_code)]

mod address;
mod authority_proxy;
mod backend;
mod becket;
mod client;
mod dns;
mod drop_in;

mod network;
mod node;
mod notices;
mod openssl;
mod operator;
mod pebble;
mod pki;
mod place;
mod program;
mod run_user;
mod scrape;
mod server;
mod shape;
mod store;
mod time;
mod token;
mod tool;
mod uml;

pub use becket_tidy::skip;

pub use address::{fresh_address, fresh_host, fresh_v6};
pub use authority_proxy::{AuthorityProxy, Hold, STEPS, Verdict};
pub use backend::{Backend, answer_all, read_head, read_proxy_header};
pub use becket::{Becket, Signal};
pub use client::{Client, REQUEST, Trust, read_to_end, reset};
pub use dns::{Answer, Dns};
pub use drop_in::{Either, Running, as_nobody};
pub use network::{Capture, Host, Network};
pub use node::Node;
pub use notices::Notices;
pub use openssl::OpenSsl;
pub use operator::{becket, becket_done, ctl, ctl_done};
pub use pebble::Pebble;
pub use pki::{Authority, Bundle, Key};
pub use place::Place;
pub use program::{becket_program, bench_program, load_program};
pub use run_user::{AS_NOBODY, give, nobody, open_to_all, user_id};
pub use scrape::{Metrics, http_get};
pub use server::{Make, Server, haproxy, nginx, serve};
pub use shape::Shape;
pub use store::{CuttingRelay, RedisServer};
pub use time::{Over, PATIENCE, eventually, holds_for, now, unix_now, until};
pub use token::SoftToken;
pub use tool::{Finished, Kept, Tool, finish};
pub use uml::{UserModeLinux, is_inside_uml};
