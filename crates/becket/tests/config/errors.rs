//! All errors of a configuration are reported at once, each with the path of its key.

use std::path::PathBuf;
use std::time::Duration;

use crate::common::{Folder, NOW, assert_faults, lines, site};
use becket_config::choices::ProxyTlv;
use becket_config::error::Report;
use becket_config::read::read;
use becket_prepare::flags::{Flags, LogFlags, ProcessFlags, ServiceFlags};
use becket_prepare::resolver::HostResolver;
use becket_prepare::source::ConfigSource;
use becket_prepare::{Environment, LoadPurpose, prepare};
use becket_tls::config::MOST_ADDRESSES;
use rustls_pki_types::UnixTime;

fn now() -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(NOW))
}

#[test]
fn every_error_is_reported_with_its_key_path() {
    let folder = Folder::new();
    let text = r#"
        [[listener]]
        name = "web"
        bind = ["127.0.0.1:8443", "nowhere", "0.0.0.0:8443", "unknown.test:1"]
        certificates = ["missing.pem"]
        backend = "apq"
        policy = "strict"
        [[listener]]
        name = "web"
        bind = ["127.0.0.1:8443"]
        [[policy]]
        name = "mtls"
        client-certificates = "required"
        suites = ["RC4"]
        groups = ["X25519MLKEM768"]
        [[backend]]
        name = "app"
        [[backend.server]]
        address = "unknown.test:80"
        [[backend.server]]
        address = ":80"
        [limits]
        connections = 0
        client-hello = "1GiB"
        [timeouts]
        idle = "10"
        [log]
        level = "loud"
        [admin]
        address = ":9443"
        [process]
        workers = 0
        user = "root"
        group = "no-such-group"
    "#;
    folder.refuses(text, &[
        r#"listener[web].bind[1] = "nowhere": no port; accepted: HOST:PORT, [V6]:PORT or :PORT"#,
        r#"listener[web].bind[2] = "0.0.0.0:8443": 0.0.0.0:8443 overlaps with 127.0.0.1:8443 of listener[web].bind[0]"#,
        r#"listener[web].certificates[0] = "#,
        r#"listener[web].backend = "apq": no backend has this name (did you mean "app"?); accepted: "app""#,
        r#"listener[web].policy = "strict": no policy has this name; accepted: "mtls""#,
        r#"listener[1].name = "web": an earlier section has this name"#,
        r#"listener[1].bind[0] = "127.0.0.1:8443": 127.0.0.1:8443 is bound by listener[web].bind[0] already"#,
        "listener[1].certificates: missing",
        r#"listener[1].backend: missing: no backend for clients that no route accepts, such as those without a server name; accepted: "app""#,
        "policy[mtls].client-ca: missing, though client certificates are requested",
        r#"policy[mtls].suites[0] = "RC4": not a suite"#,
        "policy[mtls].groups: no group for TLS 1.2, which the policy allows",
        r#"listener[web].bind[3] = "unknown.test:1": cannot bind a host name; accepted: an IP address, localhost, or no host for all addresses"#,
        r#"backend[app].server[1].address = ":80": no host"#,
        "limits.connections = 0: not in range; accepted: 1 to 100000000",
        r#"limits.client-hello = "1GiB": not in range; accepted: 1KiB to 64KiB"#,
        r#"timeouts.idle = "10": a duration without a unit"#,
        r#"log.level = "loud": not a filter"#,
        r#"admin.address = ":9443": the admin page has no password"#,
        r#"process.workers = 0: not in range; accepted: 1 to 1024, or "auto""#,
        "process.group = \"no-such-group\": there is no group",
    ]);
}

#[test]
fn errors_in_flags_name_the_flag() {
    let flags = Flags {
        service: ServiceFlags {
            frontend: vec!["nowhere".into()],
            certificates: vec!["missing.pem".into()],
            ..ServiceFlags::default()
        },
        process: ProcessFlags {
            workers: Some("0".into()),
            ..ProcessFlags::default()
        },
        ..Flags::default()
    };
    let source = ConfigSource::at(flags, PathBuf::from("/"));
    let errors = lines(&source.load(now(), LoadPurpose::Check).unwrap_err().errors);
    let starts = [
        "--frontend = \"nowhere\": no port",
        "--workers = \"0\": not in range",
        "--backend: missing",
        "CERT.pem = \"/missing.pem\": no such file",
    ];
    assert_faults(&errors, &starts);
}

