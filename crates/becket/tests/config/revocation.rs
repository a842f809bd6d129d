//! Tests of revocation lists: errors and warnings.

use becket_prepare::Prepared;
use becket_tls::config::Policy;
use rcgen::{
    CertificateParams, CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair,
    RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, UnixTime};

use crate::common::{Folder, Made, NOW, lines, site};

/// Returns a list issued by `authority`, with its next update at the end of year `until`.
fn list(authority: &Made, number: u64, until: i32) -> rcgen::CertificateRevocationList {
    let params = CertificateRevocationListParams {
        this_update: date_time_ymd(2022, 1, 1) + std::time::Duration::from_secs(number),
        next_update: date_time_ymd(until, 12, 31),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: vec![RevokedCertParams {
            serial_number: SerialNumber::from(number),
            revocation_time: date_time_ymd(2022, 1, 1),
            reason_code: None,
            invalidity_date: None,
        }],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let issuer = Issuer::from_params(&authority.params, &authority.key);
    params.signed_by(&issuer).unwrap()
}

fn folder() -> (Folder, Made) {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let authority = Made::authority("clients");
    folder.write("ca.pem", &authority.pem());
    (folder, authority)
}

fn text(crl: &str) -> String {
    site("['a.pem']")
        + "[[policy]]\nname = 'web'\nclient-certificates = 'required'\nclient-ca = 'ca.pem'\n"
        + &format!("crl = {crl}\n")
}

fn policy(prepared: &Prepared) -> &Policy {
    let route = &prepared.config.listeners[0].routes[0];
    route.policy.as_ref().unwrap()
}

/// Returns a client certificate with this serial number.
fn leaf(authority: &Made, serial: u64) -> CertificateDer<'static> {
    let mut params = CertificateParams::new(["client.test".to_owned()]).unwrap();
    params.serial_number = Some(SerialNumber::from(serial));
    let issuer = Issuer::from_params(&authority.params, &authority.key);
    let key = KeyPair::generate().unwrap();
    params.signed_by(&key, &issuer).unwrap().der().clone()
}

#[test]
fn crls_load_from_pem_and_der_and_only_the_newest_is_used() {
    let (folder, authority) = folder();
    let (one, two, three) = (
        list(&authority, 1, 2024),
        list(&authority, 2, 2024),
        list(&authority, 3, 2024),
    );
    folder.write("two.pem", &(one.pem().unwrap() + &three.pem().unwrap()));
    std::fs::write(folder.path().join("one.crl"), two.der()).unwrap();
    let prepared = folder.prepare(&text("['two.pem', 'one.crl']")).unwrap();
    assert_eq!(lines(&prepared.warnings), [] as [&str; 0]);
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(NOW));
    let verifier = policy(&prepared).verifier.as_ref().unwrap();
    // Each list revokes the certificate with its own number, and only the newest list counts.
    for serial in [1, 2, 3, 4] {
        let found = verifier.verify_client_cert(&leaf(&authority, serial), &[], now);
        assert_eq!(found.is_err(), serial == 3, "{serial}");
    }
}

#[test]
fn an_overdue_crl_and_an_unknown_crl_issuer_are_warnings() {
    let (folder, authority) = folder();
    folder.write("old.pem", &list(&authority, 1, 2023).pem().unwrap());
    let stranger = Made::authority("stranger");
    folder.write("strange.pem", &list(&stranger, 1, 2024).pem().unwrap());
    let prepared = folder.prepare(&text("['old.pem', 'strange.pem']")).unwrap();
    let warnings = lines(&prepared.warnings);
    assert_eq!(warnings.len(), 2, "{warnings:#?}");
    assert!(
        warnings[0].starts_with("policy[web].crl[0] = "),
        "{warnings:#?}"
    );
    assert!(warnings[0].contains("the revocation list of CN=clients is overdue"));
    assert!(
        warnings[1].starts_with("policy[web].crl[1] = "),
        "{warnings:#?}"
    );
    assert!(warnings[1].contains("issued by CN=stranger, which is not a CA of client-ca"));
}

#[test]
fn files_without_a_valid_revocation_list_are_rejected() {
    let (folder, authority) = folder();
    folder.write("empty.pem", "");
    folder.write("certificate.pem", &authority.pem());
    folder.write("cut.pem", "-----BEGIN X509 CRL-----\nAAAA\n");
    let whole = list(&authority, 1, 2024);
    let (half, _) = whole.der().split_at(whole.der().len() / 2);
    std::fs::write(folder.path().join("half.crl"), half).unwrap();
    let files = "['empty.pem', 'certificate.pem', 'cut.pem', 'half.crl', 'none.pem']";
    let errors = lines(&folder.prepare(&text(files)).unwrap_err().errors);
    let faults = [
        "no revocation list in the file",
        "no revocation list in the file",
        "a broken section",
        "not a revocation list",
        "no such file or directory",
    ];
    assert_eq!(errors.len(), faults.len(), "{errors:#?}");
    for (index, (error, fault)) in errors.iter().zip(faults).enumerate() {
        assert!(
            error.starts_with(&format!("policy[web].crl[{index}] = ")),
            "{error}"
        );
        assert!(error.contains(fault), "{error}");
    }
}

#[test]
fn revocation_lists_do_not_change_the_policy_digest() {
    let (folder, authority) = folder();
    folder.write("list.pem", &list(&authority, 1, 2024).pem().unwrap());
    let with = folder.prepare(&text("['list.pem']")).unwrap();
    let without = folder.prepare(&text("[]")).unwrap();
    assert_eq!(policy(&with).digest, policy(&without).digest);
}
