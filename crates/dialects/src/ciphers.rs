//! Cipher strings of OpenSSL, as in ciphers(1), for the suites that becket supports.
//!
//! A cipher string may name more than a hundred suites. becket supports six: the TLS 1.2 suites
//! with forward secrecy and an AEAD. All operators work on these suites as in OpenSSL: names add
//! suites, `-` removes them, `!` removes them permanently, `+` moves them to the end, and
//! `@STRENGTH` sorts them. Unknown names and names without a supported suite add nothing.

use super::setting::SettingSupport;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CipherChoice {
    pub(super) suites: Vec<&'static str>,
    /// `true` if the string also selects suites that becket does not support.
    pub(super) more: bool,
}

impl CipherChoice {
    pub(super) fn support(&self) -> (SettingSupport, String) {
        let enabled = format!("enabled: {}", self.suites.join(" "));
        if self.more {
            let why = "; suites without forward secrecy or an AEAD are not supported";
            (SettingSupport::Different, enabled + why)
        } else {
            (SettingSupport::Same, enabled)
        }
    }
}

/// Returns the supported TLS 1.2 suites that a cipher string selects.
pub(super) fn tls12(string: &str) -> CipherChoice {
    let mut list = List {
        order: (0..SUITES.len()).map(|index| (index, false)).collect(),
        more: false,
    };
    let rules = string.split([':', ',', ' ', ';']);
    let rules = rules.filter(|rule| !rule.is_empty());
    // In OpenSSL, an RFC 6460 profile (`SUITEB...`) at the start replaces the whole string.
    match rules.clone().next() {
        Some("SUITEB128" | "SUITEB128C2") => list.order = vec![(4, true), (0, true)],
        Some("SUITEB128ONLY") => list.order = vec![(4, true)],
        Some("SUITEB192") => list.order = vec![(0, true)],
        _ => rules.for_each(|rule| list.apply(rule)),
    }
    let active = list.order.iter().filter(|(_, is_active)| *is_active);
    CipherChoice {
        suites: active.map(|(index, _)| SUITES[*index].iana).collect(),
        more: list.more,
    }
}

/// Parses a colon-separated list of TLS 1.3 suites.
pub(super) fn tls13(string: &str) -> CipherChoice {
    let mut chosen = CipherChoice::default();
    for name in string.split(':').filter(|name| !name.is_empty()) {
        match TLS13.iter().find(|known| **known == name) {
            Some(known) if !chosen.suites.contains(known) => chosen.suites.push(known),
            Some(_) => {}
            None => chosen.more = true,
        }
    }
    chosen
}

/// Supported suites in order. Each suite is an index in `SUITES`, with `true` if the string
/// currently selects it. A suite removed with `-` stays in the list, because OpenSSL adds it again
/// before suites that it has never selected. A suite removed with `!` is not in the list.
struct List {
    order: Vec<(usize, bool)>,
    more: bool,
}

impl List {
    fn apply(&mut self, rule: &str) {
        match rule.split_at_checked(1) {
            Some(("@", command)) => self.command(command),
            Some(("!", name)) => drop(self.take(name, |_| true)),
            Some(("-", name)) => {
                let mut gone = self.take(name, |is_active| is_active);
                gone.iter_mut()
                    .for_each(|(_, is_active)| *is_active = false);
                self.order.splice(..0, gone);
            }
            Some(("+", name)) => {
                let last = self.take(name, |is_active| is_active);
                self.order.extend(last);
            }
            _ => {
                let named = self.take(rule, |is_active| !is_active);
                self.order
                    .extend(named.into_iter().map(|(index, _)| (index, true)));
                self.more |= !is_had(rule);
            }
        }
    }

    /// Removes and returns the suites that `name` selects and whose active flag satisfies `fits`.
    fn take(&mut self, name: &str, fits: impl Fn(bool) -> bool) -> Vec<(usize, bool)> {
        let named = |(index, is_active): &mut (usize, bool)| {
            fits(*is_active) && SUITES[*index].is_all(name)
        };
        self.order.extract_if(.., named).collect()
    }

    fn command(&mut self, command: &str) {
        let is_strong = |index: usize| SUITES[index].is_strong();
        match command {
            "STRENGTH" => self.order.sort_by_key(|(index, _)| !is_strong(*index)),
            // These levels require 192 bits of security, so only suites with this strength are
            // kept. All supported suites satisfy the lower levels.
            "SECLEVEL=4" | "SECLEVEL=5" => self.order.retain(|(index, _)| is_strong(*index)),
            _ => {}
        }
    }
}

/// Returns `true` if all suites that this name selects are supported.
fn is_had(name: &str) -> bool {
    let is_one = SUITES.iter().any(|suite| suite.openssl == name);
    let has = |parts: &[&str]| name.split('+').any(|part| parts.contains(&part));
    is_one || (has(&["ECDHE", "EECDH"]) && has(&["AESGCM", "CHACHA20"]))
}

struct Suite {
    openssl: &'static str,
    iana: &'static str,
}

impl Suite {
    /// Returns `true` if the suite matches all names joined by `+`.
    fn is_all(&self, names: &str) -> bool {
        names == self.openssl || names.split('+').all(|name| self.is_any(name))
    }

