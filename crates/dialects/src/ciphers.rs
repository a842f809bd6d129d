//! Cipher strings of OpenSSL, as ciphers(1) describes them, over the suites that exist here.
//!
//! Of the hundred and more suites that such a string may name, the six of TLS 1.2 with forward secrecy and an AEAD are had.
//! All operators work on those as OpenSSL works on all: names add, `-` takes away, `!` for good, `+` moves to the end,
//! `@STRENGTH` sorts. A name that nothing here has adds nothing, as one that OpenSSL does not know.

use super::setting::SettingSupport;

/// What a string names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CipherChoice {
    /// IANA's names, in the order of the string.
    pub(super) suites: Vec<&'static str>,
    /// Whether it may name suites that do not exist here.
    pub(super) more: bool,
}

impl CipherChoice {
    /// What to say of it.
    pub(super) fn support(&self) -> (SettingSupport, String) {
        let served = self.suites.join(" ");
        if self.more {
            (
                SettingSupport::Different,
                format!(
                    "of what it names there are {served}; suites without forward secrecy or an AEAD do not exist here"
                ),
            )
        } else {
            (SettingSupport::Same, format!("these are {served}"))
        }
    }
}

/// The suites of TLS 1.2 that a cipher string leaves.
pub(super) fn tls12(string: &str) -> CipherChoice {
    let mut list = List {
        order: (0..SUITES.len()).map(|index| (index, false)).collect(),
        more: false,
    };
    let rules = string.split([':', ',', ' ', ';']);
    let rules = rules.filter(|rule| !rule.is_empty());
    // The profile of RFC 6460 is all of a string that begins with it.
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

/// The suites of TLS 1.3 that a list of names leaves.
pub(super) fn tls13(string: &str) -> CipherChoice {
    let mut chosen = CipherChoice {
        suites: Vec::new(),
        more: false,
    };
    for name in string.split(':').filter(|name| !name.is_empty()) {
        match TLS13.iter().find(|known| **known == name) {
            Some(known) if !chosen.suites.contains(known) => chosen.suites.push(known),
            Some(_) => {}
            None => chosen.more = true,
        }
    }
    chosen
}

/// All suites that are not gone for good, and whether each is active: as OpenSSL keeps them, so that what is taken away and
/// named again comes before what was never named.
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

    /// Takes those out that a name stands for, if they are active or not.
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
            // 192 bits and more; the suites of lower levels are all had.
            "SECLEVEL=4" | "SECLEVEL=5" => self.order.retain(|(index, _)| is_strong(*index)),
            _ => {}
        }
    }
}

/// Whether a name stands for nothing but what exists here.
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
    /// Whether all of the names that `+` joins are its.
    fn is_all(&self, names: &str) -> bool {
        names == self.openssl || names.split('+').all(|name| self.is_any(name))
    }

    /// Whether it belongs to what one name stands for.
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

/// In the order in which OpenSSL 3 begins.
#[rustfmt::skip]
const SUITES: [Suite; 6] = [
    Suite { openssl: "ECDHE-ECDSA-AES256-GCM-SHA384", iana: "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384" },
    Suite { openssl: "ECDHE-RSA-AES256-GCM-SHA384", iana: "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384" },
    Suite { openssl: "ECDHE-ECDSA-CHACHA20-POLY1305", iana: "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256" },
    Suite { openssl: "ECDHE-RSA-CHACHA20-POLY1305", iana: "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256" },
    Suite { openssl: "ECDHE-ECDSA-AES128-GCM-SHA256", iana: "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256" },
    Suite { openssl: "ECDHE-RSA-AES128-GCM-SHA256", iana: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" },
];

/// What is wrong with a string that leaves no suite, and what is accepted.
pub(super) const NOTHING_LEFT: &str = "nothing of this exists here";
pub(super) const LEAVING: &str = "suites with ECDHE and AES-GCM or CHACHA20, such as EECDH+AESGCM";

/// In OpenSSL's order.
pub(super) const TLS13: [&str; 3] = [
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_GCM_SHA256",
];

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Each kind of operator, and what real files say.
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
    fn strings_leave_what_openssl_leaves_in_its_order() {
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
    fn a_string_that_names_only_what_is_had_is_the_same() {
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
