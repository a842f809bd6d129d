//! The TLVs of a version 2 header: information about a connection besides its addresses.
//!
//! Decodes the types that have a field in [`Tlvs`], and skips all others. Strings must have the
//! encoding that the specification requires, UTF-8 or US-ASCII. The checksum (CRC32C) is ignored,
//! since TCP has one already. A header with two TLVs of a decoded type is refused, since another
//! program might use the second one. Types 0xE0 to 0xEF are reserved for applications: becket
//! writes two types that it defines itself and one that hitch defines, and skips all three when
//! decoding. Source: sections 2.2.1 to 2.2.8.

use super::header::{EncodeError, Refusal, SslTlv, Tlvs};
use crate::reader::Reader;

pub(super) fn encode(tlvs: &Tlvs<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let id = tlvs.unique_id;
    if id.is_some_and(|id| id.len() > MAX_UNIQUE_ID_BYTES) {
        return Err(EncodeError);
    }
    push(out, ALPN, tlvs.alpn)?;
    push(out, AUTHORITY, tlvs.authority.map(str::as_bytes))?;
    push(out, UNIQUE_ID, id)?;
    let early_data = tlvs.early_data.map(u32::to_be_bytes);
    push(
        out,
        EARLY_DATA,
        early_data.as_ref().map(<[u8; 4]>::as_slice),
    )?;
    push(out, JA4, tlvs.ja4)?;
    push(
        out,
        CLIENT_CERTIFICATE_PEM,
        tlvs.client_certificate_pem.map(str::as_bytes),
    )?;
    if let Some(ssl) = &tlvs.ssl {
        let mut value = Vec::with_capacity(SSL_VALUE_BYTES);
        push_ssl(ssl, &mut value)?;
        push(out, SSL, Some(&value))?;
    }
    Ok(())
}

pub(super) fn decode(mut reader: Reader<'_>) -> Result<Tlvs<'_>, Refusal> {
    let mut tlvs = Tlvs::default();
    while let Some(kind) = reader.u8() {
        let value = reader.vec16().ok_or(Refusal::Tlv(kind))?;
        let bytes = value.rest();
        match kind {
            ALPN => set(&mut tlvs.alpn, kind, Some(bytes)),
            AUTHORITY => set(&mut tlvs.authority, kind, utf8(bytes)),
            UNIQUE_ID => set(
                &mut tlvs.unique_id,
                kind,
                Some(bytes).filter(|id| id.len() <= MAX_UNIQUE_ID_BYTES),
            ),
            SSL => set(&mut tlvs.ssl, kind, Some(read_ssl(value)?)),
            _ => Ok(()),
        }?;
    }
    Ok(tlvs)
}

/// Returns whether the remaining bytes are a sequence of complete TLVs.
pub(super) fn are_whole(mut reader: Reader<'_>) -> bool {
    while reader.u8().is_some() {
        if reader.vec16().is_none() {
            return false;
        }
    }
    true
}

fn push(out: &mut Vec<u8>, kind: u8, value: Option<&[u8]>) -> Result<(), EncodeError> {
    let Some(value) = value else {
        return Ok(());
    };
    let len = u16::try_from(value.len()).map_err(|_| EncodeError)?;
    out.push(kind);
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(value);
    Ok(())
}

fn push_ssl(ssl: &SslTlv<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let bits = [
        (ssl.is_tls, CLIENT_SSL),
        (ssl.cert_in_connection, CLIENT_CERT_CONN),
        (ssl.cert_in_session, CLIENT_CERT_SESS),
    ];
    out.push(
        bits.iter()
            .filter(|(is_set, _)| *is_set)
            .fold(0, |client, (_, bit)| client | bit),
    );
    out.extend_from_slice(&ssl.verify.to_be_bytes());
    for (kind, value) in [
        (SSL_VERSION, ssl.version),
        (SSL_CN, ssl.common_name),
        (SSL_CIPHER, ssl.cipher),
        (SSL_SIG_ALG, ssl.signature_algorithm),
        (SSL_KEY_ALG, ssl.key_algorithm),
    ] {
        push(out, kind, value.map(str::as_bytes))?;
    }
    push(out, SSL_CLIENT_CERT, ssl.client_certificate)
}

fn read_ssl(mut reader: Reader<'_>) -> Result<SslTlv<'_>, Refusal> {
    let client = reader.u8().ok_or(Refusal::Tlv(SSL))?;
    let mut ssl = SslTlv {
        is_tls: client & CLIENT_SSL != 0,
        cert_in_connection: client & CLIENT_CERT_CONN != 0,
        cert_in_session: client & CLIENT_CERT_SESS != 0,
        verify: reader.u32().ok_or(Refusal::Tlv(SSL))?,
        ..SslTlv::default()
    };
    while let Some(kind) = reader.u8() {
        let value = reader.vec16().ok_or(Refusal::Tlv(kind))?.rest();
        match kind {
            SSL_VERSION => set(&mut ssl.version, kind, ascii(value)),
            SSL_CN => set(&mut ssl.common_name, kind, utf8(value)),
            SSL_CIPHER => set(&mut ssl.cipher, kind, ascii(value)),
            SSL_SIG_ALG => set(&mut ssl.signature_algorithm, kind, ascii(value)),
            SSL_KEY_ALG => set(&mut ssl.key_algorithm, kind, ascii(value)),
            SSL_CLIENT_CERT => set(&mut ssl.client_certificate, kind, Some(value)),
            _ => Ok(()),
        }?;
    }
    Ok(ssl)
}

/// Sets a field. Fails if the field is already set, or if the value is invalid.
fn set<T>(field: &mut Option<T>, kind: u8, value: Option<T>) -> Result<(), Refusal> {
    let value = value.ok_or(Refusal::Tlv(kind))?;
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(Refusal::DuplicateTlv(kind)),
    }
}

fn utf8(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn ascii(bytes: &[u8]) -> Option<&str> {
    utf8(bytes).filter(|text| text.is_ascii())
}

const ALPN: u8 = 0x01;
const AUTHORITY: u8 = 0x02;
const UNIQUE_ID: u8 = 0x05;
const SSL: u8 = 0x20;
/// Type from the range for applications (section 2.2.7), since no standard type exists.
const EARLY_DATA: u8 = 0xed;
/// Type from the range for applications (section 2.2.7), since no standard type exists.
const JA4: u8 = 0xec;
/// Type that hitch uses, from the range for applications.
const CLIENT_CERTIFICATE_PEM: u8 = 0xe0;
const SSL_VERSION: u8 = 0x21;
const SSL_CN: u8 = 0x22;
const SSL_CIPHER: u8 = 0x23;
const SSL_SIG_ALG: u8 = 0x24;
const SSL_KEY_ALG: u8 = 0x25;
/// Defined by HAProxy 3.2.
const SSL_CLIENT_CERT: u8 = 0x28;

const CLIENT_SSL: u8 = 0x01;
const CLIENT_CERT_CONN: u8 = 0x02;
const CLIENT_CERT_SESS: u8 = 0x04;

const MAX_UNIQUE_ID_BYTES: usize = 128;

/// Initial capacity in bytes, enough for the usual SSL TLV.
const SSL_VALUE_BYTES: usize = 128;
