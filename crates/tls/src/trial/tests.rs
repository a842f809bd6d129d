//! Compares the results of trials for ClientHellos of real clients with the results of rustls.

use becket_config::notation::Text;
use becket_config::suites::Suites;
use becket_proto::client_hello::peek;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, ALL_CIPHER_SUITES};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, SignatureAlgorithm};

use super::*;
use crate::policy::{groups, versions};

macro_rules! hellos {
    ($($name:literal)+) => {
        [$(($name, include_bytes!(concat!("../../../proto/testdata/client_hello/", $name, ".bin")).as_slice())),+]
    };
}

/// Omits the ClientHello whose signature schemes fit no key here, because trials do not check
/// signature schemes.
const HELLOS: [(&str, &[u8]); 10] = hellos! {
    "curl-h2" "gnutls" "openssl-ip-literal" "openssl-no-sni" "openssl-tls10" "openssl-tls12" "openssl-tls12-id"
    "openssl-tls12-ticket" "openssl-tls13" "openssl-tls13-psk"
};

fn hello(name: &str) -> ClientHello<'static> {
    let (_, bytes) = HELLOS.iter().find(|(known, _)| *known == name).unwrap();
    match peek(bytes) {
        Ok(Some(hello)) => hello,
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

fn trial(change: impl FnOnce(&mut Policy)) -> Arc<TrialPolicy> {
    let mut policy = Policy::named("web");
    change(&mut policy);
    Trials::default().of(policy.clone(), suites(&policy))
}

fn fits(kind: SignatureAlgorithm) -> impl Fn(&SupportedCipherSuite) -> bool {
    move |suite| suite.usable_for_signature_algorithm(kind)
}

#[test]
fn each_part_of_a_hello_is_evaluated() {
    let outcome = |name: &str, change: fn(&mut Policy)| {
        let signs = fits(SignatureAlgorithm::RSA);
        trial(change).evaluate(&hello(name), signs).result
    };
    let only_13: fn(&mut Policy) = |it| it.versions = vec![ServedVersion::Tls13];
    let hybrid: fn(&mut Policy) = |it| it.groups = vec![KeyExchangeGroup::X25519MlKem768];
    for (name, change, expected) in [
        (
            "openssl-tls12",
            (|_| {}) as fn(&mut Policy),
            TrialResult::Passed,
        ),
        ("curl-h2", |_| {}, TrialResult::Passed),
        ("openssl-tls12", only_13, TrialResult::Version),
        ("curl-h2", only_13, TrialResult::Passed),
        ("openssl-tls12", hybrid, TrialResult::Group),
    ] {
        assert_eq!(outcome(name, change), expected, "{name}");
    }
    let nothing_signs = trial(|_| {}).evaluate(&hello("openssl-tls12"), |_| false);
    assert_eq!(nothing_signs.result, TrialResult::Suite);
}

/// Creates a server with the parameters of a trial.
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

/// Returns trials with every kind of requirement.
fn many_trials() -> Vec<Policy> {
    let both = [ServedVersion::Tls12, ServedVersion::Tls13];
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
fn a_trial_passes_exactly_the_clients_that_rustls_accepts() {
    let [mut passed, mut refused] = [0, 0];
    for (kind, algorithm) in [
        (&PKCS_ECDSA_P256_SHA256, SignatureAlgorithm::ECDSA),
        (&PKCS_RSA_SHA256, SignatureAlgorithm::RSA),
    ] {
        let pair = KeyPair::generate_for(kind).unwrap();
        for tried in many_trials() {
            let trial = Trials::default().of(tried.clone(), suites(&tried));
            let config = server(&tried, &pair);
            for (name, mut bytes) in HELLOS {
                let evaluated = trial.evaluate(&hello(name), fits(algorithm));
                let mut server = ServerConnection::new(Arc::clone(&config)).unwrap();
                server.read_tls(&mut bytes).unwrap();
                let served = server.process_new_packets();
                let passes = evaluated.result == TrialResult::Passed;
                assert_eq!(passes, served.is_ok(), "{name}: {evaluated:?}, {served:?}");
                passed += u32::from(passes);
                refused += u32::from(!passes);
            }
        }
    }
    assert!(passed > 100 && refused > 100, "{passed} {refused}");
}

#[test]
fn a_missing_required_client_certificate_is_counted() {
    let requires = trial(|it| {
        it.versions = vec![ServedVersion::Tls13];
        it.client_certificates = ClientCertificates::Required;
    });
    for (name, has_certificate, refused) in [
        ("curl-h2", true, None),
        ("curl-h2", false, Some("client-certificate")),
        ("openssl-tls12", false, Some("version")),
    ] {
        let evaluated = requires.evaluate(&hello(name), |_| true);
        assert_eq!(evaluated.count(has_certificate), refused, "{name}");
    }
    let mut counts = requires.counts();
    counts.retain(|_, count| *count > 0);
    let expected = ["client-certificate", "passed", "version"].map(|result| (result, 1));
    assert_eq!(counts, BTreeMap::from(expected));
}

#[test]
fn a_trial_continues_until_its_policy_changes() {
    let trials = Trials::default();
    let policy = Policy::named("web");
    let first = trials.of(policy.clone(), Vec::new());
    assert!(Arc::ptr_eq(&first, &trials.of(policy, Vec::new())));
    let other = trials.of(Policy::named("other"), Vec::new());
    assert!(!Arc::ptr_eq(&first, &other));
}
