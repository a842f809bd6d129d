//! Files as distributions and users have them, and each error.

use super::super::MigrationSource::Haproxy;
use super::super::SettingSupport::{Different, Ignored, Lost, Same};
use super::super::fixture::{compare, errors, migration, outcome};
use becket_config::choices::{Balance, CheckKind, Mode};
use becket_config::file::File;

const WHOLE: &str = "frontend f\n bind :1\n default_backend b\nbackend b\n server s 10.0.0.1:1\n";

#[test]
fn debians_file_with_a_site_becomes_two_listeners() {
    let text = include_str!("fixtures/debian.cfg");
    let migration = compare(Haproxy, "debian.toml", text, &[]);
    assert!(migration.has_lost());
    let said = |theirs, line| outcome(&migration, theirs, line);
    assert_eq!(said("log", 3).0, Lost);
    assert_eq!(said("daemon", 9).0, Ignored);
    assert_eq!(said("no-tls-tickets", 17).0, Different);
    assert_eq!(said("errorfile", 27).0, Lost);
    assert_eq!(said("alpn", 32).0, Different);
    assert_eq!(said("http-request", 33).0, Different);
    assert_eq!(said("http-request", 34).0, Lost);
    assert_eq!(said("use_backend", 35).0, Same);
    let (verdict, why) = said("use_backend", 36);
    assert!(
        verdict == Lost && why.contains("[[listener.route]]"),
        "{why}"
    );
    assert_eq!(said("listen", 54).0, Lost);
    let toml = migration.toml.unwrap();
    let head: Vec<&str> = toml
        .lines()
        .take_while(|line| line.starts_with('#'))
        .collect();
    let lost = migration.settings.iter().filter(|it| it.verdict == Lost);
    assert_eq!(head.len(), 1 + lost.count(), "{toml}");
}

#[test]
fn server_names_route_clients_to_servers_that_terminate_tls() {
    let text = include_str!("fixtures/passthrough.cfg");
    let migration = compare(Haproxy, "passthrough.toml", text, &[]);
    assert_eq!(outcome(&migration, "acl", 21).0, Same);
    assert_eq!(outcome(&migration, "tcp-request", 19).0, Ignored);
    assert_eq!(outcome(&migration, "timeout server", 11).0, Different);
    let file = File::parse(&migration.toml.unwrap()).unwrap();
    let listener = &file.listener[0];
    assert_eq!((listener.mode, listener.bind.len()), (Mode::Passthrough, 2));
    assert_eq!(listener.route.len(), 2);
    assert_eq!(file.backend[0].health.check, CheckKind::Connect);
    assert_eq!(file.backend[1].balance, Balance::SniHash);
}

#[test]
fn mail_has_its_certificates_from_a_list() {
    let list = "# mail\nmail.pem mail.test !old.mail.test\nother.pem [alpn imap] *.other.test\n";
    let text = include_str!("fixtures/mail.cfg");
    let parts = [("haproxy/mail.list", list)];
    let migration = compare(Haproxy, "mail.toml", text, &parts);
    let entries = migration.settings.iter().filter(|it| it.file.is_some());
    let entries: Vec<_> = entries.map(|it| (it.line, it.verdict)).collect();
    assert_eq!(entries, [(Some(2), Different), (Some(3), Lost)]);
    assert_eq!(outcome(&migration, "server", 14).0, Lost);
    assert_eq!(outcome(&migration, "verify", 14).0, Lost);
    assert_eq!(outcome(&migration, "directive", 17).0, Ignored);
    assert_eq!(outcome(&migration, "directive", 20).0, Lost);
    assert_eq!(outcome(&migration, "no", 6).0, Lost);
}

#[test]
fn unknown_directives_are_reported_as_lost_with_their_text() {
    let text =
        format!("{WHOLE} some \"strange thing\" # comment\n server t 10.0.0.1:2 sometimes\n");
    let migration = migration(Haproxy, &text, &[]);
    let (verdict, _) = outcome(&migration, "unknown directive", 6);
    assert_eq!(verdict, Lost);
    assert_eq!(outcome(&migration, "unknown option", 7).0, Lost);
    let toml = migration.toml.unwrap();
    assert!(
        toml.contains("# Lost, line 6: unknown directive = some strange thing: "),
        "{toml}"
    );
    let lines = migration.settings.iter().filter_map(|it| it.line);
    let lines: std::collections::BTreeSet<usize> = lines.collect();
    assert_eq!(lines.len(), 7);
}

#[test]
fn errors_report_their_lines() {
    for (text, error) in [
        (
            "frontend f\n bind :1 \"a\n",
            "line 2: \" bind :1 \\\"a\": quotes that do not end",
        ),
        (
            "global\n.if defined(A)\n",
            "line 2: \".if defined(A)\": conditions are not read",
        ),
        (
            "frontend f\n bind \"$A\"\n",
            "line 2: \" bind \\\"$A\\\"\": variables of the environment",
        ),
        (
            "backend b from x\n",
            "line 1: backend = \"b from x\": unknown words after the name",
        ),
        (
            "global\n maxconn many\n",
            "line 2: maxconn = \"many\": not of the shape",
        ),
        (
            "frontend f\n bind :1 ssl\n default_backend b\nbackend b\n server s a:1\n",
            "line 2: bind = \":1 ssl\": missing: a certificate",
        ),
        (
            "frontend f\n bind :1-9\n default_backend b\nbackend b\n server s a:1\n",
            "line 2: bind = \":1-9\": not an address",
        ),
        (
            "backend b\n server s a\n",
            "line 2: server = \"s a\": not the address of a server",
        ),
        (
            "defaults\n timeout client soon\nbackend b\n server s a:1\n",
            "line 2: timeout client = \"soon\": not a time",
        ),
        (
            "frontend f\n bind :1 ssl crt a.pem verify required\n default_backend b\nbackend b\n server s a:1\n",
            "ca-file: missing, though client certificates",
        ),
        (
            "backend b\n server s a:1 weight 999\n",
            "line 2: server = 999: not in range",
        ),
        ("", "listener: missing"),
    ] {
        let found = errors(Haproxy, text);
        assert!(
            found.iter().any(|found| found.starts_with(error)),
            "no {error} in {found:#?}"
        );
    }
}

