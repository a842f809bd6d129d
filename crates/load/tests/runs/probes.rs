//! A probe ends within its limits, even if a server misbehaves.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::server::{Server, config};
use super::{load, shown};

/// Function that serves one connection.
type Serve = fn(TcpStream);

/// Starts a server that calls `serve` for each connection.
fn hostile(serve: Serve) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || serve(socket));
        }
    });
    address
}

fn send_for_ever(mut socket: TcpStream, piece: &[u8], pause: Duration) {
    drop(socket.read(&mut [0; 4096]));
    while socket.write_all(piece).is_ok() {
        std::thread::sleep(pause);
    }
}

#[test]
fn a_server_that_misbehaves_is_shown_with_an_error() {
    let all: [(Serve, &str); 6] = [
        (
            |mut socket| drop(socket.read(&mut [0; 4096])),
            "closed early",
        ),
        (
            |socket| send_for_ever(socket, b"HTTP/1.1 400\r\n\r\n", Duration::ZERO),
            "not TLS",
        ),
        // A record of 12 KiB with a ServerHello of 4 KiB, sent in small pieces.
        (
            |socket| {
                send_for_ever(
                    socket,
                    &[22, 3, 3, 48, 0, 2, 0, 15, 0],
                    Duration::from_millis(20),
                )
            },
            "time-out",
        ),
        (
            |socket| send_for_ever(socket, &[22, 3, 3, 0, 2, 2, 0], Duration::ZERO),
            "tls",
        ),
        (
            |socket| send_for_ever(socket, &[21, 3, 3, 0, 2, 2, 40], Duration::ZERO),
            "alert 40",
        ),
        (|socket| drop((socket, std::thread::park())), "time-out"),
    ];
    for (serve, reason) in all {
        let address = hostile(serve);
        let output = load(&format!("probe --json --time-out 300ms {address}"));
        assert_eq!(
            output.status.code(),
            Some(1),
            "{reason}: {}",
            shown(&output)
        );
        let row: Value = serde_json::from_slice(&output.stdout).unwrap();
        let error = row["error"].as_str().unwrap();
        assert!(error.contains(reason), "{reason}: {row}");
    }
}

#[test]
fn a_server_without_resumption_is_not_an_error() {
    let mut config = config();
    config.session_storage = std::sync::Arc::new(rustls::server::NoServerSessionStorage {});
    let server = Server::usual(config);
    let host = server.url().replace("https://", "").replace('/', "");
    let output = load(&format!("probe --json {host}"));
    let row: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        row["versions"],
        serde_json::json!(["TLSv1.3", "TLSv1.2"]),
        "{row}"
    );
    assert_eq!(row["resumes_by"], serde_json::json!([]), "{row}");
    assert_eq!(
        row["certificate"]["names"],
        serde_json::json!(["localhost"]),
        "{row}"
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn an_invalid_server_is_rejected_before_any_server_is_probed() {
    for server in ["", "a/b", "a:b", "::1", "https://a/", "a b"] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_becket-load"))
            .args(["probe", "127.0.0.1:1", server])
            .output()
            .unwrap();
        assert_eq!(
            output.status.code(),
            Some(2),
            "{server}: {}",
            shown(&output)
        );
        assert!(
            output.stdout.is_empty() && shown(&output).contains("HOST[:PORT]"),
            "{server}"
        );
    }
}
