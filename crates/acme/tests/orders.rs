//! Orders from an authority that misbehaves: it hangs, sends rubbish, offers unknown challenges or
//! other names, and refuses. The supervisor and the serving process are played by the test.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod authority;

use std::cell::Cell;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use authority::{Fake, Reply};
use becket_acme::companion;
use becket_acme::confine::Sandbox;
use becket_acme::context::Context;
use becket_acme::control::{Answer, Request, ask};
use becket_acme::http::AuthorityClient;
use becket_acme::store::Store;
use becket_config::acme::{Acme, AcmeCertificate, AcmeName, Authority, NameServerAddress};
use becket_config::notation::Text;
use becket_process::companion_link::{
    AcmeChallenge, BundleText, CompanionLink, FromCompanion, ToCompanion,
};
use becket_process::protocol::Command;
use becket_proto::acme::{BundleFacts, ChallengeAnswer};
use becket_sys::clock::Clock;
use becket_sys::fd_messages;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use tokio::task::{LocalSet, spawn_blocking, spawn_local, yield_now};
use tokio::time::timeout;
use zeroize::Zeroizing;

/// Runs a test, with a time limit.
async fn run(test: impl Future<Output = ()>) {
    let tasks = LocalSet::new();
    let test = timeout(Duration::from_secs(60), tasks.run_until(test));
    test.await.expect("in time");
}

fn section(fake: &Fake, names: &[&str]) -> Acme {
    let names = names.iter().map(|name| AcmeName::parse(name).unwrap());
    Acme {
        authority: vec![Authority::Directory(fake.url("/dir"))],
        ca: Some("ca.pem".to_owned()),
        folder: "acme".to_owned(),
        contact: vec!["a@b.test".to_owned()],
        name_servers: vec![no_name_server()],
        certificate: vec![AcmeCertificate {
            names: names.collect(),
            ..AcmeCertificate::default()
        }],
        ..Acme::default()
    }
}

/// Returns an address at which nothing answers.
fn no_name_server() -> NameServerAddress {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    NameServerAddress(socket.local_addr().unwrap())
}

/// A companion in this process, and the other ends of its sockets.
struct Running {
    supervisor: UnixStream,
    serving: CompanionLink,
    /// `true` before the first challenge.
    is_idle: bool,
    task: tokio::task::JoinHandle<()>,
}

fn start(section: Acme, base: &Path) -> Running {
    let (supervisor, stream) = UnixStream::pair().unwrap();
    let store = Store::open(&section.folder(base)).unwrap();
    let context = Context::new(section, base.to_owned(), store);
    let (one, two) = UnixStream::pair().unwrap();
    let text = serde_json::to_vec(&Command::Companion).unwrap();
    let fds = [two.as_fd()];
    fd_messages::send(&supervisor, &text, &fds, Duration::from_secs(5)).unwrap();
    let mut serving = CompanionLink::new(one.into()).unwrap();
    serving.send(&ToCompanion::Ranks(vec![
        0;
        context.section.certificate.len()
    ]));
    let task = spawn_local(async move {
        let sandbox = Sandbox::default();
        companion::run(context, stream, sandbox).await.unwrap()
    });
    Running {
        supervisor,
        serving,
        is_idle: true,
        task,
    }
}

