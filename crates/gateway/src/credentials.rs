//! Certificates, keys and authorities. The configuration contains only the paths at which Secrets
//! and ConfigMaps are mounted; their contents are checked, and never leave this file.

use becket_config::error::Problem;
use becket_config::key_source::KeySource;
use becket_config::listener::Pair;
use base64ct::{Base64, Encoding};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;

use crate::kinds::Reference;
use crate::objects::{Name, Object, Objects, problem};

/// The folder where Secrets and ConfigMaps are mounted, each key as `DIR/NAMESPACE/NAME/KEY`.
#[derive(Clone, Copy, Debug)]
pub struct Mounts<'a> {
    pub folder: &'a str,
    pub objects: &'a Objects,
}

impl Mounts<'_> {
    /// Returns the paths of a certificate in a Secret, and checks the Secret.
    pub fn pair<S>(
        self,
        from: &Object<S>,
        field: &str,
        reference: &Reference,
    ) -> Result<Pair, Problem> {
        let target = self.objects.resolve(from, field, reference, "Secret")?;
        if let Some(secret) = self.objects.find(&self.objects.data, "Secret", &target, field)? {
            if secret.spec.get("type").and_then(Value::as_str) != Some(TLS) {
                let fault = format!("InvalidCertificateRef: {secret} has another type");
                return Err(problem(field, fault, TLS));
            }
            check(secret, "tls.crt", field, are_certificates)?;
            check(secret, "tls.key", field, |text| PrivateKeyDer::from_pem_slice(text).is_ok())?;
        }
        Ok(Pair {
            chain: Some(self.path(&target, "tls.crt")),
            key: Some(KeySource::File(self.path(&target, "tls.key"))),
            ..Pair::default()
        })
    }

    /// Returns the path of the CA certificates in the one ConfigMap of `references`, and checks it.
    pub fn authorities<S>(
        self,
        from: &Object<S>,
        field: &str,
        references: &[Reference],
    ) -> Result<String, Problem> {
        let [reference] = references else {
            let fault = format!("{} references", references.len());
            return Err(problem(field, fault, "one ConfigMap with all CA certificates"));
        };
        let target = self.objects.resolve(from, field, reference, "ConfigMap")?;
        if let Some(map) = self.objects.find(&self.objects.data, "ConfigMap", &target, field)? {
            check(map, "ca.crt", field, are_certificates)?;
        }
        Ok(self.path(&target, "ca.crt"))
    }

    fn path(self, name: &Name, key: &str) -> String {
        format!("{}/{name}/{key}", self.folder.trim_end_matches('/'))
    }
}

/// Checks a key of a Secret or a ConfigMap.
fn check(
    object: &Object<Value>,
    key: &str,
    field: &str,
    fits: fn(&[u8]) -> bool,
) -> Result<(), Problem> {
    let text = |section: &str| object.spec.get(section)?.get(key)?.as_str();
    // The API server lets `stringData` replace `data`.
    let content = match (object.kind, text("stringData"), text("data")) {
        ("Secret", Some(plain), _) | ("ConfigMap", _, Some(plain)) => Some(plain.into()),
        (_, _, Some(encoded)) => {
            let encoded: String = encoded.split_ascii_whitespace().collect();
            Base64::decode_vec(&encoded).ok()
        }
        _ => None,
    };
    if content.is_some_and(|content| fits(&content)) {
        return Ok(());
    }
    let fault = format!("{object}: data[\"{key}\"] is missing, or not PEM");
    let encoding = if object.kind == "Secret" { "base64 of " } else { "" };
    Err(problem(field, fault, format!("{encoding}PEM")))
}

fn are_certificates(text: &[u8]) -> bool {
    let mut certificates = CertificateDer::pem_slice_iter(text).peekable();
    certificates.peek().is_some() && certificates.all(|it| it.is_ok())
}

const TLS: &str = "kubernetes.io/tls";
