//! Keys and self-signed certificates of the servers, created with OpenSSL once per run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Error;

/// Returns the file with a key and its certificate, which all peers share. Creates it on first use, which takes seconds
/// for RSA-4096.
pub fn file(directory: &Path, key: &str) -> Result<PathBuf, Error> {
    let path = directory.join(format!("{key}.pem"));
    if path.exists() {
        return Ok(path);
    }
    let rsa = key.replace("rsa", "rsa:");
    let kind: &[&str] = match key {
        "p256" => &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"],
        "p384" => &["ec", "-pkeyopt", "ec_paramgen_curve:P-384"],
        _ => &[&rsa],
    };
    // This file replaces the system's openssl.cnf, so that every system creates the same extensions.
    let config = directory.join("request.cnf");
    let text = format!(
        "[req]\nprompt = no\ndistinguished_name = name\nx509_extensions = extensions\n\
         [name]\nCN = {NAME}\n[extensions]\nsubjectAltName = DNS:{NAME}, DNS:localhost\n"
    );
    fs::write(&config, text).map_err(|e| Error::os("cannot write request.cnf", e))?;
    let output = Command::new("openssl")
        .args(["req", "-x509", "-nodes", "-newkey"])
        .args(kind)
        .arg("-config")
        .arg(&config)
        .arg("-keyout")
        .arg(&path)
        .arg("-out")
        .arg(&path)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::os("cannot run openssl, which creates certificates", e))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Peer(format!(
            "openssl cannot create a {key} certificate: {said}"
        )));
    }
    // Some peers open the file as `nobody`.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644))
        .map_err(|e| Error::os(format!("cannot change {}", path.display()), e))?;
    Ok(path)
}

/// Server name that clients send.
pub const NAME: &str = "bench.example.org";
