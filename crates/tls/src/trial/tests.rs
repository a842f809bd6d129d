//! What a trial says of hellos of real clients, held against what rustls does with them.

use becket_config::notation::Text;
use becket_config::suites::Suites;
use becket_proto::client_hello::{Peek, peek};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, ALL_CIPHER_SUITES};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, SignatureAlgorithm};
use serde_json::{Value, json};

use super::*;
use crate::policy::{groups, versions};

macro_rules! hellos {
    ($($name:literal)+) => {
        [$(($name, include_bytes!(concat!("../../../proto/testdata/client_hello/", $name, ".bin")).as_slice())),+]
    };
}

/// Without the one whose signature schemes fit no key here: no trial has those.
const HELLOS: [(&str, &[u8]); 10] = hellos! {
    "curl-h2" "gnutls" "openssl-ip-literal" "openssl-no-sni" "openssl-tls10" "openssl-tls12" "openssl-tls12-id"
    "openssl-tls12-ticket" "openssl-tls13" "openssl-tls13-psk"
};

fn hello(name: &str) -> ClientHello<'static> {
    let (_, bytes) = HELLOS.iter().find(|(known, _)| *known == name).unwrap();
    match peek(bytes) {
        Peek::Hello(hello) => hello,
        other => panic!("{other:?}"),
    }
}

fn suites(tried: &Policy) -> Vec<SupportedCipherSuite> {
    let all = ALL_CIPHER_SUITES.iter().copied();
    let versions = versions(&tried.versions);
    let listed = all.filter(|suite| {
        let number = u16::from(suite.suite());
        let listed = tried.suites.as_ref();
        listed.is_none_or(|listed| listed.iter().any(|it| it.numbers().any(|it| it == number)))
    });
    listed
        .filter(|suite| versions.contains(&suite.version()))
        .collect()
}

fn trial(change: impl FnOnce(&mut Policy)) -> Arc<Trial> {
    let mut policy = Policy::named("web");
    change(&mut policy);
    Trials::default().of(&policy, suites(&policy))
}

fn fits(kind: SignatureAlgorithm) -> impl Fn(&SupportedCipherSuite) -> bool {
    move |suite| suite.usable_for_signature_algorithm(kind)
}

#[test]
fn a_hello_is_judged_by_all_that_it_tells() {
    let outcome = |name: &str, change: fn(&mut Policy)| {
        let signs = fits(SignatureAlgorithm::RSA);
        trial(change).judge(&hello(name), signs).outcome
    };
    let only_13: fn(&mut Policy) = |it| it.versions = vec![Version::Tls13];
    let hybrid: fn(&mut Policy) = |it| it.groups = vec![Group::X25519MlKem768];
    for (name, change, expected) in [
        (
            "openssl-tls12",
            (|_| {}) as fn(&mut Policy),
            TrialOutcome::Passed,
        ),
        ("curl-h2", |_| {}, TrialOutcome::Passed),
        ("openssl-tls12", only_13, TrialOutcome::Version),
        ("curl-h2", only_13, TrialOutcome::Passed),
        ("openssl-tls12", hybrid, TrialOutcome::Group),
    ] {
        assert_eq!(outcome(name, change), expected, "{name}");
    }
    let nothing_signs = trial(|_| {}).judge(&hello("openssl-tls12"), |_| false);
    assert_eq!(nothing_signs.outcome, TrialOutcome::Suite);
}

/// A server that has only what a trial has.
fn server(tried: &Policy, pair: &KeyPair) -> Arc<ServerConfig> {
    let provider = CryptoProvider {
        cipher_suites: suites(tried),
        kx_groups: groups(&tried.groups),
        ..aws_lc_rs::default_provider()
    };
    let certificate = CertificateParams::default().self_signed(pair).unwrap();
    let key = PrivateKeyDer::try_from(pair.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&versions(&tried.versions))
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key);
    let mut config = config.unwrap();
    config.require_ems = tried.requires_ems();
    Arc::new(config)
}

