//! HTTP/1.1 for a server of static files.
//!
//! This crate parses the head of a request, selects the part of a file to send, writes the head of the
//! response, and opens files below a folder ([`docroot`]). Everything except [`docroot`] is pure: no I/O,
//! no clock. The crate relays no requests, reads no bodies, and owns no connections.
//!
//! Main types: [`head::Head`] is a parsed head, [`answer::Answer`] is the head of a response, and
//! [`docroot::Docroot`] is a served folder.
//!
//! Order of use: [`head::end`] finds the end of a head, [`head::parse`] parses it,
//! [`head::Head::request`] refuses requests that a file server does not support, [`path::decode`] converts
//! the target to a path below a folder, [`coding::accepted`] finds the compressed variants that the client
//! accepts, [`select::select`] selects the part of the file, and [`answer::Answer`] writes the head.
//!
//! ```
//! let head = becket_http::head::parse(b"GET /a%20b HTTP/1.1\r\nHost: example.org\r\n\r\n").unwrap();
//! assert!(head.request().is_ok());
//! ```
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
