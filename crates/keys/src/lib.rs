//! Certificates, private keys and the signatures made with them.
//!
//! This crate reads certificates and keys from files, chooses among certificates by server name, watches files for changes, and makes signatures off the event loop: on
//! crypto threads, in batches, or on PKCS#11 tokens. It does not build TLS configurations, and it accepts no connection.
//!
//! * [`files`]: the only place where files of a configuration are opened;
//! * [`pem`]: PEM files, with private keys only in memory that is erased;
//! * [`keys`]: chains with their keys, matched and proved;
//! * [`authorities`]: certificates without keys, from a bundle or a folder;
//! * [`certificates`]: chains and keys by server name, and the choice among them;
//! * [`client_names`]: the names of client certificates that a policy accepts;
//! * [`digest`]: digests that tell whether two things are equal;
//! * [`facts`]: the contents of certificates and revocation lists, for status pages;
//! * [`ocsp`]: stapled OCSP responses;
//! * [`presented`], [`identity`]: the text that logs and PROXY headers have of our certificate, and of a client's;
//! * [`signing`]: signatures off the loop;
//! * [`watch`]: changes of files.
#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    reason = "a crate of one program: a name that says what it is needs no comment"
)]

pub mod authorities;
pub mod certificates;
pub mod client_names;
pub mod digest;
pub mod facts;
pub mod files;
pub mod identity;
pub mod keys;
pub mod ocsp;
pub mod pem;
pub mod presented;
pub mod signing;
pub mod watch;