/// Trials of every kind that a configuration may have.
fn many_trials() -> Vec<Policy> {
    let both = [Version::Tls12, Version::Tls13];
    let all = Policy::default().groups;
    let one_each = ["TLS_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"];
    let mut trials = Vec::new();
    for versions in [&both[..], &both[..1], &both[1..]] {
        for groups in [&all[..], &all[..1], &all[1..2], &all[3..]] {
            for suites in [None, Some(&["AES-256-GCM"][..]), Some(&one_each[..])] {
                for ems in [true, false] {
                    let listed = suites.into_iter().flatten();
                    trials.push(Policy {
                        versions: versions.to_vec(),
                        groups: groups.to_vec(),
                        suites: suites
                            .map(|_| listed.map(|it| Suites::parse(it).unwrap()).collect()),
                        require_ems: Some(ems),
                        ..Policy::named("web")
                    });
                }
            }
        }
    }
    trials
}

#[test]
fn a_trial_passes_those_whom_rustls_would_serve() {
    let [mut passed, mut refused] = [0, 0];
    for (kind, algorithm) in [
        (&PKCS_ECDSA_P256_SHA256, SignatureAlgorithm::ECDSA),
        (&PKCS_RSA_SHA256, SignatureAlgorithm::RSA),
    ] {
        let pair = KeyPair::generate_for(kind).unwrap();
        for tried in many_trials() {
            let trial = Trials::default().of(&tried, suites(&tried));
            let config = server(&tried, &pair);
            for (name, mut bytes) in HELLOS {
                let judged = trial.judge(&hello(name), fits(algorithm));
                let mut server = ServerConnection::new(Arc::clone(&config)).unwrap();
                server.read_tls(&mut bytes).unwrap();
                let served = server.process_new_packets();
                let told = judged.outcome == TrialOutcome::Passed;
                assert_eq!(told, served.is_ok(), "{name}: {judged:?}, {served:?}");
                passed += u32::from(told);
                refused += u32::from(!told);
            }
        }
    }
    assert!(passed > 100 && refused > 100, "{passed} {refused}");
}

fn report(trial: &Trial) -> Value {
    report_at(trial, Duration::ZERO)
}

fn report_at(trial: &Trial, now: Duration) -> Value {
    serde_json::to_value(trial.report(9, now)).unwrap()
}

#[test]
fn a_certificate_counts_at_the_end() {
    let wants = trial(|it| {
        it.versions = vec![Version::Tls13];
        it.client_certificates = ClientCertificates::Required;
    });
    for (name, has_certificate) in [
        ("curl-h2", true),
        ("curl-h2", false),
        ("openssl-tls12", false),
    ] {
        let judged = wants.judge(&hello(name), |_| true);
        let client = || TriedClient {
            name: Some("www.example.org"),
            address: [192, 0, 2, 7].into(),
        };
        judged.count(has_certificate, client, Duration::ZERO);
    }
    let found = report(&wants);
    assert_eq!(
        (&found["clients"], &found["passed"]),
        (&json!(3), &json!(1))
    );
    assert_eq!(
        found["failed"],
        json!({"client-certificate": 1, "version": 1})
    );
    let ja4 =
        |name| json!({"of": Ja4::of(&hello(name)).unwrap().to_string(), "clients": 1, "error": 0});
    let rows = found["ja4"].as_array().unwrap();
    assert!(
        rows.len() == 2
            && ["curl-h2", "openssl-tls12"]
                .map(ja4)
                .iter()
                .all(|row| rows.contains(row)),
        "{rows:?}"
    );
    let totals: u64 = wants.totals().map(|(_, count)| count).sum();
    assert_eq!(totals, 3);
}

#[test]
fn one_that_passes_is_not_asked_who_it_is() {
    let any = trial(|_| {});
    let judged = any.judge(&hello("curl-h2"), |_| true);
    judged.count(false, || panic!("asked"), Duration::ZERO);
    assert_eq!(report(&any)["passed"], 1);
}

#[test]
fn a_trial_goes_on_until_it_changes() {
    let trials = Trials::default();
    let policy = Policy::named("web");
    let all = || suites(&policy);
    let first = trials.of(&policy, all());
    assert!(Arc::ptr_eq(&first, &trials.of(&policy, all())));
    assert!(!Arc::ptr_eq(
        &first,
        &trials.of(&policy, all().split_off(1))
    ));
    let other = Policy::named("other");
    assert!(!Arc::ptr_eq(&first, &trials.of(&other, all())));
}
