//! Files as distributions and users have them, and each error.

use super::super::MigrationSource::Nginx;
use super::super::SettingSupport::{Different, Ignored, Lost, Same};
use super::super::fixture::{compare, errors, migration, outcome};
use becket_config::choices::{Mode, UnknownNames};
use becket_config::file::File;

const SITE: &str = include_str!("fixtures/site.conf");

#[test]
fn debians_file_and_its_sites_are_read_together() {
    let text = include_str!("fixtures/debian.conf");
    let parts = [
        ("nginx/sites-enabled/site", SITE),
        ("nginx/conf.d/empty.conf", ""),
    ];
    let migration = compare(Nginx, "site.toml", text, &parts);
    let said = |theirs, line| outcome(&migration, theirs, line).0;
    assert_eq!(said("worker_connections", 8), Ignored);
    assert_eq!(said("ssl_protocols", 20), Different);
    assert_eq!(said("gzip", 24), Lost);
    let in_site = |theirs: &str, line| {
        let mut remarks = migration.settings.iter().filter(|it| it.file.is_some());
        let found = remarks.find(|it| it.theirs == theirs && it.line == Some(line));
        found.unwrap_or_else(|| panic!("no {theirs}")).verdict
    };
    assert_eq!(in_site("proxy_set_header", 30), Lost);
    assert_eq!(in_site("location", 33), Lost);
    assert_eq!(in_site("location", 28), Same);
    assert_eq!(in_site("root", 34), Lost);
    assert_eq!(in_site("server_name", 40), Lost);
    let file = File::parse(migration.toml.as_deref().unwrap()).unwrap();
    assert_eq!(file.listener.len(), 2);
    assert!(file.listener[1].redirect.is_some());
    assert_eq!(file.listener[0].certificates.len(), 2);
    assert_eq!(file.listener[0].route.len(), 3);
}

#[test]
fn streams_pass_tls_through_or_terminate_it() {
    let text = include_str!("fixtures/stream.conf");
    let migration = compare(Nginx, "stream.toml", text, &[]);
    assert_eq!(outcome(&migration, "map", 5).0, Lost);
    assert_eq!(outcome(&migration, "listen", 38).0, Lost);
    assert_eq!(outcome(&migration, "hash", 14).0, Same);
    let file = File::parse(&migration.toml.unwrap()).unwrap();
    assert_eq!(file.listener[0].mode, Mode::Passthrough);
    assert_eq!(file.listener[0].route.len(), 3);
    assert_eq!(file.listener[1].trusted_networks.len(), 1);
}

#[test]
fn syntax_is_that_of_nginx() {
    let text = "# a\nfoo \"a;b\" 'c}' d\\;e ${x}y ${z}; bar{baz;}\n\"\";";
    let migration = migration(Nginx, text, &[]);
    let values: Vec<&str> = migration.settings.iter().map(|it| &*it.value).collect();
    assert_eq!(values, ["foo a;b c} d;e ${x}y ${z}", "bar", "baz", ""]);
}

#[test]
fn errors_report_their_lines() {
    let server = |inner: &str| format!("stream {{ server {{ {inner} }} }}");
    for (text, error) in [
        (
            "\nuser".to_owned(),
            "line 2: a directive or a block that does not end",
        ),
        ("}".to_owned(), "line 1: a ;, { or } too many"),
        ("user 'a".to_owned(), "line 1: quotes that do not end"),
        (
            "include none.conf;".to_owned(),
            "line 1: /etc/none.conf: no such file",
        ),
        (
            server("listen a:1; proxy_pass b:2;"),
            "line 1: listen = \"a:1\": not an address",
        ),
        (
            server("listen 1; proxy_pass b;"),
            "line 1: proxy_pass = \"b\": not the address of a server",
        ),
        (
            server("listen 1 ssl; proxy_pass b:2;"),
            "line 1: listen = \"1 ssl\": missing: a certificate",
        ),
        (
            server("listen 1; proxy_pass b:2; proxy_timeout soon;"),
            "line 1: proxy_timeout = \"soon\": not a time",
        ),
        (
            "http { server { listen 80; root /a; } }".to_owned(),
            "server: missing",
        ),
    ] {
        let found = errors(Nginx, &text);
        assert!(
            found.iter().any(|found| found.starts_with(error)),
            "no {error} in {found:#?}"
        );
    }
}

#[test]
fn limits_are_enforced() {
    let deep = "a {".repeat(40) + &"}".repeat(40);
    assert!(errors(Nginx, &deep)[0].contains("blocks in blocks"));
    assert!(errors(Nginx, &"a;".repeat(200_000))[0].contains("too many directives"));
    let loops = [("loop.conf", "include loop.conf;")];
    let found = migration(Nginx, "include loop.conf;", &loops).errors;
    assert!(found[0].to_string().contains("too many files"), "{found:?}");
    assert!(errors(Nginx, &" ".repeat(2 << 20))[0].contains("1 MiB"));
}

