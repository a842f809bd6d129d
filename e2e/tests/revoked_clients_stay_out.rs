//! A client with a revoked certificate is rejected in a full handshake and when it resumes an earlier session by ID, ticket or pre-shared key.
//! (`cluster_client_certificates.rs` tests sessions of other hosts.)

use std::fs;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex};

use becket_e2e::{Backend, Becket, Bundle, Client, OpenSsl, Place, Shape, Trust};
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;

fn policy(more: &str) -> String {
    format!(
        "[[policy]]\nname = \"web\"\nclient-certificates = \"required\"\n\
         client-ca = \"ca.pem\"\n{more}"
    )
}

fn revoke(place: &Place, serials: &[u64]) {
    let list = place.authority.revocation_list(serials).pem().unwrap();
    fs::write(place.path("crl.pem"), list).unwrap();
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_revoked_client_cannot_return_with_a_session() {
    let place = Place::new();
    let backend = Backend::http("inside");
    revoke(&place, &[7]);
    let shape = Shape::new(backend.address).section(&policy("crl = [\"crl.pem\"]"));
    let becket = Becket::start(&place, &shape);
    let alice = place.authority.issue_numbered(&["alice"], 1);
    let bob = place.authority.issue_numbered(&["bob"], 2);
    let mallory = place.authority.issue_numbered(&["mallory"], 7);
    for (_, trust) in Trust::ways(&place, Some(&mallory)) {
        assert!(trust.visit(becket.web).is_err());
        assert_eq!(becket.next_reason(), "client-certificate");
    }
    let (alices, bobs) = (
        Trust::ways(&place, Some(&alice)),
        Trust::ways(&place, Some(&bob)),
    );
    for (kind, trust) in alices.iter().chain(&bobs) {
        trust.visit(becket.web).unwrap();
        assert_eq!(becket.next_access()["handshake"], "full");
        trust.visit(becket.web).unwrap();
        assert_eq!(becket.next_access()["handshake"], *kind);
    }
    // Alice has sessions of every kind.
    revoke(&place, &[7, 1]);
    assert!(becket.reload(), "{}", becket.log());
    let served = backend.served();
    for (kind, trust) in &alices {
        let refused = trust.visit(becket.web);
        assert!(refused.is_err(), "{kind}: {refused:?}");
        assert_eq!(becket.next_reason(), "client-certificate", "{kind}");
    }
    assert_eq!(backend.served(), served);
    // Her sessions were valid, so the revocation list is the reason. Bob's sessions still resume.
    for (kind, trust) in &bobs {
        trust.visit(becket.web).unwrap();
        assert_eq!(becket.next_access()["handshake"], *kind);
    }
    assert_eq!(backend.served(), served + 3);
}

/// Resolver that presents a replaceable certificate.
#[derive(Debug)]
struct Wardrobe(Mutex<Arc<CertifiedKey>>);

impl Wardrobe {
    fn wear(&self, own: &Bundle) {
        *self.0.lock().unwrap() = dress(own);
    }
}

impl ResolvesClientCert for Wardrobe {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.lock().unwrap()))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn dress(own: &Bundle) -> Arc<CertifiedKey> {
    let chain = CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
    let key = any_supported_type(&key).unwrap();
    Arc::new(CertifiedKey::new(vec![chain], key))
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_client_with_a_new_certificate_is_accepted_although_its_session_is_not() {
    let place = Place::new();
    let backend = Backend::http("inside");
    revoke(&place, &[7]);
    let shape = Shape::new(backend.address).section(&policy("crl = [\"crl.pem\"]"));
    let becket = Becket::start(&place, &shape);
    let old = place.authority.issue_numbered(&["alice"], 1);
    let new = place.authority.issue_numbered(&["alice"], 2);
    let wardrobe = Arc::new(Wardrobe(Mutex::new(dress(&old))));
    let dressed = Trust::ways(&place, Some(&old)).map(|(kind, trust)| {
        let wardrobe = Arc::clone(&wardrobe);
        let shown = trust.changed(|config| config.client_auth_cert_resolver = wardrobe);
        (kind, shown)
    });
    for (kind, trust) in &dressed {
        for expected in ["full", kind] {
            trust.visit(becket.web).unwrap();
            assert_eq!(becket.next_access()["handshake"], expected);
        }
    }
    revoke(&place, &[7, 1]);
    assert!(becket.reload(), "{}", becket.log());
    wardrobe.wear(&new);
    for (kind, trust) in &dressed {
        for expected in ["full", kind] {
            trust.visit(becket.web).unwrap();
            assert_eq!(becket.next_access()["handshake"], expected, "{kind}");
        }
        let labels = [("kind", *kind), ("outcome", "client-certificate")];
        let labels = labels.map(|(name, value)| format!("{name}=\"{value}\""));
        let labels = labels.each_ref().map(String::as_str);
        let refused = becket
            .metrics()
            .sum("becket_resumptions_offered_total", &labels);
        assert!(refused >= 1.0, "{kind}");
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn openssl_receives_the_alert_certificate_revoked() {
    let Some(openssl) = OpenSsl::find() else {
        return;
    };
    let place = Place::new();
    let backend = Backend::http("inside");
    // The list is in DER, as authorities publish it.
    let list = place.authority.revocation_list(&[7]);
    fs::write(place.path("list.crl"), list.der()).unwrap();
    let shape = Shape::new(backend.address).section(&policy("crl = [\"list.crl\"]"));
    let becket = Becket::start(&place, &shape);
    let own = place.text("own.pem");
    for (serial, is_good) in [(7, false), (8, true)] {
        place
            .authority
            .issue_numbered(&["alice"], serial)
            .write(&place.path("own.pem"));
        for version in ["-tls1_2", "-tls1_3"] {
            let run = openssl.ask(&place, becket.web, &[version, "-cert", &own]);
            let told = run.all().contains("certificate revoked");
            assert_eq!(told, !is_good, "{}", run.all());
            assert_eq!(run.stdout.contains("inside"), is_good, "{}", run.all());
        }
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn a_certificate_without_a_matching_list_is_rejected_unless_allowed() {
    let place = Place::new();
    let backend = Backend::http("inside");
    let other = becket_e2e::Authority::new("Another Authority");
    let both = format!("{}{}", place.authority.pem(), other.pem());
    fs::write(place.path("ca.pem"), both).unwrap();
    revoke(&place, &[7]);
    let known = place.authority.issue_numbered(&["alice"], 1);
    let unknown = other.issue_numbered(&["bob"], 1);
    for (mode, is_allowed) in [("refuse", false), ("allow", true)] {
        let keys = format!("crl = [\"crl.pem\"]\ncrl-unknown = \"{mode}\"");
        let shape = Shape::new(backend.address)
            .certificates("[\"site.pem\"]")
            .section(&policy(&keys));
        let becket = Becket::start(&place, &shape);
        // The clients use the same file as becket, but must trust only this authority.
        fs::write(place.path("ca.pem"), place.authority.pem()).unwrap();
        let trust = |own| Trust::with(&place, &[&TLS13], Some(own));
        assert!(trust(&known).visit(becket.web).is_ok());
        assert_eq!(trust(&unknown).visit(becket.web).is_ok(), is_allowed);
        let both = format!("{}{}", place.authority.pem(), other.pem());
        fs::write(place.path("ca.pem"), both).unwrap();
    }
}

#[test]
#[ignore = "slow: .ci/run test"]
fn early_data_of_a_revoked_client_reaches_no_server() {
    let place = Place::new();
    let backend = Backend::new(|mut stream| {
        let mut fixed = [0; 16];
        stream.read_exact(&mut fixed)?;
        let mut rest = vec![0; usize::from(u16::from_be_bytes([fixed[14], fixed[15]]))];
        stream.read_exact(&mut rest)?;
        becket_e2e::answer_all(stream, "inside")
    });
    revoke(&place, &[7]);
    let keys = "crl = [\"crl.pem\"]\nversions = [\"1.3\"]\nearly-data = \"17KiB\"";
    let shape = Shape::new(backend.address)
        .backend("proxy-header = \"v2\"")
        .section(&policy(keys));
    let becket = Becket::start(&place, &shape);
    let alice = place.authority.issue_numbered(&["alice"], 1);
    let trust = Trust::with(&place, &[&TLS13], Some(&alice))
        .changed(|config| config.enable_early_data = true);
    let early = || -> io::Result<Vec<u8>> {
        let mut client = Client::begin(becket.web, &trust, "www.example.org")?;
        let mut writer = client.tls.early_data().expect("a session that admits it");
        writer.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        client.ask(b"")
    };
    trust.visit(becket.web).unwrap();
    assert_eq!(becket.next_access()["handshake"], "full");
    assert!(early().is_ok(), "accepted before the revocation");
    let line = becket.next_access();
    assert_eq!(line["handshake"], "early");
    assert_eq!(line["subject"], "CN=alice");
    revoke(&place, &[1]);
    assert!(becket.reload(), "{}", becket.log());
    let served = backend.served();
    assert!(early().is_err());
    assert_eq!(becket.next_reason(), "client-certificate");
    assert_eq!(backend.served(), served);
}
