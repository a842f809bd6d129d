//! Orders from pebble, the test authority of Let's Encrypt.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
#[expect(unreachable_pub, reason = "end-to-end tests use the file, too")]
#[path = "../../../e2e/src/authority_proxy.rs"]
mod authority_proxy;
mod faults;
mod site;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use becket_acme::control::{Answer, Request, Row};
use becket_config::acme::{
    Acme, AcmeCertificate, Authority, ChallengeKind, ExternalAccount, KeyKind,
};
use becket_sys::privileges::is_root;

use site::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn a_trial_shows_what_an_authority_would_find(pebble: &Pebble) {
    let (code, text) = pebble.command(&["try", "a.test"]);
    assert_eq!(code, Some(0), "{text}");
    for name in ["a.test", "b.test"] {
        let finding = format!("\n{name}: 127.0.0.1:443 DOES NOT ANSWER THE CHALLENGE: ");
        assert!(text.contains(&finding), "{text}");
    }
    let allowed = "\nthe DNS records that exist allow the order\n";
    assert!(text.contains(allowed), "{text}");
    let caa = format!(
        "\na.test. CAA 0 issue \"pebble.letsencrypt.org; accounturi=https://localhost:{}/",
        pebble.acme
    );
    assert!(text.contains(&caa), "{text}");
}

