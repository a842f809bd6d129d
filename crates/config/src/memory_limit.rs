//! `limits.memory`: a size, `auto` for the cgroup's limit, or `off`.

use crate::notation::{Bytes, Size, Text, Unit, ValueError, as_text};

/// Memory use above which becket closes idle connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryLimit {
    /// Use the memory limit of the cgroup.
    #[default]
    Auto,
    Off,
    /// Limit on the resident memory of the process, in bytes.
    Bytes(u64),
}

impl Text for MemoryLimit {
    const ACCEPTED: &str = "a size such as \"512MiB\" or \"2GiB\", \"auto\" or \"off\"";

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            text => Bytes::<{ 1 << 20 }, { 1 << 50 }>::parse(text).map(Self::Bytes),
        }
    }

    fn write(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Off => "off".to_owned(),
            Self::Bytes(bytes) => Size::write(*bytes),
        }
    }
}

as_text!(MemoryLimit);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_size_or_a_word() {
        for (text, limit) in [
            ("auto", MemoryLimit::Auto),
            ("off", MemoryLimit::Off),
            ("1MiB", MemoryLimit::Bytes(1 << 20)),
            ("3GiB", MemoryLimit::Bytes(3 << 30)),
        ] {
            assert_eq!(MemoryLimit::parse(text), Ok(limit));
            assert_eq!(limit.write(), text);
        }
        for text in ["", "0", "on", "1048575", "2048TiB", "-1"] {
            assert!(MemoryLimit::parse(text).is_err(), "{text}");
        }
    }
}
