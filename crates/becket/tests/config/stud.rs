//! Tests of `[cluster]` with sessions of stud and hitch: conditions for their acceptance, and
//! errors.

use becket_proto::session::PolicyTag;

use crate::common::{Folder, Made, SECRET, lines, site};

const CLUSTER: &str = "[cluster]\nsecret = 'secret'\nnode = 1\n";
const RECEIVE: &str =
    "receive-stud = true\nstud-listen = '127.0.0.1:8890'\nstud-certificate = 'rsa.pem'\n";

fn folder() -> Folder {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    folder.write("rsa.pem", &Made::rsa(&["a.test"]).bundle());
    folder.write("secret", SECRET);
    folder.write("ca.pem", &Made::authority("clients").pem());
    folder
}

fn errors(folder: &Folder, text: &str) -> Vec<String> {
    lines(&folder.prepare(text).unwrap_err().errors)
}

fn text(keys: &str) -> String {
    format!("{}{CLUSTER}{keys}", site("['a.pem']"))
}

#[test]
fn three_keys_are_enough_where_there_is_one_policy() {
    let prepared = folder().prepare(&text(RECEIVE)).unwrap();
    let config = prepared.config;
    let stud = config.stud().expect("terms");
    let policy = config.listeners[0].routes[0].policy.as_ref().unwrap();
    assert_eq!(stud.policy, PolicyTag::from_digest(&policy.digest));
    assert_eq!(stud.policy_name, *policy.keys.name);
    assert_eq!(stud.listen.to_string(), "127.0.0.1:8890");
    assert!(stud.suites.contains(&0xc030), "{:x?}", stud.suites);
    assert!(!stud.suites.contains(&0x1301), "of TLS 1.3");
    assert!(
        !format!("{:?}", stud.key).contains(','),
        "a secret is shown"
    );
}

#[test]
fn the_key_is_the_same_in_either_encoding() {
    use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
    use rustls_pki_types::PrivatePkcs1KeyDer;
    use rustls_pki_types::pem::PemObject;

    let folder = folder();
    let pkcs1 = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/config/keys/pkcs1.pem"
    ))
    .unwrap();
    let der = PrivatePkcs1KeyDer::from_pem_slice(pkcs1.as_bytes()).unwrap();
    let wanted = digest(&SHA1_FOR_LEGACY_USE_ONLY, der.secret_pkcs1_der());
    folder.write("rsa.pem", &pkcs1);
    let config = folder.prepare(&text(RECEIVE)).unwrap().config;
    let key = config.stud().unwrap().key.clone();
    assert_eq!(key.expose(), wanted.as_ref());
    let pkcs8 = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/config/keys/pkcs8.pem"
    ))
    .unwrap();
    folder.write("rsa.pem", &pkcs8);
    let config = folder.prepare(&text(RECEIVE)).unwrap().config;
    assert_eq!(config.stud().unwrap().key, key);
}

#[test]
fn an_ecdsa_key_is_refused_since_everybody_has_what_seals_for_it() {
    let keys = RECEIVE.replace("rsa.pem", "a.pem");
    let found = errors(&folder(), &text(&keys));
    assert!(
        found[0].contains("not an RSA key; with other keys, stud and hitch use a key of zeros"),
        "{found:?}"
    );
}

#[test]
fn of_several_policies_one_is_named_and_it_asks_for_no_certificates() {
    let staff = "[[listener]]\nname = 'staff'\nbind = ['127.0.0.1:8444']\n\
        certificates = ['a.pem']\nbackend = 'app'\npolicy = 'staff'\n\
        [[policy]]\nname = 'staff'\nclient-certificates = 'required'\nclient-ca = 'ca.pem'\n\
        [[policy]]\nname = 'modern'\nversions = ['1.3']\n";
    let folder = folder();
    let with = |policy: &str| format!("{}{policy}\n{staff}", text(RECEIVE));
    let missing = errors(&folder, &with(""));
    assert!(
        missing[0].starts_with(
            "cluster.stud-policy: missing, and several policies are in use; accepted: one of "
        ),
        "{missing:?}"
    );
    let unknown = errors(&folder, &with("stud-policy = 'modern'"));
    assert!(
        unknown[0].contains("no policy in use has this name"),
        "{unknown:?}"
    );
    let staffed = errors(&folder, &with("stud-policy = 'staff'"));
    assert!(
        staffed[0].contains(": the policy requests client certificates"),
        "{staffed:?}"
    );
    let name = {
        let plain = folder.prepare(&text(RECEIVE)).unwrap().config;
        let policy = plain.listeners[0].routes[0].policy.as_ref().unwrap();
        policy.keys.name.clone()
    };
    let named = folder.prepare(&with(&format!("stud-policy = '{name}'")));
    let named = named.unwrap().config;
    assert_eq!(named.stud().unwrap().policy_name, *name);
}

#[test]
fn a_secret_may_be_made_from_a_private_key() {
    let folder = folder();
    for name in ["pkcs1.pem", "pkcs8.pem"] {
        let keys = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/config/keys/");
        folder.write(
            name,
            &std::fs::read_to_string(format!("{keys}{name}")).unwrap(),
        );
    }
    let text = |keys: &str| format!("{}[cluster]\nnode = 1\n{keys}", site("['a.pem']"));
    let secret = |keys: &str| {
        let config = folder.prepare(&text(keys)).unwrap().config;
        config.cluster.unwrap().secrets.remove(0)
    };
    let [one, same, other] = ["pkcs1.pem", "pkcs8.pem", "a.pem"]
        .map(|file| secret(&format!("secret-from-key = '{file}'")));
    assert_eq!((one.id, &one.replication), (same.id, &same.replication));
    assert_ne!(one.id, other.id);
    // An ECDSA key is suitable here, but not for sessions of stud.
    let both = RECEIVE.replace("rsa.pem", "a.pem") + "secret-from-key = 'a.pem'";
    let prepared = folder.prepare(&text(&both)).unwrap();
    assert!(prepared.config.stud().is_none());
    let warnings = lines(&prepared.warnings);
    assert!(
        warnings[0].contains("are not received: not an RSA key"),
        "{warnings:?}"
    );
    for (keys, fault) in [
        (
            "secret-from-key = 'pkcs11:object=a?module-path=/x'",
            "a key on a token",
        ),
        (
            "secret-from-key = 'a.pem'\nsecret = 'secret'",
            "conflicts with cluster.secret",
        ),
        ("secret-from-key = 'ca.pem'", "no private key"),
    ] {
        let found = errors(&folder, &text(keys));
        assert!(found[0].contains(fault), "{found:?}");
    }
}
