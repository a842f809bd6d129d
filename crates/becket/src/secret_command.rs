//! `becket secret`: makes a secret for a cluster, in a file that only its owner can read.
//!
//! Nothing is ever overwritten: the file that is there may be the one that a cluster runs on.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use becket_config::notation::{ValueError, duration};
use becket_proto::epoch::EpochLength;
use becket_proto::ticket::UnixSeconds;

use becket_keys::files::reason;
use becket_tls::secret::ratchet::Ratchet;
use becket_tls::secret::shared::{NoRandomness, NotDerived, SecretBytes, SharedSecret};
use becket_tls::secret::{base64, file};

/// Arguments of `becket secret`.
#[derive(Clone, Debug, clap::Args)]
pub struct SecretFlags {
    /// File to make; one that is there is left alone
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Make the state of a ratchet, for cluster.secret-state: it forgets what is past
    #[arg(long)]
    pub state: bool,

    /// Length of the ratchet's epochs, which cluster.rotation must agree with
    #[arg(long, value_name = "DURATION", requires = "state", default_value = "8h", value_parser = rotation)]
    pub rotation: EpochLength,
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
pub fn make(flags: &SecretFlags, now: UnixSeconds) -> Result<String, NotMade> {
    let path = &flags.file;
    if flags.state {
        let ratchet = Ratchet::draw(path, flags.rotation, flags.rotation.number_at(now))?;
        write(path, &ratchet.text())?;
        return Ok(said(path, ratchet.id().0, "secret-state"));
    }
    let root = SecretBytes::draw()?;
    let mut line = base64::encode(root.expose());
    // The string has room for its end.
    line.push('\n');
    let secret = SharedSecret::of_root(root, path)?;
    write(path, &line)?;
    Ok(said(path, secret.id.0, "secret"))
}

fn write(path: &Path, text: &str) -> Result<(), NotMade> {
    file::create(path, text).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => NotMade::Exists(path.to_owned()),
        _ => NotMade::System(path.to_owned(), reason(&error)),
    })
}

fn said(path: &Path, id: u32, key: &str) -> String {
    let path = path.display();
    format!(
        "made {path}, the secret with id {id:08x}: set cluster.{key} to this path on every node"
    )
}

/// The length of an epoch, as a flag.
fn rotation(text: &str) -> Result<EpochLength, ValueError> {
    let length = duration(text)?;
    let fits = (SHORTEST..=LONGEST).contains(&length);
    let length = EpochLength::of(length).filter(|_| fits);
    length.ok_or("accepted: whole seconds, 1s to 84h".into())
}

/// The shortest epoch.
pub(crate) const SHORTEST: Duration = Duration::from_secs(1);
/// Half of what RFC 8446, section 4.6.1, allows a ticket to live: one is good for up to two epochs.
pub(crate) const LONGEST: Duration = Duration::from_secs(7 * 86_400 / 2);

#[cfg(test)]
mod tests {
    use super::*;
    use becket_tls::secret;
    use becket_tls::secret::file::RunUser;

    fn flags(file: PathBuf, state: bool) -> SecretFlags {
        SecretFlags {
            file,
            state,
            rotation: rotation("8h").unwrap(),
        }
    }

    #[test]
    fn what_is_made_can_be_opened_and_is_named_by_its_id() {
        let folder = tempfile::tempdir().unwrap();
        for (name, state) in [("root", false), ("state", true)] {
            let path = folder.path().join(name);
            let said = make(&flags(path.clone(), state), UnixSeconds(1_800_000_000)).unwrap();
            let opened = secret::open(
                &becket_keys::files::Files::default(),
                &path,
                &RunUser::effective(),
            )
            .unwrap();
            assert!(
                said.contains(&format!("{:08x}", opened.secret.id.0)),
                "{said}"
            );
            assert_eq!(opened.ratchet.is_some(), state);
            assert_eq!(opened.secret.root.is_none(), state);
        }
    }

    #[test]
    fn nothing_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "precious").unwrap();
        for state in [false, true] {
            let made = make(&flags(path.clone(), state), UnixSeconds(0));
            assert!(matches!(made, Err(NotMade::Exists(_))));
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), "precious");
    }
}
