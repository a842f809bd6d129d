//! Parses OCSP responses from files, for stapling.
//!
//! The parser extracts the certificate, its status and the validity period. Clients verify the
//! signature of the response. becket fetches no responses.
//!
//! Source: RFC 6960, section 4.2.1.

use std::path::Path;

use becket_config::error::Report;
use becket_proto::der::Der;
use becket_proto::ticket::UnixSeconds;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;

use super::facts;
use super::loaded::Staple;
use crate::files::shown;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OcspStatus {
    /// `true` if the certificate is neither revoked nor unknown.
    pub is_good: bool,
    pub from: UnixSeconds,
    /// Time of the next update; `None` without an expiry.
    pub until: Option<UnixSeconds>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The data is not an OCSP response, or the response reports an error.
    #[error("not a successful OCSP response in DER")]
    Format,
    /// The response is for other certificates.
    #[error("an OCSP response for another certificate")]
    OtherCertificate,
}

impl OcspStatus {
    /// Reads the status of a certificate from a response.
    ///
    /// # Errors
    /// Returns the reason why the response has no status for the certificate.
    pub fn read(response: &[u8], leaf: &CertificateDer<'_>) -> Result<Self, Unusable> {
        let parsed = facts::certificate(leaf).ok_or(Unusable::OtherCertificate)?;
        let serial = parsed.raw_serial();
        let zeros = serial.iter().take_while(|byte| **byte == 0).count();
        let all = statuses(response).ok_or(Unusable::Format)?;
        let ours = all.into_iter().find(|(of, _)| *of == &serial[zeros..]);
        ours.map(|(_, status)| status)
            .ok_or(Unusable::OtherCertificate)
    }
}

/// Returns the response to staple to a certificate at `now`. Returns `None` for a response that is
/// expired or not `good`, because clients would reject it. Problems refer to the configuration key
/// `path` and the file of the response.
pub fn staple(
    (path, file): (&str, &Path),
    response: Vec<u8>,
    leaf: &CertificateDer<'_>,
    now: UnixSeconds,
    report: &mut Report,
) -> Option<Staple> {
    let status = match OcspStatus::read(&response, leaf) {
        Ok(status) => status,
        Err(unusable) => {
            let problem = shown(path, file, unusable.to_string());
            report.error(
                problem.accepted("the OCSP response for the first certificate of the chain"),
            );
            return None;
        }
    };
    let fault = match status {
        OcspStatus { is_good: false, .. } => {
            "the OCSP response says that the certificate is revoked or unknown"
        }
        OcspStatus { from, .. } if from > now => "the OCSP response is not valid yet",
        OcspStatus {
            until: Some(until), ..
        } if until <= now => "the OCSP response has expired",
        OcspStatus { until, .. } => return Some(Staple { response, until }),
    };
    report.warn(shown(path, file, format!("{fault}; it is not sent")));
    None
}

/// Returns the status and the serial number, without leading zeros, of each certificate in a
/// response. Takes linear time. Returns `None` if the data is not a response.
pub fn statuses(response: &[u8]) -> Option<Vec<(&[u8], OcspStatus)>> {
    let mut entries = entries(response)?;
    let mut all = Vec::new();
    while !entries.is_empty() {
        all.push(entries.sequence().and_then(entry)?);
    }
    Some(all)
}

fn entries(response: &[u8]) -> Option<Der<'_>> {
    let mut whole = Der::new(response);
    let mut fields = whole.sequence().filter(|_| whole.is_empty())?;
    // Only a response with the status `successful` (0) contains certificate statuses.
    if fields.element(ENUMERATED)? != [0] {
        return None;
    }
    let mut bytes = Der::new(fields.element(TAG_0)?).sequence()?;
    if bytes.element(OBJECT_IDENTIFIER)? != BASIC {
        return None;
    }
    let mut basic = Der::new(bytes.octets()?).sequence()?;
    let mut data = basic.sequence()?;
    let mut field = data.next()?;
    if field.0 == TAG_0 {
        // Skips the version, which is present only if it is not 1.
        field = data.next()?;
    }
    // The ID of the responder is a name or a key hash.
    if ![TAG_1, TAG_2].contains(&field.0) {
        return None;
    }
    data.element(GENERALIZED_TIME)?;
    data.sequence()
}

/// Returns the serial number of a `SingleResponse`, without leading zeros, and its status.
fn entry(mut fields: Der<'_>) -> Option<(&[u8], OcspStatus)> {
    let mut of = fields.sequence()?;
    of.sequence()?;
    of.octets()?;
    of.octets()?;
    let serial = of.integer()?;
    let (status, _) = fields.next()?;
    let from = time(fields.element(GENERALIZED_TIME)?)?;
    let until = match fields.next() {
        Some((TAG_0, next)) => Some(time(Der::new(next).element(GENERALIZED_TIME)?)?),
        _ => None,
    };
    let status = OcspStatus {
        is_good: status == GOOD,
        from,
        until,
    };
    Some((serial, status))
}

fn time(contents: &[u8]) -> Option<UnixSeconds> {
    let length = u8::try_from(contents.len()).ok().filter(|it| *it < 0x80)?;
    let element = [&[GENERALIZED_TIME, length], contents].concat();
    let (_, time) = ASN1Time::from_der(&element).ok()?;
    u64::try_from(time.timestamp()).ok().map(UnixSeconds)
}

