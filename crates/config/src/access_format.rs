//! The template of a line of the access log: text with the names of fields in braces.

use crate::notation::{Text, ValueError, as_text};

/// A template, such as `{time} {client} "{sni}" {reason}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessFormat {
    text: String,
    parts: Vec<Part>,
}

/// A part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// As it is written.
    Text(String),
    /// A field of [`FIELDS`].
    Field(&'static str),
}

impl AccessFormat {
    /// What a line consists of.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }
}

impl Text for AccessFormat {
    const ACCEPTED: &str = "text with fields in braces, such as \"{time} {client} {sni} {reason}\"; {{ and }} are braces";

    fn parse(text: &str) -> Result<Self, ValueError> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text.chars();
        while let Some(character) = rest.next() {
            match character {
                '{' | '}' if rest.as_str().starts_with(character) => {
                    rest.next();
                    plain.push(character);
                }
                '{' => {
                    let (name, behind) =
                        rest.as_str().split_once('}').ok_or("a { without its }")?;
                    let known = FIELDS.iter().find(|field| **field == name);
                    let field = known.ok_or_else(|| {
                        format!("no field {name:?}: there are {}", FIELDS.join(", "))
                    })?;
                    if !plain.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut plain)));
                    }
                    parts.push(Part::Field(field));
                    rest = behind.chars();
                }
                '}' => return Err("a } without its {".into()),
                control if control.is_control() => {
                    return Err("a control character: a line is one line".into());
                }
                other => plain.push(other),
            }
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        if !parts.iter().any(|part| matches!(part, Part::Field(_))) {
            return Err("no field".into());
        }
        Ok(Self {
            text: text.to_owned(),
            parts,
        })
    }

    fn write(&self) -> String {
        self.text.clone()
    }
}

as_text!(AccessFormat);

/// Every field that a line may have: those of connections, then those of requests for files alone.
pub const FIELDS: [&str; 27] = [
    "time",
    "client",
    "listener",
    "sni",
    "ja4",
    "version",
    "suite",
    "group",
    "alpn",
    "handshake",
    "subject",
    "serial",
    "would_refuse",
    "id",
    "server",
    "client_bytes_in",
    "client_bytes_out",
    "server_bytes_in",
    "server_bytes_out",
    "handshake_us",
    "total_us",
    "reason",
    "method",
    "path",
    "status",
    "bytes",
    "request_us",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_its_text_and_its_fields() {
        let format = AccessFormat::parse("{{{client}}} \"{sni}\" x").unwrap();
        let text = |text: &str| Part::Text(text.to_owned());
        let parts = [
            text("{"),
            Part::Field("client"),
            text("} \""),
            Part::Field("sni"),
            text("\" x"),
        ];
        assert_eq!(format.parts(), parts);
        assert_eq!(format.write(), "{{{client}}} \"{sni}\" x");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let fault = |text| AccessFormat::parse(text).unwrap_err().to_string();
        let unknown = fault("{client} {who}");
        assert!(
            unknown.starts_with("no field \"who\": there are time, client, "),
            "{unknown}"
        );
        assert_eq!(fault("{client"), "a { without its }");
        assert_eq!(fault("client}"), "a } without its {");
        assert_eq!(
            fault("{client}\n{sni}"),
            "a control character: a line is one line"
        );
        assert_eq!(fault("client"), "no field");
        assert_eq!(fault(""), "no field");
    }
}
