//! Notations of values. A notation parses a value, checks it, and describes the accepted values.
//!
//! A field selects its notation with serde: `#[serde(with = "Time::<SECOND, DAY>")]`, `#[serde(with
//! = "list")]`. The error for an invalid value contains the fault and the accepted values;
//! [`read`](crate::read) adds line, key path and value.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use becket_proto::http_status::Expected;
use becket_proto::networks::Network;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serializer};

pub use crate::error::ValueError;
pub use crate::units::duration;
pub(crate) use crate::units::{DAY, HOUR, MILLISECOND, MINUTE, SECOND, YEAR};
use crate::units::{shown, shown_size, size};

/// Separates the fault from the accepted values in the message of a serde error.
pub(crate) const SEPARATOR: char = '\u{1f}';

pub(crate) fn refused<E: de::Error>(error: impl Into<ValueError>, accepted: impl Display) -> E {
    let ValueError {
        fault,
        accepted: own,
    } = error.into();
    let accepted = own.unwrap_or_else(|| accepted.to_string());
    E::custom(format_args!("{fault}{SEPARATOR}{accepted}"))
}

/// Reads a string if `is_text`, otherwise an integer. Calls `parse` inside the visitor, so that
/// serde adds the location to errors.
fn scalar<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    (is_text, accepted): (bool, &dyn Display),
    parse: impl FnOnce(&str) -> Result<T, ValueError>,
) -> Result<T, D::Error> {
    struct Scalar<'a, P>(bool, &'a dyn Display, P);
    impl<T, P: FnOnce(&str) -> Result<T, ValueError>> Visitor<'_> for Scalar<'_, P> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.1.fmt(f)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            if self.0 {
                (self.2)(text).map_err(|error| refused(error, self.1))
            } else if text.parse::<u64>().is_ok() {
                let accepted = format!("{}, without quotes", self.1);
                Err(refused("a number in quotes", accepted))
            } else {
                Err(E::invalid_type(Unexpected::Str(text), &self))
            }
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
            (self.2)(&number.to_string()).map_err(|error| refused(error, self.1))
        }

        // JSON parsers pass non-negative integers as `u64`.
        fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
            (self.2)(&number.to_string()).map_err(|error| refused(error, self.1))
        }
    }
    deserializer.deserialize_any(Scalar(is_text, accepted, parse))
}

