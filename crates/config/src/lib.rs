//! The configuration of the becket TLS terminator: the file format, its values, and what is wrong with them.
//!
//! Data only: nothing here opens a file, resolves a name or builds anything of TLS, so a gateway or a migration tool can
//! read and write a configuration without the terminator. [`read`] turns a text into a [`file::File`] and says every fault
//! of its shape at once; what needs certificates, names and sockets is checked by those who build them.
#![forbid(unsafe_code)]

pub mod choices;
pub mod error;
pub mod file;
pub mod read;
pub mod values;
