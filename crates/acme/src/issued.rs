//! Certificates in use, at the authority that issued them: renewal windows and revocation.

use std::time::Duration;

use instant_acme::{CertificateIdentifier, RevocationRequest};
use rustls_pki_types::CertificateDer;

use crate::authority::Session;
use crate::context::{Context, bundle_file};
use crate::error::Error;
use crate::schedule::Window;
use crate::store::Part;
use crate::verify;

/// Requests the renewal window of a certificate, and the time until the next request (RFC 9773).
/// Returns `None` if its authority suggests none.
pub async fn window(context: &Context, index: usize) -> Result<Option<(Window, Duration)>, Error> {
    let issuer = issuer_of(context, index).await?;
    // Nodes with one configuration order from the same authority first.
    let session = match (issuer, context.section.authority.first()) {
        (Some((session, _)), _) => session,
        (None, Some(first)) => Session::open(context, first, context.section.staging).await?,
        (None, None) => return Ok(None),
    };
    let Some(identifier) = identifier(context, index, &session) else {
        return Ok(None);
    };
    let (info, wait) = session.account.renewal_info(&identifier).await?;
    let time = |seconds: i64| Duration::from_secs(seconds.try_into().unwrap_or(0));
    let window = Window {
        start: time(info.suggested_window.start.unix_timestamp()),
        end: time(info.suggested_window.end.unix_timestamp()),
    };
    Ok(Some((window, wait)))
}

/// Returns the identifier of the certificate in use (RFC 9773, section 4.1) if the authority of the
/// session suggests renewal windows.
pub fn identifier(
    context: &Context,
    index: usize,
    session: &Session,
) -> Option<CertificateIdentifier<'static>> {
    let leaf = leaf(context, index).filter(|_| session.client.has_windows())?;
    let identifier = CertificateIdentifier::try_from(&leaf).ok()?;
    Some(identifier.into_owned())
}

pub async fn revoke(context: &Context, index: usize) -> Result<(), Error> {
    let fault = "this node has ordered no certificate from a configured authority";
    let missing = || Error::config("acme.certificate", fault);
    let (session, leaf) = issuer_of(context, index).await?.ok_or_else(missing)?;
    let request = RevocationRequest {
        certificate: &leaf,
        reason: None,
    };
    session.account.revoke(&request).await?;
    tracing::info!(name: "acme-certificate-revoked", names = ?context.names(index), authority = session.label, "certificate revoked");
    Ok(())
}

/// Returns a session with the authority of the certificate in use, and the certificate. Returns
/// `None` if there is no certificate, or if its authority is not configured.
async fn issuer_of(
    context: &Context,
    index: usize,
) -> Result<Option<(Session, CertificateDer<'static>)>, Error> {
    let directory = context.issued_by(index).unwrap_or_default();
    let authority = context.authority(&directory);
    let (Some((authority, staging)), Some(leaf)) = (authority, leaf(context, index)) else {
        return Ok(None);
    };
    let session = Session::open(context, authority, staging).await?;
    Ok(Some((session, leaf)))
}

fn leaf(context: &Context, index: usize) -> Option<CertificateDer<'static>> {
    let file = bundle_file(&context.certificate(index));
    let bundle = context.store.load(Part::Certificates, &file).ok()??;
    verify::leaf(&bundle)
}
