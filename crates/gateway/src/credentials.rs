//! Certificates, keys and authorities. The configuration contains only the paths at which Secrets
//! and ConfigMaps are mounted; their contents are checked, and never leave this file.

use base64ct::{Base64, Encoding};
use becket_config::error::Problem;
use becket_config::key_source::KeySource;
use becket_config::listener::Pair;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;

use crate::kinds::Reference;
use crate::objects::{Identity, Name, Object, Objects, problem};

/// The folder where Secrets and ConfigMaps are mounted, each key as `DIR/NAMESPACE/NAME/KEY`.
#[derive(Clone, Copy, Debug)]
pub struct Mounts<'a> {
    pub folder: &'a str,
    pub objects: &'a Objects,
}

impl Mounts<'_> {
    /// Returns the paths of a certificate in a Secret, and checks the Secret.
    pub fn pair(self, from: &Identity, field: &str, to: &Reference) -> Result<Pair, Problem> {
        let secrets = ("Secret", &self.objects.secrets[..]);
        let (name, secret) = self.objects.resolve(from, field, to, secrets)?;
        if let Some(secret) = secret {
            let is_key = |text: &[u8]| PrivateKeyDer::from_pem_slice(text).is_ok();
            if secret.spec.get("type").and_then(Value::as_str) != Some(TLS) {
                let fault = format!(
                    "InvalidCertificateRef: {} has another type",
                    secret.identity
                );
                return Err(problem(field, fault, TLS));
            }
            check(secret, "tls.crt", field, are_certificates)?;
            check(secret, "tls.key", field, is_key)?;
        }
        Ok(Pair {
            chain: Some(self.path(&name, "tls.crt")),
            key: Some(KeySource::File(self.path(&name, "tls.key"))),
            ..Pair::default()
        })
    }

    /// Returns the path of the CA certificates in the one ConfigMap of `all`, and checks it.
    pub fn authorities(
        self,
        from: &Identity,
        field: &str,
        all: &[Reference],
    ) -> Result<String, Problem> {
        let [to] = all else {
            let fault = format!("{} references", all.len());
            return Err(problem(
                field,
                fault,
                "one ConfigMap with all CA certificates",
            ));
        };
        let maps = ("ConfigMap", &self.objects.config_maps[..]);
        let (name, map) = self.objects.resolve(from, field, to, maps)?;
        if let Some(map) = map {
            check(map, "ca.crt", field, are_certificates)?;
        }
        Ok(self.path(&name, "ca.crt"))
    }

    fn path(self, name: &Name, key: &str) -> String {
        format!("{}/{name}/{key}", self.folder.trim_end_matches('/'))
    }
}

/// Checks a key of a Secret, which is base64, or of a ConfigMap.
fn check(
    object: &Object<Value>,
    key: &str,
    field: &str,
    fits: fn(&[u8]) -> bool,
) -> Result<(), Problem> {
    let text = |section: &str| object.spec.get(section)?.get(key)?.as_str();
    // The API server lets `stringData` of a Secret replace `data`.
    let content = match (text("stringData"), text("data")) {
        (Some(plain), _) => Some(plain.into()),
        (_, Some(plain)) if object.kind == "ConfigMap" => Some(plain.into()),
        (_, encoded) => encoded.and_then(|encoded| {
            let encoded: String = encoded.split_ascii_whitespace().collect();
            Base64::decode_vec(&encoded).ok()
        }),
    };
    if content.is_some_and(|content| fits(&content)) {
        return Ok(());
    }
    let fault = format!("{}: data[{key:?}] is missing or invalid", object.identity);
    Err(problem(field, fault, "PEM, in a Secret as base64"))
}

fn are_certificates(text: &[u8]) -> bool {
    let mut certificates = CertificateDer::pem_slice_iter(text).peekable();
    certificates.peek().is_some() && certificates.all(|it| it.is_ok())
}

const TLS: &str = "kubernetes.io/tls";
