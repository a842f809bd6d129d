//! Certificates, private keys, and signatures with them.
//!
//! This crate reads certificates and keys from files, chooses a certificate by server name, watches
//! files for changes, and signs off the event loop: on crypto threads, in batches, or on PKCS#11
//! tokens. It builds no TLS configuration and accepts no connection.
//!
//! Main types: [`files::Files`] opens the files of a configuration,
//! [`certificates::CertificateMap`] finds chains by server name, and
//! [`signing::queue::SigningQueue`] queues signature requests for the crypto threads.
//!
//! ```
//! let pem = becket_keys::pem::Pem::parse(b"-----BEGIN CERTIFICATE-----\n").unwrap_err();
//! assert_eq!(pem.to_string(), "no END CERTIFICATE");
//! ```
//!
//! * [`files`], [`stamp`]: the only place that opens files of a configuration; their stamps;
//! * [`pem`], [`texts`]: PEM files; buffers with private keys are erased when dropped;
//! * [`job`], [`loading`], [`keys`]: files to load, by several threads; chains with matching keys;
//! * [`checked`]: files that need no second check;
//! * [`loaded`], [`issuers`], [`stored_key`]: a certificate in memory, its issuers, its key;
//! * [`key_cache`]: chains with parsed keys of the certificates in use;
//! * [`authorities`]: certificates without keys, from a bundle or a folder;
//! * [`certificates`]: chains and keys by server name;
//! * [`client_names`]: names of client certificates that a policy accepts;
//! * [`digest`]: digests for comparing contents;
//! * [`facts`]: contents of certificates and revocation lists, for status pages;
//! * [`ocsp`]: stapled OCSP responses;
//! * [`presented`], [`identity`]: the server's certificate in PROXY headers, and the client's
//!   certificate in logs and PROXY headers;
//! * [`signing`]: signatures off the event loop;
//! * [`temporary`]: certificates for names without one;
//! * [`watch`]: changes of files.
#![forbid(unsafe_code)]

pub mod authorities;
pub mod certificates;
pub mod checked;
pub mod client_names;
pub mod digest;
pub mod facts;
pub mod files;
pub mod identity;
pub mod issuers;
pub mod job;
pub mod key_cache;
pub mod keys;
pub mod loaded;
pub mod loading;
pub mod ocsp;
pub mod pem;
pub mod presented;
pub mod signing;
pub mod stamp;
pub mod stored_key;
pub mod temporary;
pub mod texts;
pub mod watch;
