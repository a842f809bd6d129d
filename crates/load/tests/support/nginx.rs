//! nginx as a peer, with a log of which sessions were resumed.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use super::Identity;
use super::peer::{Peer, free_address};

/// An nginx with TLS on one address and without on another.
pub(crate) struct Nginx {
    pub(crate) peer: Peer,
    pub(crate) tls: SocketAddr,
    pub(crate) plain: SocketAddr,
    pub(crate) files: Identity,
}

impl Nginx {
    /// Starts one whose answer over TLS is this directive.
    pub(crate) fn start(answer: &str) -> Self {
        let identity = Identity::new();
        let (tls, plain) = (free_address(), free_address());
        let dir = identity.dir.path().display().to_string();
        let conf = format!(
            "daemon off; worker_processes 1; pid {dir}/pid; error_log {dir}/error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {dir}/b; proxy_temp_path {dir}/p;\n\
             fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;\n\
             log_format reused '$ssl_session_reused';\n\
             server {{ listen {tls} ssl; ssl_certificate cert.pem; ssl_certificate_key key.pem;\n\
             ssl_session_cache shared:s:5m; ssl_protocols TLSv1.2 TLSv1.3; access_log {dir}/reused.log reused;\n\
             location / {{ {answer}; }} }}\n\
             server {{ listen {plain}; location / {{ return 200 hello; }} }} }}\n"
        );
        std::fs::write(identity.path("nginx.conf"), conf).expect("written");
        let mut command = Command::new("nginx");
        command
            .args(["-p", &dir, "-c", &format!("{dir}/nginx.conf")])
            .stderr(Stdio::null());
        let log = Some(identity.path("error.log"));
        let peer = Peer::start(&mut command, log)
            .await_listening(tls)
            .await_listening(plain);
        Self {
            peer,
            tls,
            plain,
            files: identity,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}/", self.tls)
    }
}
