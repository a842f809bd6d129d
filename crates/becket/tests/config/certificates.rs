//! Tests of certificate files: what loads, what is rejected, and which certificate serves which
//! name.

use crate::common::{Folder, Made, NOW, lines, site};
use becket_config::address::NamePattern;
use becket_keys::certificates::KeySet;
use rustls::SignatureAlgorithm;

#[test]
fn a_certbot_folder_is_loaded_as_a_certificate_and_key() {
    let folder = Folder::new();
    let made = Made::new(&["bot.test"], &rcgen::PKCS_ECDSA_P256_SHA256);
    for (file, text) in [
        ("fullchain.pem", made.pem()),
        ("privkey.pem", made.key.serialize_pem()),
        ("cert.pem", made.pem()),
        ("chain.pem", made.pem()),
        ("README", "not a certificate".to_owned()),
    ] {
        folder.write(&format!("live/bot.test/{file}"), &text);
    }
    for entry in ["live/bot.test/", "live/bot.test"] {
        let prepared = folder.prepare(&site(&format!("['{entry}']"))).unwrap();
        assert_eq!(lines(&prepared.warnings), [] as [&str; 0]);
        let map = &prepared.config.listeners[0].certificates;
        assert!(map.named("bot.test").is_some());
    }
    // With a bundle next to them, the folder is an ordinary folder of bundles, and a chain without
    // its key is an error.
    folder.bundle("live/bot.test/more.pem", &["more.test"]);
    let rejected = folder.prepare(&site("['live/bot.test']")).unwrap_err();
    let errors = lines(&rejected.errors);
    assert!(
        errors.iter().any(|error| error.contains("fullchain.pem")),
        "{errors:#?}"
    );
}

#[test]
fn the_last_file_and_files_that_share_a_name_with_it_are_the_default() {
    let folder = Folder::new();
    folder.write("1.pem", &Made::rsa(&["a.test", "b.test"]).bundle());
    folder.bundle("2.pem", &["other.test"]);
    folder.bundle("3.pem", &["b.test"]);
    let prepared = folder
        .prepare(&site("['1.pem', '2.pem', '3.pem']"))
        .unwrap();
    let map = &prepared.config.listeners[0].certificates;
    let chains = map.default_keys().chains().iter();
    let kinds = chains.map(|chain| chain.algorithm());
    let kinds: Vec<SignatureAlgorithm> = kinds.collect();
    assert_eq!(kinds, [SignatureAlgorithm::ECDSA, SignatureAlgorithm::RSA]);
    assert_eq!(map.named("a.test").unwrap().chains().len(), 1);
    assert_eq!(map.named("b.test").unwrap().chains().len(), 2);
}

#[test]
fn the_destination_address_replaces_a_missing_server_name() {
    let folder = Folder::new();
    folder.bundle("1.pem", &["192.0.2.1", "2001:db8::1", "a.test"]);
    folder.bundle("2.pem", &["192.0.2.2"]);
    folder.bundle("3.pem", &["c.test"]);
    let prepared = folder
        .prepare(&site("['1.pem', '2.pem', '3.pem']"))
        .unwrap();
    assert_eq!(lines(&prepared.warnings), [] as [&str; 0]);
    let map = &prepared.config.listeners[0].certificates;
    let by = |address: &str| map.name_by_address(|| address.parse().ok());
    for (address, name) in [
        ("192.0.2.1:443", Some("192.0.2.1")),
        ("[::ffff:192.0.2.2]:443", Some("192.0.2.2")),
        ("[2001:db8::1]:443", Some("2001:db8::1")),
        ("192.0.2.3:443", None),
    ] {
        assert_eq!(by(address).as_deref(), name);
        assert!(name.is_none_or(|name| map.named(name).is_some()));
    }
    let first = &map.named("2001:db8::1").unwrap().chains()[0];
    let named = &map.named("a.test").unwrap().chains()[0];
    assert_eq!(first.leaf(), named.leaf());
    let plain = folder.prepare(&site("['3.pem']")).unwrap().config;
    let asked = || unreachable!("no certificate is for an address");
    assert_eq!(plain.listeners[0].certificates.name_by_address(asked), None);
}

#[test]
fn a_policy_of_a_certificate_must_exist_and_excludes_routes() {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let text = site("[{ chain = 'a.pem', key = 'a.pem', policy = 'own' }]");
    let errors = |text: &str| lines(&folder.prepare(text).unwrap_err().errors);
    let path = "listener[web].certificates[0].policy = \"own\"";
    let unknown = errors(&text);
    assert!(
        unknown[0].starts_with(&format!("{path}: no policy")),
        "{unknown:?}"
    );
    let with_route = text.replace(
        "[[backend]]",
        "[[listener.route]]\nnames = ['a.test']\n[[backend]]",
    );
    let excluded = errors(&format!("{with_route}\n[[policy]]\nname = 'own'\n"));
    assert_eq!(
        excluded,
        [format!(
            "{path}: given, but this listener has routes or starttls; accepted: only without routes and starttls"
        )]
    );
}

