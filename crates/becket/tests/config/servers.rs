//! Tests of backends with many servers: what is accepted, and what is rejected.

use std::time::Duration;

use becket_prepare::LoadPurpose;
use becket_prepare::flags::{Flags, ServiceFlags};
use becket_prepare::source::ConfigSource;
use rustls_pki_types::UnixTime;

use crate::common::{Folder, NOW, assert_faults, lines};

/// Returns a configuration of a listener, a backend with the keys `backend`, and a server for each
/// of `servers`.
fn site(folder: &Folder, backend: &str, servers: &[&str]) -> String {
    folder.bundle("a.pem", &["a.test"]);
    let mut text = format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:8443']\nbackend = 'app'\n\
         certificates = ['a.pem']\n[[backend]]\nname = 'app'\n{backend}\n"
    );
    for (index, keys) in servers.iter().enumerate() {
        text += &format!("[[backend.server]]\naddress = '/run/{index}'\n{keys}\n");
    }
    text
}

#[test]
fn the_queue_timeout_defaults_to_the_connect_timeout() {
    let folder = Folder::new();
    let text = site(&folder, "", &[""]) + "[timeouts]\nconnect = '3s'\n";
    let config = folder.prepare(&text).unwrap().config;
    assert_eq!(config.backends[0].queue_timeout, Duration::from_secs(3));
    assert_eq!(config.backends[0].most_remembered(), 0, "nobody sticks");
}

#[test]
fn invalid_and_contradictory_values_are_rejected_with_their_key_paths() {
    let folder = Folder::new();
    let backend = "queue-length = 1000001\nretries = 101\nqueue-timeout = '0s'\nidle-reclaim = '99ms'\n\
                   stick = 'tls-session'\nstick-entries = 0\n\
                   stick-lifetime = '8d'";
    let servers = ["weight = 257\nmaxconn = 0\nnode = 65536"];
    let text = site(&folder, backend, &servers);
    folder.refuses(
        &text,
        &[
            "backend[app].idle-reclaim = \"99ms\": not in range; accepted: 100ms to 24h, or \"off\"",
            "backend[app].queue-length = 1000001: not in range",
            "backend[app].queue-timeout = \"0s\": not in range",
            "backend[app].retries = 101: not in range; accepted: 0 to 100",
            "backend[app].server[0].maxconn = 0: not in range",
            "backend[app].server[0].node = 65536: not in range; accepted: 0 to 65535",
            "backend[app].server[0].weight = 257: not in range; accepted: 0 to 256",
            "backend[app].stick-entries = 0: not in range",
            "backend[app].stick-lifetime = \"8d\": not in range",
        ],
    );
}

#[test]
fn errors_in_server_flags_name_the_flags() {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let wrong = Flags {
        service: ServiceFlags {
            frontend: vec!["127.0.0.1:8443".into()],
            backend: vec!["/run/a".into()],
            maxconn: Some(0),
            queue_timeout: Some("soon".into()),
            idle_reclaim: Some("soon".into()),
            certificates: vec!["a.pem".into()],
            ..ServiceFlags::default()
        },
        ..Flags::default()
    };
    let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW));
    let source = ConfigSource::at(wrong, folder.path().to_owned());
    let errors = lines(&source.load(now, LoadPurpose::Check).unwrap_err().errors);
    let starts = [
        "--maxconn = 0: not in range",
        "--queue-timeout = \"soon\": ",
        "--idle-reclaim = \"soon\": ",
    ];
    assert_faults(&errors, &starts);
}

#[test]
fn idle_reclaim_warns_if_unset_with_http_1_1_or_set_with_h2() {
    let folder = Folder::new();
    let (key, limit) = ("idle-reclaim = '1s'", "maxconn = 2");
    for (listener, backend, server, expected) in [
        ("", key, limit, None),
        ("alpn = ['http/1.1']", key, limit, None),
        ("alpn = ['http/1.1']", "", "", None),
        ("alpn = ['h2']", "", limit, None),
        (
            "alpn = ['h2', 'http/1.1']",
            "",
            limit,
            Some("not set, and listener[web] offers http/1.1"),
        ),
        (
            "alpn = ['h2', 'http/1.1']",
            key,
            limit,
            Some("\"1s\": listener[web] offers h2: "),
        ),
    ] {
        let text = site(&folder, backend, &[server]);
        let text = text.replace("backend = 'app'", &format!("backend = 'app'\n{listener}"));
        let warnings = lines(&folder.prepare(&text).unwrap().warnings);
        let about_key = warnings.iter().filter(|line| line.contains("idle-reclaim"));
        let about_key: Vec<_> = about_key.collect();
        assert_eq!(
            about_key.len(),
            usize::from(expected.is_some()),
            "{warnings:?}"
        );
        if let Some(expected) = expected {
            assert!(about_key[0].contains(expected), "{about_key:?}");
        }
    }
    let passing = site(&folder, key, &[limit])
        + "[[listener]]\nname = 'tcp'\nbind = ['127.0.0.1:8444']\nbackend = 'app'\nmode = 'passthrough'\n";
    let fault = "backend[app].idle-reclaim = \"1s\": listener[tcp] passes TLS through";
    folder.refuses(&passing, &[fault]);
}