#[test]
fn errors_in_a_file_begin_with_its_normalized_path_and_the_line() {
    let folder = Folder::new();
    let text = site("['../none.pem']") + "[limits]\nconnections = 0\n";
    folder.write("conf/becket.toml", &text);
    let flags = Flags {
        config: Some("./conf/../conf/becket.toml".into()),
        ..Flags::default()
    };
    let source = ConfigSource::at(flags, folder.path().to_owned());
    let rejected = source.load(now(), LoadPurpose::Check).unwrap_err();
    assert_eq!(rejected.origin, "conf/becket.toml");
    let errors = lines(&rejected.errors);
    let last = text.lines().count();
    let limits = format!("conf/becket.toml:{last}: limits.connections = 0: not in range");
    assert!(errors[1].starts_with(&limits), "{errors:#?}");
    let certificate = format!(
        " listener[web].certificates[0] = \"{}/none.pem\": ",
        folder.path().display()
    );
    assert!(errors[0].contains(&certificate), "{errors:#?}");
    let mut report = Report::default();
    report.remark("limits.connections", "too many");
    source.place(&mut report);
    let expected = format!("conf/becket.toml:{last}: limits.connections = 0: too many");
    assert_eq!(lines(&report.warnings), [expected]);
}

#[test]
fn a_configuration_file_given_as_a_certificate_is_recognised() {
    let service = ServiceFlags {
        certificates: vec!["f.toml".into()],
        ..ServiceFlags::default()
    };
    let flags = Flags {
        service,
        ..Flags::default()
    };
    let source = ConfigSource::at(flags, PathBuf::from("/"));
    let errors = lines(&source.load(now(), LoadPurpose::Check).unwrap_err().errors);
    let fault = "CERT.pem = \"f.toml\": not a certificate (did you mean --config f.toml?)";
    assert_eq!(errors, [fault]);
}

#[test]
fn flags_override_values_of_the_configuration_file() {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let text = site("['a.pem']") + "[process]\nworkers = 0\n[log]\nlevel = 'loud'\n";
    folder.write("sub/becket.toml", &text.replace("a.pem", "../a.pem"));
    let flags = Flags {
        config: Some("sub/becket.toml".into()),
        process: ProcessFlags {
            workers: Some("3".into()),
            ..ProcessFlags::default()
        },
        logs: LogFlags {
            log_level: Some("debug".into()),
            log_file: Some("becket.log".into()),
            ..LogFlags::default()
        },
        ..Flags::default()
    };
    let source = ConfigSource::at(flags, folder.path().to_owned());
    let prepared = source.load(now(), LoadPurpose::Check).unwrap();
    let config = prepared.config;
    assert_eq!(config.file.process.workers, Some(3));
    assert_eq!(config.log.level, "debug");
    assert_eq!(
        config.log.file.file(),
        Some(&*folder.path().join("becket.log"))
    );
}

#[test]
fn a_name_resolves_to_all_addresses_and_a_failure_is_a_warning() {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let text = |host: &str| site("['a.pem']").replace("127.0.0.1:8080", &format!("{host}:80"));
    let config = folder.prepare(&text("app.test")).unwrap().config;
    assert_eq!(config.backends[0].servers[0].addresses.len(), 2);
    assert_eq!(&*config.backends[0].servers[0].name, "app.test:80");
    let prepared = folder.prepare(&text("empty.test")).unwrap();
    let warning = r#"backend[app].server[0].address = "empty.test:80": the name does not resolve: it has no address"#;
    assert_eq!(lines(&prepared.warnings), [warning]);
    assert!(prepared.config.backends[0].servers[0].addresses.is_empty());
    let prepared = folder.prepare(&text("many.test")).unwrap();
    let warning = r#"backend[app].server[0].address = "many.test:80": the name has 1000 addresses; 64 are used"#;
    assert_eq!(lines(&prepared.warnings), [warning]);
    let used = &prepared.config.backends[0].servers[0].addresses;
    assert_eq!(used.len(), MOST_ADDRESSES);
}

