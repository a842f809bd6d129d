//! Certificates are ordered from an ACME authority, used and renewed without an operator.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use becket_e2e::{
    AS_NOBODY, Backend, Becket, Client, Key, Over, Pebble, Place, REQUEST, Shape, Trust, becket,
    becket_done, eventually, fresh_address, http_get, open_to_all, skip, user_id,
};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;

pub(crate) const NAME: &str = "www.example.org";

/// Returns a configuration that orders a certificate for [`NAME`].
fn shape(backend: &Backend) -> Shape {
    Shape::new(backend.address)
        .certificates("")
        .listener("acme = true")
}

/// Returns clients that trust what the authority issues.
pub(crate) fn trust(pebble: &Pebble) -> Trust {
    trust_with(pebble, rustls::crypto::aws_lc_rs::default_provider())
}

fn trust_with(pebble: &Pebble, provider: CryptoProvider) -> Trust {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(pebble.root().as_bytes()).unwrap();
    roots.add(root).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(provider));
    let builder = builder
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.resumption = Resumption::disabled();
    Trust(Arc::new(config))
}

/// Waits until the certificate is ordered and served.
#[track_caller]
pub(crate) fn is_served(place: &Place, at: SocketAddr, trust: &Trust, name: &str) {
    let bundle = place.path(&format!("acme/certificates/{NAME}.pem"));
    eventually("a certificate is issued", || bundle.exists());
    eventually("the ordered certificate is served", || {
        Client::connect_as(at, trust, name).is_ok()
    });
}

/// Starts becket with a certificate from an authority, and waits until it is served.
fn site(place: &Place, shape: Shape, keys: &str) -> Option<(Pebble, Becket, Trust)> {
    let pebble = Pebble::start(place, shape.web, 1)?;
    let keys = format!("{keys}[[acme.certificate]]\nnames = [\"{NAME}\"]");
    let becket = Becket::start(place, &shape.section(&pebble.section(&keys)));
    let trust = trust(&pebble);
    is_served(place, becket.web, &trust, NAME);
    Some((pebble, becket, trust))
}

/// Waits until the companion runs, and kills it.
fn kill_companion(becket: &Becket) {
    let mut companions = Vec::new();
    eventually("the companion runs", || {
        companions = becket.children_named("becket-acme");
        !companions.is_empty()
    });
    for pid in companions {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        // The companion may have exited.
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
    }
}

fn serial(at: SocketAddr, trust: &Trust) -> Option<Vec<u8>> {
    let client = Client::connect_as(at, trust, NAME).ok()?;
    let chain = client.tls.peer_certificates()?;
    Some(chain.first()?.to_vec())
}

