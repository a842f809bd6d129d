//! The stage on which promises are kept: a becket that was just built, certificates, scripted
//! servers and clients, and real ones where they are installed.
//!
//! A test makes a [`Place`] (folder, certificates, addresses), writes a configuration with
//! [`Shape`], starts a [`Becket`] and asserts what clients see, and what becket says of it: its
//! access log, its metrics, its exit code.
//!
//! Nothing here sleeps to wait: [`eventually`] asks until the answer is yes or the deadline has
//! passed. Nothing uses a fixed port: every address is a fresh one of 127.0.0.0/8, so tests that
//! run side by side do not meet. Whatever was started ends when its value is dropped; when a test
//! fails, all logs are printed first.
//!
//! This crate imports nothing that it tests: it drives built programs only.
#![forbid(unsafe_code)]
#![expect(
    missing_docs,
    reason = "nobody comes here from outside: what a name says is not said again"
)]

mod address;
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
mod pki;
mod place;
mod program;
mod run_user;
mod scrape;
mod server;
mod shape;
mod time;
mod token;
mod tool;
mod uml;

pub use becket_tidy::skip;

pub use address::{fresh_address, fresh_host, fresh_v6};
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
pub use pki::{Authority, Bundle, Key};
pub use place::Place;
pub use program::{becket_program, load_program};
pub use run_user::{AS_NOBODY, give, nobody, open_to_all};
pub use scrape::{Metrics, http_get};
pub use server::{Make, Server, haproxy, nginx, serve};
pub use shape::Shape;
pub use time::{Over, PATIENCE, eventually, holds_for, now, unix_now, until};
pub use token::SoftToken;
pub use tool::{Finished, Kept, Tool, finish};
pub use uml::{UserModeLinux, is_inside_uml};