#[test]
fn certificates_are_ordered_renewed_and_revoked() {
    let Some(pebble) = pebble() else { return };
    let mut section = pebble.section(vec![
        certificate(&["a.test", "b.test"]),
        AcmeCertificate {
            challenge: Some(ChallengeKind::Http),
            key: Some(KeyKind::Rsa2048),
            profile: Some("shortlived".to_owned()),
            ..certificate(&["c.test"])
        },
        AcmeCertificate {
            key: Some(KeyKind::P384),
            ..certificate(&["127.0.0.1"])
        },
    ]);
    // Without a profile, pebble chooses one at random.
    section.profile = Some("default".to_owned());
    section.contact = vec!["a@b.test".to_owned()];
    let running = pebble.start(&section);
    let rows = pebble.wait_for_all();
    assert!(
        rows.iter()
            .all(|row| row.error.is_none() && row.failures == 0),
        "{rows:?}"
    );
    let lifetime =
        |row: &Row| row.expires.unwrap().unix_seconds() - row.next.unwrap().unix_seconds();
    assert!(
        lifetime(&rows[1]) < 4 * 24 * 3600 && lifetime(&rows[0]) > 20 * 24 * 3600,
        "{rows:?}"
    );
    let toml = "[acme]\nfolder = 'acme'\n[[acme.certificate]]\nnames = ['a.test']\n";
    fs::write(pebble.folder.path().join("becket.toml"), toml).unwrap();
    let (code, text) = pebble.command(&["list"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.starts_with("a.test, b.test\n  file      a.test.pem\n  challenge tls-alpn-01\n"),
        "{text}"
    );
    assert_eq!(text.matches("\n  expires   20").count(), 3, "{text}");
    let (code, text) = pebble.command(&["renew", "z.test"]);
    assert_eq!(
        (code, text.contains("has this name")),
        (Some(1), true),
        "{text}"
    );
    assert_eq!(pebble.command(&["renew"]).0, Some(2));
    a_trial_shows_what_an_authority_would_find(&pebble);
    let first = pebble.bundle("a.test");
    assert_eq!(first.matches("BEGIN CERTIFICATE").count(), 2);
    assert_eq!(mode(&pebble.acme().join("certificates/a.test.pem")), 0o640);
    assert!(pebble.bundle("127.0.0.1").contains("PRIVATE KEY"));
    let orders = || fs::read_dir(pebble.acme().join("orders")).unwrap().count();
    assert_eq!(orders(), 0);
    // Keys are not reused.
    assert_eq!(pebble.renew("b.test"), None);
    let second = pebble.bundle("a.test");
    let key = |bundle: &str| {
        bundle
            .split_once("-----BEGIN PRIVATE")
            .unwrap()
            .1
            .to_owned()
    };
    assert_ne!(key(&first), key(&second));
    let revoked = pebble.ask(&Request::Revoke {
        name: "a.test".to_owned(),
    });
    assert!(
        matches!(revoked, Answer::Ended { error: None, .. }),
        "{revoked:?}"
    );
    until("another certificate", || pebble.bundle("a.test") != second);
    // After a restart, nothing is due.
    let last = pebble.bundle("a.test");
    drop(running);
    let _running = pebble.start(&section);
    let rows = pebble.rows();
    assert!(
        rows.iter()
            .all(|row| row.authority.is_some() && row.expires.is_some()),
        "{rows:?}"
    );
    assert_eq!(pebble.bundle("a.test"), last);
}

#[test]
fn a_wildcard_is_proved_by_the_hook() {
    let Some(pebble) = pebble() else { return };
    let Some(curl) = becket_tidy::find("curl") else {
        return;
    };
    let hook = pebble.folder.path().join("hook");
    let script = format!(
        "#!/bin/sh\ncase $1 in present) path=set-txt ;; remove) path=clear-txt ;; esac\n\
         exec {} -sf -d \"{{\\\"host\\\":\\\"$2.\\\",\\\"value\\\":\\\"$3\\\"}}\" http://127.0.0.1:{}/$path\n",
        curl.display(),
        pebble.dns_control
    );
    fs::write(&hook, script).unwrap();
    fs::set_permissions(&hook, Permissions::from_mode(0o755)).unwrap();
    let section = Acme {
        hook: Some("hook".to_owned()),
        challenge: ChallengeKind::Dns,
        ..pebble.section(vec![certificate(&["*.d.test", "d.test"])])
    };
    let _running = pebble.start(&section);
    pebble.wait_for_all();
    assert!(pebble.bundle("_.d.test").contains("PRIVATE KEY"));
}

#[test]
fn an_account_is_bound_to_an_account_of_the_authority() {
    // 32 bytes in base64url.
    let key = "A".repeat(43);
    let Some(pebble) = pebble_with(|config| {
        config["externalAccountBindingRequired"] = true.into();
        config["externalAccountMACKeys"] = serde_json::json!({"id-1": key});
    }) else {
        return;
    };
    let mut section = pebble.section(vec![certificate(&["f.test"])]);
    let running = pebble.start(&section);
    until("a failure", || pebble.rows()[0].error.is_some());
    let error = pebble.rows()[0].error.clone().unwrap();
    assert!(error.contains("acme.external-account: none for"), "{error}");
    drop(running);
    fs::write(pebble.folder.path().join("mac.key"), format!("{key}\n")).unwrap();
    section.external_account = vec![ExternalAccount {
        authority: None,
        id: "id-1".to_owned(),
        key_file: "mac.key".to_owned(),
    }];
    let running = pebble.start(&section);
    pebble.wait_for_all();
    drop(running);
    // Nothing answers at this port, so the authority decides.
    section.name_servers[0].0.set_port(1);
    let _running = pebble.start(&section);
    let Answer::Ended { records, error } = pebble.ask(&Request::Try { name: None }) else {
        panic!("not tried");
    };
    assert_eq!(error, None);
    let failure = "cannot look up DNS records; the authority decides: f.test: CAA: ";
    assert!(
        records.iter().any(|it| it.starts_with(failure)),
        "{records:?}"
    );
}

#[test]
fn a_second_authority_with_an_external_account_of_its_own_takes_over() {
    let key = "A".repeat(43);
    let Some(pebble) = pebble_with(|config| {
        config["externalAccountBindingRequired"] = true.into();
        config["externalAccountMACKeys"] = serde_json::json!({"id-2": key});
    }) else {
        return;
    };
    fs::write(pebble.folder.path().join("mac.key"), &key).unwrap();
    let mut section = pebble.section(vec![certificate(&["h.test"])]);
    // Nothing listens at this port.
    let dead = format!("https://localhost:{}/dir", port(&free()));
    section.authority.insert(0, Authority::Directory(dead));
    let numbered = section.authority.iter().zip(1..);
    let accounts = numbered.map(|(authority, number)| ExternalAccount {
        authority: Some(authority.clone()),
        id: format!("id-{number}"),
        key_file: ["none.key", "mac.key"][number - 1].to_owned(),
    });
    section.external_account = accounts.collect();
    let _running = pebble.start(&section);
    until("a failure", || pebble.rows()[0].error.is_some());
    let mut errors = Vec::new();
    until("the second authority issues", || {
        let error = pebble.renew("h.test");
        errors.extend(error.clone());
        error.is_none()
    });
    assert!(errors.len() <= 2, "{errors:?}");
    let issuer = pebble.rows()[0].authority.clone().unwrap();
    assert!(issuer.contains(&pebble.acme.to_string()), "{issuer}");
}

#[test]
fn a_permanent_record_proves_a_wildcard() {
    let Some(pebble) = pebble() else { return };
    let section = Acme {
        challenge: ChallengeKind::DnsPersist,
        ..pebble.section(vec![certificate(&["*.e.test"])])
    };
    let _running = pebble.start(&section);
    until("a failure", || pebble.rows()[0].error.is_some());
    let Answer::Ended { records, error } = pebble.ask(&Request::Try { name: None }) else {
        panic!("no records");
    };
    let missing = "_validation-persist.e.test. has no TXT record; expected ";
    let expected = format!("{missing}{}", records[0]);
    assert_eq!(error.as_deref(), Some(&*expected));
    assert_eq!(pebble.rows()[0].error, error);
    let (name, value) = records[0].split_once(" TXT ").unwrap();
    dns(
        pebble.dns_control,
        "/set-txt",
        &format!("{{\"host\":\"{name}\",\"value\":{value}}}"),
    );
    assert_eq!(pebble.renew("*.e.test"), None);
}

#[test]
fn a_full_disk_begins_no_order_and_keeps_the_certificate() {
    let Some(pebble) = pebble() else { return };
    let Some(mount) = becket_tidy::find("mount").filter(|_| is_root()) else {
        return becket_tidy::skip("needs root");
    };
    let section = pebble.section(vec![certificate(&["g.test"])]);
    drop(pebble.start(&section));
    let mut command = Command::new(mount);
    command.args([
        "-t",
        "tmpfs",
        "-o",
        "size=64k,uid=12345,gid=12345,mode=750",
        "tmpfs",
    ]);
    if !command.arg(pebble.acme()).status().unwrap().success() {
        return becket_tidy::skip("needs the right to mount a file system");
    }
    let _unmounted = Unmounted(pebble.acme());
    let _running = pebble.start(&section);
    pebble.wait_for_all();
    let first = pebble.bundle("g.test");
    let filler = pebble.acme().join("filler");
    fs::write(&filler, vec![0; 64 * 1024]).unwrap_err();
    let error = pebble.renew("g.test").unwrap();
    assert!(error.contains("No space left on device"), "{error}");
    assert_eq!(pebble.bundle("g.test"), first);
    fs::remove_file(filler).unwrap();
    assert_eq!(pebble.renew("g.test"), None);
    assert_ne!(pebble.bundle("g.test"), first);
}

/// Unmounts a folder when the test ends.
struct Unmounted(PathBuf);

impl Drop for Unmounted {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}