#[test]
fn the_later_of_two_equivalent_certificates_is_used_with_a_warning() {
    let folder = Folder::new();
    folder.bundle("old.pem", &["a.test"]);
    folder.bundle("new.pem", &["a.test"]);
    let prepared = folder.prepare(&site("['old.pem', 'new.pem']")).unwrap();
    let warnings = lines(&prepared.warnings);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("for a.test this certificate is used, not"));
    assert!(warnings[0].contains("old.pem"));
}

#[test]
fn a_chain_out_of_order_is_rejected_with_the_mismatched_certificates() {
    let folder = Folder::new();
    let root = Made::authority("root");
    let between = root.issue_authority("between");
    let leaf = between.issue(&["a.test"]);
    folder.write("a.pem", &(leaf.bundle() + &root.pem() + &between.pem()));
    let errors = lines(&folder.prepare(&site("['a.pem']")).unwrap_err().errors);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains(
        "the chain is out of order: certificate 1 (CN=a.test) is issued by CN=between, \
         but certificate 2 is CN=root"
    ));
}

#[test]
fn an_issuer_with_the_right_name_and_another_key_is_rejected() {
    let folder = Folder::new();
    let real = Made::authority("root");
    let other = Made::authority("root");
    let leaf = real.issue(&["a.test"]);
    folder.write("a.pem", &(leaf.bundle() + &other.pem()));
    let errors = lines(&folder.prepare(&site("['a.pem']")).unwrap_err().errors);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0].contains("not signed by the next one"),
        "{errors:?}"
    );
}

#[test]
fn a_private_key_of_another_certificate_is_rejected() {
    let folder = Folder::new();
    let (a, b) = (
        Made::new(&["a.test"], &rcgen::PKCS_ED25519),
        Made::new(&["b.test"], &rcgen::PKCS_ED25519),
    );
    folder.write("a.pem", &(a.pem() + &b.key.serialize_pem()));
    let errors = lines(&folder.prepare(&site("['a.pem']")).unwrap_err().errors);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].starts_with("listener[web].certificates[0] = "));
    assert!(errors[0].contains("the private key belongs to another certificate"));
}

#[test]
fn the_error_names_the_chain_certificate_that_the_key_belongs_to() {
    let folder = Folder::new();
    let root = Made::authority("root");
    let leaf = root.issue(&["a.test"]);
    let text = leaf.pem() + &root.pem() + &root.key.serialize_pem();
    folder.write("a.pem", &text);
    let errors = lines(&folder.prepare(&site("['a.pem']")).unwrap_err().errors);
    assert!(errors[0].contains("belongs to certificate 2, not to the first"));
}

#[test]
fn files_without_a_valid_certificate_and_key_are_rejected() {
    let folder = Folder::new();
    let made = Made::new(&["a.test"], &rcgen::PKCS_ECDSA_P256_SHA256);
    folder.write("chain.pem", &made.pem());
    folder.write("key.pem", &made.key.serialize_pem());
    folder.write("two.pem", &(made.bundle() + &made.key.serialize_pem()));
    folder.write("broken.pem", "-----BEGIN CERTIFICATE-----\n");
    let secret = "-----BEGIN ENCRYPTED PRIVATE KEY-----\n-----END ENCRYPTED PRIVATE KEY-----\n";
    folder.write("secret.pem", &(made.pem() + secret));
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    folder.write("key.locked", secret);
    let text = site(
        "['chain.pem', 'key.pem', 'two.pem', 'broken.pem', 'secret.pem', 'empty', 'none.pem', \
         { chain = 'chain.pem' }, { chain = 'chain.pem', key = 'key.locked' }]",
    );
    let mut errors = lines(&folder.prepare(&text).unwrap_err().errors);
    // All folders are listed before files are loaded.
    errors.sort();
    let expected = [
        "certificates[0] = ",
        "certificates[1] = ",
        "certificates[2] = ",
        "certificates[3] = ",
        "certificates[4] = ",
        "certificates[5] = ",
        "certificates[6] = ",
        "certificates[7].key: ",
        "certificates[8].key = ",
    ];
    let faults = [
        "no private key",
        "no certificate",
        "more than one private key",
        "no END CERTIFICATE",
        "secret.pem.decrypted",
        "no *.pem in this directory",
        "no such file or directory",
        "missing",
        "key.locked\": the private key needs a password; accepted: a key without a password: openssl pkey -in ",
    ];
    assert_eq!(errors.len(), faults.len(), "{errors:#?}");
    for ((error, path), fault) in errors.iter().zip(expected).zip(faults) {
        assert!(error.contains(path) && error.contains(fault), "{error}");
    }
}

