//! Tests of `[backend.tls]`, and of listeners without TLS.

use becket_config::listener::ListenMode;
use becket_proto::starttls::Protocol;

use crate::common::{Folder, Made, lines};

fn text(listener: &str, tls: &str, server: &str) -> String {
    format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:8443']\nbackend = 'app'\n{listener}\n\
         [[backend]]\nname = 'app'\n[backend.tls]\n{tls}\n[[backend.server]]\naddress = '{server}'\n"
    )
}

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("ca.pem", &Made::authority("servers").pem());
    folder.bundle("own.pem", &["front.test"]);
    folder
}

#[test]
fn every_fault_is_reported_with_its_key_path() {
    let folder = folder();
    let tls = "ca = 'missing.pem'\nsni = '-'\nalpn = 'server'\nversions = []\n\
               client-certificate = { chain = 'own.pem' }";
    let listener = "tls = false\ncertificates = ['own.pem']\npolicy = 'web'\nalpn = ['h2']\n\
                    [[policy]]\nname = 'web'";
    let errors = folder.faults(&text(listener, tls, "/run/app.sock"));
    let starts = [
        "listener[web].certificates: given, but this listener terminates no TLS",
        "listener[web].policy = \"web\": given, but",
        "listener[web].alpn: given, but",
        "backend[app].tls.name: missing: /run/app.sock has no name to verify",
        "backend[app].tls.sni = \"-\": not a name",
        "backend[app].tls.alpn = \"server\": not one of the choices",
        "backend[app].tls.versions = []: empty",
        "backend[app].tls.client-certificate.key: missing",
        "backend[app].tls.ca = ",
    ];
    for start in starts {
        assert!(
            errors.iter().any(|error| error.starts_with(start)),
            "{start} is not in {errors:#?}"
        );
    }
    assert_eq!(errors.len(), starts.len(), "{errors:#?}");

    let tls = "verify = 'none'\nca = 'ca.pem'\nname = 'app.test'\ncrl = ['list.pem']";
    let errors = folder.faults(&text("tls = false", tls, "app.test:443"));
    assert_eq!(errors.len(), 3, "{errors:#?}");
    assert!(
        errors
            .iter()
            .all(|error| error.contains("given, but nothing is verified"))
    );

    let tls = "verify = 'chain'\nca = 'ca.pem'\nname = 'app.test'\n\
               client-certificate = { chain = 'own.pem', key = 'own.pem', policy = 'web' }";
    let errors = folder
        .prepare(&text("tls = false", tls, "app.test:443"))
        .unwrap_err()
        .errors;
    assert_eq!(
        lines(&errors),
        [
            "backend[app].tls.name = \"app.test\": given, but only the chain is verified; accepted: verify = \"full\", the default, with it",
            "backend[app].tls.client-certificate.policy = \"web\": given, but this certificate is sent to servers; accepted: chain and key",
        ]
    );
}

fn listening(listener: &str) -> String {
    format!(
        "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:8443']\nbackend = 'app'\n{listener}\n\
         [[backend]]\nname = 'app'\n[[backend.server]]\naddress = '127.0.0.1:80'\n"
    )
}

#[test]
fn the_client_protocol_is_derived_from_the_keys_of_a_listener() {
    let folder = folder();
    for (listener, mode) in [
        (
            "mode = 'passthrough'\n[[listener.route]]\nnames = ['x.test']\nalpn = ['h2']",
            ListenMode::Tls,
        ),
        (
            "certificates = ['own.pem']\nalpn = ['h2']\n\
             [[listener.route]]\nnames = ['x.test']\nmode = 'passthrough'",
            ListenMode::Tls,
        ),
        (
            "mode = 'passthrough'\ncertificates = ['own.pem']\n\
             [[listener.route]]\nmode = 'terminate'\nalpn = ['h2']",
            ListenMode::Tls,
        ),
        (
            "starttls = 'smtp'\ncertificates = ['own.pem']",
            ListenMode::StartTls(Protocol::Smtp),
        ),
        (
            "starttls = 'postgresql'\ncertificates = ['own.pem']",
            ListenMode::StartTls(Protocol::Postgresql),
        ),
        (
            "starttls = 'postgresql'\ncertificates = ['own.pem']\n\
             [[listener.route]]\nnames = ['front.test']",
            ListenMode::StartTls(Protocol::Postgresql),
        ),
    ] {
        let prepared = folder.prepare(&listening(listener)).unwrap();
        assert_eq!(lines(&prepared.warnings), [] as [&str; 0]);
        let listener = &prepared.config.listeners[0];
        assert_eq!(listener.keys.speaks(), mode);
        let waits = mode == ListenMode::StartTls(Protocol::Smtp);
        assert_eq!(listener.keys.defers_accept().is_none(), waits, "{mode:?}");
        let last = listener.routes.last().unwrap();
        let libpq = mode == ListenMode::StartTls(Protocol::Postgresql);
        assert_eq!(last.alpn == [b"postgresql".to_vec()], libpq);
    }
}

#[test]
fn keys_that_contradict_the_mode_of_a_listener_or_route_are_rejected() {
    let folder = folder();
    for (listener, starts) in [
        (
            "tls = false\nmode = 'passthrough'\nstarttls = 'imap'",
            &["mode", "starttls"][..],
        ),
        (
            "mode = 'passthrough'\nalpn = ['h2']\ncertificates = ['own.pem']\n\
             [[listener.route]]\nnames = ['x.test']\npolicy = 'p'\n[[policy]]\nname = 'p'",
            &["alpn", "certificates", "route[0].policy"],
        ),
        (
            "starttls = 'pop3'\ncertificates = ['own.pem']\n\
             [[listener.route]]\nnames = ['front.test']",
            &["route"],
        ),
        (
            "starttls = 'postgresql'\ncertificates = ['own.pem']\n\
             [[listener.route]]\nnames = ['front.test']\nmode = 'passthrough'",
            &["route[0].mode"],
        ),
        ("starttls = 'smtp'", &["certificates"]),
        (
            "mode = 'passthrough'\n[[listener.route]]\nnames = ['x.test']\nmode = 'terminate'",
            &["certificates"],
        ),
        (
            "certificates = ['own.pem']\n[[listener.route]]\nnames = ['x.test']\n\
             mode = 'passthrough'\npolicy = 'p'\n[[policy]]\nname = 'p'",
            &["route[0].policy"],
        ),
    ] {
        let errors = folder.faults(&listening(listener));
        assert_eq!(errors.len(), starts.len(), "{errors:#?}");
        for start in starts {
            let start = format!("listener[web].{start}");
            let is_it = |error: &String| {
                let rest = error.strip_prefix(&start);
                rest.is_some_and(|rest| rest.starts_with([':', ' ']))
            };
            assert!(errors.iter().any(is_it), "{start} {errors:#?}");
        }
    }
}
