//! HTTP/1.1 as far as a server of static files speaks it: the head of a request in, the status, the range and the head of the
//! answer out; and the folders that are served ([`docroot`]). Everything but [`docroot`] is pure: no I/O, no clock.
//!
//! The order of use: [`head::end`] finds the end of a head, [`head::parse`] reads it, [`head::Head::request`] refuses what a server of
//! files does not serve, [`path::decode`] makes a path below a folder of the target, [`coding::accepted`] says which
//! compressed variants the client takes, [`select::select`] chooses what of the file is sent, and [`answer::Answer`] writes the
//! head of it.
//!
//! Sources: RFC 9110 (semantics), RFC 9112 (HTTP/1.1), RFC 8615 (`.well-known`).
#![forbid(unsafe_code)]

pub mod answer;
pub mod coding;
pub mod docroot;
pub mod head;
pub mod path;
pub mod select;
pub mod status;