#[test]
fn limits_are_enforced() {
    let many = "acl a ssl_fc_sni a.test\n".repeat(200_000);
    assert!(errors(Haproxy, &many)[0].contains("1 MiB"));
    let many = "frontend f\n".to_owned()
        + &" acl a ssl_fc_sni a\n".repeat(3000)
        + &" use_backend b if a\n".repeat(3000);
    assert!(errors(Haproxy, &format!("backend b\n server s a:1\n{many}"))[0].contains("too many"));
    let words = "bind ".repeat(65);
    assert!(errors(Haproxy, &words)[0].contains("64 words"));
}

#[test]
fn times_have_the_units_of_haproxy() {
    for (given, idle) in [
        ("5000", "5s"),
        ("100us", "1ms"),
        ("1500ms", "1s500ms"),
        ("1h30m", "1h30m"),
        ("2d", "2d"),
        ("0", "365d"),
    ] {
        let text = format!("defaults\n timeout client {given}\n{WHOLE}");
        let toml = migration(Haproxy, &text, &[]).toml.unwrap();
        assert!(
            toml.contains(&format!("idle = \"{idle}\"")),
            "{given}: {toml}"
        );
    }
}

#[test]
fn directives_that_restrict_or_change_connections_are_reported() {
    let frontend = |line: &str| format!("frontend f\n bind :443\n{line}\n default_backend b\n");
    let backend = |line: &str| format!("backend b\n server s 10.0.0.1:1 check\n{line}\n");
    for (line, name, verdict) in [
        (
            "tcp-request content accept if { req_ssl_hello_type 1 }",
            "tcp-request",
            Ignored,
        ),
        (
            "tcp-request content reject if !{ req_ssl_hello_type 1 }",
            "tcp-request",
            Ignored,
        ),
        (
            "tcp-request content reject if { req.ssl_hello_type 1 } { src 192.0.2.1 }",
            "tcp-request",
            Lost,
        ),
        (
            "tcp-request connection reject if { src 192.0.2.1 }",
            "tcp-request",
            Lost,
        ),
        ("http-request deny", "http-request", Lost),
        ("http-request auth", "http-request", Lost),
        (
            "redirect scheme https if !{ ssl_fc } !{ path /a }",
            "redirect",
            Lost,
        ),
        ("acl a req.ssl_sni -m end .test", "acl", Lost),
        (
            "use_backend b if { req.ssl_sni -f names }",
            "use_backend",
            Lost,
        ),
        (
            "use_backend b if !{ req.ssl_sni a.test }",
            "use_backend",
            Lost,
        ),
        (
            "use_backend b unless { req.ssl_sni a.test }",
            "use_backend",
            Lost,
        ),
        (
            "use_backend b if { req.ssl_sni a.test } || { req.ssl_sni b.test }",
            "use_backend",
            Same,
        ),
        ("maxconn 10", "maxconn", Lost),
        ("server x 10.0.0.9:1", "server", Same),
    ] {
        let migration = migration(Haproxy, &(frontend(line) + &backend("")), &[]);
        assert_eq!(outcome(&migration, name, 3).0, verdict, "{line}");
    }
    for (line, name, verdict) in [
        ("source 10.0.0.9 usesrc clientip", "source", Lost),
        ("stick on src table other", "stick on", Lost),
        ("balance uri", "balance", Lost),
        ("server t 10.0.0.2:1", "server", Different),
        ("server t 10.0.0.2:1 check ssl verify none", "ssl", Lost),
        ("server t 10.0.0.2:1 check send-proxy", "send-proxy", Lost),
        ("server t 10.0.0.2:1 check inter 9s", "inter", Lost),
        (
            "server-template t 3 a.test:80 check",
            "server-template",
            Lost,
        ),
        ("option forwardfor", "option forwardfor", Lost),
        ("http-check expect ! status 500", "http-check expect", Lost),
    ] {
        let migration = migration(Haproxy, &(backend(line) + &frontend("")), &[]);
        assert_eq!(outcome(&migration, name, 3).0, verdict, "{line}");
        let page = migration.page();
        assert!(
            page.lines().all(|line| line.chars().count() <= 120),
            "{page}"
        );
    }
}

#[test]
fn a_section_chooses_its_own_kind_of_check() {
    let text = format!(
        "defaults\n option httpchk GET /up\n http-check expect status 200\n{WHOLE} option tcp-check\n default-server check\n"
    );
    let migration = migration(Haproxy, &text, &[]);
    let file = File::parse(&migration.toml.unwrap()).unwrap();
    assert_eq!(file.backend[0].health.check, CheckKind::Connect);
}

#[test]
fn a_client_name_towards_servers_is_not_verified_silently() {
    let text =
        format!("{WHOLE} default-server ssl verify required ca-file ca.pem sni ssl_fc_sni\n");
    let migration = migration(Haproxy, &text, &[]);
    assert_eq!(outcome(&migration, "sni", 6).0, Lost);
}
