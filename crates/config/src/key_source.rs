//! Location of a private key: a file, or a PKCS#11 token named by a URI of RFC 7512.
//!
//! ```text
//! pkcs11:token=web;object=site?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=/etc/becket/pin
//! ```
//!
//! Attributes before the `?` identify the token and its key; attributes after it give the token's library and the file
//! with the PIN. Each attribute may be given once. Unknown attributes are rejected, because a mistyped name would
//! select more keys than intended. A PIN in the URI is rejected, because the configuration may be readable by other
//! users.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use becket_proto::labelled;
use percent_encoding::percent_decode_str;

use crate::notation::{Text, ValueError, as_text};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// Path of a PEM file.
    File(String),
    /// Key on a token, which signs with the key and never exports it.
    Token(KeyUri),
}

impl Text for KeySource {
    const ACCEPTED: &str =
        "a PEM file, or \"pkcs11:token=..;object=..?module-path=/..&pin-source=/..\"";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let scheme = text.get(..SCHEME.len());
        if scheme.is_some_and(|it| it.eq_ignore_ascii_case(SCHEME)) {
            KeyUri::parse(text).map(Self::Token)
        } else {
            Ok(Self::File(text.to_owned()))
        }
    }

    fn write(&self) -> String {
        match self {
            Self::File(path) => path.clone(),
            Self::Token(uri) => uri.to_string(),
        }
    }
}

as_text!(KeySource);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyUri {
    text: Arc<str>,
    pub token: TokenId,
    /// File with the PIN.
    pub pin_source: Option<PathBuf>,
    /// `object`: CKA_LABEL of the key.
    pub object: Option<String>,
    /// `id`: CKA_ID of the key.
    pub id: Option<Vec<u8>>,
}

/// A token, and the PKCS#11 library that accesses it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenId {
    /// `module-path`: absolute path of the library.
    pub module: PathBuf,
    /// Attributes that the token and its slot must have, sorted. If empty, the library must have
    /// only one token.
    pub attributes: Vec<(Attribute, String)>,
}

labelled! {
#[derive(PartialOrd, Ord)]
pub enum Attribute {
    /// CK_TOKEN_INFO, label.
    Token = "token",
    /// CK_TOKEN_INFO, manufacturerID.
    Manufacturer = "manufacturer",
    /// CK_TOKEN_INFO, serialNumber.
    Serial = "serial",
    /// CK_TOKEN_INFO, model.
    Model = "model",
    /// CK_SLOT_ID, in decimal digits.
    SlotId = "slot-id",
    /// CK_SLOT_INFO, slotDescription.
    SlotDescription = "slot-description",
    /// CK_SLOT_INFO, manufacturerID.
    SlotManufacturer = "slot-manufacturer",
}
}

impl TokenId {
    /// Returns a readable name of the token, unique among the tokens of its library.
    pub fn name(&self) -> String {
        let parts = self.attributes.iter();
        let parts = parts.map(|(attribute, value)| match attribute {
            Attribute::Token => value.clone(),
            other => format!("{}={value}", other.label()),
        });
        parts.collect::<Vec<_>>().join(";")
    }
}

impl std::fmt::Display for KeyUri {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl KeyUri {
    /// Parses a URI of RFC 7512 that names one private key.
    ///
    /// # Errors
    /// Returns the fault of the URI.
    pub fn parse(text: &str) -> Result<Self, ValueError> {
        if text.len() > LONGEST {
            return Err(format!("longer than {LONGEST} bytes").into());
        }
        let rest = text.get(SCHEME.len()..).unwrap_or_default();
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut uri = Self {
            text: text.into(),
            ..Self::default()
        };
        for part in attributes(path, ';')? {
            uri.take_path(part)?;
        }
        for part in attributes(query, '&')? {
            uri.take_query(part)?;
        }
        uri.token.attributes.sort();
        if uri.token.module.as_os_str().is_empty() {
            return Err("no module-path".into());
        }
        if uri.object.is_none() && uri.id.is_none() {
            return Err("no key: neither object nor id".into());
        }
        Ok(uri)
    }

    fn take_path(&mut self, (name, value): (&str, Vec<u8>)) -> Result<(), ValueError> {
        if name == "id" {
            self.id = Some(value);
            return Ok(());
        }
        let value = text_of(name, value)?;
        let known = Attribute::ALL
            .into_iter()
            .find(|known| known.label() == name);
        match (name, known) {
            (_, Some(attribute)) => {
                if attribute == Attribute::SlotId && value.parse::<u64>().is_err() {
                    return Err("slot-id is not a number".into());
                }
                self.token.attributes.push((attribute, value));
            }
            ("object", _) => self.object = Some(value),
            ("type", _) if value == "private" => {}
            ("type", _) => return Err("type is not \"private\"".into()),
            _ => return Err(format!("unknown attribute: {name}").into()),
        }
        Ok(())
    }

