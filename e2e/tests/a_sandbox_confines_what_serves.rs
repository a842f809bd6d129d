//! The worker process restricts its own access to files and system calls. Files in known folders can still be renewed; other
//! files cannot be read.

use std::fs;
use std::os::unix::fs::symlink;

use becket_e2e::{Backend, Becket, Client, Key, Place, REQUEST, Shape, Trust, eventually};
use becket_tidy::lacks;
use serde_json::json;

/// Returns the `Seccomp` line in the status of each thread of the worker process.
fn filters(becket: &Becket) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{}/task", becket.child())).unwrap();
    let threads =
        threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("status")).ok());
    let of = |status: String| {
        let line = status.lines().find(|line| line.starts_with("Seccomp:"));
        line.unwrap_or_default().to_owned()
    };
    threads.map(of).collect()
}

/// Returns whether access to files is restricted, which requires Landlock in the kernel.
fn has_landlock(becket: &Becket) -> bool {
    let files = &becket.status()["sandbox"]["files"];
    if files.is_null() {
        lacks("this kernel has no Landlock");
    }
    !files.is_null()
}

#[test]
#[ignore = "slow: .ci/run test"]
fn renewed_files_in_a_known_folder_are_loaded_and_other_files_are_rejected() {
    let (place, outside) = (Place::new(), Place::new());
    let (keys, names) = (Place::new(), ["www.example.org"]);
    for folder in ["live", "archive"] {
        fs::create_dir(keys.path(folder)).unwrap();
    }
    fs::write(keys.path("ca.pem"), place.authority.pem()).unwrap();
    let issue = |file: &str| {
        let bundle = place.authority.issue(&names, Key::Ecdsa);
        bundle.write(&keys.path(file));
    };
    issue("archive/1.pem");
    symlink("../archive/1.pem", keys.path("live/site.pem")).unwrap();
    let backend = Backend::http("well met");
    let shape = Shape::new(backend.address);
    let named = |path: &str| shape.clone().certificates(&format!("[{path:?}]"));
    let becket = Becket::start(&place, &named(&keys.text("live/site.pem")));
    let trust = Trust::new(&place);
    let serial = || {
        let mut client = Client::connect(becket.web, &trust.without_tickets()).unwrap();
        assert!(client.ask(REQUEST).unwrap().ends_with(b"well met"));
        client.tls.peer_certificates().unwrap()[0].to_vec()
    };
    let first = serial();

    // Renew as certbot does: write another file and replace the link by a rename.
    issue("archive/2.pem");
    symlink("../archive/2.pem", keys.path("live/new")).unwrap();
    fs::rename(keys.path("live/new"), keys.path("live/site.pem")).unwrap();
    assert!(becket.reload(), "{}", becket.log());
    eventually("the renewed certificate is served", || serial() != first);
    let second = serial();

    let is_confined = has_landlock(&becket);
    fs::rename(place.path("becket.toml"), place.path("before.toml")).unwrap();
    place.write("becket.toml", &named(&outside.text("site.pem")).text());
    assert_eq!(becket.reload(), !is_confined);
    if is_confined {
        let why = becket.status()["reload"]["errors"].to_string();
        assert!(why.contains("outside of process.sandbox"), "{why}");
        assert_eq!(serial(), second, "it continues with the loaded files");
        let files = format!("[backend.files]\nroot = {:?}\n", outside.text(""));
        let text = named(&keys.text("live/site.pem")).text();
        place.write(
            "becket.toml",
            &(text + "[[backend]]\nname = \"www\"\n" + &files),
        );
        assert!(!becket.reload());
        let why = becket.status()["reload"]["errors"].to_string();
        assert!(why.contains("outside of process.sandbox"), "{why}");
    }
    fs::rename(place.path("before.toml"), place.path("becket.toml")).unwrap();
    assert!(becket.reload(), "{}", becket.log());
    assert_eq!(becket.status()["refused_calls"], json!({}));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn every_thread_is_filtered_unless_the_sandbox_is_off() {
    let sandbox = |process: &str| {
        let place = Place::new();
        let backend = Backend::http("well met");
        let shape = Shape::new(backend.address).process(process);
        let becket = Becket::start(&place, &shape);
        let mut client = Client::connect(becket.web, &Trust::new(&place)).unwrap();
        assert!(client.ask(REQUEST).unwrap().ends_with(b"well met"));
        let status = becket.status();
        assert_eq!(status["refused_calls"], json!({}), "{}", becket.log());
        assert!(becket.reload(), "{}", becket.log());
        (filters(&becket), status["sandbox"].clone())
    };
    let (threads, on) = sandbox("");
    assert!(
        threads.len() > 2 && threads.iter().all(|it| it == "Seccomp:\t2"),
        "{threads:?}"
    );
    assert_eq!(
        (&on["mode"], &on["calls"]),
        (&json!("on"), &json!("filtered"))
    );
    let (threads, off) = sandbox("sandbox = \"off\"");
    assert!(threads.iter().all(|it| it == "Seccomp:\t0"), "{threads:?}");
    assert_eq!(off, json!({"mode": "off", "files": null, "calls": null}));
}