#[test]
fn loading_with_deferred_lookups_resolves_no_server_name() {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let text = site("['a.pem']")
        .replace("127.0.0.1:8080", "app.test:80")
        .replace("127.0.0.1:8443", "localhost:8443");
    let environment = Environment {
        base: folder.path(),
        now: now(),
        ipv6: true,
        descriptors: 1 << 20,
        resolver: HostResolver::by(|host| {
            Err(std::io::Error::other(format!("{host} was asked for")))
        }),
        purpose: LoadPurpose::Serve,
        files: becket_keys::files::Files::default(),
        multibuffer: None,
        tokens: Default::default(),
        trials: Default::default(),
        issuers: Default::default(),
        running: None,
    };
    let prepared = prepare(read(&text, &Default::default()), &environment).unwrap();
    assert_eq!(lines(&prepared.warnings), [""; 0]);
    assert!(prepared.config.backends[0].servers[0].addresses.is_empty());
    let bind = ["127.0.0.1:8443", "[::1]:8443"].map(|address| address.parse().unwrap());
    assert_eq!(prepared.config.listeners[0].bind, bind);
}

/// A site with `policy` in its policy and `backend` in its backend.
fn early_site(policy: &str, backend: &str) -> String {
    format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:8443']\nbackend = 'app'\n\
         certificates = ['a.pem']\n[[policy]]\nname = 'web'\n{policy}\n\
         [[backend]]\nname = 'app'\n{backend}\n[[backend.server]]\naddress = '127.0.0.1:8080'\n"
    )
}

#[test]
fn early_data_needs_tls13_proxy_header_v2_and_a_session_table() {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let only = "versions = ['1.3']";
    let sound = early_site(
        &format!("{only}\nearly-data = '17KiB'"),
        "proxy-header = 'v2'",
    );
    let prepared = folder.prepare(&sound).unwrap();
    assert_eq!(
        prepared.config.listeners[0].routes[0]
            .policy
            .as_ref()
            .unwrap()
            .keys
            .early_data,
        Some(17_408)
    );
    let needs_v2 = "policy[web].early-data = \"17KiB\": early data may be a replay, and without \
         backend[app].proxy-header = \"v2\" the servers cannot tell";
    for (text, expected) in [
        (
            early_site("early-data = '17KiB'", "proxy-header = 'v2'"),
            "policy[web].early-data = \"17KiB\": early data belongs to TLS 1.3, and this policy allows TLS 1.2",
        ),
        (
            early_site(&format!("{only}\nearly-data = '17KiB'"), ""),
            needs_v2,
        ),
        (
            early_site(
                &format!("{only}\nearly-data = '17KiB'"),
                "proxy-header = 'v1'",
            ),
            needs_v2,
        ),
        (
            format!("{sound}[sessions]\ntable-entries = 0\n"),
            "policy[web].early-data = \"17KiB\": sessions.table-entries is 0",
        ),
        (
            sound.replace("[[policy]]", "starttls = 'smtp'\n[[policy]]"),
            "policy[web].early-data = \"17KiB\": with listener[web].starttls the PROXY header is sent before",
        ),
        (
            sound.replace("17KiB", "1MiB"),
            "policy[web].early-data = \"1MiB\": not in range; accepted: 17KiB to 64KiB, or \"off\"",
        ),
        (
            sound.replace("17KiB", "on"),
            "policy[web].early-data = \"on\": not a size",
        ),
    ] {
        folder.refuses(&text, &[expected]);
    }
}

