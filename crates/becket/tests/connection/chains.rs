//! Tests of certificate chains: what is rejected before webpki builds paths, and what that saves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::script::stage::Stage;
use becket_config::choices::ClientCertificates;
use becket_config::policy::Policy;
use becket_config::process::LimitsSection;
use becket_log::facts::ResumedBy;
use becket_proto::bounded_table::Cursor;
use becket_proto::close_reason::CloseReason;
use becket_proto::session_table::Visited;
use becket_tls::{chain, verifier};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{
    AlgorithmIdentifier, CertificateDer, InvalidSignature, PrivateKeyDer, ServerName,
    SignatureVerificationAlgorithm, TrustAnchor, UnixTime, alg_id,
};
use rustls::version::{TLS12, TLS13};
use rustls::{
    AlertDescription as Alert, ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion,
};

use crate::common::{BACKEND, Client, House, house, without_tickets};
use crate::onward::Host;
use crate::tangle::{Tangle, WORST, tangle};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

const CLIENTS: &str = "policy = 'p'\n[[policy]]\nname = 'p'\nclient-certificates = 'required'\nclient-ca = 'ca.pem'\n";

/// Returns chains that exceed different limits.
fn excessive() -> Vec<(&'static str, Tangle)> {
    let alike = [("A", "A"); 9];
    vec![
        ("too long for an engine", tangle(&alike, 400)),
        ("too long for the limit", tangle(&[("A", "B")], 1500)),
        ("too many", tangle(&alike[..7], 0)),
        ("too many of one subject", tangle(&alike[..3], 0)),
    ]
}

fn with_certificate(
    house: &House,
    version: &'static SupportedProtocolVersion,
    own: Tangle,
) -> Arc<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(house.roots.clone())
        .with_client_auth_cert(own.chain, own.key);
    Arc::new(config.unwrap())
}

/// Returns how the connection ended and the alert that the client received.
fn ending(mut client: Client, stage: &mut Stage) -> (Option<CloseReason>, Option<Alert>) {
    client.talk(stage);
    let alert = match client.fault.take() {
        Some(rustls::Error::AlertReceived(alert)) => Some(alert),
        _ => None,
    };
    drop(client);
    stage.settle();
    (stage.closed(), alert)
}

#[test]
fn an_excessive_client_chain_is_rejected() {
    let house = house(CLIENTS);
    for version in VERSIONS {
        for (what, own) in excessive() {
            let mut stage = house.stage_of(256 * 1024);
            let config = with_certificate(&house, version, own);
            let client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
            let (reason, alert) = ending(client, &mut stage);
            assert_eq!(
                reason,
                Some(CloseReason::ClientChain),
                "{what}, {version:?}"
            );
            assert_eq!(
                alert,
                Some(Alert::CertificateUnknown),
                "{what}, {version:?}"
            );
        }
        // No configured authority issued the chain, so webpki may reject it.
        let config = with_certificate(&house, version, tangle(&WORST, 0));
        let mut stage = house.stage();
        let client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
        let (reason, _) = ending(client, &mut stage);
        assert_eq!(reason, Some(CloseReason::ClientCertificate), "{version:?}");
    }
}

#[test]
fn a_long_message_fails_the_handshake_if_no_certificate_was_requested() {
    use std::io::Write;
    let house = house("");
    let mut stage = house.stage();
    let config = Arc::new(house.client(&TLS12));
    let mut client = Client::enter(&mut stage, house.listener(0), &config, "a.test");
    client.flush();
    assert!(stage.settle());
    // Pieces of an unencrypted handshake message that never ends.
    let piece = [&[22, 3, 3, 0x20, 0, 11, 0, 0xff, 0xff][..], &[0; 0x1ffc]].concat();
    client.end.write_all(&piece).unwrap();
    client.end.write_all(&piece).unwrap();
    client.end.write_all(&piece).unwrap();
    assert_eq!(
        ending(client, &mut stage).0,
        Some(CloseReason::HandshakeFailed)
    );
}

