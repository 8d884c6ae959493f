// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values of keys, and the kinds that parse and bound them.
//!
//! - **Flow** text of a variable, or a TOML value ──[`Kind::parse`]──▶ [`Value`], or a text that lists the allowed
//!   values
//! - **Layout** sizes: [`size::parse`]

use crate::facility;
use crate::size::{self, UNITS};

/// The values that a key takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Facility names separated by commas.
    Facilities,
    /// A whole number in these bounds.
    Count {
        /// Smallest number that is allowed.
        min: u64,
        /// Largest number that is allowed.
        max: u64,
    },
    /// A size in these bounds.
    Bytes {
        /// Smallest size that is allowed, bytes.
        min: u64,
        /// Largest size that is allowed, bytes.
        max: u64,
    },
    /// Seconds, with fractions.
    Seconds,
    /// A file or folder.
    Path,
    /// true or false.
    Flag,
}

/// A parsed value.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// The key has no value.
    Absent,
    /// A word, a list or a path.
    Text(String),
    /// A whole number.
    Number(u64),
    /// A size in bytes.
    Bytes(u64),
    /// A time in seconds.
    Seconds(f64),
    /// true or false.
    Flag(bool),
}

impl Value {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    pub(super) fn number(&self) -> u64 {
        match self {
            Value::Number(number) | Value::Bytes(number) => *number,
            _ => 0,
        }
    }

    pub(super) fn seconds(&self) -> f64 {
        if let Value::Seconds(seconds) = self { *seconds } else { 0.0 }
    }

    pub(super) fn flag(&self) -> bool {
        matches!(self, Value::Flag(true))
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Absent => Ok(()),
            Value::Text(text) => f.write_str(text),
            Value::Number(number) => write!(f, "{number}"),
            Value::Bytes(bytes) => f.write_str(&size_text(*bytes)),
            Value::Seconds(seconds) => write!(f, "{seconds}"),
            Value::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

/// Writes `33554432` as `32MiB`; exact, so that it can be parsed back.
fn size_text(bytes: u64) -> String {
    UNITS
        .iter()
        .find(|(_, shift)| bytes != 0 && bytes.trailing_zeros() >= *shift)
        .map_or_else(|| bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

impl Kind {
    /// Returns a text of the allowed values, for errors and `memlift config show`.
    pub fn allowed(self) -> String {
        match self {
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
            Kind::Facilities => format!("a list parted by commas of {}", facility::known_names()),
            Kind::Count { min, max } => format!("a whole number from {min} to {max}"),
            Kind::Bytes { min, max } => format!(
                "a size from {} to {}, such as 32MiB or 1G (powers of 1024)",
                size_text(min),
                size_text(max)
            ),
            Kind::Seconds => "seconds, such as 10 or 0.5".to_owned(),
            Kind::Path => "a path".to_owned(),
            Kind::Flag => "true or false".to_owned(),
        }
    }

    /// Parses text, as a variable or a TOML string holds it.
    pub(super) fn parse(self, text: &str) -> Option<Value> {
        let text = text.trim();
        match self {
            Kind::Choice(words) => words.contains(&text).then(|| Value::Text(text.to_owned())),
            Kind::Facilities => {
                let mut names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
                names
                    .all(|name| facility::Facility::from_name(name).is_some())
                    .then(|| Value::Text(text.to_owned()))
            }
            Kind::Count { min, max } => {
                text.parse().ok().filter(|count| (min..=max).contains(count)).map(Value::Number)
            }
            Kind::Bytes { min, max } => {
                size::parse(text).ok().filter(|bytes| (min..=max).contains(bytes)).map(Value::Bytes)
            }
            Kind::Seconds => text
                .parse()
                .ok()
                .filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0)
                .map(Value::Seconds),
            Kind::Path => Some(if text.is_empty() { Value::Absent } else { Value::Text(text.to_owned()) }),
            Kind::Flag => match text {
                "true" | "1" | "yes" | "on" => Some(Value::Flag(true)),
                "false" | "0" | "no" | "off" => Some(Value::Flag(false)),
                _ => None,
            },
        }
    }

    /// Parses a TOML value: strings as text; numbers, booleans and lists if the kind has them.
    pub(super) fn parse_toml(self, value: &toml::Value) -> Option<Value> {
        match (self, value) {
            (_, toml::Value::String(text)) => self.parse(text),
            (Kind::Count { .. } | Kind::Bytes { .. } | Kind::Seconds, toml::Value::Integer(number)) => {
                self.parse(&number.to_string())
            }
            (Kind::Seconds, toml::Value::Float(number)) => self.parse(&number.to_string()),
            (Kind::Flag, toml::Value::Boolean(flag)) => Some(Value::Flag(*flag)),
            (Kind::Facilities, toml::Value::Array(names)) => {
                let names: Option<Vec<&str>> = names.iter().map(toml::Value::as_str).collect();
                self.parse(&names?.join(","))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written_back() {
        for (text, bytes) in [("4096", 4096), ("32MiB", 32 << 20), ("1.5G", 3 << 29)] {
            assert_eq!(size::parse(text), Ok(bytes), "{text}");
            assert_eq!(size::parse(&size_text(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn bounds_hold() {
        let kind = Kind::Count { min: 1, max: 3 };
        assert_eq!(kind.parse("0"), None);
        assert_eq!(kind.parse("3"), Some(Value::Number(3)));
        assert_eq!(kind.parse("4"), None);
        assert_eq!(Kind::Seconds.parse("-1"), None);
        assert_eq!(Kind::Seconds.parse("nan"), None);
        assert_eq!(Kind::Seconds.parse("0.5"), Some(Value::Seconds(0.5)));
    }
}
