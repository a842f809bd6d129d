//! Tests of `[cluster]`: its effects, and its errors.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use becket_prepare::LoadPurpose;
use becket_prepare::Prepared;
use becket_prepare::flags::{ClusterFlags, Flags, ServiceFlags};
use becket_prepare::source::ConfigSource;
use becket_proto::ticket::NodeId;
use becket_tls::config::Config;
use rustls_pki_types::UnixTime;

use crate::common::{Folder, NOW, SECRET, lines, site};

const OTHER: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n";

fn hands_out_tickets(config: &Config) -> bool {
    let policy = config.listeners[0].routes[0].policy.as_ref().unwrap();
    config.file.tls12_tickets(&policy.keys)
}

fn folder() -> Folder {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    folder.write("one", SECRET);
    folder.write("two", OTHER);
    folder
}

fn text(cluster: &str) -> String {
    site("['a.pem']") + "[cluster]\n" + cluster
}

fn good(folder: &Folder, cluster: &str) -> Prepared {
    let prepared = folder.prepare(&text(cluster));
    prepared.unwrap_or_else(|rejected| panic!("{rejected}"))
}

fn errors(folder: &Folder, cluster: &str) -> Vec<String> {
    lines(&folder.prepare(&text(cluster)).unwrap_err().errors)
}

#[test]
fn the_default_has_no_cluster_and_issues_tls12_tickets() {
    let config = folder().prepare(&site("['a.pem']")).unwrap().config;
    assert!(config.cluster.is_none());
    assert!(hands_out_tickets(&config));
    assert_eq!(config.file.session_max_age(), Duration::from_secs(86_400));
    assert_eq!(config.file.ticket_rotation(), Duration::from_secs(28_800));
}

#[test]
fn all_errors_are_reported_at_once_with_their_keys() {
    let keys = "node = 70000\nrotation = '90h'\nsession-max-age = '1h'\npeers = [':1', 'a:7', 'a:7']\n\
        [sessions]\nticket-rotation = '1h'\nmax-age = '2h'\n";
    let found = errors(&folder(), keys);
    let expected = [
        "cluster.secret: missing; accepted: a file that \"becket secret FILE\" made",
        "cluster.node = 70000: not in range; accepted: 1 to 65535",
        "cluster.rotation = \"90h\": not in range",
        "cluster.peers[0] = \":1\": no host",
        "cluster.peers[2] = \"a:7\": an earlier peer has this address",
        "sessions.ticket-rotation = \"1h\": conflicts with cluster.rotation",
        "sessions.max-age = \"2h\": conflicts with cluster.session-max-age",
    ];
    for expected in expected {
        let there = found.iter().any(|error| error.starts_with(expected));
        assert!(there, "{expected} is not in {found:#?}");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

#[test]
fn a_rotation_with_fractional_seconds_is_rejected() {
    let keys = "secret = 'one'\nnode = 1\nrotation = '1s500ms'\nlisten = '127.0.0.1:7443'\n";
    let found = errors(&folder(), keys);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("not in whole seconds"));
}

#[test]
fn a_peer_that_the_socket_cannot_reach_is_refused() {
    let keys = |listen: &str, peer: &str| {
        format!("secret = 'one'\nnode = 1\nlisten = '{listen}'\npeers = ['{peer}']\n")
    };
    for (listen, peer, fault) in [
        (
            "127.0.0.1:7443",
            "[::1]:7443",
            "cluster.peers[0] = \"[::1]:7443\": not in the address family",
        ),
        (
            "[::1]:7443",
            "127.0.0.1:7443",
            "cluster.peers[0] = \"127.0.0.1:7443\": not in the address family",
        ),
        ("[::1]:7443", "[::ffff:192.0.2.1]:7443", "cluster.peers[0]"),
        (
            "127.0.0.1:7443",
            "224.0.0.9:7443",
            "cluster.peers[0] = \"224.0.0.9:7443\": a multicast address",
        ),
        (
            "239.0.0.9:7443",
            "192.0.2.1:7443",
            "cluster.listen = \"239.0.0.9:7443\": a multicast address",
        ),
    ] {
        let found = errors(&folder(), &keys(listen, peer));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(fault), "{found:?}");
    }
    for peer in ["[::1]:7443", "127.0.0.1:7443"] {
        good(&folder(), &keys("[::]:7443", peer));
    }
}

#[test]
fn an_invalid_secret_is_rejected_without_showing_its_content() {
    let folder = folder();
    for (content, fault) in [
        ("", "empty"),
        ("AAECAwQFBgc=\n", "too short"),
        (
            "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\nAAEC\n",
            "too long",
        ),
        (
            "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwd~~8=\n",
            "not base64",
        ),
    ] {
        folder.write("bad", content);
        let found = errors(&folder, "secret = 'bad'\nnode = 1\n");
        assert!(found[0].contains(fault), "{found:?}");
        assert!(!found[0].contains("AAEC"), "{found:?}");
    }
    let found = errors(&folder, "secret = 'missing'\nnode = 1\n");
    assert!(found[0].contains("no such file"), "{found:?}");
}

#[test]
fn a_secret_readable_by_others_is_rejected_with_a_chmod_command() {
    let folder = folder();
    for mode in [0o640, 0o644] {
        let path = folder.path().join("one");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let found = errors(&folder, "secret = 'one'\nnode = 1\n");
        let advice = format!("accepted: chmod 600 {}", path.display());
        assert!(found[0].ends_with(&advice), "{found:?}");
    }
}

