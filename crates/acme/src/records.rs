//! Decides whether DNS records let an authority issue: CAA records (RFC 8659, RFC 8657), and the TXT
//! records of `dns-persist-01` (draft-ietf-acme-dns-persist). Pure: `lookup.rs` finds the records.
//!
//! An authority may accept more than these rules do, so a record forbids only if no reading of it
//! allows the order: unknown names of an authority and unknown parameters count as allowed.

use becket_config::acme::ChallengeKind;
use hickory_resolver::proto::rr::rdata::CAA;

/// The order of a name, as records see it.
#[derive(Clone, Copy, Debug)]
pub struct OrderedName<'a> {
    /// Domain names of the authority; empty if they are not known.
    pub issuers: &'a [String],
    /// URL of the account.
    pub account: &'a str,
    pub challenge: ChallengeKind,
    pub is_wildcard: bool,
}

/// `ISSUER; TAG=VALUE; TAG=VALUE` (RFC 8659, section 4.2).
struct IssueValue<'a> {
    issuer: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl OrderedName<'_> {
    /// Returns whether the relevant CAA records, which are those of the closest domain with any,
    /// allow the order.
    pub fn is_allowed_by(&self, records: &[CAA]) -> bool {
        let is = |record: &CAA, tag: &str| record.tag.eq_ignore_ascii_case(tag);
        let is_known = |record: &CAA| TAGS.iter().any(|tag| is(record, tag));
        if records.iter().any(|it| it.issuer_critical && !is_known(it)) {
            return false;
        }
        let for_wildcards = self.is_wildcard && records.iter().any(|it| is(it, "issuewild"));
        let tag = if for_wildcards { "issuewild" } else { "issue" };
        let mut all = records.iter().filter(|it| is(it, tag)).peekable();
        all.peek().is_none() || all.any(|it| self.is_named_in(&it.value))
    }

    fn is_named_in(&self, value: &[u8]) -> bool {
        let by_method = |methods: &str| {
            let mut methods = methods.split(',').map(str::trim);
            methods.any(|it| it.eq_ignore_ascii_case(self.challenge.label()))
        };
        IssueValue::parse(value).is_some_and(|value| {
            self.is_by(value.issuer)
                && value.passes("accounturi", |it| it == self.account)
                && value.passes("validationmethods", by_method)
        })
    }

    /// Returns whether a TXT record proves the name, at a time in seconds since 1970. `is_above` is
    /// `true` for a record of a parent domain.
    pub fn is_proved_by(&self, text: &[u8], is_above: bool, now: u64) -> bool {
        let needs_policy = self.is_wildcard || is_above;
        IssueValue::parse(text).is_some_and(|value| {
            self.is_by(value.issuer)
                && value.has("accounturi")
                && value.passes("accounturi", |it| it == self.account)
                && (!needs_policy || value.has("policy"))
                && value.passes("policy", |it| {
                    !needs_policy || it.eq_ignore_ascii_case("wildcard")
                })
                && value.passes("persistUntil", |it| {
                    it.parse::<u64>().is_ok_and(|until| until >= now)
                })
        })
    }

    fn is_by(&self, issuer: &str) -> bool {
        let issuer = issuer.strip_suffix('.').unwrap_or(issuer);
        let mut issuers = self.issuers.iter();
        let is_unknown = self.issuers.is_empty() && !issuer.is_empty();
        is_unknown || issuers.any(|own| own.eq_ignore_ascii_case(issuer))
    }
}

impl<'a> IssueValue<'a> {
    fn parse(value: &'a [u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(value).ok()?.split(';').map(str::trim);
        let issuer = parts.next()?;
        let parameters = parts.filter(|it| !it.is_empty()).map(|it| {
            let (tag, value) = it.split_once('=')?;
            Some((tag.trim_end(), value.trim_start()))
        });
        let parameters = parameters.collect::<Option<Vec<_>>>()?;
        Some(Self { issuer, parameters })
    }

    fn values(&self, tag: &str) -> impl Iterator<Item = &'a str> {
        let of_tag =
            |(own, value): &(&str, &'a str)| own.eq_ignore_ascii_case(tag).then_some(*value);
        self.parameters.iter().filter_map(of_tag)
    }

    fn has(&self, tag: &str) -> bool {
        self.values(tag).next().is_some()
    }

    /// Returns whether a parameter is absent, or given once with an accepted value.
    fn passes(&self, tag: &str, is_accepted: impl Fn(&str) -> bool) -> bool {
        self.values(tag).count() <= 1 && self.values(tag).all(is_accepted)
    }
}

/// Tags that authorities know. A critical record with another tag forbids (RFC 8659, section 4.5).
const TAGS: [&str; 7] = [
    "issue",
    "issuewild",
    "iodef",
    "issuemail",
    "issuevmc",
    "contactemail",
    "contactphone",
];

#[cfg(test)]
mod tests {
    use becket_config::acme::AcmeName;
    use becket_config::notation::Text;
    use proptest::prelude::*;

    use super::*;
    use crate::authority::dns_records;

    const ACCOUNT: &str = "https://ca.test/1";
    const NOW: u64 = 1_780_272_000;

