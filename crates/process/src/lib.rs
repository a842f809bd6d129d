//! Process life: one supervisor, and the processes that serve under it.
//!
//! This crate owns the supervisor, its protocol, and the start and end of processes. It does not decide what a serving process does with a command
//! (`becket_control::server`), runs no token agent (`becket_keys::signing::token`), and divides no limit (`becket_proto::limits`).
//!
//! Main types: [`protocol::Command`] and [`protocol::Event`] are the messages between the supervisor and its processes, and [`link::SupervisorLink`] is the serving
//! process's end of them.
//!
//! `becket run` is always two processes. The **supervisor** is the main process. It takes signals, keeps listening sockets bound, opens files that need
//! rights, starts the serving process again when it dies, and replaces it at an upgrade. The **serving process** is the whole terminator, without any right
//! that it does not need. `becket demo`, `becket files`, and `becket check` without `process.user` are one process.
//!
//! ```text
//!    signals, files ─► run ─ Input ─► supervisor ─ Action ─► run ── Command ──►  link ─► control
//!                       ▲             (pure core)             │  ◄── Event ──            of the serving process
//!                       └──────────── child (pidfd, socket) ──┘
//!                                                         old process ── handover ──► new process
//! ```
//!
//! * [`protocol`]: the messages and their contents;
//! * [`supervisor`]: the decisions, with a diagram of the states;
//! * [`run`], [`child`], [`resources`], [`needs`]: processes, sockets and files for these decisions;
//! * [`carried`]: the state that passes execve(2), by which the supervisor becomes the new program;
//! * [`link`]: the serving process's end. `becket_control::handover` passes its state to the next process;
//! * [`mod@enter`]: the role of a process;
//! * [`signals`]: signals as requests.
//!
//! A command and an event are JSON:
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
#![allow(
    missing_docs,
    reason = "a crate of one program: a name that says what it is needs no comment"
)]

mod carried;
mod child;
mod enter;
pub mod link;
mod needs;
pub mod protocol;
mod resources;
mod run;
pub mod signals;
mod supervisor;

pub use self::enter::{ProcessRole, StartTask, continues, enter};
