//! URIs of keys on tokens (RFC 7512), in a configuration and in messages to the agent of a token.

use std::fmt::Write;

use becket_config::key_source::{KeySource, KeyUri};
use becket_config::notation::Text;

/// Checks one input. Returns 1 if it names a key on a token.
///
/// # Panics
/// If a rejection has no reason, if another encoding of the URI is parsed differently, or if it cannot be sent or logged.
pub fn run(data: &[u8]) -> usize {
    let Ok(text) = std::str::from_utf8(data) else {
        return 0;
    };
    let uri = match KeySource::parse(text) {
        Ok(KeySource::Token(uri)) => uri,
        Ok(KeySource::File(path)) => {
            assert_eq!(path, text);
            return 0;
        }
        Err(fault) => {
            assert!(!fault.to_string().is_empty());
            return 0;
        }
    };
    assert_eq!(uri.to_string(), text);
    assert!(uri.object.is_some() || uri.id.is_some());
    assert!(uri.token.module.is_absolute());
    assert!(uri.pin_source.iter().all(|path| path.is_absolute()));
    assert!(!uri.token.name().contains(char::is_control));
    let attributes = &uri.token.attributes;
    assert!(attributes.is_sorted_by(|one, next| one.0 < next.0));
    assert!(text.len() <= 1024, "too long for a message to the agent");
    let again = written(&uri);
    if let Ok(again) = KeyUri::parse(&again) {
        assert_eq!(again.token, uri.token);
        assert_eq!(
            (again.object, again.id, again.pin_source),
            (uri.object, uri.id, uri.pin_source)
        );
    } else {
        assert!(again.len() > 1024, "{again}");
    }
    1
}

/// Writes the URI with every byte percent-encoded.
fn written(uri: &KeyUri) -> String {
    let attributes = uri.token.attributes.iter();
    let path = attributes.map(|(name, value)| (name.label(), value.as_bytes()));
    let path = path
        .chain(uri.object.iter().map(|label| ("object", label.as_bytes())))
        .chain(uri.id.iter().map(|id| ("id", &id[..])));
    let module = uri.token.module.as_os_str().as_encoded_bytes();
    let pin = uri.pin_source.iter();
    let pin = pin.map(|path| ("pin-source", path.as_os_str().as_encoded_bytes()));
    let query = [("module-path", module)].into_iter().chain(pin);
    format!("pkcs11:{}?{}", joined(path, ";"), joined(query, "&"))
}

fn joined<'a>(
    attributes: impl Iterator<Item = (&'static str, &'a [u8])>,
    separator: &str,
) -> String {
    let each = attributes.map(|(name, value)| {
        let mut text = format!("{name}=");
        for byte in value {
            write!(text, "%{byte:02X}").expect("it is a string");
        }
        text
    });
    each.collect::<Vec<_>>().join(separator)
}
