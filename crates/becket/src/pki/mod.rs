//! Certificates and keys as they come from files, and what certificates say.
//!
//! * [`pem`]: PEM files, with private keys only in memory that is erased;
//! * [`keys`]: chains with their keys, matched and proved;
//! * [`authorities`]: certificates without keys, from a bundle or a folder;
//! * [`certificates`]: chains and keys by server name, and the choice among them;
//! * [`client_names`]: whether a client's certificate has a name that a policy lets in;
//! * [`digest`]: whether two things are one;
//! * [`facts`]: what certificates and revocation lists say;
//! * [`presented`]: what the PROXY header says of our certificate; [`identity`]: of the client's.

pub(crate) mod authorities;
pub mod certificates;
pub(crate) mod client_names;
pub(crate) mod digest;
pub(crate) mod facts;
pub mod identity;
pub mod keys;
pub mod ocsp;
pub mod pem;
pub(crate) mod presented;
