//! Instants and windows: UTC integer milliseconds, half-open intervals (rule A1).

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Milliseconds of one hour.
pub const HOUR_MS: i64 = 3_600_000;
/// Milliseconds of one day.
pub const DAY_MS: i64 = 24 * HOUR_MS;
/// A clock that is off by more is put right (A11), in milliseconds.
pub const SKEW_LIMIT_MS: i64 = 500;

/// An instant: milliseconds since 1970-01-01T00:00:00Z. Shown and parsed as RFC 3339.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// Why a text is no instant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an RFC 3339 time such as 2026-03-02T10:00:00Z")]
pub struct BadTime {
    text: String,
}

impl Timestamp {
    /// The instant `ms` milliseconds after the Unix epoch.
    pub const fn from_ms(ms: i64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn ms(self) -> i64 {
        self.0
    }

    /// Microseconds since the Unix epoch, the unit of the lake; saturates at the type's ends.
    pub const fn micros(self) -> i64 {
        self.0.saturating_mul(1000)
    }

    /// The instant of a lake timestamp; the lake holds whole milliseconds.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros.div_euclid(1000))
    }

    /// The full UTC hour that holds this instant.
    pub const fn hour(self) -> Self {
        Self(self.0.div_euclid(HOUR_MS) * HOUR_MS)
    }

    /// This instant moved by `ms` milliseconds; saturates at the type's ends.
    pub const fn plus_ms(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// This instant of a clock that is `skew_ms` ahead of the API server's, put right where that is too much (A11); none: it was not
    /// measured.
    pub fn without_skew(self, skew_ms: Option<i64>) -> Self {
        self.plus_ms(skew_ms.filter(|skew| skew.saturating_abs() > SKEW_LIMIT_MS).map_or(0, i64::saturating_neg))
    }

    /// `YYYY-MM-DD` and `HH` (UTC): the folder of this instant in the lake.
    pub fn date_hour(self) -> (String, String) {
        let text = self.to_string();
        (text[..text.len() - 14].to_owned(), text[text.len() - 13..text.len() - 11].to_owned())
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(at) => write!(f, "{at:.3}"),
            Err(_) => write!(f, "{}ms", self.0), // beyond year 9999: no RFC 3339 form
        }
    }
}

impl FromStr for Timestamp {
    type Err = BadTime;

    fn from_str(text: &str) -> Result<Self, BadTime> {
        let bad = || BadTime { text: text.to_owned() };
        let at: jiff::Timestamp = text.parse().map_err(|_| bad())?;
        Ok(Self(at.as_nanosecond().div_euclid(1_000_000).try_into().map_err(|_| bad())?))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        /// Checked inside the reader, which then knows the line and the key.
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Timestamp;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an RFC 3339 time such as 2026-03-02T10:00:00Z")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Timestamp, E> {
                text.parse().map_err(E::custom)
            }
        }
        from.deserialize_str(Text)
    }
}

/// A half-open span `[from, to)`; `from < to` is guaranteed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    from: Timestamp,
    to: Timestamp,
}

/// A window that holds no time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the window from {from} to {to} is empty or reversed; give a `from` before `to`")]
pub struct EmptyWindow {
    from: Timestamp,
    to: Timestamp,
}

impl Window {
    /// The window `[from, to)`, refused when it is empty or reversed.
    pub fn new(from: Timestamp, to: Timestamp) -> Result<Self, EmptyWindow> {
        if from < to { Ok(Self { from, to }) } else { Err(EmptyWindow { from, to }) }
    }

    /// First instant of the window.
    pub const fn from(self) -> Timestamp {
        self.from
    }

    /// First instant after the window.
    pub const fn to(self) -> Timestamp {
        self.to
    }

    /// Length in milliseconds, above 0.
    pub const fn len_ms(self) -> i64 {
        self.to.0 - self.from.0
    }

    /// The part of this window inside `other`, if any.
    pub fn clip(self, other: Window) -> Option<Window> {
        Window::new(self.from.max(other.from), self.to.min(other.to)).ok()
    }

    /// The UTC hours that this window touches, each by its start, in order.
    pub fn hours(self) -> impl Iterator<Item = Timestamp> {
        let mut next = self.from.hour();
        std::iter::from_fn(move || {
            let hour = next;
            next = hour.plus_ms(HOUR_MS);
            (hour < self.to).then_some(hour)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_clock_is_put_right_where_it_is_off_by_more_than_the_limit() {
        let at = Timestamp::from_ms(90_000);
        for (skew, right) in [(None, 90_000), (Some(500), 90_000), (Some(501), 89_499), (Some(-20_000), 110_000)] {
            assert_eq!(at.without_skew(skew).ms(), right, "{skew:?}");
        }
        assert_eq!(at.without_skew(Some(i64::MIN)).ms(), i64::MAX);
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn shows_what_it_parses() {
        for text in ["2026-03-02T10:00:00.000Z", "1969-12-31T23:59:59.999Z"] {
            assert_eq!(at(text).to_string(), text);
        }
        assert_eq!(at("2026-03-02T12:00:00+02:00"), at("2026-03-02T10:00:00Z"));
        assert!("2026-03-02".parse::<Timestamp>().is_err());
        assert!("".parse::<Timestamp>().is_err());
    }

    #[test]
    fn folders_are_utc_hours() {
        assert_eq!(at("2026-03-02T23:59:59.999Z").date_hour(), ("2026-03-02".into(), "23".into()));
        assert_eq!(at("1969-12-31T23:59:59.999Z").hour(), at("1969-12-31T23:00:00Z"));
    }

    #[test]
    fn windows_are_half_open_and_never_empty() {
        let (a, b) = (at("2026-03-02T10:30:00Z"), at("2026-03-02T12:00:00Z"));
        let window = Window::new(a, b).unwrap();
        let hours: Vec<_> = window.hours().collect();
        assert_eq!(hours, [at("2026-03-02T10:00:00Z"), at("2026-03-02T11:00:00Z")]);
        assert!(Window::new(b, a).is_err());
        assert!(Window::new(a, a).is_err());
        assert_eq!(window.len_ms(), 5_400_000);
    }
}