#[test]
fn accept_proxy_and_trusted_networks_need_each_other() {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let with = |listener: &str, backend: &str| {
        early_site("", backend).replace("[[policy]]", &format!("{listener}\n[[policy]]"))
    };
    let sound = with(
        "accept-proxy = 'any'\ntrusted-networks = ['10.0.0.0/8', '2001:db8::1']",
        "proxy-header = 'v2'\nproxy-tlvs = ['unique-id']",
    );
    let prepared = folder.prepare(&sound).unwrap();
    let accepts = &prepared.config.listeners[0];
    for (address, is_trusted) in [("10.1.2.3", true), ("2001:db8::1", true), ("::1", false)] {
        let address = address.parse().unwrap();
        assert_eq!(accepts.trusted.contains(address), is_trusted);
    }
    let tlvs = &prepared.config.backends[0].keys.proxy_tlvs;
    assert_eq!(*tlvs, [ProxyTlv::UniqueId]);
    for (text, expected) in [
        (
            with("accept-proxy = 'v1'", ""),
            "listener[web].trusted-networks: missing, though a PROXY header is accepted",
        ),
        (
            with("trusted-networks = ['10.0.0.0/8']", ""),
            "listener[web].trusted-networks: given, but no PROXY header is accepted",
        ),
        (
            with("accept-proxy = 'v1'\ntrusted-networks = ['10.0.0.1/8']", ""),
            "listener[web].trusted-networks[0] = \"10.0.0.1/8\": host bits are set",
        ),
        (
            with("", "proxy-header = 'v1'\nproxy-tlvs = ['unique-id']"),
            "backend[app].proxy-tlvs: given, but no header of version 2 is sent",
        ),
        (
            with("", "proxy-header = 'received'"),
            "backend[app].proxy-header = \"received\": listener[web] receives no PROXY header",
        ),
    ] {
        folder.refuses(&text, &[expected]);
    }
}

#[test]
fn an_impossible_trial_is_an_error() {
    let folder = Folder::new();
    folder.bundle("a.pem", &["a.test"]);
    let with = |policy: &str| format!("{}[[policy]]\nname = 'web'\n{policy}\n", site("['a.pem']"));
    let sound = with("trial = { versions = ['1.3'], groups = ['x25519'] }");
    assert!(folder.prepare(&sound).unwrap().warnings.is_empty());
    for (policy, expected) in [
        ("trial = { versions = [] }", "policy[web].trial.versions"),
        (
            "trial = { versions = ['1.2'], groups = ['X25519MLKEM768'] }",
            "policy[web].trial.groups",
        ),
    ] {
        let errors = folder.faults(&with(policy));
        assert!(errors[0].starts_with(expected), "{errors:#?}");
    }
}

#[test]
fn http_challenges_need_a_listener_that_answers_them() {
    let folder = Folder::new();
    folder.bundle("site.pem", &["a.test"]);
    let text = |listener: &str, acme: &str| {
        format!(
            "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:1']\nacme = true\nbackend = 'app'\n\
             [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '192.0.2.1:1'\n\
             [[listener]]\nname = 'plain'\nbind = ['127.0.0.1:2']\n{listener}\n{acme}"
        )
    };
    let acme =
        "[acme]\nfolder = 'acme'\n[[acme.certificate]]\nnames = ['a.test']\nchallenge = 'http-01'";
    let fault = "acme.certificate[0].challenge = \"http-01\": http-01 needs a listener that answers it at port 80; \
                 accepted: tls = false with acme-http, redirect or files in a listener, or another challenge";
    folder.refuses(&text("tls = false\nbackend = 'app'", acme), &[fault]);
    for listener in [
        "tls = false\nbackend = 'app'\nacme-http = true",
        "tls = false\nredirect = 'https'",
        "tls = false\nbackend = 'site'\n[[backend]]\nname = 'site'\nfiles = { root = '.' }",
    ] {
        assert!(folder.prepare(&text(listener, acme)).is_ok(), "{listener}");
    }
    let secure = "backend = 'app'\nacme = true\nacme-http = true";
    let fault = "listener[plain].acme-http = true: clients use TLS here, and an authority begins in clear text; \
                 accepted: tls = false with it, at port 80";
    folder.refuses(&text(secure, acme), &[fault]);
    let plain = "tls = false\nbackend = 'app'\nacme-http = true";
    let text = text(plain, "").replace("acme = true\n", "certificates = ['site.pem']\n");
    folder.refuses(
        &text,
        &["listener[plain].acme-http = true: no [acme] section"],
    );
}