#[test]
fn a_certificate_is_ordered_by_tls_alpn_and_renewed_on_request() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let Some((_pebble, becket, trust)) = site(&place, shape(&backend), "") else {
        return;
    };
    let mut client = Client::connect_as(becket.web, &trust, NAME).unwrap();
    let answer = client.ask(REQUEST).unwrap();
    assert!(answer.ends_with(b"well met"));
    let account = fs::read_dir(place.path("acme/accounts")).unwrap();
    for entry in account {
        let mode = entry.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let first = serial(becket.web, &trust).unwrap();
    let renewed = becket_done(&place, &["acme", "renew", NAME]);
    assert_eq!(renewed, "renewed\n");
    eventually("the renewed certificate is served", || {
        serial(becket.web, &trust).is_some_and(|now| now != first)
    });
    let listed = becket_done(&place, &["acme", "list"]);
    assert!(listed.contains(NAME), "{listed}");
    // The authority's connections are neither relayed nor failures.
    let reasons = becket.access();
    let answered = reasons.iter().filter(|it| it["reason"] == "acme-challenge");
    assert!(answered.count() > 0);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn one_command_is_a_whole_site() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let (web, admin) = (fresh_address(), fresh_address());
    let Some(pebble) = Pebble::start(&place, web, 1) else {
        return;
    };
    let [ca, folder] = [pebble.ca.to_str().unwrap(), &place.text("acme")];
    let [web_text, admin_text, server] = [web, admin, backend.address].map(|it| it.to_string());
    let words = [
        &["run", "--acme", NAME, "--acme-contact", "you@example.org"][..],
        &["--acme-authority", &pebble.directory, "--acme-ca", ca],
        &["--acme-folder", folder, "--admin", &admin_text],
        &["--frontend", &web_text, "--backend", &server],
    ];
    let command = Becket::command(&place, &words.concat());
    let becket = Becket::spawn(command, place.folder(), web, admin);
    let trust = trust(&pebble);
    is_served(&place, becket.web, &trust, NAME);
    let answer = Client::connect_as(web, &trust, NAME)
        .unwrap()
        .ask(REQUEST)
        .unwrap();
    assert!(answer.ends_with(b"well met"));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_certificate_is_ordered_over_http_beside_a_redirect_or_a_relay() {
    for (keys, status_of_others) in [
        ("redirect = \"https\"", 301),
        ("backend = \"app\"\nacme-http = true", 200),
    ] {
        is_ordered_over_http(keys, status_of_others);
    }
}

fn is_ordered_over_http(listener: &str, status_of_others: u16) {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = shape(&backend);
    let http = SocketAddr::new(shape.web.ip(), fresh_address().port());
    let Some(pebble) = Pebble::start(&place, shape.web, http.port()) else {
        return;
    };
    let address = shape.web.ip();
    let keys = format!(
        "challenge = \"http-01\"\nkey = \"rsa-2048\"\nprofile = \"shortlived\"\n\
         [[acme.certificate]]\nnames = [\"{NAME}\", \"{address}\"]\n\
         [[listener]]\nname = \"plain\"\nbind = [\"{http}\"]\ntls = false\n{listener}"
    );
    let shape = shape.section(&pebble.section(&keys));
    let becket = Becket::start(&place, &shape);
    let trust = trust(&pebble);
    is_served(&place, becket.web, &trust, NAME);
    is_served(&place, becket.web, &trust, &address.to_string());
    let (status, _) = http_get(http, "/.well-known/acme-challenge/other").unwrap();
    assert_eq!(status, status_of_others);
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_trial_asks_becket_for_challenges_as_an_authority_does() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let mut shape = shape(&backend);
    shape.web.set_port(443);
    let http = SocketAddr::new(shape.web.ip(), 80);
    if [shape.web, http]
        .map(TcpListener::bind)
        .iter()
        .any(Result::is_err)
    {
        return skip("needs the right to listen at ports 80 and 443");
    }
    let Some(pebble) = Pebble::start(&place, shape.web, http.port()) else {
        return;
    };
    let plain = "plain.example.org";
    let keys = format!(
        "[[acme.certificate]]\nnames = [\"{NAME}\", \"{}\"]\n\
         [[acme.certificate]]\nnames = [\"{plain}\"]\nchallenge = \"http-01\"\n\
         [[listener]]\nname = \"plain\"\nbind = [\"{http}\"]\ntls = false\nredirect = \"https\"",
        http.ip()
    );
    let becket = Becket::start(&place, &shape.section(&pebble.section(&keys)));
    is_served(&place, becket.web, &trust(&pebble), NAME);
    let address = http.ip().to_string();
    for (name, names, port) in [(NAME, &[NAME, &address][..], 443), (plain, &[plain], 80)] {
        let tried = becket_done(&place, &["acme", "try", name]);
        for name in names {
            let finding = format!("\n{name}: {address}:{port} answers the challenge\n");
            assert!(tried.contains(&finding), "{tried}");
        }
        assert!(
            tried.ends_with("\nordered; the certificate is discarded\n"),
            "{tried}"
        );
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn clients_without_ecdsa_get_an_rsa_certificate_of_the_same_name() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let keys = format!("[[acme.certificate]]\nnames = [\"{NAME}\"]\nkey = \"rsa-2048\"\n");
    let Some((pebble, becket, trust)) = site(&place, shape(&backend), &keys) else {
        return;
    };
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let algorithms = &mut provider.signature_verification_algorithms;
    let all = algorithms.mapping.iter().copied();
    let rsa = all.filter(|(scheme, _)| format!("{scheme:?}").starts_with("RSA"));
    algorithms.mapping = rsa.collect::<Vec<_>>().leak();
    let old = trust_with(&pebble, provider);
    eventually("the RSA certificate is served", || {
        Client::connect_as(becket.web, &old, NAME).is_ok()
    });
    let in_file = |stem: &str| {
        let bundle = place.read(&format!("acme/certificates/{stem}.pem"));
        CertificateDer::from_pem_slice(bundle.as_bytes())
            .unwrap()
            .to_vec()
    };
    let rsa = format!("{NAME}+rsa");
    let (first, first_rsa) = (in_file(NAME), in_file(&rsa));
    // Until then, all clients get the RSA certificate.
    eventually("the other certificate is served", || {
        serial(becket.web, &trust).as_ref() == Some(&first)
    });
    assert_eq!(serial(becket.web, &old).as_ref(), Some(&first_rsa));
    assert_eq!(becket_done(&place, &["acme", "renew", &rsa]), "renewed\n");
    assert_ne!(in_file(&rsa), first_rsa);
    assert_eq!(in_file(NAME), first);
    let listed = becket_done(&place, &["acme", "list"]);
    assert!(listed.contains(&format!("file      {rsa}.pem")), "{listed}");
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_name_gets_a_certificate_when_a_client_asks_for_it() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = shape(&backend);
    let Some(pebble) = Pebble::start(&place, shape.web, 1) else {
        return;
    };
    fs::create_dir(place.path("allowed")).unwrap();
    let keys = format!(
        "[acme.on-demand]\nnames = [\"*.shops.test\"]\nfolder = \"allowed\"\nask = \"http://{}/ask\"\n\
         [[acme.certificate]]\nnames = [\"{NAME}\"]",
        backend.address
    );
    let shape = shape.section(&pebble.section(&keys));
    let server = Becket::start(&place, &shape);
    let trust = trust(&pebble);
    is_served(&place, server.web, &trust, NAME);
    place.write("allowed/a.shops.test", "");
    let ask = |name: &str| Client::connect_as(server.web, &trust, name).is_ok();
    // The companion asks for permission in this order.
    assert!(!ask("unknown.test") && !ask("other.shops.test") && !ask("a.shops.test"));
    eventually("the certificate is ordered and served", || {
        ask("a.shops.test")
    });
    let files = || {
        let files = fs::read_dir(place.path("acme/certificates")).unwrap();
        let mut names: Vec<String> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(
        files(),
        ["a.shops.test.pem".to_owned(), format!("{NAME}.pem")]
    );
    kill_companion(&server);
    eventually(
        "the companion knows the certificate after its start",
        || {
            becket(&place, &["acme", "list"])
                .stdout
                .contains("a.shops.test")
        },
    );
    let before = place.read("acme/certificates/a.shops.test.pem");
    becket_done(&place, &["acme", "renew", "a.shops.test"]);
    assert_ne!(place.read("acme/certificates/a.shops.test.pem"), before);
    // The file of a certificate can be removed.
    fs::remove_file(place.path("acme/certificates/a.shops.test.pem")).unwrap();
    eventually("the certificate is not served", || !ask("a.shops.test"));
    assert!(ask(NAME));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_companion_continues_after_a_kill_and_an_upgrade() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = shape(&backend);
    let Some(pebble) = Pebble::start(&place, shape.web, 1) else {
        return;
    };
    let certificate = format!("[[acme.certificate]]\nnames = [\"{NAME}\"]");
    let shape = shape.section(&pebble.section(&certificate));
    let becket = Becket::start(&place, &shape);
    for _ in 0..2 {
        kill_companion(&becket);
    }
    let before = becket.children_named("becket-acme");
    becket_done(&place, &["upgrade"]);
    eventually("the new program starts a companion", || {
        let now = becket.children_named("becket-acme");
        !now.is_empty() && now != before
    });
    let trust = trust(&pebble);
    is_served(&place, becket.web, &trust, NAME);
    assert!(becket.is_alive());
}

#[test]
#[ignore = "slow: .ci/run test"]
fn an_upgrade_during_an_order_loses_no_connection_and_begins_no_second_order() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = shape(&backend).certificates("[\"other.pem\"]");
    place.issue("other.pem", &["localhost"], Key::Ecdsa);
    let at = (shape.web, 1);
    let pebble = Pebble::start_as(&place, at, |command| {
        command.env("PEBBLE_VA_NOSLEEP", "1");
    });
    let Some(mut pebble) = pebble else {
        return;
    };
    let proxy = pebble.behind_proxy(&place);
    let certificate = format!("[[acme.certificate]]\nnames = [\"{NAME}\"]");
    let mut hold = proxy.hold("/chalZ/", 1, true);
    let becket = Becket::start(&place, &shape.section(&pebble.section(&certificate)));
    let (trust, others) = (trust(&pebble), Trust::new(&place));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                let mut client = Client::connect_as(becket.web, &others, "localhost").unwrap();
                assert!(client.ask(REQUEST).unwrap().ends_with(b"well met"));
            }
        });
        let _over = Over(&over);
        let mut latest = None;
        // Renewals, after the first order.
        for next in [
            Some(("/order-plz", false)),
            Some(("/finalize-order/", true)),
            Some(("/certZ/", true)),
            None,
        ] {
            hold.reached();
            becket_done(&place, &["upgrade"]);
            drop(hold);
            eventually("another certificate is served", || {
                let now = serial(becket.web, &trust);
                now.is_some() && now != latest
            });
            latest = serial(becket.web, &trust);
            let Some((step, is_answered)) = next else {
                break;
            };
            hold = proxy.hold(step, 1, is_answered);
            pebble.renew_at_once(&place.read(&format!("acme/certificates/{NAME}.pem")));
            // The companion asks for windows when it starts.
            kill_companion(&becket);
        }
    });
    assert_eq!(
        (proxy.orders(), proxy.most_live()),
        (vec!["valid".to_owned(); 4], 1)
    );
}

