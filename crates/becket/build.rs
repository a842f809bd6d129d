//! Sets variables for `becket --version`: the commit, from BECKET_COMMIT, and the linked versions
//! of rustls and AWS-LC, from Cargo.lock.

use std::fs;
use std::path::Path;

fn main() {
    let lock = Path::new("../../Cargo.lock");
    println!("cargo::rerun-if-changed={}", lock.display());
    println!("cargo::rerun-if-env-changed=BECKET_COMMIT");
    let commit = std::env::var("BECKET_COMMIT");
    let commit = commit.as_deref().unwrap_or("not recorded");
    println!("cargo::rustc-env=COMMIT={commit}");
    let lock = fs::read_to_string(lock).unwrap_or_default();
    for (crate_name, variable) in [
        ("rustls", "RUSTLS_VERSION"),
        ("aws-lc-sys", "AWS_LC_SYS_VERSION"),
    ] {
        let version = version(&lock, crate_name).unwrap_or("unknown");
        println!("cargo::rustc-env={variable}={version}");
    }
}

fn version<'a>(lock: &'a str, crate_name: &str) -> Option<&'a str> {
    let entry = format!("name = \"{crate_name}\"\nversion = \"");
    let (_, rest) = lock.split_once(&entry)?;
    rest.split('"').next()
}
