//! Real web servers with a single process, which tests can kill, stop and start again.
//!
//! All servers give the same responses: a first line with their name, then padding. A client can therefore tell which server
//! answered, and whether the response is complete.
//!
//! | path | response |
//! |---|---|
//! | `/health` | 204 without delay |
//! | `/long` | [`LONG`] bytes over about three seconds (nginx only) |
//! | any other | [`SHORT`] bytes after a tenth of a second; 429 above the limit of clients |

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::place::Place;
use crate::time::eventually;
use crate::tool::{Kept, Tool};

/// Server program.
#[derive(Clone, Debug)]
pub enum Make {
    /// `nginx`. It also listens on the next port with TLS and the certificate `site.pem`.
    Nginx(Tool),
    HaProxy(Tool),
}

/// Running server, killed on drop.
#[derive(Debug)]
pub struct Server {
    process: Kept,
    pub address: SocketAddr,
}

impl Server {
    /// Starts a server called `name` and waits until it listens. Clients above the limit of `most` at the same time
    /// receive 429.
    #[track_caller]
    pub fn start(make: &Make, place: &Place, address: SocketAddr, name: &str, most: u32) -> Self {
        let command = match make {
            Make::Nginx(tool) => nginx_of(tool, place, address, name, most),
            Make::HaProxy(tool) => haproxy_of(tool, place, address, name, most),
        };
        let process = serve(command, place, name, address);
        Self { process, address }
    }

    /// Sends a signal, such as SIGSTOP and SIGCONT.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process.0), signal).expect("a server that runs");
    }
}

/// Runs a program in the foreground and waits until it listens at `at`. Its output goes to `NAME.log` in the place.
#[track_caller]
pub fn serve(mut command: Command, place: &Place, name: &str, at: SocketAddr) -> Kept {
    let log = File::create(place.path(&format!("{name}.log"))).expect("a file");
    let also = log.try_clone().expect("the same file");
    let kept = Kept(command.stdout(also).stderr(log).spawn().expect("a server"));
    eventually("a server listens", || TcpStream::connect(at).is_ok());
    kept
}

/// Runs nginx with a single process, so that one kill stops all of it. `http` is the content of its `http` section.
#[track_caller]
pub fn nginx(tool: &Tool, place: &Place, http: &str, at: SocketAddr) -> Kept {
    let command = nginx_command(tool, place, "nginx", http);
    serve(command, place, "nginx", at)
}

/// Runs HAProxy with this configuration.
#[track_caller]
pub fn haproxy(tool: &Tool, place: &Place, text: &str, at: SocketAddr) -> Kept {
    serve(
        haproxy_command(tool, place, "haproxy", text),
        place,
        "haproxy",
        at,
    )
}

fn nginx_command(tool: &Tool, place: &Place, name: &str, http: &str) -> Command {
    let folder = place.path(name);
    fs::create_dir_all(&folder).expect("a folder");
    let folder = folder.display();
    let text = format!(
        "daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr;
         events {{ worker_connections 4096; }}
         http {{
           access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
           fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
           {http}
         }}\n"
    );
    let path = place.write(&format!("{name}.conf"), &text);
    tool.command(["-e", "stderr", "-c", &path.to_string_lossy()])
}

fn haproxy_command(tool: &Tool, place: &Place, name: &str, text: &str) -> Command {
    let path = place.write(&format!("{name}.cfg"), text);
    tool.command(["-db", "-f", &path.to_string_lossy()])
}

/// Returns the text of a response with this length.
fn answer(name: &str, length: usize) -> String {
    format!("{name}\n{}", "x".repeat(length - name.len() - 1))
}

fn nginx_of(tool: &Tool, place: &Place, at: SocketAddr, name: &str, most: u32) -> Command {
    let folder = place.path(name);
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("short"), answer(name, SHORT)).expect("a file");
    fs::write(folder.join("long"), answer(name, LONG)).expect("a file");
    let (folder, site) = (folder.display(), place.text("site.pem"));
    let secure = SocketAddr::new(at.ip(), at.port() + 1);
    let http = format!(
        "default_type text/plain; limit_conn_zone $server_name zone=all:1m;
         sendfile on; root {folder};
         server {{
           listen {at}; listen {secure} ssl; server_name {name};
           ssl_certificate {site}; ssl_certificate_key {site};
           location / {{ limit_conn all {most}; limit_conn_status 429; rewrite ^ /short break;
             sendfile_max_chunk 4k; limit_rate 80k; }}
           location = /long {{ sendfile_max_chunk 4k; limit_rate 40k; }}
           location = /health {{ return 204; }}
         }}"
    );
    nginx_command(tool, place, name, &http)
}

fn haproxy_of(tool: &Tool, place: &Place, at: SocketAddr, name: &str, most: u32) -> Command {
    let body = place.write(&format!("{name}.txt"), &answer(name, SHORT));
    let body = body.display();
    // Health checks are answered before the limit applies.
    let text = format!(
        "global\n  nbthread 1\ndefaults\n  mode http\n  timeout client 30s\n  timeout server 30s\n  \
         timeout connect 5s\n  timeout tarpit 100ms\nfrontend all\n  bind {at}\n  \
         http-request return status 204 if {{ path /health }}\n  default_backend slow\n\
         backend slow\n  http-request return status 429 if {{ be_conn gt {most} }}\n  \
         http-request tarpit status 200 content-type text/plain file {body}\n"
    );
    haproxy_command(tool, place, name, &text)
}

/// Length of a short response in bytes.
const SHORT: usize = 12 * 1024;
/// Length of a long response in bytes.
const LONG: usize = 128 * 1024;