#[test]
#[ignore = "slow: .ci/run test"]
fn root_gives_the_companion_a_user_of_its_own() {
    let (Some(serving), Some(own)) = (user_id("nobody"), user_id("daemon")) else {
        return;
    };
    let place = Place::new();
    open_to_all(&place);
    let backend = Backend::http("well met");
    let shape = shape(&backend).process(AS_NOBODY);
    let Some((_pebble, becket, _)) = site(&place, shape, "user = \"daemon\"\n") else {
        return;
    };
    let owner = |path: &str| fs::metadata(path).unwrap().uid();
    let companion = becket.children_named("becket-acme")[0];
    assert_eq!(owner(&format!("/proc/{companion}/task")), own);
    assert_eq!(owner(&format!("/proc/{}/task", becket.child())), serving);
    let bundle = fs::metadata(place.path(&format!("acme/certificates/{NAME}.pem"))).unwrap();
    assert_eq!((bundle.uid(), bundle.mode() & 0o777), (own, 0o640));
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_certificate_is_renewed_when_the_authority_moves_its_window() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let Some((pebble, becket, trust)) = site(&place, shape(&backend), "") else {
        return;
    };
    let first = serial(becket.web, &trust).unwrap();
    pebble.renew_at_once(&place.read(&format!("acme/certificates/{NAME}.pem")));
    // The companion asks for windows when it starts.
    kill_companion(&becket);
    eventually("the renewed certificate is served", || {
        serial(becket.web, &trust).is_some_and(|now| now != first)
    });
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_record_that_forbids_an_order_is_reported_and_costs_no_order() {
    let place = Place::new();
    let backend = Backend::http("well met");
    let shape = shape(&backend);
    let Some(pebble) = Pebble::start(&place, shape.web, 1) else {
        return;
    };
    let host = format!("{NAME}.");
    let policies = json!([{"tag": "issue", "value": "other.test"}]);
    pebble.change_record("add-caa", &json!({"host": host, "policies": policies}));
    let certificate = format!("[[acme.certificate]]\nnames = [\"{NAME}\"]");
    let server = Becket::start(&place, &shape.section(&pebble.section(&certificate)));
    let forbidden = format!("{NAME} is forbidden by {host} CAA 0 issue \"other.test\"; expected");
    eventually("the record is reported", || {
        // Fails until the companion listens.
        let listed = becket(&place, &["acme", "list"]);
        listed.stdout.contains(&forbidden)
    });
    let orders = || place.read("pebble.log").matches("order-plz").count();
    assert_eq!(orders(), 0);
    pebble.change_record("clear-caa", &json!({"host": host}));
    assert_eq!(becket_done(&place, &["acme", "renew", NAME]), "renewed\n");
    assert!(orders() > 0);
    is_served(&place, server.web, &trust(&pebble), NAME);
}