#[test]
fn a_duplicate_secret_is_rejected_even_from_another_file() {
    let folder = folder();
    folder.write("copy", SECRET);
    for twice in ["one", "copy"] {
        let keys = format!("secret = 'one'\naccept-secrets = ['two', '{twice}']\nnode = 1\n");
        let found = errors(&folder, &keys);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("cluster.accept-secrets[1] ="),
            "{found:?}"
        );
        assert!(found[0].contains("the same secret as in"), "{found:?}");
    }
}

#[test]
fn cluster_flags_configure_a_cluster_and_its_errors_name_the_flags() {
    let folder = folder();
    let mut flags = Flags {
        service: ServiceFlags {
            frontend: vec!["127.0.0.1:8443".into()],
            backend: vec!["127.0.0.1:80".into()],
            certificates: vec!["a.pem".into()],
            ..ServiceFlags::default()
        },
        cluster: ClusterFlags {
            cluster_secret: Some("one".into()),
            cluster_listen: Some("127.0.0.1:7443".into()),
            cluster_peer: vec!["127.0.0.1:7444".into()],
            node: Some(2),
        },
        ..Flags::default()
    };
    let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW));
    let load = |flags: &Flags| {
        let base: PathBuf = folder.path().to_owned();
        ConfigSource::at(flags.clone(), base).load(now, LoadPurpose::Check)
    };
    let cluster = load(&flags).unwrap().config.cluster.unwrap();
    assert_eq!((cluster.node, cluster.peers.len()), (NodeId(2), 1));
    flags.cluster.cluster_secret = Some("gone".into());
    flags.cluster.cluster_listen = Some("nowhere".into());
    flags.cluster.cluster_peer = vec![":1".into()];
    flags.cluster.node = Some(0);
    let mut found = lines(&load(&flags).unwrap_err().errors);
    found.sort();
    let starts = [
        "--cluster-listen",
        "--cluster-peer",
        "--cluster-secret",
        "--node",
    ];
    assert_eq!(found.len(), starts.len(), "{found:#?}");
    for (error, start) in found.iter().zip(starts) {
        assert!(error.starts_with(start), "{error}");
    }
}

#[test]
fn a_store_has_its_password_and_ca_in_files() {
    let folder = folder();
    folder.write("password", "correct horse\n");
    let keys = "secret = 'one'\nnode = 1\nstore = 'rediss://a.test:6379'\n\
        store-user = 'becket'\nstore-password-file = 'password'\nstore-ca = 'a.pem'\n";
    let cluster = good(&folder, keys).config.cluster.unwrap();
    let password = cluster.store.password.as_ref().unwrap();
    assert_eq!(password.as_str(), "correct horse");
    assert!(cluster.store.authorities.is_some());
    assert!(!format!("{cluster:?}").contains("horse"));
}

#[test]
fn errors_of_a_store_name_the_key_and_the_fix() {
    let folder = folder();
    folder.write("empty.pem", "");
    let password = folder.write("shared", "correct horse\n");
    std::fs::set_permissions(password, std::fs::Permissions::from_mode(0o644)).unwrap();
    for (keys, expected) in [
        (
            "store = 'redis://:horse@a:1'",
            "a URL with a user or a password, which belong to cluster.store-user and cluster.store-password-file",
        ),
        ("store-user = 'becket'", "cluster.store-user"),
        (
            "store = 'redis://a:1'\nstore-user = 'becket'",
            "a user without a password; accepted: cluster.store-password-file",
        ),
        (
            "store = 'redis://a:1'\nstore-ca = 'a.pem'",
            "cluster.store has no TLS; accepted: rediss://",
        ),
        (
            "store = 'redis://a:1'\nstore-password-file = 'shared'",
            "users other than its owner have access (mode 0644); accepted: chmod 600",
        ),
        (
            "store = 'redis://a:1'\nstore-password-file = 'none'",
            "no such file or directory; accepted: a file of one line, the password",
        ),
        (
            "store = 'rediss://a:1'\nstore-ca = 'empty.pem'",
            "cluster.store-ca",
        ),
        (
            "store = 'redis://a:1'\nstore-timeout = '2s'",
            "cluster.store-timeout",
        ),
    ] {
        let found = errors(&folder, &format!("secret = 'one'\nnode = 1\n{keys}\n"));
        let [error] = &found[..] else {
            panic!("{keys}: {found:#?}");
        };
        assert!(error.contains(expected), "{expected} is not in {error}");
        assert!(!error.contains("horse"), "{error}");
    }
}

#[test]
fn an_rsa_certificate_is_shared_apart_from_another_one_for_the_same_names() {
    let certificate = "[[acme.certificate]]\nnames = ['a.test']\n";
    let cluster = format!(
        "secret = 'one'\nnode = 1\nlisten = '127.0.0.1:7443'\npeers = ['127.0.0.2:7443']\n\
         [acme]\n{certificate}{certificate}key = 'rsa-2048'\n"
    );
    let config = good(&folder(), &cluster).config;
    let shared = becket_control::cluster::settings(&config).unwrap();
    let [one, two] = &shared.certificates[..] else {
        panic!("{shared:?}");
    };
    assert_eq!(one.names, two.names);
    assert_ne!(one.tag, two.tag);
}
