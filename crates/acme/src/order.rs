//! Carries out one order (RFC 8555, section 7.4): proves control over the names, requests the
//! certificate, and stores it.
//!
//! The URL of the order and the private key are stored before anything depends on them. So a process
//! that was killed continues its order, and no second order for the same names is live. An order that
//! cannot be continued is abandoned: its authorizations are deactivated. If the process is killed
//! between the request for a new order and its response, the order stays pending at the authority
//! until it expires; most authorities return the same order to the next request.

use std::cell::Cell;
use std::time::Duration;

use becket_config::acme::{AcmeCertificate, AcmeName, ChallengeKind, KeyKind};
use becket_process::companion_link::AcmeChallenge;
use becket_proto::acme::ChallengeAnswer;
use instant_acme::{
    AuthorizationStatus, CertificateIdentifier, ChallengeStatus, ChallengeType, Identifier,
    KeyAuthorization, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use tokio::time::timeout;

use crate::authority::Session;
use crate::context::{Context, bundle_file, order_file};
use crate::error::Error;
use crate::hook;
use crate::link::Link;
use crate::lookup;
use crate::schedule::Held;
use crate::store::Part;
use crate::unfinished::UnfinishedOrder;
use crate::verify;

/// An order for one certificate at one authority.
pub struct Task<'a> {
    pub context: &'a Context,
    pub session: &'a Session,
    pub link: &'a Link,
    /// Index of the certificate.
    pub index: usize,
    pub certificate: &'a AcmeCertificate,
    /// Certificate that the order replaces.
    pub replaces: Option<CertificateIdentifier<'static>>,
    /// `true` if an unfinished order is abandoned rather than continued.
    pub is_fresh: bool,
    /// `false` for a trial, whose certificate is discarded.
    pub is_kept: bool,
    /// Set when the authority has accepted a new order.
    pub begun: &'a Cell<bool>,
}

/// Answer to the challenge for one name, which proves control over it.
struct Proof {
    /// Index of the name.
    name: usize,
    token: String,
    key: KeyAuthorization,
}

