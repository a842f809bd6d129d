//! Process life: one supervisor, and the processes that serve under it.
//!
//! `becket run` is always two processes. The **supervisor** is the main process: it takes signals, keeps listening sockets bound, opens what
//! takes rights, starts the serving process again when it dies, and replaces it by another program's at an upgrade. The **serving
//! process** is the whole terminator without any right that it does not need. Only `becket demo`, `becket files` and `becket check` without
//! `process.user` are one process.
//!
//! ```text
//!    signals, files ─► run ─ Input ─► supervisor ─ Action ─► run ── Command ──►  link ─► control
//!                       ▲             (pure core)             │  ◄── Event ──            of the serving process
//!                       └──────────── child (pidfd, socket) ──┘
//!                                                         old process ── handover ──► new process
//! ```
//!
//! * [`protocol`]: [`Command`](protocol::Command), [`Event`](protocol::Event) and what they carry: the only
//!   vocabulary.
//! * [`supervisor`]: decides; the diagram of states is there.
//! * [`run`], [`child`], [`resources`], [`needs`]: carry out: processes, sockets, files.
//! * [`carried`]: what passes execve(2), by which the supervisor becomes the new program.
//! * [`link`]: the serving process's end. Its state passes to the next process in `becket_control::handover`.
//! * [`mod@enter`]: which part a process plays.
//!
//! Not here: what the serving process does with a command (`server`), signing helpers (`signing/token`), how limits are divided
//! (`becket_proto::limits`). See `docs/decisions/0043-a-supervisor-and-one-protocol.md`.

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
pub mod pid_file;
pub mod protocol;
mod resources;
mod run;
pub mod signals;
mod supervisor;

pub use self::enter::{Role, Task, continues, enter};
