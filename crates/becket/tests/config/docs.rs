//! Compares `docs/reference/configuration.md` and `examples/` with the structs of the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use becket_config::acme::{Acme, AcmeCertificate, ExternalAccount, OnDemand};
use becket_config::backend::{Backend, CacheControl, ErrorPage, Files, ServerSection};
use becket_config::cluster::Cluster;
use becket_config::file::File;
use becket_config::listener::{Certificate, ListenerSection, Pair, Route};
use becket_config::policy::{Policy, ServerTls, Trial};
use serde_json::Value;

use crate::common::{Folder, Made, SECRET, lines};

/// Returns every key with its default, as the structs have it; null if there is no single default.
fn keys() -> BTreeMap<String, Value> {
    let file = File {
        listener: vec![ListenerSection {
            certificates: vec![Certificate::Pair(Pair::default())],
            route: vec![Route::default()],
            ..ListenerSection::default()
        }],
        policy: vec![Policy {
            trial: Some(Trial::default()),
            ..Policy::default()
        }],
        backend: vec![Backend {
            files: Some(Files {
                cache_control: vec![CacheControl::default()],
                error_page: vec![ErrorPage::default()],
                ..Files::default()
            }),
            tls: Some(ServerTls::default()),
            server: vec![ServerSection::default()],
            ..Backend::default()
        }],
        cluster: Some(Cluster::default()),
        acme: Some(Acme {
            external_account: vec![ExternalAccount::default()],
            on_demand: Some(OnDemand::default()),
            certificate: vec![AcmeCertificate::default()],
            ..Acme::default()
        }),
        ..File::default()
    };
    let mut keys = BTreeMap::new();
    flatten("", &serde_json::to_value(file).unwrap(), &mut keys);
    keys
}

fn flatten(path: &str, value: &Value, keys: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(table) => {
            for (key, value) in table {
                let path = format!("{path}.{key}");
                flatten(path.trim_start_matches('.'), value, keys);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            keys.insert(path.to_owned(), Value::Null);
            flatten(path, &list[0], keys);
        }
        value => {
            keys.insert(path.to_owned(), value.clone());
        }
    }
}

/// Returns `true` for the value of a key without a default.
fn is_none(default: &Value) -> bool {
    default.is_null() || *default == "" || *default == Value::Array(Vec::new())
}

/// Returns key, default, meaning and reason of every row of the page that describes a key.
fn rows(page: &str) -> Vec<[String; 4]> {
    let mut rows = Vec::new();
    let mut in_table = false;
    for line in page.lines() {
        if line == "| key | default | meaning | reason |" {
            in_table = true;
        } else if !line.starts_with('|') {
            in_table = false;
        } else if in_table && !line.starts_with("|---") {
            let cells: Vec<String> = line
                .split(" |")
                .map(|cell| cell.trim_start_matches('|').trim().to_owned())
                .collect();
            let [key, default, meaning, reason, _] = &cells[..] else {
                panic!("not four cells: {line}");
            };
            let key = key.trim_matches('`').to_owned();
            rows.push([key, default.clone(), meaning.clone(), reason.clone()]);
        }
    }
    rows
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_reference_lists_every_key_with_its_default_and_reason() {
    let page = std::fs::read_to_string(root().join("docs/reference/configuration.md")).unwrap();
    let rows = rows(&page);
    let mut keys = keys();
    for [key, shown, meaning, reason] in &rows {
        let default = keys.remove(key);
        let default = default.unwrap_or_else(|| panic!("{key} is no key, or is there twice"));
        assert!(!meaning.is_empty(), "{key} has no meaning");
        if shown.starts_with('*') {
            assert!(is_none(&default), "{key} has a default: {default}");
            continue;
        }
        let code = shown.trim_matches('`');
        let parsed: toml::Table = toml::from_str(&format!("it = {code}")).unwrap();
        let parsed = serde_json::to_value(&parsed["it"]).unwrap();
        assert_eq!(parsed, default, "the default of {key}");
        let trivial = default == Value::Array(Vec::new())
            || ["log.format", "policy.client-certificates"].contains(&key.as_str());
        assert!(trivial || !reason.is_empty(), "{key} has no reason");
    }
    assert!(keys.is_empty(), "not on the page: {:?}", keys.keys());
}

#[test]
fn the_reference_lists_every_flag() {
    use clap::CommandFactory;
    let page = std::fs::read_to_string(root().join("docs/reference/configuration.md")).unwrap();
    let cli = becket::cli::Cli::command();
    let run = cli.find_subcommand("run").unwrap();
    for flag in run
        .get_arguments()
        .filter_map(|argument| argument.get_long())
    {
        if flag != "help" && flag != "version" {
            assert!(page.contains(&format!("`--{flag}")), "--{flag}");
        }
    }
}

/// Uncomments lines such as `# user = "becket"` and `# [cluster]`, and entries such as `    # {
/// chain = .. },`.
fn uncommented(text: &str) -> String {
    let lines = text.lines().map(|line| match line.strip_prefix("# ") {
        Some(rest) if rest.starts_with('[') => rest,
        Some(rest) => match rest.split_once(" = ") {
            Some((key, _)) if !key.contains(' ') => rest,
            _ => line,
        },
        None => match line.trim_start().strip_prefix("# ") {
            Some(entry) if entry.starts_with('{') => entry,
            _ => line,
        },
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_full_example_contains_every_key_with_its_default() {
    let text = std::fs::read_to_string(root().join("examples/full.toml")).unwrap();
    let written: toml::Table = toml::from_str(&uncommented(&text)).unwrap();
    let mut present = BTreeMap::new();
    flatten("", &serde_json::to_value(written).unwrap(), &mut present);
    let shown = ["listener.route.names"];
    for (key, default) in keys() {
        let value = present.remove(&key);
        let value = value.unwrap_or_else(|| panic!("{key} is not in full.toml"));
        if !is_none(&default) && !shown.contains(&key.as_str()) {
            assert_eq!(value, default, "the default of {key}");
        }
    }
    assert!(present.is_empty(), "{present:?}");
}

#[test]
fn every_example_is_a_valid_configuration() {
    let folder = Folder::new();
    let site = ["www.example.org", "internal.example.org"];
    folder.bundle("certs/site.pem", &site);
    folder.bundle("certs/mail.pem", &["mail.example.org"]);
    folder.bundle(
        "certs/names/api.pem",
        &["api.example.org", "*.api.example.org"],
    );
    folder.bundle("certs/default-ecdsa.pem", &["example.org"]);
    folder.write("certs/clients-ca.pem", &Made::authority("clients").pem());
    folder.write("certs/cluster.secret", SECRET);
    for (name, names) in [("pair", "pair.example.org"), ("default-rsa", "example.org")] {
        let made = Made::rsa(&[names]);
        folder.write(&format!("certs/{name}.crt"), &made.pem());
        folder.write(&format!("certs/{name}.key"), &made.key.serialize_pem());
    }
    let mut count = 0;
    std::fs::create_dir(folder.path().join("www")).unwrap();
    for entry in std::fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        // Its key is on a token, which only the end-to-end tests have.
        if path.ends_with("pkcs11.toml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let prepared = folder.prepare(&text).unwrap_or_else(|rejected| {
            panic!("{}: {rejected}", path.display());
        });
        let mut warnings = lines(&prepared.warnings);
        // No authority has issued the certificate of this example.
        warnings.retain(|it| !path.ends_with("acme.toml") || !it.contains("not issued yet"));
        assert_eq!(warnings, [] as [&str; 0], "{}", path.display());
        count += 1;
    }
    assert!(count >= 6, "{count} examples");
}
