//! `becket secret`: creates a cluster secret in a file that only its owner can read.
//!
//! An existing file is never overwritten, because a running cluster may use it.

use std::io::ErrorKind;
use std::path::PathBuf;

use becket_keys::files::reason;
use becket_tls::secret::shared::{NoRandomness, NotDerived, SecretBytes, SharedSecret};
use becket_tls::secret::{base64, file};

/// Arguments of `becket secret`.
#[derive(Clone, Debug, clap::Args)]
pub struct SecretFlags {
    /// File to create; an existing file is not overwritten
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// Reason why the file was not created.
#[derive(Debug, thiserror::Error)]
pub enum NotMade {
    /// The file exists.
    #[error("{0} exists and was not changed; choose another name")]
    Exists(PathBuf),
    /// A system call failed.
    #[error("{0}: {1}")]
    System(PathBuf, String),
    /// Random bytes are not available.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
    /// The cryptographic library failed.
    #[error(transparent)]
    NotDerived(#[from] NotDerived),
}

/// Creates the file, syncs it, and returns a message for the user.
///
/// # Errors
/// See [`NotMade`].
pub fn make(flags: &SecretFlags) -> Result<String, NotMade> {
    let path = &flags.file;
    let root = SecretBytes::draw()?;
    let mut line = base64::encode(root.expose());
    // `encode` has reserved capacity for this byte. A reallocation would leave a copy of the secret
    // in freed memory.
    line.push('\n');
    let secret = SharedSecret::of_root(root, path)?;
    file::create(path, &line).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => NotMade::Exists(path.to_owned()),
        _ => NotMade::System(path.to_owned(), reason(&error)),
    })?;
    let (path, id) = (path.display(), secret.id.0);
    Ok(format!(
        "created {path} with secret id {id:08x}; set cluster.secret to this path on every node"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use becket_keys::files::Files;
    use becket_tls::secret;
    use becket_tls::secret::file::RunUser;

    #[test]
    fn creating_a_secret_prints_its_id_and_never_overwrites_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        let said = make(&SecretFlags { file: file.clone() }).unwrap();
        let open = || secret::open(&Files::default(), &file, &RunUser::effective()).unwrap();
        let opened = open();
        assert!(said.contains(&format!("{:08x}", opened.id.0)), "{said}");
        let again = make(&SecretFlags { file: file.clone() });
        assert!(matches!(again, Err(NotMade::Exists(_))));
        assert_eq!(open(), opened);
    }
}