const OBJECT_IDENTIFIER: u8 = 0x06;
const ENUMERATED: u8 = 0x0a;
const GENERALIZED_TIME: u8 = 0x18;
/// Context tags `[0]` to `[2]` with explicit tagging.
const TAG_0: u8 = 0xa0;
const TAG_1: u8 = 0xa1;
const TAG_2: u8 = 0xa2;
/// Status `good`: NULL with the implicit context tag `[0]`.
const GOOD: u8 = 0x80;
/// id-pkix-ocsp-basic, 1.3.6.1.5.5.7.48.1.1.
const BASIC: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];

#[cfg(test)]
mod tests {
    use super::*;

    use rcgen::{CertificateParams, KeyPair, SerialNumber};

    fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let contents = parts.concat();
        let length = match u8::try_from(contents.len()).unwrap() {
            short @ ..0x80 => vec![short],
            long => vec![0x81, long],
        };
        [vec![tag], length, contents].concat()
    }

    /// Returns a response with one entry.
    fn response(serial: &[u8], status: u8, until: Option<&[u8]>) -> Vec<u8> {
        let id = element(
            0x30,
            &[
                &element(0x30, &[]),
                &element(0x04, &[b"name"]),
                &element(0x04, &[b"key"]),
                &element(0x02, &[serial]),
            ],
        );
        let from = element(GENERALIZED_TIME, &[b"20260101000000Z"]);
        let until = until.map(|it| element(TAG_0, &[&element(GENERALIZED_TIME, &[it])]));
        let until = until.unwrap_or_default();
        let entry = element(0x30, &[&id, &element(status, &[]), &from, &until]);
        let responder = element(TAG_2, &[&element(0x04, &[b"key"])]);
        let entries = element(0x30, &[&entry]);
        let data = element(0x30, &[&responder, &from, &entries]);
        let basic = element(0x04, &[&element(0x30, &[&data])]);
        let bytes = element(0x30, &[&element(OBJECT_IDENTIFIER, &[BASIC]), &basic]);
        let successful = element(ENUMERATED, &[&[0]]);
        element(0x30, &[&successful, &element(TAG_0, &[&bytes])])
    }

    fn leaf(serial: &[u8]) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(["a.test".to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from_slice(serial));
        let signed = params.self_signed(&KeyPair::generate().unwrap());
        signed.unwrap().der().clone()
    }

    #[test]
    fn a_response_is_accepted_for_its_certificate_only() {
        let leaf = leaf(&[0x80, 0xaa]);
        let read = |serial: &[u8], status, until| {
            OcspStatus::read(&response(serial, status, until), &leaf)
        };
        let good = OcspStatus {
            is_good: true,
            from: UnixSeconds(1_767_225_600),
            until: Some(UnixSeconds(1_767_312_000)),
        };
        let next = Some(&b"20260102000000Z"[..]);
        assert_eq!(read(&[0, 0x80, 0xaa], GOOD, next), Ok(good));
        let forever = OcspStatus {
            until: None,
            ..good
        };
        assert_eq!(read(&[0, 0x80, 0xaa], GOOD, None), Ok(forever));
        let revoked = OcspStatus {
            is_good: false,
            ..good
        };
        assert_eq!(read(&[0, 0x80, 0xaa], TAG_1, next), Ok(revoked));
        let other = read(&[0x70, 0xaa], GOOD, next);
        assert_eq!(other, Err(Unusable::OtherCertificate));
        let odd = read(&[0, 0x80, 0xaa], GOOD, Some(b"2026"));
        assert_eq!(odd, Err(Unusable::Format));
    }

    #[test]
    fn a_response_is_stapled_only_if_it_is_good_and_current() {
        let leaf = leaf(&[7]);
        let load = |status, now| {
            let response = response(&[7], status, Some(b"20260102000000Z"));
            let mut report = Report::default();
            let at = ("ocsp", Path::new("a.ocsp"));
            let found = staple(at, response, &leaf, UnixSeconds(now), &mut report);
            assert!(report.errors.is_empty());
            (report.warnings.len(), found.and_then(|it| it.until))
        };
        assert_eq!(load(GOOD, 1_767_312_000), (1, None), "over");
        assert_eq!(load(GOOD, 1_767_225_599), (1, None), "too early");
        assert_eq!(load(TAG_1, 1_767_225_600), (1, None), "revoked");
        let until = Some(UnixSeconds(1_767_312_000));
        assert_eq!(load(GOOD, 1_767_225_600), (0, until));
    }

    #[test]
    fn truncated_extended_and_unsuccessful_responses_are_rejected() {
        let whole = response(&[1], GOOD, Some(b"20260102000000Z"));
        assert_eq!(statuses(&whole).map(|all| all.len()), Some(1));
        for end in 0..whole.len() {
            assert_eq!(statuses(&whole[..end]), None, "{end}");
        }
        assert_eq!(statuses(&[&whole[..], &[0]].concat()), None);
        // `tryLater`
        assert_eq!(statuses(&[0x30, 3, 0x0a, 1, 3]), None);
    }
}