impl Task<'_> {
    /// Orders the certificate, or continues its unfinished order, and stores the bundle.
    pub async fn run(&self) -> Result<Held, Error> {
        let (mut order, unfinished) = match self.resume().await? {
            Some(resumed) => resumed,
            None => self.begin().await?,
        };
        let done = self.complete(&mut order, &unfinished).await;
        if done.is_err() && order.state().status == OrderStatus::Invalid && self.is_kept {
            self.context
                .store
                .remove(Part::Orders, &order_file(self.certificate))?;
        }
        done
    }

    async fn complete(
        &self,
        order: &mut Order,
        unfinished: &UnfinishedOrder,
    ) -> Result<Held, Error> {
        if order.state().status == OrderStatus::Pending {
            self.prove(order).await?;
        }
        if order.state().status == OrderStatus::Ready {
            let key = KeyPair::from_pem(&unfinished.key).map_err(Error::authority)?;
            let names = unfinished.names.iter().map(ToString::to_string);
            let params = CertificateParams::new(names.collect::<Vec<_>>());
            let mut params = params.map_err(Error::authority)?;
            params.distinguished_name = DistinguishedName::new();
            let request = params.serialize_request(&key).map_err(Error::authority)?;
            order.finalize_csr(request.der()).await?;
        }
        let chain = order.poll_certificate(&POLLING).await?;
        self.keep(&chain, unfinished)
    }

    /// Checks the certificate and stores the bundle.
    fn keep(&self, chain: &str, unfinished: &UnfinishedOrder) -> Result<Held, Error> {
        let store = &self.context.store;
        let now = self.context.now().unix;
        let bundle = verify::bundle(chain, &unfinished.key, now)?;
        let file = bundle_file(self.certificate);
        let staged = store.stage(Part::Certificates, &file, bundle.as_bytes())?;
        let held = verify::verify(&staged.path(), &unfinished.names, now)?;
        if self.is_kept {
            let stem = self.certificate.stem();
            let directory = unfinished.directory.clone();
            store.change_state(now, |state| drop(state.authorities.insert(stem, directory)))?;
            staged.commit()?;
            store.remove(Part::Orders, &order_file(self.certificate))?;
        }
        Ok(held)
    }

    /// Returns the unfinished order. Abandons an order that cannot be continued.
    async fn resume(&self) -> Result<Option<(Order, UnfinishedOrder)>, Error> {
        let Context { section, store, .. } = self.context;
        let certificate = self.certificate;
        let found = UnfinishedOrder::load(self.context, &order_file(certificate));
        let found = found.filter(|_| self.is_kept);
        let Some(found) = found else {
            return Ok(None);
        };
        let bundle = store.load(Part::Certificates, &bundle_file(certificate))?;
        let is_done = bundle.is_some_and(|bundle| bundle.ends_with(found.key.as_bytes()));
        let fits = found.directory == self.session.directory
            && found.names == certificate.names
            && found.profile.as_deref() == section.profile(certificate)
            && found.kind == section.key(certificate);
        if fits && !is_done && !self.is_fresh {
            match self.session.account.order(found.url.clone()).await {
                Ok(mut order) => {
                    if order.state().status != OrderStatus::Invalid {
                        return Ok(Some((order, found)));
                    }
                }
                Err(error) => match Error::from(error) {
                    // The authority has removed the order.
                    gone if gone.is("malformed") || gone.is("unauthorized") => {}
                    error => return Err(error),
                },
            }
        } else if !is_done {
            found.abandon(self.context, Some(self.session)).await;
        }
        store.remove(Part::Orders, &order_file(certificate))?;
        Ok(None)
    }

    async fn begin(&self) -> Result<(Order, UnfinishedOrder), Error> {
        let Context { section, store, .. } = self.context;
        let certificate = self.certificate;
        // A trial has looked up the records before.
        if self.is_kept
            && let Some(error) = lookup::check(self.context, self.session, certificate).await?
        {
            tracing::warn!(name: "acme-lookup-failed", names = ?certificate.names, error, "cannot look up DNS records; the authority decides");
        }
        let kind = section.key(certificate);
        let key = KeyPair::generate_for(match kind {
            KeyKind::P256 => &rcgen::PKCS_ECDSA_P256_SHA256,
            KeyKind::P384 => &rcgen::PKCS_ECDSA_P384_SHA384,
            KeyKind::Rsa2048 => &rcgen::PKCS_RSA_SHA256,
        });
        let key = key.map_err(Error::authority)?.serialize_pem();
        let identifiers: Vec<Identifier> = certificate.names.iter().map(identifier).collect();
        let mut new = NewOrder::new(&identifiers);
        if let Some(profile) = section.profile(certificate) {
            new = new.profile(profile);
        }
        if let Some(replaces) = &self.replaces {
            new = new.replaces(replaces.clone());
        }
        let mut unfinished = UnfinishedOrder {
            directory: self.session.directory.clone(),
            url: String::new(),
            names: certificate.names.clone(),
            profile: section.profile(certificate).map(str::to_owned),
            kind,
            key,
        };
        let file = order_file(certificate);
        // If the disk is full, no order is begun.
        if self.is_kept {
            store.save_json(Part::Orders, &file, &unfinished)?;
        }
        let order = self.session.account.new_order(&new).await?;
        self.begun.set(true);
        unfinished.url = order.url().to_owned();
        if self.is_kept {
            store.save_json(Part::Orders, &file, &unfinished)?;
            let now = self.context.now().unix;
            let is_on_demand = self.context.is_on_demand(self.index);
            store.change_state(now, |state| state.begun(is_on_demand).push(now.as_secs()))?;
        }
        Ok((order, unfinished))
    }

    /// Answers the challenges, and waits until the authority has checked them.
    async fn prove(&self, order: &mut Order) -> Result<(), Error> {
        let proofs = self.proofs(order).await?;
        let proved = match self.present(&proofs).await {
            Ok(()) => match timeout(PROOF_TIME, self.wait_until_ready(order)).await {
                Ok(proved) => proved,
                Err(_) => Err(Error::Authority(
                    "challenges not checked in time".to_owned(),
                )),
            },
            Err(error) => Err(error),
        };
        self.withdraw(&proofs).await;
        proved
    }

    /// Returns a proof for each name that is not proved yet.
    async fn proofs(&self, order: &mut Order) -> Result<Vec<Proof>, Error> {
        let names = &self.certificate.names;
        if order.state().authorizations.len() > names.len() {
            return Err(Error::Authority(
                "more authorizations than names".to_owned(),
            ));
        }
        let mut proofs = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            let shown = authorization.identifier().to_string();
            let name = names.iter().position(|name| name.to_string() == shown);
            let other = || Error::authority(format!("a name that was not ordered: {shown}"));
            let name = name.ok_or_else(other)?;
            match authorization.status {
                AuthorizationStatus::Valid => continue,
                AuthorizationStatus::Pending => {}
                status => return Err(Error::authority(format!("{shown}: {status:?}"))),
            }
            let kind = self.kind();
            let Some(challenge) = authorization.challenge(challenge_type(kind)) else {
                let text = format!("{shown}: the authority does not offer {}", kind.label());
                return Err(Error::authority(text));
            };
            let token = challenge.token.clone();
            if kind != ChallengeKind::DnsPersist && !is_token(&token) {
                return Err(Error::authority(format!("{shown}: an invalid token")));
            }
            let key = challenge.key_authorization();
            proofs.push(Proof { name, token, key });
        }
        Ok(proofs)
    }

    async fn present(&self, proofs: &[Proof]) -> Result<(), Error> {
        match self.kind() {
            ChallengeKind::DnsPersist => Ok(()),
            ChallengeKind::Dns => self.call_hook("present", proofs).await,
            ChallengeKind::TlsAlpn | ChallengeKind::Http => {
                let challenges = proofs.iter().map(|proof| self.challenge(proof));
                self.link.serve(challenges.collect()).await
            }
        }
    }

    async fn withdraw(&self, proofs: &[Proof]) {
        match self.kind() {
            ChallengeKind::DnsPersist => {}
            ChallengeKind::Dns => {
                if let Err(error) = self.call_hook("remove", proofs).await {
                    tracing::warn!(name: "acme-hook-failed", %error, "cannot remove a TXT record");
                }
            }
            ChallengeKind::TlsAlpn | ChallengeKind::Http => self.link.withdraw(),
        }
    }

    async fn call_hook(&self, action: &str, proofs: &[Proof]) -> Result<(), Error> {
        let missing = || Error::config("acme.hook", "missing");
        let hook = self.context.section.hook.as_ref().ok_or_else(missing)?;
        let hook = self.context.base.join(hook);
        for proof in proofs {
            let name = self.certificate.names[proof.name].to_string();
            let name = name.strip_prefix("*.").unwrap_or(&name);
            let record = format!("_acme-challenge.{name}");
            hook::call(&hook, action, &record, &proof.key.dns_value()).await?;
        }
        Ok(())
    }

    fn challenge(&self, proof: &Proof) -> AcmeChallenge {
        let mut digest = [0; 32];
        digest.copy_from_slice(proof.key.digest().as_ref());
        AcmeChallenge {
            certificate: self.index as u32,
            name: proof.name as u32,
            answer: match self.kind() {
                ChallengeKind::Http => ChallengeAnswer::Http {
                    token: proof.token.clone(),
                    thumbprint: self.session.account.key_thumbprint().to_owned(),
                },
                _ => ChallengeAnswer::TlsAlpn(digest),
            },
            lifetime: CHALLENGE_LIFETIME,
        }
    }

    async fn wait_until_ready(&self, order: &mut Order) -> Result<(), Error> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            if authorization.status == AuthorizationStatus::Pending
                && let Some(mut challenge) = authorization.challenge(challenge_type(self.kind()))
                && challenge.status == ChallengeStatus::Pending
            {
                challenge.set_ready().await?;
            }
        }
        let fault = match order.poll_ready(&POLLING).await {
            Ok(OrderStatus::Ready) => return Ok(()),
            Ok(status) => Error::authority(format!("the order is {status:?}")),
            Err(error) => error.into(),
        };
        Err(reason(order).await.unwrap_or(fault))
    }

    fn kind(&self) -> ChallengeKind {
        self.context.section.challenge(self.certificate)
    }
}

