//! Generates a certificate for localhost and keeps it for later starts of the demo.
//!
//! The certificate is self-signed with an ECDSA P-256 key, for `localhost`, `127.0.0.1` and `::1`,
//! and valid for [`LIFETIME`]. It is stored in two files: the certificate for clients to trust, and
//! the bundle of certificate and key (mode 0600) for becket. Only the user can access the folder
//! that contains them.
//!
//! A new certificate is generated if the stored one is valid for less than [`RENEWAL`], or if the
//! files cannot be read, do not match, or are readable by other users. A lock file prevents two
//! demos from writing the files at the same time.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CertificateFiles {
    /// File with the certificate only. It contains no secret.
    pub(super) certificate: PathBuf,
    pub(super) bundle: PathBuf,
}

/// Returns a usable certificate in `folder`, or generates one. Creates the folder with mode 0700 if
/// it does not exist. Blocks while another demo does the same.
///
/// # Errors
/// The folder cannot be created or written.
pub(super) fn ensure(folder: &Path, now: SystemTime) -> io::Result<CertificateFiles> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    // The lock is released on drop, after the files are complete.
    let lock = File::create(folder.join("demo.lock"))?;
    lock.lock()?;
    let files = CertificateFiles {
        certificate: folder.join("demo-certificate.pem"),
        bundle: folder.join("demo-bundle.pem"),
    };
    if !is_usable(&files, now).unwrap_or(false) {
        make(&files, now)?;
    }
    Ok(files)
}

/// Returns the user's state folder (XDG Base Directory Specification). Ignores relative paths, as
/// the specification requires.
pub(super) fn state_folder() -> Option<PathBuf> {
    let absolute =
        |name| Some(PathBuf::from(std::env::var_os(name)?)).filter(|it| it.is_absolute());
    let state = absolute("XDG_STATE_HOME");
    let state = state.or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("becket"))
}

/// Returns `true` if the bundle begins with the certificate, no other user can read the bundle, and
/// the certificate is valid for at least [`RENEWAL`].
fn is_usable(files: &CertificateFiles, now: SystemTime) -> io::Result<bool> {
    let bundle = fs::metadata(&files.bundle)?;
    let age = now.duration_since(bundle.modified()?).unwrap_or_default();
    let certificate = fs::read_to_string(&files.certificate)?;
    let is_whole = fs::read_to_string(&files.bundle)?.starts_with(&certificate);
    let is_private = bundle.permissions().mode() & 0o077 == 0;
    Ok(is_whole && is_private && age < LIFETIME - RENEWAL)
}

fn make(files: &CertificateFiles, now: SystemTime) -> io::Result<()> {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (certificate, key) = generate(now).map_err(io::Error::other)?;
    replace(&files.certificate, &certificate)?;
    replace(&files.bundle, &format!("{certificate}{key}"))
}

fn generate(now: Duration) -> Result<(String, String), rcgen::Error> {
    let names = NAMES.map(str::to_owned);
    let mut params = CertificateParams::new(names)?;
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    // A client with a slow clock must still accept the certificate.
    params.not_before = epoch + now.saturating_sub(DAY);
    params.not_after = epoch + now + LIFETIME;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let name = "becket demo on localhost";
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// Replaces a file with a new one of mode 0600.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

const NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Browsers accept up to 398 days.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Minimum remaining lifetime of a stored certificate. It is longer than any demo runs.
const RENEWAL: Duration = Duration::from_secs(7 * 24 * 60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates files, changes them with `spoil`, and returns `true` if the next start replaces
    /// them.
    fn remade_after(spoil: impl FnOnce(&CertificateFiles), later: Duration) -> bool {
        #[expect(
            clippy::disallowed_methods,
            reason = "files have the time of the system"
        )]
        let now = SystemTime::now();
        let dir = tempfile::tempdir().unwrap();
        let files = ensure(&dir.path().join("state/becket"), now).unwrap();
        let before = fs::read(&files.certificate).unwrap();
        spoil(&files);
        ensure(&dir.path().join("state/becket"), now + later).unwrap();
        assert!(is_usable(&files, now).unwrap());
        before != fs::read(&files.certificate).unwrap()
    }

    #[test]
    fn a_valid_certificate_is_kept_and_an_unusable_one_is_replaced() {
        let none = Duration::ZERO;
        assert!(!remade_after(|_| (), LIFETIME - RENEWAL - DAY));
        assert!(remade_after(|_| (), LIFETIME - RENEWAL + DAY));
        assert!(remade_after(
            |it| fs::remove_file(&it.bundle).unwrap(),
            none
        ));
        assert!(remade_after(
            |it| fs::write(&it.certificate, "x").unwrap(),
            none
        ));
        let open = |it: &CertificateFiles| {
            fs::set_permissions(&it.bundle, Permissions::from_mode(0o644)).unwrap();
        };
        assert!(remade_after(open, none));
    }
}
