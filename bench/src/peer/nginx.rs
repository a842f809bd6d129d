//! Generates the configuration of nginx: the stream module to relay bytes, or the http module to serve files.

use std::net::SocketAddr;

use super::site::{BACKLOG, SESSIONS, Site, first_words, groups, suite_names, words_after};
use crate::bundles;
use crate::scenario::{EARLY, Files, Front};

/// Returns the configuration. `said` is the output of `nginx -V`.
pub(super) fn configuration(site: &Site<'_>, said: &str) -> String {
    let (old, new) = suite_names(&site.settings.suite);
    let module = module(said).map(|path| format!("load_module {path};\n"));
    let server = |address: &SocketAddr| format!("server {address}; ");
    let servers: String = site.backends().iter().map(server).collect();
    let mut behind = format!("  upstream bench {{ {servers}}}\n");
    let sealed = match site.settings.files {
        Files::Behind => "",
        _ => " ssl",
    };
    let (listen, target) = match site.settings.front {
        Front::Passthrough => {
            behind += "  map $ssl_preread_server_name $chosen { bench.example.org bench; default bench; }\n";
            ("", "$chosen; ssl_preread on")
        }
        Front::Plain => ("", "bench"),
        Front::Terminate => (sealed, "bench"),
    };
    let (module, kind, server) = match site.settings.files {
        Files::None if site.settings.certificates > 1 => (String::new(), "http", names(site)),
        Files::None => (
            module.unwrap_or_default(),
            "stream",
            format!(
                "{behind}  server {{ listen {address}{listen} backlog={BACKLOG}; proxy_pass {target}; }}",
                address = site.address
            ),
        ),
        // If root runs the bench, nginx workers must run as root too, because the files are readable only by root.
        _ => ("user root;\n".to_owned(), "http", files(site, sealed)),
    };
    // AWS-LC has no such commands. The client offers a single suite.
    let suites = if said.contains("AWS-LC") {
        String::new()
    } else {
        format!("  ssl_conf_command Ciphersuites {new};\n")
    };
    format!(
        "{module}worker_processes {workers};
pid {directory}/nginx.pid;
error_log stderr error;
daemon off;
worker_rlimit_nofile {files};
events {{ worker_connections {connections}; }}
{kind} {{
{certificate}  ssl_protocols TLSv{tls};
  ssl_ciphers {old};
{suites}  ssl_ecdh_curve {groups};
  ssl_session_cache shared:bench:{cache}m;
  ssl_session_timeout 300s;
{server}
}}
",
        workers = site.settings.workers,
        directory = site.directory.display(),
        files = site.connections * 2 + 100,
        // A proxied connection uses two worker connections.
        connections = site.connections * 2,
        certificate = certificate(site),
        tls = site.settings.tls,
        groups = groups(site.settings),
        // One megabyte stores about 4000 sessions, according to nginx's manual.
        cache = SESSIONS / 4000,
    )
}

/// Returns the default certificate. Without a file, each server section has its own.
fn certificate(site: &Site<'_>) -> String {
    let file = site.certificate.display();
    match site.settings.certificates {
        1 if site.certificate.is_file() => {
            format!("  ssl_certificate {file};\n  ssl_certificate_key {file};\n")
        }
        1 => {
            let file = bundles::file(site.certificate, 0);
            let file = file.display();
            format!("  ssl_certificate {file};\n  ssl_certificate_key {file};\n")
        }
        _ => String::new(),
    }
}

/// Returns a server section for each of many certificates. The stream module chooses no certificate by name.
fn names(site: &Site<'_>) -> String {
    let sections = bundles::listed(site.certificate, site.settings.certificates);
    let sections = sections.map(|(name, file)| {
        let (address, file) = (site.address, file.display());
        format!(
            "  server {{ listen {address} ssl; server_name {name}; ssl_certificate {file}; ssl_certificate_key {file}; location / {{ proxy_pass http://{backend}; }} }}\n",
            backend = site.backend,
        )
    });
    let sections: String = sections.collect();
    format!(
        "  access_log off;\n  server_names_hash_max_size 262144;\n  server_names_hash_bucket_size 128;\n{}{sections}",
        temporary(site)
    )
}

/// Returns the folders for temporary files, which nginx creates at a start.
fn temporary(site: &Site<'_>) -> String {
    let directory = site.directory.display();
    format!(
        "  client_body_temp_path {directory}/nginx-a;
  proxy_temp_path {directory}/nginx-b;
  fastcgi_temp_path {directory}/nginx-c;
  uwsgi_temp_path {directory}/nginx-d;
  scgi_temp_path {directory}/nginx-e;
"
    )
}

/// Returns the server section for files. It uses an open file cache and sendfile, as nginx's manual recommends for
/// speed.
fn files(site: &Site<'_>, sealed: &str) -> String {
    format!(
        "  access_log off;
  sendfile on;
  tcp_nopush on;
  open_file_cache max=1000;
  keepalive_requests 1000000;
{temporary}  server {{ listen {address}{sealed} backlog={BACKLOG}; root {files};{early}{kernel} }}",
        address = site.address,
        temporary = temporary(site),
        files = site.files().display(),
        early = match site.settings.resume.as_str() {
            EARLY if !sealed.is_empty() => " ssl_early_data on;",
            _ => "",
        },
        kernel = if site.settings.ktls && !sealed.is_empty() {
            " ssl_conf_command Options KTLS;"
        } else {
            ""
        },
    )
}

pub(super) fn version(said: &str) -> (Option<String>, Option<String>) {
    let version = words_after(said, "nginx version: nginx/", 1);
    let built = said
        .lines()
        .find_map(|line| line.strip_prefix("built with "));
    let library = built.map(|text| {
        text.split_once("running with ")
            .map_or(text, |(_, running)| running)
    });
    let library = library.map(|text| first_words(text.trim_end_matches(')'), 2));
    (version, library)
}

/// Returns the path of the stream module if it is a dynamic module, as in Debian's build, otherwise `None`.
fn module(said: &str) -> Option<String> {
    let option = |name| {
        said.split_ascii_whitespace()
            .find_map(|o| o.strip_prefix(name))
    };
    option("--with-stream=dynamic")?;
    Some(format!(
        "{}/ngx_stream_module.so",
        option("--modules-path=").unwrap_or("modules")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_loads_its_own_stream_module_or_none() {
        let debian = "configure arguments: --modules-path=/usr/lib/nginx/modules --with-stream=dynamic --with-http_ssl_module";
        let own = "configure arguments: --prefix=/opt/nginx --with-stream --with-stream_ssl_module";
        let place = "/usr/lib/nginx/modules/ngx_stream_module.so";
        assert_eq!(module(debian).as_deref(), Some(place));
        assert_eq!(module(own), None);
    }

    #[test]
    fn the_library_is_the_one_in_use() {
        let of = |said: &str| version(said).1.unwrap();
        let head = "nginx version: nginx/1.28.3\n";
        let built = "built with OpenSSL 1.1.1 (compatible; AWS-LC 5.12.0)";
        let running = "(running with AWS-LC 5.12.0)";
        assert_eq!(of(&format!("{head}{built} {running}\n")), "AWS-LC 5.12.0");
        assert_eq!(
            of("built with OpenSSL 3.0.19 1 Jan 2026\n"),
            "OpenSSL 3.0.19"
        );
    }
}