    fn take_query(&mut self, (name, value): (&str, Vec<u8>)) -> Result<(), ValueError> {
        let value = text_of(name, value)?;
        match name {
            "module-path" if Path::new(&value).is_absolute() => self.token.module = value.into(),
            "module-path" => return Err("module-path is not an absolute path".into()),
            "pin-source" => self.pin_source = Some(file_of(&value)?),
            "pin-value" => {
                let fault =
                    "pin-value is not supported; use pin-source to name a file with the PIN";
                return Err(fault.into());
            }
            _ => return Err(format!("unknown attribute: {name}").into()),
        }
        Ok(())
    }
}

/// Decodes the attributes before or after the `?`. Rejects duplicates.
fn attributes(part: &str, separator: char) -> Result<Vec<(&str, Vec<u8>)>, ValueError> {
    let mut found: Vec<(&str, Vec<u8>)> = Vec::new();
    for attribute in part.split(separator).filter(|_| !part.is_empty()) {
        let (name, value) = attribute
            .split_once('=')
            .ok_or("an attribute without \"=\"")?;
        if found.iter().any(|(before, _)| *before == name) {
            return Err(format!("{name} is given twice").into());
        }
        let value: Vec<u8> = percent_decode_str(value).collect();
        if value.is_empty() {
            return Err(format!("{name} is empty").into());
        }
        found.push((name, value));
    }
    Ok(found)
}

fn text_of(name: &str, value: Vec<u8>) -> Result<String, ValueError> {
    let text = String::from_utf8(value).map_err(|_| format!("{name} is not UTF-8"))?;
    // A NUL would end the string passed to the library, and a line feed would split a log line.
    if text.contains(char::is_control) {
        Err(format!("{name} has a control character").into())
    } else {
        Ok(text)
    }
}

/// Parses a path or a `file:` URI (RFC 7512, section 2.4). Commands (`|`) are not supported.
fn file_of(value: &str) -> Result<PathBuf, ValueError> {
    let path = match value.strip_prefix("file:") {
        Some(path) => path.strip_prefix("//").unwrap_or(path),
        None => value,
    };
    if path.starts_with('/') {
        Ok(path.into())
    } else {
        Err("pin-source is not an absolute path".into())
    }
}

const SCHEME: &str = "pkcs11:";
/// Maximum length of a URI, which limits the size of messages to the process that uses the token.
const LONGEST: usize = 1024;
#[cfg(test)]
mod tests {
    use super::*;

    const REST: &str = "?module-path=/lib/x.so";

    fn uri(text: &str) -> Result<KeyUri, ValueError> {
        match KeySource::parse(text)? {
            KeySource::Token(uri) => Ok(uri),
            KeySource::File(path) => Err(path.into()),
        }
    }

    #[test]
    fn a_uri_names_module_token_key_and_pin() {
        let text = "pkcs11:token=My%20token;serial=1%3b2;slot-id=7;type=private;object=a&b;id=%00%fF\
            ?pin-source=file:/etc/pin%3F&module-path=/usr/lib/x.so";
        let uri = uri(text).unwrap();
        assert_eq!(uri.token.module, Path::new("/usr/lib/x.so"));
        assert_eq!(uri.token.name(), "My token;serial=1;2;slot-id=7");
        assert_eq!(uri.object.as_deref(), Some("a&b"));
        assert_eq!(uri.id.as_deref(), Some(&[0, 255][..]));
        assert_eq!(uri.pin_source.as_deref(), Some(Path::new("/etc/pin?")));
        assert_eq!(KeySource::Token(uri).write(), text);
    }

    #[test]
    fn a_value_that_is_not_a_uri_is_a_file() {
        for path in ["", "key.pem", "/etc/key.pem", "pkcs11", "pkcs12:a"] {
            assert_eq!(KeySource::parse(path), Ok(KeySource::File(path.to_owned())));
        }
        assert!(matches!(
            KeySource::parse(&format!("PKCS11:id=a{REST}")),
            Ok(KeySource::Token(_))
        ));
    }

    const FAULTS: &[(&str, &str)] = &[
        ("pkcs11:", "no module-path"),
        ("pkcs11:object=a", "no module-path"),
        (
            "pkcs11:token=a?module-path=/x",
            "no key: neither object nor id",
        ),
        (
            "pkcs11:object=a;object=b?module-path=/x",
            "object is given twice",
        ),
        (
            "pkcs11:object=a?module-path=/x&module-path=/y",
            "module-path is given twice",
        ),
        (
            "pkcs11:object=a;colour=b?module-path=/x",
            "unknown attribute: colour",
        ),
        (
            "pkcs11:object=a?module-path=/x&pin-souce=/y",
            "unknown attribute: pin-souce",
        ),
        ("pkcs11:object?module-path=/x", "an attribute without \"=\""),
        (
            "pkcs11:object=a;?module-path=/x",
            "an attribute without \"=\"",
        ),
        ("pkcs11:object=?module-path=/x", "object is empty"),
        ("pkcs11:object=%ff?module-path=/x", "object is not UTF-8"),
        (
            "pkcs11:object=a%00?module-path=/x",
            "object has a control character",
        ),
        (
            "pkcs11:object=a;type=cert?module-path=/x",
            "type is not \"private\"",
        ),
        (
            "pkcs11:object=a;slot-id=x?module-path=/x",
            "slot-id is not a number",
        ),
        (
            "pkcs11:object=a?module-path=x.so",
            "module-path is not an absolute path",
        ),
        (
            "pkcs11:object=a?module-path=/x&pin-source=|ask",
            "pin-source is not an absolute path",
        ),
    ];

    #[test]
    fn invalid_pkcs11_uris_are_rejected_with_the_cause() {
        for (text, fault) in FAULTS {
            assert_eq!(uri(text).unwrap_err().to_string(), *fault, "{text}");
        }
        let fault = uri(&format!("pkcs11:object=a{REST}&pin-value=1234"))
            .unwrap_err()
            .to_string();
        assert!(fault.contains("pin-source"), "{fault}");
        assert!(uri(&format!("pkcs11:object={}{REST}", "a".repeat(LONGEST))).is_err());
    }
}
