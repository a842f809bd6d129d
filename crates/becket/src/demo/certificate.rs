//! A certificate for localhost, made on the spot and kept.
//!
//! ECDSA P-256, self-signed, for `localhost`, `127.0.0.1` and `::1`; good for [`LIFETIME`] and made anew
//! when little of that is left, or when what is there cannot be read, does not fit together, or could
//! be read by others. Two files in a folder that only the user may enter: the certificate, which
//! clients are told to trust, and the bundle of certificate and key (mode 0600), which becket reads.
//! A lock file keeps two demos that start together from mixing their files.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use becket_keys::facts;

/// Where certificate and key are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate alone; not secret.
    pub certificate: PathBuf,
    /// Certificate and key.
    pub bundle: PathBuf,
}

/// Finds a usable certificate in `folder`, or makes one. The folder is made if it is not there, with
/// mode 0700. Waits for another demo that does the same.
///
/// # Errors
/// The folder cannot be made or written.
pub(crate) fn ensure(folder: &Path, now: SystemTime) -> io::Result<CertificateFiles> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    // Released when it is dropped, after the files are complete.
    let lock = File::create(folder.join("demo.lock"))?;
    lock.lock()?;
    let files = CertificateFiles {
        certificate: folder.join("demo-certificate.pem"),
        bundle: folder.join("demo-bundle.pem"),
    };
    let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    if !is_usable(&files, since_epoch) {
        make(&files, since_epoch)?;
    }
    Ok(files)
}

/// The folder for state that a user keeps (XDG Base Directory Specification), from the values of
/// XDG_STATE_HOME and HOME. Relative paths are ignored, as the specification asks.
pub(crate) fn state_folder(
    xdg_state_home: Option<OsString>,
    home: Option<OsString>,
) -> Option<PathBuf> {
    let absolute = |value: OsString| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    xdg_state_home
        .and_then(absolute)
        .or_else(|| Some(home.and_then(absolute)?.join(".local/state")))
        .map(|state| state.join("becket"))
}

/// Whether both files are there, belong together, are private enough and good for some days.
fn is_usable(files: &CertificateFiles, now: Duration) -> bool {
    let private =
        fs::metadata(&files.bundle).is_ok_and(|meta| meta.permissions().mode() & 0o077 == 0);
    let read = |path| fs::read_to_string(path).ok();
    let (Some(certificate), Some(bundle)) = (read(&files.certificate), read(&files.bundle)) else {
        return false;
    };
    private && fits(&certificate, &bundle, now).unwrap_or(false)
}

/// Whether the bundle is the certificate and its key, and the certificate is valid for
/// [`RENEWAL`] from now; `None` if something does not parse.
fn fits(certificate: &str, bundle: &str, now: Duration) -> Option<bool> {
    let key = KeyPair::from_pem(bundle.strip_prefix(certificate)?).ok()?;
    let der = CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?;
    let leaf = facts::certificate(&der)?;
    let validity = leaf.validity();
    let now = i64::try_from(now.as_secs()).ok()?;
    let until = now.checked_add(i64::try_from(RENEWAL.as_secs()).ok()?)?;
    let is_valid = validity.not_before.timestamp() <= now && validity.not_after.timestamp() > until;
    let is_its_key = *leaf.public_key().subject_public_key.data == *key.public_key_raw();
    Some(is_valid && is_its_key)
}

fn make(files: &CertificateFiles, now: Duration) -> io::Result<()> {
    let (certificate, key) = generate(now).map_err(io::Error::other)?;
    replace(&files.certificate, &certificate)?;
    replace(&files.bundle, &format!("{certificate}{key}"))
}

/// Certificate and key as PEM.
fn generate(now: Duration) -> Result<(String, String), rcgen::Error> {
    let names = NAMES.map(str::to_owned);
    let mut params = CertificateParams::new(names)?;
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    // A clock that is a little behind ours must not refuse it.
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

/// Replaces a file by one with mode 0600.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

const NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Browsers take up to 398 days.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// A certificate with less left is made anew: a demo does not run longer.
const RENEWAL: Duration = Duration::from_secs(7 * 24 * 60 * 60);
#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    fn time(since_epoch: Duration) -> SystemTime {
        UNIX_EPOCH + since_epoch
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// Makes files, lets `spoil` change them, and says whether the next start makes them anew.
    fn remade_after(spoil: impl FnOnce(&CertificateFiles), later: Duration) -> bool {
        let dir = tempfile::tempdir().unwrap();
        let files = ensure(dir.path(), time(NOW)).unwrap();
        let before = fs::read(&files.certificate).unwrap();
        spoil(&files);
        ensure(dir.path(), time(NOW + later)).unwrap();
        assert!(is_usable(&files, NOW + later));
        before != fs::read(&files.certificate).unwrap()
    }

    #[test]
    fn the_folder_and_the_key_are_the_users_alone() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state/becket");
        let files = ensure(&folder, time(NOW)).unwrap();
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(mode(&files.bundle), 0o600);
        assert!(
            !fs::read_to_string(&files.certificate)
                .unwrap()
                .contains("PRIVATE")
        );
    }

    #[test]
    fn a_good_certificate_is_kept_and_an_old_one_is_not() {
        assert!(!remade_after(|_| (), LIFETIME - RENEWAL - DAY));
        assert!(remade_after(|_| (), LIFETIME - RENEWAL));
        assert!(remade_after(|_| (), LIFETIME * 2));
    }

    #[test]
    fn what_cannot_be_used_is_made_anew() {
        let none = Duration::ZERO;
        assert!(remade_after(
            |files| fs::remove_file(&files.bundle).unwrap(),
            none
        ));
        assert!(remade_after(
            |files| fs::write(&files.certificate, "x").unwrap(),
            none
        ));
        let open = Permissions::from_mode(0o644);
        assert!(remade_after(
            |files| fs::set_permissions(&files.bundle, open).unwrap(),
            none
        ));
        let other_key = |files: &CertificateFiles| {
            let certificate = fs::read_to_string(&files.certificate).unwrap();
            let (_, key) = generate(NOW).unwrap();
            fs::write(&files.bundle, certificate + &key).unwrap();
        };
        assert!(remade_after(other_key, none));
    }

    #[test]
    fn the_certificate_is_for_localhost_and_not_an_authority() {
        let (certificate, _) = generate(NOW).unwrap();
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let leaf = facts::certificate(&der).unwrap();
        let names = leaf.subject_alternative_name().unwrap().unwrap();
        assert_eq!(names.value.general_names.len(), NAMES.len());
        assert!(!leaf.is_ca());
    }

    #[test]
    fn the_state_folder_follows_the_specification() {
        let folder = |xdg: &str, home: &str| state_folder(Some(xdg.into()), Some(home.into()));
        assert_eq!(folder("/s", "/h"), Some("/s/becket".into()));
        assert_eq!(folder("", "/h"), Some("/h/.local/state/becket".into()));
        assert_eq!(
            folder("relative", "/h"),
            Some("/h/.local/state/becket".into())
        );
        assert_eq!(folder("", ""), None);
        assert_eq!(state_folder(None, None), None);
    }
}
