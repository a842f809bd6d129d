//! Samples and keys for the tests.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::json;

use super::sample::Sample;

/// Builds the status of a becket after `second` seconds of steady traffic.
pub(super) fn sample(second: u64) -> Sample {
    let server = |name: &str, open: u64, each: u64, failures: u64| {
        json!({"name": name, "mode": "ready", "state": "passing", "condition": "in-service", "weight": 1,
            "in_use": open, "maxconn": null, "connections": each * second, "failures": failures})
    };
    let mut out = server("10.0.0.3:80", 0, 0, 9);
    out["condition"] = "out-of-service".into();
    out["condition_reason"] = "refused".into();
    let status = json!({
        "version": "1.2.3", "state": "serving", "started": "2026-11-22T09:00:00.000000Z", "workers": 4, "pid": 77, "uptime_seconds": 3600 + second,
        "now": format!("2026-11-22T10:00:{second:02}.000000Z"),
        "problems": ["backend app: server 10.0.0.3:80 is out of service: refused"],
        "totals": {"connections": 42, "accepted": 30 * second, "handshakes_full": 10 * second,
            "handshakes_resumed": 20 * second, "handshakes_failed": second / 2, "handshakes_in_flight": 3,
            "client_bytes_in": 1_500_000 * second, "client_bytes_out": 3_000 * second,
            "closed": {"finished": 25 * second, "hello-timeout": second}},
        "recent": {"seconds": 10.0, "handshake_p50_us": 1200, "handshake_p99_us": 8100},
        "backends": [{"name": "app", "waiting": 5, "servers": [
            server("10.0.0.1:80", 7, 20, 0), server("10.0.0.2:80", 35, 10, 1), out]}],
    });
    let most = json!({"complete": true, "counted": 42,
        "sources": [{"of": "192.0.2.0/24", "connections": 40, "bytes": 9}],
        "names": [{"of": "www.example.org", "connections": 42, "bytes": 9}], "servers": []});
    Sample {
        status: serde_json::from_value(status).unwrap(),
        most: Ok(serde_json::from_value(most).unwrap()),
    }
}

pub(super) fn key(char: char) -> KeyEvent {
    KeyEvent::new(KeyCode::Char(char), KeyModifiers::NONE)
}