    fn is_any(&self, name: &str) -> bool {
        let of = |part: &str| self.openssl.contains(part);
        let [aes, aes128, aes256, chacha] = ["AES", "AES128", "AES256", "CHACHA20"].map(of);
        match name {
            "ALL" | "DEFAULT" | "HIGH" | "TLSv1.2" => true,
            "ECDHE" | "EECDH" | "kEECDH" | "kECDHE" | "ECDH" => true,
            "aRSA" => of("-RSA-"),
            "ECDSA" | "aECDSA" => of("-ECDSA-"),
            "AES" | "AESGCM" | "FIPS" => aes,
            "AES128" => aes128,
            "AES256" => aes256,
            "CHACHA20" => chacha,
            _ => false,
        }
    }

    fn is_strong(&self) -> bool {
        !self.openssl.contains("AES128")
    }
}

/// Suites in the initial order of OpenSSL 3.
#[rustfmt::skip]
const SUITES: [Suite; 6] = [
    Suite { openssl: "ECDHE-ECDSA-AES256-GCM-SHA384", iana: "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384" },
    Suite { openssl: "ECDHE-RSA-AES256-GCM-SHA384", iana: "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384" },
    Suite { openssl: "ECDHE-ECDSA-CHACHA20-POLY1305", iana: "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256" },
    Suite { openssl: "ECDHE-RSA-CHACHA20-POLY1305", iana: "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256" },
    Suite { openssl: "ECDHE-ECDSA-AES128-GCM-SHA256", iana: "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256" },
    Suite { openssl: "ECDHE-RSA-AES128-GCM-SHA256", iana: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" },
];

pub(super) const NOTHING_LEFT: &str = "none of these suites is supported";
pub(super) const LEAVING: &str = "suites with ECDHE and AES-GCM or CHACHA20, such as EECDH+AESGCM";

/// Suites of TLS 1.3 in the default order of OpenSSL.
pub(super) const TLS13: [&str; 3] = [
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_GCM_SHA256",
];

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Strings with each kind of operator, and strings from real files.
    const STRINGS: [&str; 26] = [
        "EECDH+AESGCM:EDH+AESGCM:AES256+EECDH:AES256+EDH",
        "HIGH:!aNULL:!SSLv2:!DH:!kDHEPSK",
        "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384",
        "ALL",
        "DEFAULT",
        "DEFAULT:-AES128:AES128",
        "ALL:!aRSA",
        "ALL:-aRSA:aRSA",
        "ALL:+AES256",
        "AES128:AES256:@STRENGTH",
        "AES128:AES256",
        "!AES128:ALL",
        "ECDHE+CHACHA20:ECDHE+AES128",
        "CHACHA20:AESGCM:!RSA",
        "HIGH:MEDIUM:!LOW:!EXP:!MD5",
        "aECDSA+AES128+AESGCM",
        "TLSv1.2:!SHA256:!SHA384",
        "kECDHE:!CHACHA20",
        "SUITEB128",
        "SUITEB192",
        "FIPS:+aRSA",
        "ECDH+AESGCM, ECDH+AES256 ;!3DES",
        "ALL:!ECDSA:NOSUCH",
        "RC4:!RC4:ALL",
        "ECDSA:-ECDSA:ALL:@STRENGTH",
        "ALL:COMPLEMENTOFALL:!eNULL",
    ];

    #[test]
    fn cipher_strings_yield_the_suites_of_openssl_in_its_order() {
        let Ok(version) = Command::new("openssl").arg("version").output() else {
            return becket_tidy::skip("needs openssl");
        };
        if !version.stdout.starts_with(b"OpenSSL 3") {
            return becket_tidy::skip("needs OpenSSL 3");
        }
        for string in STRINGS {
            let listed = Command::new("openssl")
                .args(["ciphers", "-tls1_2", string])
                .output()
                .unwrap();
            let listed = String::from_utf8(listed.stdout).unwrap();
            let theirs: Vec<&str> = listed
                .trim()
                .split(':')
                .filter_map(|name| {
                    let known = SUITES.iter().find(|suite| suite.openssl == name)?;
                    Some(known.iana)
                })
                .collect();
            assert_eq!(tls12(string).suites, theirs, "{string}");
        }
    }

    #[test]
    fn a_string_with_only_supported_suites_is_the_same() {
        for (string, more) in [
            ("ECDHE-RSA-AES128-GCM-SHA256", false),
            ("EECDH+AESGCM:ECDHE+CHACHA20", false),
            ("SUITEB128", false),
            ("HIGH", true),
            ("AES256-SHA", true),
        ] {
            assert_eq!(tls12(string).more, more, "{string}");
        }
        assert!(tls12("AES256-SHA").suites.is_empty());
        assert_eq!(tls12("HIGH:@SECLEVEL=4").suites.len(), 4);
    }

    #[test]
    fn suites_of_tls_1_3_are_names() {
        let chosen = tls13("TLS_AES_128_GCM_SHA256:TLS_AES_128_CCM_SHA256:TLS_AES_256_GCM_SHA384");
        let suites = vec!["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"];
        assert_eq!(chosen, CipherChoice { suites, more: true });
    }
}