#[test]
fn routes_have_the_priorities_of_nginx() {
    let server = |names: &str, to: u16| {
        format!(
            "server {{ listen 443 ssl; server_name {names}; location / {{ proxy_pass http://10.0.0.1:{to}; }} }}\n"
        )
    };
    // The file of a site, without nginx.conf around it.
    let text = "ssl_certificate a.crt; ssl_certificate_key a.key;\n".to_owned()
        + &server("in.a.test", 1)
        + &server("*.a.test", 2)
        + &server("api.a.test", 3);
    let migration = migration(Nginx, &text, &[]);
    assert_eq!(outcome(&migration, "server_name", 3).0, Different);
    let file = File::parse(&migration.toml.unwrap()).unwrap();
    let routes = file.listener[0].route.iter();
    let routes: Vec<_> = routes.map(|it| it.names[0].to_string()).collect();
    assert_eq!(routes, ["api.a.test", "in.a.test", "*.a.test"]);
}

#[test]
fn directives_that_restrict_or_change_requests_are_reported() {
    for (inner, name, verdict) in [
        ("deny all;", "deny", Lost),
        ("auth_basic x;", "auth_basic", Lost),
        ("limit_req zone=a;", "limit_req", Lost),
        ("limit_conn a 3;", "limit_conn", Different),
        ("limit_conn other 3;", "limit_conn", Lost),
        ("if ($a) { return 403; }", "if", Lost),
        (
            "location /a { proxy_pass http://10.0.0.2:1; }",
            "proxy_pass",
            Lost,
        ),
        ("location ~ ^/$ { deny all; }", "location", Lost),
        ("ssl_conf_command Options KTLS;", "ssl_conf_command", Lost),
        (
            "ssl_trusted_certificate a;",
            "ssl_trusted_certificate",
            Lost,
        ),
        ("proxy_ssl_verify on;", "proxy_ssl_verify", Lost),
        ("server_name a.*;", "server_name", Lost),
        ("no_such_thing on;", "unknown directive", Lost),
    ] {
        let text = format!(
            "http {{ map $a $b {{ c d; }} limit_conn_zone $binary_remote_addr zone=a:1m;\nupstream unused {{ server 10.0.0.9:1; }} server {{ listen 443 ssl;\n{inner}\n\
             ssl_certificate a; ssl_certificate_key a; ssl_verify_client on; ssl_client_certificate a; location / {{ proxy_pass http://10.0.0.1:1; }} }} }}"
        );
        let migration = migration(Nginx, &text, &[]);
        assert_eq!(outcome(&migration, name, 3).0, verdict, "{inner}");
        assert_eq!(outcome(&migration, "map", 1).0, Lost);
        assert_eq!(outcome(&migration, "upstream", 2).0, Lost);
        let page = migration.page();
        assert!(
            page.lines().all(|line| line.chars().count() <= 120),
            "{page}"
        );
    }
}

#[test]
fn a_default_server_without_a_backend_makes_unknown_names_strict() {
    let other = "server { listen 443 ssl; server_name a.test; ssl_certificate a; ssl_certificate_key a; location / { proxy_pass http://10.0.0.1:1; } }";
    for default in ["ssl_reject_handshake on;", "return 444;"] {
        let text =
            format!("http {{ server {{ listen 443 ssl default_server; {default} }} {other} }}");
        let migration = migration(Nginx, &text, &[]);
        assert_eq!(migration.has_lost(), default.starts_with("return"));
        let file = File::parse(&migration.toml.unwrap()).unwrap();
        assert_eq!(file.listener[0].unknown_names, Some(UnknownNames::Strict));
        assert_eq!(file.listener[0].route.len(), 1);
    }
    let text = "http { server { listen 80 default_server; return 444; }\nserver { listen 80; server_name a.test; return 301 https://$host$request_uri; } }";
    let migration = migration(Nginx, text, &[]);
    assert_eq!(outcome(&migration, "server", 1).0, Lost);
    assert!(migration.toml.unwrap().contains("redirect = \"https\""));
}

#[test]
fn pool_names_are_scoped_to_their_module() {
    let text = "http { upstream u { server 10.0.0.1:1; } server { listen 1; location / { proxy_pass http://u; } } }\n\
                stream { upstream u { server 10.0.0.2:1; } server { listen 2; proxy_pass u; } }";
    let file = File::parse(&migration(Nginx, text, &[]).toml.unwrap()).unwrap();
    assert_eq!(file.backend.len(), 2);
}
