//! Scalars of a spec, checked while the reader still knows their line and key.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use schemas::HOUR_MS;
use serde::{
    Deserialize, Deserializer,
    de::{SeqAccess, Visitor},
};

/// A share between 0 and 1, in parts per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u32);

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let check = |share: f64| {
            let fits = (0.0..=1.0).contains(&share);
            if fits { Ok(Self((share * 1e6).round() as u32)) } else { Err(format!("{share} is not a share between 0 and 1")) }
        };
        from.deserialize_f64(Scalar {
            expects: "a share between 0 and 1",
            number: check,
            text: |text: &str| Err(not("a share", text)),
        })
    }
}

/// Reads one scalar and checks it while the reader still knows its line and its key: an error from later on is shown with those
/// of the whole section.
struct Scalar<N, T> {
    expects: &'static str,
    number: N,
    text: T,
}

fn not(what: &str, text: &str) -> String {
    format!("`{text}` is not {what}")
}

impl<V, N: Fn(f64) -> Result<V, String>, T: Fn(&str) -> Result<V, String>> Visitor<'_> for Scalar<N, T> {
    type Value = V;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expects)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<V, E> {
        (self.number)(value).map_err(E::custom)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<V, E> {
        (self.number)(value as f64).map_err(E::custom)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<V, E> {
        (self.number)(value as f64).map_err(E::custom)
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<V, E> {
        (self.text)(value).map_err(E::custom)
    }
}

/// A number of events a day, at most 1,440.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PerDay(pub f64);

impl<'de> Deserialize<'de> for PerDay {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let check = |count: f64| {
            let fits = (0.0..=1440.0).contains(&count);
            if fits { Ok(Self(count)) } else { Err(format!("{count} is not a number of events a day between 0 and 1440")) }
        };
        let text = |text: &str| Err(not("a number of events a day", text));
        from.deserialize_f64(Scalar { expects: "a number of events a day", number: check, text })
    }
}

/// Longest length of time that a spec may give, so that sums of times stay times (chosen).
const LONGEST_MS: i64 = 36_525 * 24 * HOUR_MS;

/// A length of time in whole milliseconds, above 0 and up to a hundred years: `30s`, `250ms`, `5m`, `2h`, `1d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(i64);

impl Span {
    /// `ms` milliseconds; nothing where that is no time.
    pub const fn from_ms(ms: i64) -> Option<Self> {
        if ms > 0 { Some(Self(ms)) } else { None }
    }

    /// In milliseconds.
    pub const fn ms(self) -> i64 {
        self.0
    }
}

impl std::str::FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let unit = match unit {
            "ms" => Some(1),
            "s" => Some(1000),
            "m" => Some(60_000),
            "h" => Some(HOUR_MS),
            "d" => Some(24 * HOUR_MS),
            _ => None,
        };
        let ms = unit.and_then(|unit| number.parse::<i64>().ok()?.checked_mul(unit)).filter(|ms| *ms > 0);
        match ms {
            Some(ms) if ms > LONGEST_MS => Err(format!("`{text}` is longer than 36525d, a hundred years")),
            Some(ms) => Ok(Self(ms)),
            None => Err(format!("`{text}` is no length of time such as 30s, 5m or 2h")),
        }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = |text: &str| text.parse::<Self>().map_err(|error| error.to_string());
        let number = |number: f64| Err(not("a length of time such as 30s, 5m or 2h", &number.to_string()));
        from.deserialize_str(Scalar { expects: "a length of time such as 30s", number, text })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ms if ms % HOUR_MS == 0 => write!(f, "{}h", ms / HOUR_MS),
            ms if ms % 60_000 == 0 => write!(f, "{}m", ms / 60_000),
            ms if ms % 1000 == 0 => write!(f, "{}s", ms / 1000),
            ms => write!(f, "{ms}ms"),
        }
    }
}

/// A MIG layout: profiles of every GPU, or of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The same on every GPU.
    Every(Vec<String>),
    /// GPU by GPU; an empty list leaves one whole.
    Each(Vec<Vec<String>>),
}

/// Most entries of a layout that are read: 16 GPUs a node, 7 instances a GPU.
const MAX_ENTRIES: usize = 16;

impl<'de> Deserialize<'de> for Layout {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        /// A profile, or the profiles of one GPU.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Entry {
            One(String),
            Many(Vec<String>),
        }
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Layout;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of MIG profiles such as [3g.40gb, 2g.20gb], or a list of such lists")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Layout, A::Error> {
                let (mut every, mut each) = (Vec::new(), Vec::new());
                while let Some(entry) = entries.next_element()? {
                    match entry {
                        Entry::One(profile) => every.push(profile),
                        Entry::Many(profiles) => each.push(profiles),
                    }
                    if every.len() + each.len() > MAX_ENTRIES {
                        return Err(serde::de::Error::custom(format_args!("more than {MAX_ENTRIES} entries")));
                    }
                }
                match (every.is_empty(), each.is_empty()) {
                    (false, true) => Ok(Layout::Every(every)),
                    (true, false) => Ok(Layout::Each(each)),
                    (true, true) => Err(serde::de::Error::custom("is empty; name profiles, or leave `mig` out")),
                    (false, false) => Err(serde::de::Error::custom("has profiles beside lists of them; write one or the other")),
                }
            }
        }
        from.deserialize_seq(Entries)
    }
}

impl JsonSchema for Rate {
    fn schema_name() -> Cow<'static, str> {
        "Rate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "A share between 0 and 1.", "type": "number", "minimum": 0, "maximum": 1 })
    }
}

impl JsonSchema for PerDay {
    fn schema_name() -> Cow<'static, str> {
        "PerDay".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "A number of events a day.", "type": "number", "minimum": 0, "maximum": 1440 })
    }
}

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A length of time in whole milliseconds, above 0: 30s, 250ms, 5m, 2h, 1d.",
            "type": "string",
            "pattern": "^[0-9]+(ms|s|m|h|d)$"
        })
    }
}

impl JsonSchema for Layout {
    fn schema_name() -> Cow<'static, str> {
        "Layout".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let profiles = json_schema!({ "type": "array", "items": { "type": "string" } });
        json_schema!({
            "description": "MIG profiles of every GPU, or a list of them for each; an empty list leaves a GPU whole.",
            "anyOf": [profiles, { "type": "array", "items": profiles }]
        })
    }
}
