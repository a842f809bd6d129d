//! Asks for the answers to made-up challenges as an authority does, before a trial order.
//!
//! The serving process answers a random challenge for each name, like one of an authority. The
//! companion resolves the names, connects to each address at the port of the challenge, and expects
//! that answer, which no other server knows: for TLS-ALPN-01 the protocol and a certificate with the
//! name and the digest (RFC 8737, section 3), for HTTP-01 the key authorization (RFC 8555, section
//! 8.3). An authority connects from elsewhere, and follows redirects; so a finding decides nothing.
//!
//! Every peer is foreign: times, sizes and the number of addresses are limited.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64ct::{Base64UrlUnpadded, Encoding};
use becket_config::acme::{AcmeName, ChallengeKind};
use becket_log::shortened;
use becket_process::companion_link::AcmeChallenge;
use becket_proto::acme::ChallengeAnswer;
use hickory_resolver::proto::rr::Name;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use x509_parser::oid_registry::asn1_rs::oid;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::context::Context;
use crate::error::Error;
use crate::link::Link;
use crate::lookup;
use crate::verify;

/// Returns what a client finds at the addresses of a certificate's names.
pub async fn check(context: &Context, link: &Link, index: usize) -> Result<Vec<String>, Error> {
    let certificate = &*context.certificate(index);
    let (answer, port) = match context.section.challenge(certificate) {
        ChallengeKind::TlsAlpn => (ChallengeAnswer::TlsAlpn(random()), 443),
        ChallengeKind::Http => {
            let [token, thumbprint] = [(); 2].map(|()| Base64UrlUnpadded::encode_string(&random()));
            (ChallengeAnswer::Http { token, thumbprint }, 80)
        }
        ChallengeKind::Dns | ChallengeKind::DnsPersist => return Ok(Vec::new()),
    };
    let challenges = (0..)
        .zip(&certificate.names)
        .map(|(name, _)| AcmeChallenge {
            certificate: index as u32,
            name,
            answer: answer.clone(),
            lifetime: TIME_LIMIT.as_secs() as u32,
        });
    link.serve(challenges.collect()).await?;
    let mut findings = Vec::new();
    let all = async {
        for name in &certificate.names {
            match lookup::addresses(context, name).await {
                Ok(addresses) if addresses.is_empty() => {
                    findings.push(format!("{name}: DOES NOT RESOLVE"));
                }
                Ok(addresses) => {
                    for address in addresses.into_iter().take(MOST_ADDRESSES) {
                        let address = SocketAddr::new(address, port);
                        findings.push(match ask(address, name, &answer).await {
                            Ok(()) => format!("{name}: {address} answers the challenge"),
                            Err(why) => {
                                format!("{name}: {address} DOES NOT ANSWER THE CHALLENGE: {why}")
                            }
                        });
                    }
                }
                Err(error) => findings.push(format!("{name}: DOES NOT RESOLVE: {error}")),
            }
        }
    };
    let ended = timeout(TIME_LIMIT, all).await;
    link.withdraw();
    if ended.is_err() {
        let seconds = TIME_LIMIT.as_secs();
        findings.push(format!("other addresses: not asked within {seconds} s"));
    }
    Ok(findings)
}

/// Asks one address for the answer. Returns why it is not the expected one.
pub async fn ask(
    address: SocketAddr,
    name: &AcmeName,
    answer: &ChallengeAnswer,
) -> Result<(), String> {
    let asked = async {
        let stream = TcpStream::connect(address).await.map_err(text)?;
        match answer {
            ChallengeAnswer::TlsAlpn(digest) => ask_by_tls(stream, name, *digest).await,
            ChallengeAnswer::Http { token, thumbprint } => {
                ask_by_http(stream, name, (token, thumbprint)).await
            }
        }
    };
    match timeout(PATIENCE, asked).await {
        Ok(asked) => asked.map_err(|why| shortened(why.as_bytes())),
        Err(_) => Err(format!("no answer in {} s", PATIENCE.as_secs())),
    }
}

async fn ask_by_tls(stream: TcpStream, name: &AcmeName, digest: [u8; 32]) -> Result<(), String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = ChallengeVerifier {
        name: name.clone(),
        digest,
        schemes: provider
            .signature_verification_algorithms
            .supported_schemes(),
    };
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(text)?;
    let builder = builder.dangerous();
    let builder = builder.with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![ACME_TLS.to_vec()];
    // An address is asked for by its reverse name (RFC 8738, section 6).
    let asked = match name.address() {
        Some(address) => Name::from(address).to_ascii(),
        None => name.to_string(),
    };
    let asked = asked.trim_end_matches('.').to_owned();
    let asked = ServerName::try_from(asked).map_err(text)?;
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector.connect(asked, stream).await.map_err(text)?;
    let (_, connection) = stream.get_ref();
    match connection.alpn_protocol() {
        Some(ACME_TLS) => Ok(()),
        _ => Err("another server: it did not choose the protocol acme-tls/1".to_owned()),
    }
}

async fn ask_by_http(
    mut stream: TcpStream,
    name: &AcmeName,
    (token, thumbprint): (&str, &str),
) -> Result<(), String> {
    let host = match name.address() {
        Some(IpAddr::V6(address)) => format!("[{address}]"),
        _ => name.to_string(),
    };
    let request = format!(
        "GET /.well-known/acme-challenge/{token} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.map_err(text)?;
    let mut response = Vec::new();
    let mut limited = stream.take(LONGEST_RESPONSE);
    limited.read_to_end(&mut response).await.map_err(text)?;
    let response = String::from_utf8_lossy(&response);
    let status = response.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) == Some("200")
        && response.contains(&format!("{token}.{thumbprint}"))
    {
        return Ok(());
    }
    Err(format!("another server, or another page: {status}"))
}

/// Expects the certificate of a challenge. The digest is the proof. The signature is not verified,
/// because webpki rejects the critical extension.
#[derive(Debug)]
struct ChallengeVerifier {
    name: AcmeName,
    digest: [u8; 32],
    schemes: Vec<SignatureScheme>,
}

impl ChallengeVerifier {
    fn is_expected(&self, leaf: &CertificateDer<'_>) -> bool {
        let Ok((_, parsed)) = X509Certificate::from_der(leaf) else {
            return false;
        };
        // id-pe-acmeIdentifier, RFC 8737, section 6.1.
        let identifier = oid!(1.3.6.1.5.5.7.1.31);
        let mut extensions = parsed.extensions().iter();
        let extension = extensions.find(|it| it.oid == identifier);
        let value = [&[0x04, 32], &self.digest[..]].concat();
        extension.is_some_and(|it| it.critical && it.value == value)
            && verify::has_names(leaf, std::slice::from_ref(&self.name))
    }
}

impl ServerCertVerifier for ChallengeVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let fault = "another server: not the certificate of the challenge";
        let expected = self.is_expected(leaf).then(ServerCertVerified::assertion);
        expected.ok_or_else(|| rustls::Error::General(fault.to_owned()))
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}

fn random() -> [u8; 32] {
    std::array::from_fn(|_| fastrand::u8(..))
}

fn text(error: impl Display) -> String {
    error.to_string()
}

const ACME_TLS: &[u8] = b"acme-tls/1";
/// Time limit for one address. Authorities wait about as long.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for all names, because orders wait meanwhile.
const TIME_LIMIT: Duration = Duration::from_secs(60);
const MOST_ADDRESSES: usize = 8;
/// Maximum number of bytes that are read of a response. The expected one has about 300.
const LONGEST_RESPONSE: u64 = 4096;
