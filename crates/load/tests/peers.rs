//! Other programs count the same: nginx's own log.

mod support;

use becket_tidy::find;
use support::nginx::Nginx;
use support::report;

#[test]
fn nginx_logs_as_many_resumptions_as_are_reported() {
    if find("nginx").is_none() {
        return;
    }
    for kind in ["id", "ticket", "psk"] {
        let mut nginx = Nginx::start("return 200 hello");
        let args = format!("-n 200 -c 4 -t 1 --resume ratio=0.75 --resume-kind {kind}");
        let report = report(&nginx.url(), &args);
        let h = &report.steps[0].handshakes;
        // Its log is whole when it has ended.
        nginx.peer.finish();
        let log = std::fs::read_to_string(nginx.files.path("reused.log")).unwrap();
        let reused = log.lines().filter(|line| *line == "r").count() as u64;
        assert_eq!(
            (h.resumed(), h.full + h.resumed()),
            (reused, log.lines().count() as u64),
            "{kind}: {h:?}"
        );
        assert_eq!(
            (h.asked_resumed, h.asked_full),
            (h.resumed(), h.full),
            "{kind}: {h:?}"
        );
        assert!((146..=154).contains(&h.resumed()), "{kind}: {h:?}");
    }
}

#[test]
fn plain_targets_are_the_floor() {
    if find("nginx").is_none() {
        return;
    }
    let nginx = Nginx::start("return 200 hello");
    let plain = report(&format!("http://{}/", nginx.plain), "-n 50 -c 5");
    assert_eq!(
        plain.steps[0].succeeded, 50,
        "{:?}",
        plain.steps[0].failures
    );
    assert!(plain.negotiated.is_none());
}
