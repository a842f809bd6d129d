//! Rates and costs beside other generators, and the remark of a client that is itself what is slow.
//!
//! Run with `cargo bench -p becket-load --bench others` on a machine that does nothing else: where the server's time outweighs
//! the clients' own, the rates agree within 5 %, and a handshake costs at most half the user time that it costs openssl. Run
//! as a test it shows that everything runs, at a length that measures nothing.

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Arc;

use becket_tidy::find;
use support::nginx::Nginx;
use support::peer::Peer;
use support::{report, shown};

fn main() {
    let seconds = if std::env::args().any(|arg| arg == "--bench") {
        5
    } else {
        1
    };
    if find("nginx").is_some() && find("wrk").is_some() {
        wrk(seconds);
    }
    if find("nginx").is_some() && find("openssl").is_some() {
        s_time(seconds);
        cost(seconds);
    }
    let url = format!("http://{}/", serve_crumbs());
    println!(
        "crumbs: {}",
        report(&url, &format!("-c 4 -d {seconds}s -t 1")).verdict
    );
}

fn wrk(seconds: u32) {
    let (_responder, address) = Peer::responder(&["--service-time", "10ms"]);
    let url = format!("http://{address}/");
    let ours = report(
        &url,
        &format!("-c 16 -t 1 -d {seconds}s --keepalive 100000000"),
    );
    let text = run("wrk", &format!("-c16 -t1 -d{seconds}s {url}"));
    let theirs = text
        .lines()
        .find_map(|line| line.strip_prefix("Requests/sec:"));
    println!(
        "rate: {:.0}/s, wrk {}/s",
        ours.steps[0].rate_succeeded_per_s,
        theirs.expect(&text).trim()
    );
}

fn s_time(seconds: u32) {
    let (_responder, slow) = Peer::responder(&["--service-time", "40ms"]);
    let nginx = Nginx::start(&format!("proxy_pass http://{slow}"));
    let ours = report(&nginx.url(), &format!("-c 1 -t 1 -d {seconds}s --tls 1.2"));
    let (count, _) = openssl(&nginx, &format!("-tls1_2 -time {seconds}"));
    let theirs = count / f64::from(seconds);
    println!(
        "rate, TLS 1.2: {:.1}/s, s_time {theirs:.1}/s",
        ours.steps[0].rate_succeeded_per_s
    );
}

fn cost(seconds: u32) {
    let nginx = Nginx::start("return 200 hello");
    let ours = report(&nginx.url(), &format!("-c 1 -t 1 -d {seconds}s --tls 1.3"));
    let ours = ours.steps[0]
        .generator
        .cpu_us_per_transaction
        .expect("some succeeded");
    let (count, user) = openssl(&nginx, &format!("-time {seconds}"));
    println!(
        "CPU of a transaction: {ours:.0} us, s_time {:.0} us",
        user * 1e6 / count
    );
}

/// Connections that s_time made, and its user time in seconds.
fn openssl(nginx: &Nginx, args: &str) -> (f64, f64) {
    let text = run(
        "openssl",
        &format!("s_time -connect {} -new -www / {args}", nginx.tls),
    );
    let line = text
        .lines()
        .find_map(|line| line.split_once(" connections in "));
    let (count, rest) = line.expect(&text);
    let user = rest.split('s').next().expect("a time");
    (
        count.trim().parse().expect("a count"),
        user.trim().parse().expect("seconds"),
    )
}

fn run(program: &str, args: &str) -> String {
    let output = Command::new(program)
        .args(args.split_ascii_whitespace())
        .output();
    shown(&output.expect("it runs"))
}

/// Serves a body in a hundred thousand chunks of one byte: a copy for the server, toil for the client.
fn serve_crumbs() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address");
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    let response: Arc<str> = format!("{head}{}0\r\n\r\n", "1\r\nx\r\n".repeat(100_000)).into();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let response = Arc::clone(&response);
            std::thread::spawn(move || {
                let read = socket.read(&mut [0; 4096]);
                drop(read.and_then(|_| socket.write_all(response.as_bytes())));
            });
        }
    });
    address
}
