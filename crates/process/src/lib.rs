//! Process life: the supervisor, and the serving processes under it.
//!
//! This crate owns the supervisor, its protocol, and the start and exit of processes. It does not
//! implement the commands in a serving process (`becket_control::server`), the token agents
//! (`becket_keys::signing::token`), or the division of limits (`becket_proto::limits`).
//!
//! Main types: [`protocol::Command`] and [`protocol::Event`] are the messages between the
//! supervisor and its processes. [`link::SupervisorLink`] is the serving process's end.
//!
//! `becket run` always has two processes. The **supervisor** is the main process: it receives
//! signals, keeps listening sockets bound, opens files that need privileges, restarts the serving
//! process when it dies, and replaces it on an upgrade. The **serving process** is the TLS
//! terminator and has minimal privileges. `becket demo`, `becket files`, and `becket check` without
//! `process.user` run as one process.
//!
//! ```text
//!    signals, files ─► run ─ Input ─► supervisor ─ Action ─► run ── Command ──►  link ─► control
//!                       ▲             (pure core)             │  ◄── Event ──            of the serving process
//!                       └──────────── child (pidfd, socket) ──┘
//!                                                         old process ── handover ──► new process
//! ```
//!
//! * [`protocol`]: messages and their contents;
//! * [`supervisor`]: decisions, with a state diagram;
//! * [`run`], [`child`], [`resources`], [`needs`]: processes, sockets and files for these
//!   decisions;
//! * [`companion`]: the ACME companion as a child process; [`companion_link`] connects it to the
//!   serving process;
//! * [`carried`]: state that passes execve(2) when the supervisor executes the new program;
//! * [`link`]: the serving process's end; `becket_control::handover` passes its state to the next
//!   process;
//! * [`mod@enter`]: the role of a process;
//! * [`signals`]: signals as requests.
//!
//! Commands and events are JSON:
//!
//! ```
//! use becket_process::protocol::{Command, Event};
//! assert_eq!(serde_json::to_string(&Command::Leave).unwrap(), "\"Leave\"");
//! let event: Event = serde_json::from_str("\"Ready\"").unwrap();
//! assert_eq!(event, Event::Ready);
//! ```
//!
//! See `docs/decisions/0043-a-supervisor-and-one-protocol.md`.

#![forbid(unsafe_code)]

mod carried;
mod child;
mod companion;
pub mod companion_link;
mod companion_runner;
mod configuration;
mod enter;
pub mod link;
mod listing;
mod needs;
pub mod protocol;
mod resources;
mod run;
pub mod signals;
mod supervisor;

pub use self::enter::{ProcessRole, StartTask, continues, enter};
