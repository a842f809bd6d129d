//! Names that clients ask for are checked before an order.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use becket_acme::context::Context;
use becket_acme::on_demand::check;
use becket_acme::store::Store;
use becket_config::acme::{Acme, OnDemand};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn context(base: &Path, on_demand: &OnDemand) -> Context {
    let section = Acme {
        folder: "acme".to_owned(),
        on_demand: Some(on_demand.clone()),
        ..Acme::default()
    };
    let store = Store::open(&section.folder(base)).unwrap();
    Context::new(section, base.to_owned(), store)
}

/// Answers requests with these statuses. Returns the URL and the received request lines.
async fn application(statuses: &'static [u16]) -> (String, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "http://{}/allowed?of=becket",
        listener.local_addr().unwrap()
    );
    let served = tokio::spawn(async move {
        let mut lines = Vec::new();
        for status in statuses {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut text = vec![0; 4096];
            let length = stream.read(&mut text).await.unwrap();
            let text = String::from_utf8_lossy(&text[..length]);
            lines.push(text.lines().next().unwrap().to_owned());
            let answer =
                format!("HTTP/1.1 {status} X\r\nlocation: /other\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        lines
    });
    (url, served)
}

#[tokio::test]
async fn every_condition_must_allow_a_name() {
    let place = tempfile::tempdir().unwrap();
    std::fs::create_dir(place.path().join("allowed")).unwrap();
    let (url, served) = application(&[200, 204, 403, 302, 500]).await;
    let on_demand = OnDemand {
        names: vec![],
        folder: Some("allowed".to_owned()),
        ask: Some(url),
        ..OnDemand::default()
    };
    let context = context(place.path(), &on_demand);
    let error = check(&context, "a.test").await.unwrap_err().to_string();
    assert!(
        error.contains("a.test: no file in acme.on-demand.folder"),
        "{error}"
    );
    for name in ["a.test", "b.test"] {
        std::fs::write(place.path().join("allowed").join(name), "").unwrap();
        check(&context, name).await.unwrap();
    }
    for (status, start) in [
        ("403", "not allowed: "),
        ("302", "not allowed: "),
        ("500", "acme.on-demand.ask: "),
    ] {
        let error = check(&context, "a.test").await.unwrap_err().to_string();
        assert!(
            error.starts_with(start) && error.contains(status),
            "{error}"
        );
    }
    let lines = served.await.unwrap();
    assert_eq!(lines[1], "GET /allowed?of=becket&domain=b.test HTTP/1.1");
    let error = check(&context, "a.test").await.unwrap_err().to_string();
    assert!(error.contains("acme.on-demand.ask: "), "{error}");
    for name in ["../a.test", "A.test", "a", "*.test"] {
        let error = check(&context, name).await.unwrap_err().to_string();
        assert!(error.contains("not in acme.on-demand.names"), "{error}");
    }
}