/// Returns the error of the first challenge that has failed.
async fn reason(order: &mut Order) -> Option<Error> {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        authorization.refresh().await.ok()?;
        let subject = format!("{}: ", authorization.identifier());
        let mut problems = authorization
            .challenges
            .iter()
            .filter_map(|it| it.error.as_ref());
        if let Some(problem) = problems.next() {
            return Some(Error::problem(&subject, problem));
        }
    }
    None
}

fn identifier(name: &AcmeName) -> Identifier {
    match name.address() {
        Some(address) => Identifier::Ip(address),
        None => Identifier::Dns(name.to_string()),
    }
}

fn challenge_type(kind: ChallengeKind) -> ChallengeType {
    match kind {
        ChallengeKind::TlsAlpn => ChallengeType::TlsAlpn01,
        ChallengeKind::Http => ChallengeType::Http01,
        ChallengeKind::Dns => ChallengeType::Dns01,
        ChallengeKind::DnsPersist => ChallengeType::Unknown(kind.label().to_owned()),
    }
}

/// A token has only characters of base64url (RFC 8555, section 8.1).
fn is_token(token: &str) -> bool {
    let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=LONGEST_TOKEN).contains(&token.len()) && token.bytes().all(is_base64url)
}

/// Waits between requests for the state of an order. Authorities check names in seconds; some take
/// minutes to issue.
const POLLING: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(500))
    .backoff(1.5)
    .timeout(Duration::from_secs(300));
/// Time limit to announce the answers and to wait for their checks.
const PROOF_TIME: Duration = Duration::from_secs(900);
/// Time in seconds for which a challenge is answered, if it is not withdrawn before.
const CHALLENGE_LIFETIME: u32 = 1000;
/// Maximum length of a token in bytes. Usual tokens have 43.
const LONGEST_TOKEN: usize = 128;
