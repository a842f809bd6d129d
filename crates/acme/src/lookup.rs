//! Looks up the DNS records of names before they are ordered, so that a record that forbids an order
//! costs no rate limit. `records.rs` decides.
//!
//! Answers are not authenticated, and the authority may see others. So a lookup that fails forbids
//! nothing. A check ends within [`TIME_LIMIT`].

use std::net::IpAddr;
use std::time::Duration;

use becket_config::acme::{AcmeCertificate, AcmeName, ChallengeKind};
use becket_log::shortened;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use tokio::time::timeout;

use crate::authority::{Session, dns_records, issuer};
use crate::context::Context;
use crate::error::Error;
use crate::records::OrderedName;

/// Looks up the records of a certificate's names. Returns the first lookup that failed.
///
/// # Errors
///
/// A record forbids the order, or the record that proves a name is missing.
pub async fn check(
    context: &Context,
    session: &Session,
    certificate: &AcmeCertificate,
) -> Result<Option<String>, Error> {
    let mut failure = None;
    let checked = timeout(
        TIME_LIMIT,
        check_all(context, session, certificate, &mut failure),
    );
    match checked.await {
        Ok(done) => done?,
        Err(_) => drop(failure.get_or_insert(format!("not done in {} s", TIME_LIMIT.as_secs()))),
    }
    Ok(failure)
}

async fn check_all(
    context: &Context,
    session: &Session,
    certificate: &AcmeCertificate,
    failure: &mut Option<String>,
) -> Result<(), Error> {
    let resolver = match resolver(context) {
        Ok(resolver) => resolver,
        Err(error) => {
            *failure = Some(format!("no resolver: {error}"));
            return Ok(());
        }
    };
    let challenge = context.section.challenge(certificate);
    let issuers = session.client.meta().caa_identities;
    let names = certificate.names.iter().filter(|it| it.address().is_none());
    for name in names {
        let order = OrderedName {
            issuers: &issuers,
            account: session.account.id(),
            challenge,
            is_wildcard: name.is_wildcard(),
        };
        let caa = find_caa(&resolver, name, order).await;
        let proof = match challenge {
            ChallengeKind::DnsPersist => {
                let now = context.now().unix.as_secs();
                find_proof(&resolver, name, order, now).await
            }
            _ => Ok(None),
        };
        let expected = || {
            let (own, _) = context.authority(&session.directory).unzip();
            let known = own.and_then(issuer).or(issuers.first().map(String::as_str));
            dns_records(name, challenge, known.unwrap_or("CA"), Some(order.account))
        };
        for (found, what) in [(proof, "TXT"), (caa, "CAA")] {
            match found {
                Ok(None) => {}
                Ok(Some(found)) => {
                    let mut expected = expected().into_iter();
                    let expected = expected.find(|it| it.contains(&format!(" {what} ")));
                    let expected = joined(expected.into_iter());
                    return Err(Error::Dns(format!("{found}; expected {expected}")));
                }
                Err(error) => {
                    failure.get_or_insert(format!("{name}: {what}: {error}"));
                }
            }
        }
    }
    Ok(())
}

/// Returns the addresses of a name, as name servers know them.
pub async fn addresses(context: &Context, name: &AcmeName) -> Result<Vec<IpAddr>, NetError> {
    if let Some(address) = name.address() {
        return Ok(vec![address]);
    }
    let (resolver, host) = (resolver(context)?, Name::from_ascii(domain(name))?);
    let mut found = Vec::new();
    for kind in [RecordType::A, RecordType::AAAA] {
        found.extend(look_up(&resolver, host.clone(), kind).await?);
    }
    let addresses = found.into_iter().filter_map(|data| data.ip_addr());
    Ok(addresses.collect())
}

fn resolver(context: &Context) -> Result<TokioResolver, NetError> {
    let servers = &context.section.name_servers;
    let mut builder = if servers.is_empty() {
        TokioResolver::builder_tokio()?
    } else {
        let servers = servers.iter().map(|server| {
            let mut config = NameServerConfig::udp_and_tcp(server.0.ip());
            let connections = config.connections.iter_mut();
            connections.for_each(|it| it.port = server.0.port());
            config
        });
        let config = ResolverConfig::from_name_servers(servers.collect());
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
    };
    let options = builder.options_mut();
    options.timeout = QUERY_TIME;
    options.attempts = 1;
    options.use_hosts_file = ResolveHosts::Never;
    builder.build()
}

/// Returns the CAA records that forbid an order: those of the name, or of its closest parent with
/// any (RFC 8659, section 3).
async fn find_caa(
    resolver: &TokioResolver,
    name: &AcmeName,
    order: OrderedName<'_>,
) -> Result<Option<String>, NetError> {
    let mut domain = Name::from_ascii(domain(name))?;
    while !domain.is_root() {
        let found = look_up(resolver, domain.clone(), RecordType::CAA).await?;
        let found = found.into_iter().filter_map(|data| match data {
            RData::CAA(caa) => Some(caa),
            _ => None,
        });
        let found: Vec<_> = found.collect();
        if !found.is_empty() {
            let forbids = !order.is_allowed_by(&found);
            return Ok(forbids.then(|| {
                let found = found.iter().map(|caa| format!("{domain} CAA {caa}"));
                format!("{name} is forbidden by {}", joined(found))
            }));
        }
        domain = domain.base_name();
    }
    Ok(None)
}

/// Returns what is found instead of the TXT record that proves a name. The record of a parent may
/// prove it, too.
async fn find_proof(
    resolver: &TokioResolver,
    name: &AcmeName,
    order: OrderedName<'_>,
    now: u64,
) -> Result<Option<String>, NetError> {
    let own = Name::from_ascii(domain(name))?;
    let mut domain = own.clone();
    let mut texts = Vec::new();
    while domain == own || domain.num_labels() > 1 {
        let record = domain.prepend_label("_validation-persist")?;
        for data in look_up(resolver, record.clone(), RecordType::TXT).await? {
            let RData::TXT(txt) = data else { continue };
            let text = txt.txt_data.concat();
            if order.is_proved_by(&text, domain != own, now) {
                return Ok(None);
            }
            texts.push(format!("{record} TXT \"{txt}\""));
        }
        domain = domain.base_name();
    }
    Ok(Some(if texts.is_empty() {
        format!("_validation-persist.{own} has no TXT record")
    } else {
        format!("{name} is not proved by {}", joined(texts.into_iter()))
    }))
}

/// Returns the records of a type; none if the name does not exist.
async fn look_up(
    resolver: &TokioResolver,
    name: Name,
    kind: RecordType,
) -> Result<Vec<RData>, NetError> {
    match resolver.lookup(name, kind).await {
        Ok(found) => Ok(found.answers().iter().map(|it| it.data.clone()).collect()),
        Err(error) if error.is_no_records_found() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn domain(name: &AcmeName) -> String {
    let name = name.to_string();
    format!("{}.", name.strip_prefix("*.").unwrap_or(&name))
}

fn joined(records: impl Iterator<Item = String>) -> String {
    let records: Vec<_> = records.collect();
    shortened(records.join(", ").as_bytes())
}

/// Time limit for all lookups of an order.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// Wait for an answer before the query is repeated once.
const QUERY_TIME: Duration = Duration::from_secs(2);