#[test]
fn an_ordered_certificate_fills_an_empty_folder_and_yields_to_a_file() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let acme = "[acme]\nfolder = 'acme'\n[[acme.certificate]]\nnames = ['a.test', 'b.test']";
    let text = site("['empty']") + acme;
    assert!(folder.prepare(&text).is_err());
    let ordering = text.replace("certificates =", "acme = true\ncertificates =");
    let prepared = folder.prepare(&ordering).unwrap();
    let warnings = lines(&prepared.warnings);
    assert!(warnings[0].contains("not issued yet"), "{warnings:?}");
    // The companion may write any certificate; only the configured names are served.
    folder.bundle(
        "acme/certificates/a.test.pem",
        &["a.test", "b.test", "c.test"],
    );
    folder.bundle("empty/b.pem", &["b.test"]);
    let prepared = folder.prepare(&ordering).unwrap();
    let map = &prepared.config.listeners[0].certificates;
    assert!(map.named("c.test").is_none());
    let file = |name: &str| map.named(name).unwrap().chains()[0].file();
    assert!(file("a.test").ends_with("acme/certificates/a.test.pem"));
    assert!(file("b.test").ends_with("empty/b.pem"));
}

#[test]
fn an_rsa_certificate_is_ordered_next_to_another_one() {
    let folder = Folder::new();
    let names = "[[acme.certificate]]\nnames = ['a.test']\n";
    let acme = format!("[acme]\nfolder = 'acme'\n{names}{names}key = 'rsa-2048'\n");
    let text = site("['site.pem']").replace("certificates =", "acme = true\ncertificates =");
    let text = text + &acme;
    folder.bundle("site.pem", &["site.test"]);
    folder.bundle("acme/certificates/a.test.pem", &["a.test"]);
    let used = || {
        let prepared = folder.prepare(&text).unwrap();
        let map = &prepared.config.listeners[0].certificates;
        let chains = map.named("a.test").unwrap().chains().iter();
        let files: Vec<_> = chains.map(|it| it.file()).collect();
        let names = files.iter().map(|it| it.file_name().unwrap());
        let names = names.map(|it| it.to_string_lossy().into_owned());
        (names.collect::<Vec<_>>(), lines(&prepared.warnings))
    };
    // The temporary certificate does not take the place of the issued one.
    let (files, warnings) = used();
    assert_eq!(files, ["a.test.pem"]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("a.test+rsa.pem"), "{warnings:?}");
    let rsa = Made::rsa(&["a.test"]).bundle();
    folder.write("acme/certificates/a.test+rsa.pem", &rsa);
    let (files, warnings) = used();
    assert_eq!(files, ["a.test.pem", "a.test+rsa.pem"]);
    assert!(warnings.is_empty(), "{warnings:?}");
    let account = "external-account = [{ id = 'a', key-file = 'b' }, { id = 'a', key-file = 'b' }, \
                   { authority = 'zerossl', id = 'a', key-file = 'b' }]\nfolder";
    let text = text.replace("folder", account) + names + "key = 'p384'\n";
    folder.refuses(
        &text,
        &[
            "acme.external-account[1].authority: an earlier entry is for the same authority; accepted: one entry for each authority",
            "acme.external-account[2].authority = \"zerossl\": not in acme.authority; accepted: one of acme.authority",
            "acme.certificate[2].names: an earlier certificate has the same first name; accepted: another order of the names, or key = \"rsa-2048\" in one of both",
        ],
    );
}

#[test]
fn invalid_and_imminent_expiry_dates_are_warnings() {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let year = 365 * 86_400;
    for (now, fault) in [
        (NOW, None),
        (NOW - year, Some("is not valid yet")),
        (NOW + year, Some("expired 151 days ago")),
        (1_735_689_600 - 3 * 86_400, Some("expires in 3 days")),
    ] {
        let prepared = folder.prepare_at(&site("['a.pem']"), now).unwrap();
        let warnings = lines(&prepared.warnings);
        match fault {
            None => assert!(warnings.is_empty(), "{warnings:?}"),
            Some(fault) => assert!(warnings[0].contains(fault), "{warnings:?}"),
        }
    }
}

#[test]
fn a_world_readable_key_is_a_warning() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let file = folder.bundle("a.pem", &["a.test"]);
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let prepared = folder.prepare(&site("['a.pem']")).unwrap();
    assert!(lines(&prepared.warnings)[0].contains("can read this private key"));
}

#[test]
fn the_common_name_is_used_only_without_other_names() {
    let folder = Folder::new();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "Old.test");
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem() + &key.serialize_pem();
    folder.write("a.pem", &pem);
    let prepared = folder.prepare(&site("['a.pem']")).unwrap();
    let map = &prepared.config.listeners[0].certificates;
    let names: Vec<NamePattern> = map.names().map(KeySet::pattern).collect();
    assert_eq!(names, [NamePattern::Exact("old.test".into())]);
}
