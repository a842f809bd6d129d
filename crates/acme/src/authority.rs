//! Accounts at authorities, and the DNS records that name them.

use std::time::Duration;

use base64ct::{Base64UrlUnpadded, Encoding};
use becket_config::acme::{AcmeName, Authority, ChallengeKind};
use instant_acme::{Account, AccountCredentials, ExternalAccountKey, NewAccount};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::context::{Context, label};
use crate::error::Error;
use crate::http::AuthorityClient;
use crate::store::{Part, Store};

/// An account at an authority.
pub struct Session {
    pub account: Account,
    pub client: AuthorityClient,
    pub directory: String,
    pub label: String,
}

impl Session {
    /// Restores the account at an authority, or creates it.
    pub async fn open(
        context: &Context,
        authority: &Authority,
        staging: bool,
    ) -> Result<Self, Error> {
        let label = label(authority, staging);
        let none = || Error::config("acme.staging", format!("{label} does not exist"));
        let directory = authority.directory(staging).ok_or_else(none)?.to_owned();
        let ca = context.section.ca.as_ref().map(|ca| context.base.join(ca));
        let client = AuthorityClient::new(&directory, ca.as_deref())?;
        let file = file(&label);
        let account = match context.store.load_json::<Value>(Part::Accounts, &file)? {
            Some(saved) if saved["directory"] == directory.as_str() => {
                let saved: AccountCredentials = serde_json::from_value(saved)
                    .map_err(|error| Error::config("acme.folder", format!("{file}: {error}")))?;
                let builder = Account::builder_with_http(Box::new(client.clone()));
                builder.from_credentials(saved).await?
            }
            Some(_) => {
                let fault = format!("accounts/{file} is for another authority");
                return Err(Error::config("acme.folder", fault));
            }
            None => create(context, &client, authority, (&label, &directory)).await?,
        };
        let skew = client.skew();
        if skew > MOST_SKEW {
            let seconds = skew.as_secs();
            let text = format!("the clock of this host differs from {label} by {seconds} s");
            return Err(Error::Authority(text));
        }
        Ok(Self {
            account,
            client,
            directory,
            label,
        })
    }

    /// Renames the file of an account that the authority does not know any more.
    pub fn forget(&self, store: &Store) -> Result<(), Error> {
        let file = file(&self.label);
        if let Some(bytes) = store.load(Part::Accounts, &file)? {
            store.save(Part::Accounts, &format!("{file}.old"), &bytes)?;
        }
        store.remove(Part::Accounts, &file)
    }
}

async fn create(
    context: &Context,
    client: &AuthorityClient,
    authority: &Authority,
    (label, directory): (&str, &str),
) -> Result<Account, Error> {
    let section = &context.section;
    let is_required = client.directory().await?.external_account_required;
    let of = |authority| {
        let mut all = section.external_account.iter();
        all.find(|it| it.authority.as_ref() == authority)
    };
    let general = of(None).filter(|_| is_required || section.authority.len() == 1);
    let external = match of(Some(authority)).or(general) {
        Some(external) => {
            let path = context.base.join(&external.key_file);
            let fault = |text: &dyn std::fmt::Display| {
                Error::config(
                    "acme.external-account.key-file",
                    format!("{}: {text}", path.display()),
                )
            };
            let text = std::fs::read_to_string(&path).map(Zeroizing::new);
            let text = text.map_err(|error| fault(&error))?;
            let key = Base64UrlUnpadded::decode_vec(text.trim().trim_end_matches('='));
            let key = Zeroizing::new(key.map_err(|_| fault(&"not base64url"))?);
            Some(ExternalAccountKey::new(external.id.clone(), &key))
        }
        None if is_required => {
            let fault = format!("none for {label}, which requires it");
            return Err(Error::config("acme.external-account", fault));
        }
        None => None,
    };
    let contact: Vec<String> = section
        .contact
        .iter()
        .map(|it| format!("mailto:{it}"))
        .collect();
    let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
    let new = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let builder = Account::builder_with_http(Box::new(client.clone()));
    let created = builder.create(&new, directory.to_owned(), external.as_ref());
    let (account, credentials) = created.await?;
    context
        .store
        .save_json(Part::Accounts, &file(label), &credentials)?;
    tracing::info!(name: "acme-account-created", authority = label, account = becket_log::shortened(account.id().as_bytes()), "account created; the terms of service are agreed to");
    Ok(account)
}

/// Returns the URL of an existing account.
pub fn account_url(store: &Store, label: &str) -> Option<String> {
    let saved: Value = store.load_json(Part::Accounts, &file(label)).ok()??;
    saved["id"].as_str().map(str::to_owned)
}

fn file(label: &str) -> String {
    format!("{label}.json")
}

/// Returns the domain name of an authority in DNS records; `None` if it is not known.
pub fn issuer(authority: &Authority) -> Option<&'static str> {
    match authority {
        Authority::LetsEncrypt => Some("letsencrypt.org"),
        Authority::Google => Some("pki.goog"),
        Authority::ZeroSsl => Some("sectigo.com"),
        Authority::Actalis => Some("actalis.it"),
        Authority::Directory(_) => None,
    }
}

/// Returns the DNS records for a name: a TXT record for `dns-persist-01`, and the CAA record that
/// allows only this account and challenge (RFC 8657).
pub fn dns_records(
    name: &AcmeName,
    challenge: ChallengeKind,
    issuer: &str,
    account: Option<&str>,
) -> Vec<String> {
    if name.address().is_some() {
        return Vec::new();
    }
    let whole = name.to_string();
    let domain = whole.strip_prefix("*.").unwrap_or(&whole);
    let tag = if name.is_wildcard() {
        "issuewild"
    } else {
        "issue"
    };
    let account = account
        .map(|url| format!("; accounturi={url}"))
        .unwrap_or_default();
    let caa = format!(
        "{domain}. CAA 0 {tag} \"{issuer}{account}; validationmethods={}\"",
        challenge.label()
    );
    let policy = if name.is_wildcard() {
        "; policy=wildcard"
    } else {
        ""
    };
    let txt = format!("_validation-persist.{domain}. TXT \"{issuer}{account}{policy}\"");
    let is_needed = challenge == ChallengeKind::DnsPersist && !account.is_empty();
    is_needed.then_some(txt).into_iter().chain([caa]).collect()
}

/// Maximum difference of the clocks. With a larger one, dates of certificates are misjudged, and
/// orders would be repeated.
const MOST_SKEW: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use becket_config::notation::Text;

    use super::*;

    #[test]
    fn records_name_the_account_and_the_challenge() {
        let all = |name: &str, kind, account| {
            dns_records(&AcmeName::parse(name).unwrap(), kind, "ca.test", account)
        };
        assert_eq!(
            all(
                "*.a.test",
                ChallengeKind::DnsPersist,
                Some("https://ca.test/1")
            ),
            [
                "_validation-persist.a.test. TXT \"ca.test; accounturi=https://ca.test/1; policy=wildcard\"",
                "a.test. CAA 0 issuewild \"ca.test; accounturi=https://ca.test/1; validationmethods=dns-persist-01\"",
            ]
        );
        assert_eq!(
            all("a.test", ChallengeKind::TlsAlpn, None),
            ["a.test. CAA 0 issue \"ca.test; validationmethods=tls-alpn-01\""]
        );
        assert!(all("192.0.2.1", ChallengeKind::Http, None).is_empty());
    }
}