impl Running {
    /// Returns the next set of challenges and its number.
    async fn next_set(&mut self) -> (u32, Vec<AcmeChallenge>) {
        loop {
            match self.serving.next().await.expect("a message") {
                FromCompanion::Challenges(_, set) if self.is_idle && set.is_empty() => {}
                FromCompanion::Challenges(number, set) => {
                    self.is_idle = false;
                    return (number, set);
                }
                FromCompanion::Held(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn answer(&mut self, number: u32) {
        self.send(ToCompanion::ChallengesServed(number));
    }

    #[expect(clippy::needless_pass_by_value, reason = "each message is sent once")]
    fn send(&mut self, message: ToCompanion) {
        self.serving.send(&message);
    }

    /// Passes a bundle of another node, and returns the facts about the next bundle in use.
    async fn given(&mut self, bundle: BundleText) -> BundleFacts {
        self.send(ToCompanion::Bundle(0, bundle));
        loop {
            let message = self.serving.next().await.expect("a message");
            if let FromCompanion::Held(held) = message
                && let Some(facts) = held.bundles[0]
            {
                return facts;
            }
        }
    }

    /// Ends the companion as a killed process ends.
    async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

async fn asked(base: &Path, request: Request) -> Answer {
    let folder = base.join("acme");
    while UnixStream::connect(folder.join("control")).is_err() {
        yield_now().await;
    }
    spawn_blocking(move || ask(&folder, &request).unwrap())
        .await
        .unwrap()
}

/// Renews the certificate and returns the error.
async fn renewal_error(base: &Path, name: &str) -> String {
    let name = name.to_owned();
    match asked(base, Request::Renew { name }).await {
        Answer::Ended {
            error: Some(error), ..
        } => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_authority_that_hangs_is_left_after_half_a_minute() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::start(folder.path(), |_, _| Reply::Hang).await;
        let ca = folder.path().join("ca.pem");
        let client = AuthorityClient::new(&fake.url("/dir"), Some(&ca)).unwrap();
        let error = client.directory().await.unwrap_err().to_string();
        assert_eq!(error, "no answer within 30 s");
    })
    .await;
}

#[tokio::test]
async fn rubbish_from_an_authority_is_an_error_without_a_panic() {
    run(async {
        let whole = "{\"newNonce\":\"https://a/\",\"newAccount\":\"b\",\"newOrder\":\"c\"";
        for (reply, expected) in [
            (Reply::raw("rubbish\r\n\r\n"), "invalid HTTP version parsed"),
            (Reply::json("<html>"), "expected value at line 1"),
            (
                Reply::json("{\"newNonce\":\"ht tp\"}"),
                "invalid uri character",
            ),
            (
                Reply::json(&format!("{whole},\"a\":\"{}\"}}", "x".repeat(2 << 20))),
                "length limit exceeded",
            ),
            (
                Reply::json("{}").status(503),
                "status 503 Service Unavailable",
            ),
            (Reply::json("{}").status(302), "status 302 Found"),
            (
                Reply::json("{\"type\":\"urn:ietf:params:acme:error:rateLimited\"}")
                    .status(429)
                    .header("retry-after", "18446744073709551615"),
                "rateLimited",
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let fake = Fake::start(folder.path(), move |_, _| reply.clone()).await;
            let ca = folder.path().join("ca.pem");
            let client = AuthorityClient::new(&fake.url("/dir"), Some(&ca)).unwrap();
            let error = client.directory().await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            let setback = client.take_setback();
            let week = Duration::from_secs(7 * 24 * 3600);
            let is_limit = expected == "rateLimited";
            assert_eq!(setback.is_rate_limit, is_limit);
            assert_eq!(setback.retry_after, is_limit.then_some(week));
            let other = AuthorityClient::new(&fake.url("/dir"), None);
            if let Ok(other) = other {
                let error = other.directory().await.unwrap_err().to_string();
                assert!(error.contains("UnknownIssuer"), "{error}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_known_challenge_among_unknown_ones_is_answered_and_its_failure_is_shown() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::start(folder.path(), authority::refuse_after_challenge).await;
        let mut running = start(section(&fake, &["a.test"]), folder.path());
        let (number, challenges) = running.next_set().await;
        let [challenge] = &challenges[..] else {
            panic!("{challenges:?}");
        };
        assert_eq!((challenge.certificate, challenge.name), (0, 0));
        let ChallengeAnswer::TlsAlpn(digest) = challenge.answer else {
            panic!("{challenge:?}");
        };
        assert_ne!(digest, [0; 32]);
        assert!(!fake.requests().contains(&"POST /challenge".to_owned()));
        running.answer(number);
        let withdrawn = running.next_set().await;
        assert_eq!(withdrawn, (number.wrapping_add(1), Vec::new()));
        assert!(fake.requests().contains(&"POST /challenge".to_owned()));
        let renewal = renewal_error(folder.path(), "a.test");
        let error = tokio::join!(renewal, async {
            let (number, _) = running.next_set().await;
            running.answer(number);
        });
        let expected = "a.test: no\n\u{1b}[31m connection (urn:ietf:params:acme:error:connection)";
        assert_eq!(error.0, expected);
        let Answer::Certificates(rows) = asked(folder.path(), Request::List {}).await else {
            panic!("no rows");
        };
        assert_eq!(
            (rows[0].failures, rows[0].error.as_deref()),
            (2, Some(expected))
        );
        assert!(rows[0].expires.is_none());
        let orders = folder.path().join("acme/orders");
        assert_eq!(std::fs::read_dir(orders).unwrap().count(), 0);
        assert_eq!(fake.count("POST /order"), 2);
        // The supervisor exits, so the companion ends.
        drop(running.supervisor);
        running.task.await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn names_that_were_not_ordered_are_not_answered() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::start(folder.path(), authority::refuse_after_challenge).await;
        let _running = start(section(&fake, &["b.test"]), folder.path());
        let error = renewal_error(folder.path(), "b.test").await;
        assert_eq!(error, "a name that was not ordered: a.test");
        assert_eq!(fake.count("POST /challenge"), 0);
        // Both attempts continue one order.
        assert_eq!(fake.count("POST /order"), 1);
    })
    .await;
}

#[tokio::test]
async fn a_killed_companion_continues_its_order_or_abandons_it_for_other_names() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::start(folder.path(), authority::refuse_after_challenge).await;
        for _ in 0..3 {
            let mut running = start(section(&fake, &["a.test"]), folder.path());
            running.next_set().await;
            running.kill().await;
        }
        assert_eq!(
            (fake.count("POST /account"), fake.count("POST /order")),
            (1, 1)
        );
        assert_eq!(fake.count("POST /authorization deactivated"), 0);
        let mut running = start(section(&fake, &["a.test", "c.test"]), folder.path());
        running.next_set().await;
        running.kill().await;
        assert_eq!(fake.count("POST /authorization deactivated"), 1);
        assert_eq!(fake.count("POST /order"), 2);
        // The certificate is not configured any more.
        let running = start(section(&fake, &["d.test"]), folder.path());
        let _error = renewal_error(folder.path(), "d.test").await;
        running.kill().await;
        assert_eq!(fake.count("POST /authorization deactivated"), 2);
        let orders = std::fs::read_dir(folder.path().join("acme/orders")).unwrap();
        let names = orders.map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["d.test.json"]);
    })
    .await;
}

#[tokio::test]
async fn an_authority_that_moves_its_urls_gets_the_next_order_there() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let prefix = Rc::new(Cell::new(""));
        let moved = Rc::clone(&prefix);
        let fake = Fake::start(folder.path(), move |request, url| {
            let at = moved.get();
            if request != "GET /dir" && !request.contains(at) {
                return Reply::json("{}").status(404);
            }
            let request = request.replacen(&format!("{at}/"), "/", 1);
            authority::refuse_after_challenge(&request, &format!("{url}{at}"))
        })
        .await;
        let mut running = start(section(&fake, &["a.test"]), folder.path());
        running.next_set().await;
        running.kill().await;
        prefix.set("/v2");
        let mut running = start(section(&fake, &["a.test"]), folder.path());
        let renewed = async {
            loop {
                // The unfinished order has the old URL. It is given up after three attempts.
                let error = renewal_error(folder.path(), "a.test").await;
                if error != "status 404 Not Found" {
                    return error;
                }
            }
        };
        let (error, ()) = tokio::join!(renewed, async {
            let (number, _) = running.next_set().await;
            running.answer(number);
        });
        assert!(error.starts_with("a.test: no"), "{error}");
        let orders = ["POST /order", "POST /v2/order", "POST /v2/challenge"];
        assert_eq!(orders.map(|it| fake.count(it)), [1, 1, 1]);
        let accounts = ["POST /account", "POST /v2/account"];
        assert_eq!(accounts.map(|it| fake.count(it)), [1, 0]);
    })
    .await;
}

/// Returns a bundle for `name` that was ordered `ago`, and is valid for 90 days.
fn bundle(name: &str, ago: u64) -> BundleText {
    valid_for(90, name, ago)
}

fn valid_for(days: u64, name: &str, ago: u64) -> BundleText {
    let now = Clock::start().now().unix.as_secs();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let start = date_time_ymd(1970, 1, 1);
    params.not_before = start + Duration::from_secs(now - 3600);
    params.not_after = start + Duration::from_secs(now + days * 24 * 3600);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let ordered = now.saturating_sub(ago);
    let text = format!(
        "# ordered at {ordered}\n{}{}",
        certificate.pem(),
        key.serialize_pem()
    );
    BundleText::new(Zeroizing::new(text.into_bytes())).unwrap()
}

#[tokio::test]
async fn a_bundle_of_another_node_is_checked_and_replaces_an_older_one() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::start(folder.path(), |_, _| Reply::Hang).await;
        let mut running = start(section(&fake, &["a.test"]), folder.path());
        let file = folder.path().join("acme/certificates/a.test.pem");
        let mut other_key = bundle("a.test", 10).into_bytes();
        other_key.extend_from_slice(
            b"-----BEGIN EC PRIVATE KEY-----\nAA==\n-----END EC PRIVATE KEY-----\n",
        );
        let first = running.given(bundle("a.test", 300)).await;
        running.send(ToCompanion::Bundle(7, bundle("a.test", 20)));
        for refused in [
            bundle("a.test", 400),
            bundle("b.test", 20),
            valid_for(401, "a.test", 20),
            BundleText::new(other_key).unwrap(),
        ] {
            running.send(ToCompanion::Bundle(0, refused));
        }
        let second = running.given(bundle("a.test", 100)).await;
        let between = second.ordered - first.ordered;
        assert!((200..300).contains(&between), "{between}");
        let stored = std::fs::read(&file).unwrap();
        assert_eq!(stored.len(), second.length as usize);
        // The bundle in use is sent on request.
        running.send(ToCompanion::Send(0));
        let sent = running.serving.next().await;
        let expected = BundleText::new(Zeroizing::new(stored)).unwrap();
        assert_eq!(sent, Some(FromCompanion::Bundle(0, expected)));
    })
    .await;
}