pub(crate) fn text_or_table<'de, D: Deserializer<'de>, T: Deserialize<'de>, R>(
    deserializer: D,
    accepted: &'static str,
    of_text: impl FnOnce(String) -> R,
    of_table: impl FnOnce(T) -> R,
) -> Result<R, D::Error> {
    struct TextOrTable<T, A, B>(&'static str, A, B, PhantomData<T>);
    impl<'de, T: Deserialize<'de>, R, A, B> Visitor<'de> for TextOrTable<T, A, B>
    where
        A: FnOnce(String) -> R,
        B: FnOnce(T) -> R,
    {
        type Value = R;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E>(self, text: &str) -> Result<R, E> {
            Ok((self.1)(text.to_owned()))
        }

        fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<R, M::Error> {
            T::deserialize(MapAccessDeserializer::new(map)).map(self.2)
        }
    }
    deserializer.deserialize_any(TextOrTable(accepted, of_text, of_table, PhantomData))
}

/// Notation of a number: a plain number, a duration or a size.
pub(crate) trait Unit {
    /// `true` if the number is written as a string such as `"10s"`; `false` for a TOML integer.
    const IS_TEXT: bool = true;
    /// Description of the accepted values in errors. If empty, errors show the range.
    const ACCEPTED: &str = "";
    fn parse(text: &str) -> Result<u64, ValueError>;
    fn write(number: u64) -> String;
}

pub(crate) struct Plain;

/// Milliseconds, written as a duration such as `"10s"`.
pub(crate) struct Millis;

/// Bytes, written as a number or with a unit, such as `"64KiB"`.
pub(crate) struct Size;

impl Unit for Plain {
    const IS_TEXT: bool = false;

    fn parse(text: &str) -> Result<u64, ValueError> {
        text.parse().map_err(|_| "not in range".into())
    }

    fn write(number: u64) -> String {
        number.to_string()
    }
}

impl Unit for Millis {
    const ACCEPTED: &str = "a duration such as \"500ms\", \"10s\", \"1m30s\", \"24h\" or \"7d\"";

    fn parse(text: &str) -> Result<u64, ValueError> {
        duration(text)?
            .number()
            .ok_or("longer than 365 days".into())
    }

    fn write(millis: u64) -> String {
        shown(millis)
    }
}

impl Unit for Size {
    const ACCEPTED: &str = "a size such as 65536, \"64KiB\" or \"1MiB\"";

    fn parse(text: &str) -> Result<u64, ValueError> {
        size(text)
    }

    fn write(bytes: u64) -> String {
        shown_size(bytes)
    }
}

/// A number from `LEAST` to `MOST` in the unit `U`, or the word of `W`, which means `None`.
pub(crate) struct Number<U, W, const LEAST: u64, const MOST: u64>(U, W);

pub(crate) type Whole<const LEAST: u64, const MOST: u64> = Number<Plain, NoWord, LEAST, MOST>;
pub(crate) type Time<const LEAST: u64, const MOST: u64> = Number<Millis, NoWord, LEAST, MOST>;
pub(crate) type Bytes<const LEAST: u64, const MOST: u64> = Number<Size, NoWord, LEAST, MOST>;
pub(crate) type WholeOr<W, const LEAST: u64, const MOST: u64> = Number<Plain, W, LEAST, MOST>;
pub(crate) type TimeOr<W, const LEAST: u64, const MOST: u64> = Number<Millis, W, LEAST, MOST>;
pub(crate) type BytesOr<W, const LEAST: u64, const MOST: u64> = Number<Size, W, LEAST, MOST>;

impl<U: Unit, W: Word, const LEAST: u64, const MOST: u64> Number<U, W, LEAST, MOST> {
    fn range() -> String {
        or_word::<W>(format!("{} to {}", U::write(LEAST), U::write(MOST)))
    }

    pub(crate) fn parse<T: Count>(text: &str) -> Result<T, ValueError> {
        if let Some(none) = T::none().filter(|_| Some(text) == W::WORD) {
            return Ok(none);
        }
        let number = Some(U::parse(text)?).filter(|number| (LEAST..=MOST).contains(number));
        number.and_then(T::of).ok_or_else(|| ValueError {
            accepted: Some(Self::range()),
            ..ValueError::from("not in range")
        })
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, T: Count>(d: D) -> Result<T, D::Error> {
        let accepted = match U::ACCEPTED {
            "" => Self::range(),
            accepted => or_word::<W>(accepted.to_owned()),
        };
        let is_text = U::IS_TEXT || W::WORD.is_some();
        scalar(d, (is_text, &accepted), Self::parse)
    }

    pub(crate) fn serialize<S: Serializer, T: Count>(value: &T, s: S) -> Result<S::Ok, S::Error> {
        match (value.number(), W::WORD) {
            (None, None) => s.serialize_none(),
            (None, Some(word)) => s.serialize_str(word),
            (Some(number), _) if U::IS_TEXT => s.serialize_str(&U::write(number)),
            (Some(number), _) => s.serialize_u64(number),
        }
    }
}

fn or_word<W: Word>(accepted: String) -> String {
    match W::WORD {
        Some(word) => format!("{accepted}, or {word:?}"),
        None => accepted,
    }
}

/// A word that is accepted instead of a number, such as `off`.
pub(crate) trait Word {
    /// The word; `None` if only numbers are accepted.
    const WORD: Option<&str> = None;
}

pub(crate) struct NoWord;

impl Word for NoWord {}

macro_rules! words {
    ($($name:ident = $word:literal;)*) => {$(
        pub(crate) struct $name;

        impl Word for $name {
            const WORD: Option<&str> = Some($word);
        }
    )*};
}

words! {
    Off = "off";
    Auto = "auto";
    OwnAddress = "address";
    System = "system";
}

/// A type for numeric values: an integer, a duration in milliseconds, or an `Option` of either.
pub(crate) trait Count: Sized {
    /// Converts a number. Returns `None` if the type cannot represent it.
    fn of(number: u64) -> Option<Self>;
    fn number(&self) -> Option<u64>;
    /// Returns the value that a word such as `off` means, or `None` if the type has no such value.
    fn none() -> Option<Self> {
        None
    }
}

macro_rules! counts {
    ($($number:ty),*) => {$(
        impl Count for $number {
            fn of(number: u64) -> Option<Self> {
                number.try_into().ok()
            }

            fn number(&self) -> Option<u64> {
                (*self).try_into().ok()
            }
        }
    )*};
}

counts!(u8, u16, u32, u64, usize);

impl Count for NonZeroU32 {
    fn of(number: u64) -> Option<Self> {
        Self::new(number.try_into().ok()?)
    }

    fn number(&self) -> Option<u64> {
        Some(self.get().into())
    }
}

impl Count for Duration {
    fn of(millis: u64) -> Option<Self> {
        Some(Self::from_millis(millis))
    }

    fn number(&self) -> Option<u64> {
        self.as_millis().try_into().ok()
    }
}

impl<T: Count> Count for Option<T> {
    fn of(number: u64) -> Option<Self> {
        T::of(number).map(Some)
    }

    fn number(&self) -> Option<u64> {
        self.as_ref()?.number()
    }

    fn none() -> Option<Self> {
        Some(None)
    }
}

/// A value that is written as a string.
pub trait Text: Sized {
    /// Description of the accepted values, for errors.
    const ACCEPTED: &str;
    /// Parses a value.
    ///
    /// # Errors
    /// Returns the fault if the value is not accepted.
    fn parse(text: &str) -> Result<Self, ValueError>;
    fn write(&self) -> String;
}

/// Implements serde for types whose values are written as strings.
macro_rules! as_text {
    ($($type:ty),*) => {$(
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                $crate::notation::text::deserialize(d)
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                $crate::notation::text::serialize(self, s)
            }
        }
    )*};
}
pub(crate) use as_text;

