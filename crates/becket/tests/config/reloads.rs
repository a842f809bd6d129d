//! A reload keeps every part of the running configuration whose files have the same contents.

use std::sync::Arc;

use becket_keys::loaded::Loaded;
use becket_tls::config::Config;

use crate::common::{Folder, Made, NOW, lines, site};

fn key(config: &Config, name: &str) -> Arc<Loaded> {
    let keys = config.listeners[0].certificates.named(name).unwrap();
    Arc::clone(&keys.chains()[0])
}

fn two_sites(folder: &Folder) -> Config {
    folder.bundle("sites/a.pem", &["a.test"]);
    folder.bundle("sites/b.pem", &["b.test"]);
    folder.prepare(&site("['sites']")).unwrap().config
}

#[test]
fn unchanged_objects_are_shared_with_the_previous_configuration() {
    let folder = Folder::new();
    folder.bundle("sites/a.pem", &["a.test"]);
    folder.write("ca.pem", &Made::authority("ca").pem());
    let text = site("['sites']")
        + "[backend.tls]\nca = 'ca.pem'\n\
           [[policy]]\nname = 'web'\nclient-certificates = 'required'\nclient-ca = 'ca.pem'\n";
    let running = folder.prepare(&text).unwrap().config;
    let text = text.replace("127.0.0.1:8080", "127.0.0.1:8081");
    let config = folder.reload(&running, &text, NOW).unwrap().config;
    let [old, new] = [&running, &config].map(|config| &config.listeners[0]);
    assert!(Arc::ptr_eq(&old.certificates, &new.certificates));
    let [old, new] = [old, new].map(|listener| listener.routes[0].policy.as_ref().unwrap());
    assert!(Arc::ptr_eq(old, new));
    let [old, new] = [&running, &config].map(|config| config.backends[0].tls.as_ref().unwrap());
    assert!(Arc::ptr_eq(&old.verifier, &new.verifier));
}

#[test]
fn a_reload_loads_only_the_changed_files_of_a_folder() {
    let folder = Folder::new();
    let running = two_sites(&folder);
    folder.bundle("sites/b.pem", &["b.test"]);
    let reloaded = folder.reload(&running, &site("['sites']"), NOW);
    let config = reloaded.unwrap().config;
    let is_shared = |name| Arc::ptr_eq(&key(&running, name), &key(&config, name));
    assert_eq!(["a.test", "b.test"].map(is_shared), [true, false]);
}

#[test]
fn listeners_with_the_same_files_share_their_chains() {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let text = site("['a.pem']")
        + "[[listener]]\nname = 'other'\nbind = ['127.0.0.1:8444']\nbackend = 'app'\ncertificates = ['a.pem']\n";
    let mut config = folder.prepare(&text).unwrap().config;
    let first = key(&config, "a.test");
    config.listeners.remove(0);
    assert!(Arc::ptr_eq(&first, &key(&config, "a.test")));
}

#[test]
fn keys_are_loaded_again_if_the_signing_mode_changes() {
    let folder = Folder::new();
    let running = two_sites(&folder);
    let text = site("['sites']") + "[process]\ncrypto-threads = 0\n";
    let config = folder.reload(&running, &text, NOW).unwrap().config;
    assert!(!Arc::ptr_eq(
        &key(&running, "a.test"),
        &key(&config, "a.test")
    ));
}

#[test]
fn a_reload_checks_the_dates_of_unchanged_chains() {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let text = site("['a.pem']");
    let running = folder.prepare(&text).unwrap().config;
    let year = 365 * 86_400;
    let reloaded = folder.reload(&running, &text, NOW + year).unwrap();
    let warnings = lines(&reloaded.warnings);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains(" ago"), "{warnings:?}");
    let shared = [&running, &reloaded.config].map(|config| key(config, "a.test"));
    assert!(Arc::ptr_eq(&shared[0], &shared[1]));
}

#[test]
fn a_certificate_policy_does_not_apply_to_a_folder_with_the_same_files() {
    let folder = Folder::new();
    let made = Made::new(&["a.test"], &rcgen::PKCS_ECDSA_P256_SHA256);
    folder.write("a/fullchain.pem", &made.pem());
    folder.write("a/privkey.pem", &made.key.serialize_pem());
    let text = "[[listener]]\nname = 'first'\nbind = ['127.0.0.1:8444']\nbackend = 'app'\n\
         certificates = [{ chain = 'a/fullchain.pem', key = 'a/privkey.pem', policy = 'strict' }]\n"
        .to_owned()
        + &site("['a']")
        + "[[policy]]\nname = 'strict'\nversions = ['1.3']\n";
    let config = folder.prepare(&text).unwrap().config;
    let policies = config.listeners.iter().map(|listener| {
        let keys = listener.certificates.named("a.test").unwrap();
        keys.policy().is_some()
    });
    assert_eq!(policies.collect::<Vec<_>>(), [true, false]);
}