#[test]
fn an_excessive_server_chain_is_rejected() {
    let text = "[[listener]]\nname = 'web'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
         certificates = ['a.pem']\n[[backend]]\nname = 'app'\n\
         [backend.tls]\nca = 'a.pem'\nname = 'a.test'\n\
         [[backend.server]]\naddress = '127.0.0.1:81'\n";
    let house = House::new(text);
    for version in VERSIONS {
        for (what, own) in excessive() {
            let provider = Arc::new(aws_lc_rs::default_provider());
            let config = ServerConfig::builder_with_provider(provider)
                .with_protocol_versions(&[version])
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(own.chain, own.key);
            let config = Arc::new(config.unwrap());
            let mut stage = house.stage_of(256 * 1024);
            let trusted = Arc::new(house.client(&TLS13));
            let mut client = Client::enter(&mut stage, house.listener(0), &trusted, "a.test");
            client.talk(&mut stage);
            Host::new(&config).talk(&mut client, &mut stage);
            let (reason, _) = ending(client, &mut stage);
            assert_eq!(
                reason,
                Some(CloseReason::ServerChain),
                "{what}, {version:?}"
            );
        }
    }
}

/// Rejects every signature, and counts the checks.
#[derive(Debug)]
struct Counting;

static CHECKS: AtomicUsize = AtomicUsize::new(0);

impl SignatureVerificationAlgorithm for Counting {
    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P256
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_SHA256
    }

    fn verify_signature(&self, _: &[u8], _: &[u8], _: &[u8]) -> Result<(), InvalidSignature> {
        CHECKS.fetch_add(1, Relaxed);
        Err(InvalidSignature)
    }
}

#[test]
fn the_worst_accepted_chain_needs_few_signature_checks() {
    static ALL: [&dyn SignatureVerificationAlgorithm; 1] = [&Counting];
    let mut provider = aws_lc_rs::default_provider();
    provider.signature_verification_algorithms.all = &ALL;
    // Authorities of all names in use, so that every path has a candidate to check.
    let mut roots = RootCertStore::empty();
    for name in ["A", "B", "C"] {
        let root = tangle(&[(name, name)], 0);
        let anchor = webpki_anchor(&root.chain[1]);
        roots.roots.push(anchor);
    }
    let worst = tangle(&WORST, 0);
    let [leaf, intermediates @ ..] = &worst.chain[..] else {
        panic!("a chain");
    };
    let usable = chain::usable(leaf, intermediates, LimitsSection::default()).expect("it passes");
    assert_eq!(usable.len(), intermediates.len());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(provider));
    let name = ServerName::try_from("a.test").unwrap();
    let now = UnixTime::now();
    let verifier = verifier.build().unwrap();
    let verified = verifier.verify_server_cert(leaf, intermediates, &name, &[], now);
    assert!(verified.is_err());
    assert_eq!(CHECKS.load(Relaxed), 1 + chain::MOST_STEPS);
}

