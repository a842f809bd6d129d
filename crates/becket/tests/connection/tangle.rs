//! Chains that no real authority would issue: certificates that could all be each other's issuers,
//! and filler. The bench that measures the worst chain shares this file.

use rcgen::{BasicConstraints, CertificateParams, CustomExtension, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A leaf with its key and its chain.
pub(crate) struct Tangle {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

/// Creates a leaf of the first name, and an intermediate certificate for each subject and issuer.
/// Each has `filler` meaningless extensions of 14 bytes. No signature is valid.
pub(crate) fn tangle(links: &[(&str, &str)], filler: usize) -> Tangle {
    let named = |name: &str| {
        let mut params = CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let extension = CustomExtension::from_oid_content(&[1, 3, 9999, 1], vec![5, 0]);
        params.custom_extensions = vec![extension; filler];
        params
    };
    let issue = |params: CertificateParams, key: &KeyPair, issuer: &str| {
        let unknown = KeyPair::generate().unwrap();
        let signed = params.signed_by(key, &Issuer::new(named(issuer), unknown));
        signed.unwrap().der().clone()
    };
    let key = KeyPair::generate().unwrap();
    let mut leaf = named("leaf");
    leaf.custom_extensions.clear();
    let mut chain = vec![issue(leaf, &key, links[0].0)];
    for (subject, issuer) in links {
        let mut params = named(subject);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        chain.push(issue(params, &KeyPair::generate().unwrap(), issuer));
    }
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    Tangle { chain, key }
}

/// The accepted certificates that cost webpki most.
pub(crate) const WORST: [(&str, &str); 6] = [
    ("A", "B"),
    ("A", "B"),
    ("B", "C"),
    ("B", "C"),
    ("C", "A"),
    ("C", "A"),
];
