//! Safe functions for Linux calls, and for multiplications with AVX-512 instructions.
//!
//! This is the only crate of the workspace with `unsafe` code. Every function that calls Linux takes borrowed or owned
//! descriptors and returns [`std::io::Result`]. The caller reports errors, because only the caller has the address, the
//! configuration key or the connection. Calls that `rustix`, `socket2` or `nix` offer safely go through these crates;
//! all other calls go through `libc`.
//!
//! Main types: [`clock::Now`] is one reading of the clocks, [`tree::Tree`] opens files below a directory.
//!
//! ```
//! let clock = becket_sys::clock::Clock::start();
//! assert!(clock.mono() <= clock.mono());
//! ```
//!
//! Linux only. If a function affects the whole process, its documentation states whether it must run before threads are
//! started.

pub mod affinity;
pub mod call_filter;
pub mod cgroup;
pub mod clock;
pub mod coroutine;
pub mod cpu;
pub mod fd_messages;
pub mod fd_passing;
pub mod file_reach;
pub mod identity;
#[cfg(target_arch = "x86_64")]
pub mod ifma;
pub mod kernel_tls;
pub mod lanes;
pub mod log_file;
pub mod memory;
pub mod notify;
pub mod pid_file;
pub mod pipe;
pub mod port_holder;
pub mod priority;
pub mod privileges;
pub mod process;
pub mod regular;
pub mod reserve;
pub mod rlimit;
pub mod root_only;
pub mod seqpacket;
pub mod socket;
pub mod socket_file;
pub mod tree;
pub mod tun;
