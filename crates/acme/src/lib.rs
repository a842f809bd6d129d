//! The ACME companion: a process that orders and renews certificates (RFC 8555).
//!
//! The supervisor starts the companion with a socket as standard input. The companion runs as a user
//! of its own, talks to authorities over HTTPS, and writes bundles into its folder, where the
//! serving process reads them. The supervisor connects the companion to the serving process by
//! another socket, for challenges and the bundles of other nodes. The companion has no other access
//! to both.
//!
//! An authority is a hostile peer: its responses and all waits for it are limited, and a certificate
//! is checked before it replaces another one.
//!
//! * [`companion`]: the loop; [`schedule`] decides, [`work`] and [`order`] carry out, [`unfinished`]
//!   continues;
//! * [`authority`], [`issued`], [`http`]: accounts, certificates in use, and requests;
//! * [`lookup`], [`records`]: DNS records that forbid an order;
//! * [`reach`]: whether clients of the names get the answers to challenges;
//! * [`on_demand`]: which names that clients ask for get a certificate;
//! * [`store`], [`context`], [`verify`]: the folder, and the bundles in it;
//! * [`link`], [`control`], [`hook`]: the supervisor, the commands, and the DNS program;
//! * [`confine`]: privileges of the process;
//! * [`cli`]: the commands of `becket-acme`.
#![forbid(unsafe_code)]

pub mod authority;
pub mod cli;
pub mod companion;
pub mod confine;
pub mod context;
pub mod control;
pub mod error;
pub mod hook;
pub mod http;
pub mod issued;
pub mod link;
pub mod lookup;
pub mod on_demand;
pub mod order;
pub mod reach;
pub mod records;
pub mod schedule;
pub mod store;
pub mod unfinished;
pub mod verify;
pub mod work;
