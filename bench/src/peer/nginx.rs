//! nginx's configuration: its stream module, which carries bytes as the other peers do.

use std::net::SocketAddr;

use super::{BACKLOG, SESSIONS, Site, groups, suite_names};

pub(super) fn args(file: &str) -> Vec<String> {
    ["-c", file, "-e", "stderr"].map(str::to_owned).to_vec()
}

/// `said` is what the program says of how it was built.
pub(super) fn configuration(site: &Site<'_>, said: &str) -> String {
    let (old, new) = suite_names(&site.settings.suite);
    let module = module(said).map(|path| format!("load_module {path};\n"));
    let server = |address: &SocketAddr| format!("server {address}; ");
    let servers: String = site.backends().iter().map(server).collect();
    let mut behind = format!("  upstream bench {{ {servers}}}\n");
    let (listen, target) = match site.settings.passthrough {
        true => {
            behind += "  map $ssl_preread_server_name $chosen { bench.example.org bench; default bench; }\n";
            ("", "$chosen; ssl_preread on")
        }
        false => (" ssl", "bench"),
    };
    format!(
        "{module}worker_processes {workers};
pid {directory}/nginx.pid;
error_log stderr error;
daemon off;
worker_rlimit_nofile {files};
events {{ worker_connections {connections}; }}
stream {{
  ssl_certificate {certificate};
  ssl_certificate_key {certificate};
  ssl_protocols TLSv{tls};
  ssl_ciphers {old};
  ssl_conf_command Ciphersuites {new};
  ssl_ecdh_curve {groups};
  ssl_session_cache shared:bench:{cache}m;
  ssl_session_timeout 300s;
{behind}  server {{ listen {address}{listen} backlog={BACKLOG}; proxy_pass {target}; }}
}}
",
        module = module.unwrap_or_default(),
        workers = site.settings.workers,
        directory = site.directory.display(),
        files = site.connections * 2 + 100,
        // A proxied connection counts twice.
        connections = site.connections * 2,
        certificate = site.certificate.display(),
        tls = site.settings.tls,
        groups = groups(site.settings),
        // nginx's manual: 4000 sessions per megabyte.
        cache = SESSIONS / 4000,
        address = site.address,
    )
}

pub(super) fn version(said: &str) -> (String, String) {
    let version = said.lines().find_map(|line| {
        line.strip_prefix("nginx version: nginx/")?
            .split_ascii_whitespace()
            .next()
    });
    let built = said
        .lines()
        .find_map(|line| line.strip_prefix("built with "));
    let library = built.map(|text| match text.split_once("running with ") {
        Some((_, running)) => running,
        None => text,
    });
    let short = library.map(|text| {
        text.split_ascii_whitespace()
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    });
    (
        version.unwrap_or("unknown").to_owned(),
        short.unwrap_or_else(|| "unknown".to_owned()),
    )
}

/// Where a build has the stream module, if it has it apart, as Debian's does. Another build cannot load that one.
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
    fn a_build_loads_its_own_module_or_none() {
        let debian = "configure arguments: --modules-path=/usr/lib/nginx/modules --with-stream=dynamic --with-http_ssl_module";
        let own = "configure arguments: --prefix=/opt/nginx --with-stream --with-stream_ssl_module";
        let place = "/usr/lib/nginx/modules/ngx_stream_module.so";
        assert_eq!(module(debian).as_deref(), Some(place));
        assert_eq!(module(own), None);
    }
}
