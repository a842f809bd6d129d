//! Answers challenges as the workers of becket do.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use becket_config::acme::Acme;
use becket_process::companion_link::AcmeChallenge;
use becket_proto::acme::ChallengeAnswer;
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::ServerConfig;
use rustls::server::Acceptor;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls_pki_types::PrivateKeyDer;

/// Returns the server name or the token of a challenge, and its answer.
pub(crate) fn answer(
    section: &Acme,
    challenge: AcmeChallenge,
) -> (String, (String, ChallengeAnswer)) {
    let certificate = &section.certificate[challenge.certificate as usize];
    let name = &certificate.names[challenge.name as usize];
    let key = match (&challenge.answer, name.to_string().as_str()) {
        (ChallengeAnswer::Http { token, .. }, _) => token.clone(),
        (_, "127.0.0.1") => "1.0.0.127.in-addr.arpa".to_owned(),
        (_, name) => name.to_owned(),
    };
    (key, (name.to_string(), challenge.answer))
}

pub(crate) type Pending = Mutex<HashMap<String, (String, ChallengeAnswer)>>;

pub(crate) fn prove_by_tls(mut stream: TcpStream, pending: &Pending) -> Option<()> {
    let mut acceptor = Acceptor::default();
    let accepted = loop {
        acceptor
            .read_tls(&mut stream)
            .ok()
            .filter(|count| *count > 0)?;
        if let Some(accepted) = acceptor.accept().ok()? {
            break accepted;
        }
    };
    let hello = accepted.client_hello();
    assert!(hello.alpn()?.eq([b"acme-tls/1"]));
    let (name, answer) = pending.lock().unwrap().get(hello.server_name()?).cloned()?;
    let ChallengeAnswer::TlsAlpn(digest) = answer else {
        return None;
    };
    let mut params = CertificateParams::new(vec![name]).unwrap();
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(&digest)];
    let key = KeyPair::generate().unwrap();
    let chain = vec![params.self_signed(&key).unwrap().der().clone()];
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = provider.key_provider.load_private_key(key).unwrap();
    let certificate = SingleCertAndKey::from(CertifiedKey::new(chain, key));
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_no_client_auth();
    let mut config = config.with_cert_resolver(Arc::new(certificate));
    config.alpn_protocols = vec![b"acme-tls/1".to_vec()];
    let mut connection = accepted.into_connection(Arc::new(config)).ok()?;
    connection.complete_io(&mut stream).ok()?;
    Some(())
}

pub(crate) fn prove_by_http(mut stream: TcpStream, pending: &Pending) -> Option<()> {
    let mut head = vec![0; 4096];
    let length = stream.read(&mut head).ok()?;
    let head = String::from_utf8_lossy(&head[..length]).into_owned();
    let token = head
        .split(' ')
        .nth(1)?
        .strip_prefix("/.well-known/acme-challenge/")?;
    let (_, answer) = pending.lock().unwrap().get(token).cloned()?;
    let ChallengeAnswer::Http { token, thumbprint } = answer else {
        return None;
    };
    let body = format!("{token}.{thumbprint}");
    let length = body.len();
    write!(
        stream,
        "HTTP/1.0 200 OK\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .ok()
}
