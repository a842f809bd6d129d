//! Changed files are loaded one by one, and the result is that of a reload.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use becket_keys::files::SMALL_FOLDER;
use becket_keys::loaded::Loaded;
use becket_keys::stamp::path_hash;
use becket_keys::watch::Changes;
use becket_prepare::changed::ChangedFiles;
use becket_prepare::renewal::Renewal;
use becket_tls::config::Config;

use crate::common::{Folder, Made, NOW, lines, site};

/// Files of one listener in a folder, and the running configuration.
struct Site {
    folder: Folder,
    text: String,
    running: Config,
}

impl Site {
    fn new(count: usize) -> Self {
        let folder = Folder::new();
        let made = Made::new(&["same.test"], &rcgen::PKCS_ECDSA_P256_SHA256);
        for number in 0..count {
            folder.write(&format!("certs/{number:05}.pem"), &made.bundle());
        }
        folder.bundle("certs/a.pem", &["a.test", "192.0.2.1"]);
        folder.bundle("certs/b.pem", &["b.test", "shared.test"]);
        let text = site("['certs']");
        let running = folder.prepare(&text).unwrap().config;
        Self {
            folder,
            text,
            running,
        }
    }

    fn at(&self, file: &str) -> PathBuf {
        self.folder.path().join("certs").join(file)
    }

    fn names(&self) -> BTreeMap<String, Arc<Loaded>> {
        let map = &self.running.listeners[0].certificates;
        let names = map.names();
        names
            .map(|keys| (keys.name().to_owned(), Arc::clone(&keys.chains()[0])))
            .collect()
    }

    /// Loads these changed and removed files, and compares the result with a reload.
    fn renew(&mut self, changed: &[&str], gone: &[&str]) -> Renewal {
        let mut paths: Vec<PathBuf> = changed.iter().map(|file| self.at(file)).collect();
        paths.push(self.folder.path().join("certs"));
        let changed = ChangedFiles {
            changes: Changes {
                paths: paths.into_iter().collect(),
                gone: gone.iter().map(|file| path_hash(&self.at(file))).collect(),
            },
            ..ChangedFiles::default()
        };
        let renewal = self.folder.renew(&self.running, &changed);
        if let Some(config) = &renewal.config {
            self.running = config.clone();
        }
        if renewal.kept_out.is_empty() {
            let reloaded = self.folder.reload(&self.running, &self.text, NOW).unwrap();
            let maps = [&self.running, &reloaded.config];
            let [own, other] = maps.map(|it| &it.listeners[0].certificates);
            assert!(
                Arc::ptr_eq(own, other),
                "the reload finds other certificates"
            );
        }
        renewal
    }
}

fn taken(renewal: &Renewal, site: &Site, files: &[&str]) {
    let files: Vec<String> = files
        .iter()
        .map(|it| site.at(it).display().to_string())
        .collect();
    assert!(renewal.taken.iter().eq(&files), "{:?}", renewal.taken);
}

/// Changes files of a small folder, which is read as a whole, and of a large one.
#[test]
fn changed_new_removed_and_broken_files_of_a_folder_are_renewed_one_by_one() {
    for count in [0, SMALL_FOLDER] {
        let mut site = Site::new(count);
        let first = site.names();
        site.folder
            .bundle("certs/a.pem", &["a.test", "shared.test"]);
        let renewal = site.renew(&["a.pem"], &[]);
        taken(&renewal, &site, &["a.pem"]);
        let second = site.names();
        assert!(!Arc::ptr_eq(&first["a.test"], &second["a.test"]));
        assert!(Arc::ptr_eq(&first["b.test"], &second["b.test"]));
        // The later file is used for a name of both, before and after it is removed.
        assert!(Arc::ptr_eq(&second["shared.test"], &second["b.test"]));
        assert!(!second.contains_key("192.0.2.1"));
        let warnings = lines(&renewal.warnings);
        assert!(
            warnings.iter().any(|it| it.contains("for shared.test")),
            "{warnings:?}"
        );

        fs::remove_file(site.at("b.pem")).unwrap();
        let renewal = site.renew(&[], &["b.pem"]);
        taken(&renewal, &site, &["b.pem"]);
        let third = site.names();
        assert!(Arc::ptr_eq(&third["shared.test"], &second["a.test"]));
        assert!(!third.contains_key("b.test"));
        let default = site.running.listeners[0].certificates.default_keys();
        assert!(Arc::ptr_eq(&default.chains()[0], &second["a.test"]));

        site.folder.write("certs/bad.pem", "none");
        site.folder.bundle("certs/c.pem", &["c.test"]);
        let renewal = site.renew(&["bad.pem", "c.pem"], &[]);
        assert_eq!(renewal.kept_out.len(), 1);
        assert!(lines(&renewal.kept_out)[0].contains("bad.pem"));
        assert!(site.names().contains_key("c.test"));

        // A rejected file is looked at again, although it was removed.
        fs::remove_file(site.at("bad.pem")).unwrap();
        let renewal = site.renew(&["bad.pem", "c.pem"], &["bad.pem"]);
        assert!(renewal.config.is_none() && renewal.kept_out.is_empty());

        // Equal contents change nothing.
        let text = fs::read_to_string(site.at("c.pem")).unwrap();
        site.folder.write("certs/c.pem", &text);
        assert!(site.renew(&["c.pem"], &[]).config.is_none());
    }
}

#[test]
fn certificates_stay_in_use_while_their_folder_is_missing() {
    for count in [0, SMALL_FOLDER] {
        let mut site = Site::new(count);
        let (from, to) = (
            site.folder.path().join("certs"),
            site.folder.path().join("away"),
        );
        fs::rename(&from, &to).unwrap();
        let renewal = site.renew(&[], &["a.pem", "b.pem"]);
        assert!(renewal.config.is_none());
        let faults = lines(&renewal.kept_out);
        assert!(
            faults.len() == 1 && faults[0].contains("no such file"),
            "{faults:?}"
        );
        fs::rename(&to, &from).unwrap();
        let renewal = site.renew(&["a.pem", "b.pem"], &[]);
        assert!(renewal.config.is_none() && renewal.kept_out.is_empty());
    }
}

#[test]
fn a_file_with_equal_length_and_other_contents_is_noticed() {
    let mut site = Site::new(0);
    // With a time in the future, all files are old enough for stamps.
    let later = 4_000_000_000;
    site.running = site.folder.prepare_at(&site.text, later).unwrap().config;
    let reload = |site: &Site| site.folder.reload(&site.running, &site.text, later);
    let same = reload(&site).unwrap().config;
    let maps = [&site.running, &same].map(|it| &it.listeners[0].certificates);
    assert!(Arc::ptr_eq(maps[0], maps[1]));
    let text = fs::read_to_string(site.at("a.pem")).unwrap();
    fs::write(site.at("a.pem"), "x".repeat(text.len())).unwrap();
    reload(&site).unwrap_err();
    fs::write(site.at("a.pem"), &text).unwrap();
    reload(&site).unwrap();
}
