//! `becket secret`: makes a secret for a cluster, in a file that only its owner can read.
//!
//! Nothing is ever overwritten: the file that is there may be the one that a cluster runs on.

use std::io::ErrorKind;
use std::path::PathBuf;

use becket_keys::files::reason;
use becket_tls::secret::shared::{NoRandomness, NotDerived, SecretBytes, SharedSecret};
use becket_tls::secret::{base64, file};

/// Arguments of `becket secret`.
#[derive(Clone, Debug, clap::Args)]
pub struct SecretFlags {
    /// File to make; one that is there is left alone
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// Why no file was made.
#[derive(Debug, thiserror::Error)]
pub enum NotMade {
    /// There is something by that name.
    #[error("{0} is there already and is left as it is; choose another name")]
    Exists(PathBuf),
    /// The system refused.
    #[error("{0}: {1}")]
    System(PathBuf, String),
    /// No random bytes.
    #[error(transparent)]
    NoRandomness(#[from] NoRandomness),
    /// The library refused.
    #[error(transparent)]
    NotDerived(#[from] NotDerived),
}

/// Makes the file, syncs it, and says what to tell the user.
///
/// # Errors
/// Why there is no new file.
pub fn make(flags: &SecretFlags) -> Result<String, NotMade> {
    let path = &flags.file;
    let root = SecretBytes::draw()?;
    let mut line = base64::encode(root.expose());
    // The string has room for its end.
    line.push('\n');
    let secret = SharedSecret::of_root(root, path)?;
    file::create(path, &line).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => NotMade::Exists(path.to_owned()),
        _ => NotMade::System(path.to_owned(), reason(&error)),
    })?;
    let (path, id) = (path.display(), secret.id.0);
    Ok(format!(
        "made {path}, the secret with id {id:08x}: set cluster.secret to this path on every node"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use becket_keys::files::Files;
    use becket_tls::secret;
    use becket_tls::secret::file::RunUser;

    #[test]
    fn what_is_made_can_be_opened_is_named_by_its_id_and_is_never_overwritten() {
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