/// Returns a client's chain with one intermediate under the house's authority, mixed with unrelated
/// certificates.
fn cluttered(house: &House) -> Tangle {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    let authority = std::fs::read_to_string(house.folder.path().join("ca.pem")).unwrap();
    let (_, key) = authority.split_at(authority.find("-----BEGIN PRIVATE").unwrap());
    let named = |name: &str| {
        let mut params = CertificateParams::new(vec!["ca.test".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    let root = CertificateParams::new(vec!["ca.test".to_owned()]).unwrap();
    let root = Issuer::new(root, KeyPair::from_pem(key).unwrap());
    let (between_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut between = named("between");
    between.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let shown = between.signed_by(&between_key, &root).unwrap();
    let leaf = named("alice").signed_by(&key, &Issuer::new(between, between_key));
    let filler = tangle(&[("X", "Y"), ("Y", "Z"), ("Z", "X"), ("W", "X")], 200);
    let mut chain = filler.chain;
    chain[0] = leaf.unwrap().der().clone();
    chain.insert(3, shown.der().clone());
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    Tangle { chain, key }
}

#[test]
fn a_session_stores_only_the_verified_path_of_a_chain() {
    let policy = |name, more| {
        format!(
            "[[listener]]\nname = '{name}'\nbind = ['127.0.0.1:443']\nbackend = 'app'\n\
             certificates = ['a.pem']\npolicy = '{name}'\n[[policy]]\nname = '{name}'\n\
             client-certificates = 'required'\nclient-ca = 'ca.pem'\n{more}\n"
        )
    };
    let tickets = policy("tickets", "tls12-tickets = true");
    let early = policy("early", "versions = ['1.3']\nearly-data = '17KiB'");
    let early = early.replace(":443", ":444");
    let backend = BACKEND.replace("'app'\n", "'app'\nproxy-header = 'v2'\n");
    let house = House::new(&format!("{tickets}{early}{backend}"));
    let ways = [
        (0, &TLS12, true, ResumedBy::Ticket),
        (0, &TLS12, false, ResumedBy::Id),
        (0, &TLS13, true, ResumedBy::Psk),
        (1, &TLS13, true, ResumedBy::Psk),
    ];
    for (listener, version, takes_tickets, way) in ways {
        let own = cluttered(&house);
        let path = own.chain[0].len() + own.chain[3].len();
        let shown: usize = own.chain.iter().map(|one| one.len()).sum();
        // Half of a hello is 8 KiB, so a ticket of all certificates would not fit.
        assert!((10_000..16_000).contains(&shown), "{shown}");
        let mut config = with_certificate(&house, version, own);
        if !takes_tickets {
            config = Arc::new(without_tickets((*config).clone()));
        }
        let mut stage = house.stage_of(256 * 1024);
        let before = state_bytes(&house);
        for expected in [None, Some(way), Some(way)] {
            let mut client = Client::enter(&mut stage, house.listener(listener), &config, "a.test");
            client.talk(&mut stage);
            let record = stage.record().unwrap();
            let tls = record.facts.tls.unwrap();
            assert_eq!(tls.resumed, expected, "{version:?}");
            let identity = tls.identity.map(|who| who.common_name);
            assert_eq!(identity, Some(Some("alice".into())), "{expected:?}");
        }
        // A TLS 1.3 client without tickets has several sessions at a time.
        let kept = state_bytes(&house) - before;
        let most = (path + 200) * if way == ResumedBy::Psk { 8 } else { 1 };
        assert!(kept <= most, "{version:?}: {kept} > {most}");
    }
}

fn state_bytes(house: &House) -> usize {
    let mut bytes = 0;
    for table in [&house.table, &house.early] {
        let mut next = Some(Cursor::default());
        while let Some(from) = next {
            let add = |visited: Visited<'_>| bytes += visited.session.state.len();
            next = table.visit(from, Duration::ZERO, usize::MAX, add);
        }
    }
    bytes
}

#[test]
fn only_certificates_on_a_possible_path_are_searched() {
    let names = [("A", "B"), ("Y", "Z"), ("C", "D"), ("Z", "Y"), ("B", "C")];
    let shown = tangle(&names, 100);
    let (leaf, intermediates) = shown.chain.split_first().unwrap();
    let usable = chain::usable(leaf, intermediates, LimitsSection::default()).unwrap();
    let path = [0, 4, 2].map(|at| intermediates[at].clone());
    assert_eq!(usable, path);
    // Two certificates of one subject keep their order, and an invalid certificate is ignored.
    let mut shown = tangle(&[("A", "B"), ("B", "A"), ("A", "A")], 0).chain;
    shown.insert(1, CertificateDer::from(vec![0x30, 0]));
    let (leaf, intermediates) = shown.split_first().unwrap();
    let usable = chain::usable(leaf, intermediates, LimitsSection::default()).unwrap();
    let path = [1, 3, 2].map(|at| intermediates[at].clone());
    assert_eq!(usable, path);
    let none = chain::usable(&intermediates[0], intermediates, LimitsSection::default()).unwrap();
    assert!(none.is_empty());
}

fn webpki_anchor(certificate: &CertificateDer<'static>) -> TrustAnchor<'static> {
    let mut store = RootCertStore::empty();
    store.add(certificate.clone()).unwrap();
    store.roots.remove(0)
}

#[test]
fn a_chain_of_authorities_with_two_keys_each_is_accepted() {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    let named = |name: &str| {
        let mut params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    };
    let key = || KeyPair::generate().unwrap();
    let mut above = Issuer::new(named("root"), key());
    let root = named("root").self_signed(above.key()).unwrap();
    let mut intermediates = Vec::new();
    for level in ["one", "two", "three"] {
        let (old, new) = (key(), key());
        // The certificate with the wrong key comes first.
        for key in [&old, &new] {
            let certificate = named(level).signed_by(key, &above).unwrap();
            intermediates.insert(0, certificate.der().clone());
        }
        above = Issuer::new(named(level), old);
    }
    let mut leaf = named("leaf");
    leaf.is_ca = IsCa::NoCa;
    let leaf = leaf.signed_by(&key(), &above).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(root.der().clone()).unwrap();
    let policy = Policy {
        client_certificates: ClientCertificates::Required,
        ..Policy::default()
    };
    let limits = LimitsSection::default();
    let verifier =
        verifier::of_clients(&policy, (&Arc::new(roots), Vec::new()), &[], limits).unwrap();
    let verified = verifier.verify_client_cert(leaf.der(), &intermediates, UnixTime::now());
    verified.expect("a good chain");
}