    fn order(issuers: &[String], is_wildcard: bool) -> OrderedName<'_> {
        OrderedName {
            issuers,
            account: ACCOUNT,
            challenge: ChallengeKind::DnsPersist,
            is_wildcard,
        }
    }

    /// Parses records such as `issue ca.test; a=b`; a `!` means critical.
    fn caa(records: &str) -> Vec<CAA> {
        let records = records.split('|').filter(|it| !it.is_empty());
        let records = records.map(|text| {
            let critical = text.strip_prefix('!');
            let (tag, value) = critical.unwrap_or(text).split_once(' ').unwrap();
            let mut caa = CAA::new_issue(critical.is_some(), None, Vec::new());
            caa.tag = tag.to_owned();
            caa.value = value.into();
            caa
        });
        records.collect()
    }

    #[test]
    fn caa_records_allow_the_named_authority_account_and_challenge() {
        let issuers = ["ca.test".to_owned(), "ca.example".to_owned()];
        for (records, plain, wildcard) in [
            ("", true, true),
            ("iodef mailto:a@b.test", true, true),
            ("issue ca.test", true, true),
            ("Issue  CA.Example. ;", true, true),
            ("issue ;", false, false),
            ("issue other.test", false, false),
            ("issue other.test|issue ca.test", true, true),
            ("issue ca.test|issuewild ;", true, false),
            ("issue ;|issuewild ca.test", false, true),
            ("issuewild ;", true, false),
            ("issue ca.test; accounturi=https://ca.test/1", true, true),
            ("issue ca.test; accounturi=https://ca.test/2", false, false),
            (
                "issue ca.test; accounturi=https://ca.test/1; accounturi=https://ca.test/1",
                false,
                false,
            ),
            (
                "issue ca.test; ACCOUNTURI = https://ca.test/1;cansignhttpexchanges=yes",
                true,
                true,
            ),
            (
                "issue ca.test; validationmethods=http-01,dns-persist-01",
                true,
                true,
            ),
            ("issue ca.test; validationmethods=http-01", false, false),
            ("issue ca.test; rubbish", false, false),
            ("!issue ca.test|!iodef mailto:a@b.test", true, true),
            ("issue ca.test|future x", true, true),
            ("issue ca.test|!future x", false, false),
        ] {
            let records_ = caa(records);
            assert_eq!(
                order(&issuers, false).is_allowed_by(&records_),
                plain,
                "{records}"
            );
            assert_eq!(
                order(&issuers, true).is_allowed_by(&records_),
                wildcard,
                "{records}"
            );
        }
        // Names of the authority that are not known may be any.
        assert!(order(&[], false).is_allowed_by(&caa("issue other.test")));
        assert!(!order(&[], false).is_allowed_by(&caa("issue ;")));
        let other = caa("issue other.test; accounturi=https://ca.test/2");
        assert!(!order(&[], false).is_allowed_by(&other));
    }

    #[test]
    fn a_txt_record_proves_names_of_the_account_in_its_scope_and_time() {
        let issuers = ["ca.test".to_owned()];
        for (text, own, wide) in [
            ("ca.test; accounturi=https://ca.test/1", true, false),
            (
                "CA.test.;accounturi=https://ca.test/1;Policy=Wildcard",
                true,
                true,
            ),
            (
                "ca.test; accounturi=https://ca.test/1; policy=other",
                true,
                false,
            ),
            (
                "ca.test; accounturi=https://ca.test/1; persistUntil=1780272000",
                true,
                false,
            ),
            (
                "ca.test; accounturi=https://ca.test/1; persistuntil=1780271999",
                false,
                false,
            ),
            (
                "ca.test; accounturi=https://ca.test/1; persistUntil=soon",
                false,
                false,
            ),
            (
                "ca.test; accounturi=https://ca.test/2; policy=wildcard",
                false,
                false,
            ),
            ("ca.test; policy=wildcard", false, false),
            ("other.test; accounturi=https://ca.test/1", false, false),
            ("v=spf1 -all", false, false),
            ("", false, false),
        ] {
            let proves = |is_wildcard, is_above| {
                order(&issuers, is_wildcard).is_proved_by(text.as_bytes(), is_above, NOW)
            };
            assert_eq!(proves(false, false), own, "{text}");
            for (is_wildcard, is_above) in [(true, false), (false, true), (true, true)] {
                assert_eq!(proves(is_wildcard, is_above), wide, "{text}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_records_are_read_and_the_shown_ones_allow(
            value in prop::collection::vec(any::<u8>(), 0..60),
            text in "(ca\\.test)?( ?; ?(accounturi|policy|persistUntil|a)?=?[a-z0-9:/.=]{0,9}){0,4}",
            is_wildcard in any::<bool>(),
        ) {
            let issuers = ["ca.test".to_owned()];
            let order = order(&issuers, is_wildcard);
            let name = AcmeName::parse(if is_wildcard { "*.a.test" } else { "a.test" }).unwrap();
            let shown = dns_records(&name, order.challenge, "ca.test", Some(ACCOUNT));
            let quoted: Vec<_> = shown.iter().map(|it| it.split('"').nth(1).unwrap()).collect();
            let tag = if is_wildcard { "issuewild" } else { "issue" };
            let mut all = caa(&format!("{tag} x"));
            for bytes in [&value[..], text.as_bytes()] {
                // One record that fits suffices.
                all[0].value = bytes.to_owned();
                all.truncate(1);
                all.extend(caa(&format!("{tag} {}", quoted[1])));
                prop_assert!(order.is_allowed_by(&all));
                // No account URL is that short.
                prop_assert!(!order.is_proved_by(bytes, false, NOW));
            }
            prop_assert!(order.is_proved_by(quoted[0].as_bytes(), true, NOW) == is_wildcard);
            prop_assert!(order.is_proved_by(quoted[0].as_bytes(), false, NOW));
        }
    }
}