/// Declares types for strings that must pass a check.
macro_rules! checked_text {
    ($($(#[$doc:meta])* $name:ident($inner:ty), $accepted:literal, $fault:literal, $fits:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub $inner);

        impl Text for $name {
            const ACCEPTED: &str = $accepted;

            fn parse(text: &str) -> Result<Self, $crate::notation::ValueError> {
                let fits: fn(&str) -> bool = $fits;
                fits(text).then(|| Self(text.into())).ok_or($fault.into())
            }

            fn write(&self) -> String {
                self.0.to_string()
            }
        }

        $crate::notation::as_text!($name);
    )*};
}
pub(crate) use checked_text;

pub(crate) mod text {
    use super::*;

    pub(crate) fn deserialize<'de, T: Text, D: Deserializer<'de>>(d: D) -> Result<T, D::Error> {
        scalar(d, (true, &T::ACCEPTED), T::parse)
    }

    pub(crate) fn serialize<T: Text, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&value.write())
    }
}

struct Element<T>(T);

impl<'de, T: Text> Deserialize<'de> for Element<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        text::deserialize(d).map(Self)
    }
}

pub(crate) mod list {
    use super::*;

    pub(crate) fn deserialize<'de, T: Text, D>(d: D) -> Result<Vec<T>, D::Error>
    where
        D: Deserializer<'de>,
    {
        let list = Vec::<Element<T>>::deserialize(d)?;
        Ok(list.into_iter().map(|one| one.0).collect())
    }

    pub(crate) fn serialize<T: Text, S: Serializer>(list: &[T], s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(list.iter().map(T::write))
    }
}

pub(crate) mod maybe_list {
    use super::*;

    pub(crate) fn deserialize<'de, T: Text, D>(d: D) -> Result<Option<Vec<T>>, D::Error>
    where
        D: Deserializer<'de>,
    {
        list::deserialize(d).map(Some)
    }

    pub(crate) fn serialize<T: Text, S: Serializer>(
        list: &Option<Vec<T>>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        match list {
            Some(list) => list::serialize(list, s),
            None => s.serialize_none(),
        }
    }
}

impl Text for Network {
    const ACCEPTED: &str = "an address, or a network such as 192.0.2.0/24 or 2001:db8::/32";

    fn parse(text: &str) -> Result<Self, ValueError> {
        text.parse().map_err(|error| format!("{error}").into())
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Text for Expected {
    const ACCEPTED: &str = "statuses such as \"200\", \"2xx\" or \"200-399\"";

    fn parse(text: &str) -> Result<Self, ValueError> {
        text.parse().map_err(|_| "not a status".into())
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Text for IpAddr {
    const ACCEPTED: &str = "an IP address of this host";

    fn parse(text: &str) -> Result<Self, ValueError> {
        text.parse().map_err(|_| "not an IP address".into())
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

/// Notation of an ALPN protocol name (RFC 7301, section 3.1).
impl Text for Vec<u8> {
    const ACCEPTED: &str = "the name of a protocol, such as \"h2\" or \"http/1.1\"";

    fn parse(text: &str) -> Result<Self, ValueError> {
        match text.len() {
            1..=255 if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(text.into()),
            _ => Err("not the name of a protocol".into()),
        }
    }

    fn write(&self) -> String {
        String::from_utf8_lossy(self).into_owned()
    }
}

/// Returns the candidate that is most similar to `text`, or `None` if more than a typo separates
/// them.
pub fn meant<'c>(text: &str, among: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let lower = text.to_ascii_lowercase();
    let slips = |one: &str| strsim::osa_distance(&lower, &one.to_ascii_lowercase());
    let closest = among.into_iter().map(|one| (slips(one), one)).min()?;
    (closest.0 <= (text.len() / 3).clamp(1, 4)).then_some(closest.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_is_recognised_and_another_word_is_not() {
        let among = ["backlog", "bind", "alpn", "round-robin"];
        assert_eq!(meant("backlok", among), Some("backlog"));
        assert_eq!(meant("Round-robbin", among), Some("round-robin"));
        assert_eq!(meant("aplm", among), None);
        assert_eq!(meant("colour", among), None);
    }
}
