//! One reading: absent, a blank, out of range, or a value in whole parts per million (rules A6 and A15).
//!
//! A value keeps what it was as printed, because two sources conflict where they differ before any rounding or
//! clipping, and a profiler is stuck only where it reads exactly 0.

use std::{cmp::Ordering, str::FromStr};

/// Parts per million of a whole.
pub const PPM: u32 = 1_000_000;

/// Blanks of DCGM's 32-bit type; as f32 all of them are 2147483648.
const INT32_BLANKS: (f64, f64) = (2_147_483_632.0, 2_147_483_647.0);
/// The least blank of DCGM's double type; those of its 64-bit type lie above.
const FP64_BLANK: f64 = 140_737_488_355_328.0;

/// What a field counts in, and with that its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// 0 to 100 (field 203).
    Percent,
    /// 0 to 1, of a whole GPU: up to 1.01 is clipped.
    Ratio,
    /// 0 to 1, of a MIG instance: up to 1.5 is clipped.
    InstanceRatio,
}

/// One field of one sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reading {
    /// Not reported.
    #[default]
    Absent,
    /// DCGM's blank, or not a number.
    Sentinel,
    /// Infinite, or outside the field's range.
    OutOfRange,
    /// A value that counts.
    Valid(Value),
}

/// A value inside its field's range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    ppm: u32,
    printed: Decimal,
    clipped: bool,
    conflict: bool,
}

impl Value {
    /// The value in parts per million of the whole, rounded once, halves away from zero.
    pub fn ppm(self) -> u32 {
        self.ppm
    }

    /// Whether it lay slightly above the whole and was cut to it.
    pub fn clipped(self) -> bool {
        self.clipped
    }

    /// Whether two sources gave valid values that differ as printed.
    pub fn conflict(self) -> bool {
        self.conflict
    }

    /// Whether it is exactly 0 as printed, not only rounded to it.
    pub fn is_zero(self) -> bool {
        self.printed.mantissa == 0
    }

    /// Whether the printed number is at least `number`.
    pub fn at_least(self, number: u32) -> bool {
        self.printed >= Decimal::whole(number.into())
    }
}

impl Reading {
    /// The reading that `text` prints: a decimal, or `NaN`, `+Inf`, `-Inf`.
    pub fn parse(text: &str, unit: Unit) -> Result<Self, BadNumber> {
        match text {
            "NaN" => Ok(Self::Sentinel),
            "+Inf" | "-Inf" => Ok(Self::OutOfRange),
            _ => Self::of_decimal(text.parse()?, unit),
        }
    }

    /// The reading of a stored GPU_UTIL, in whole percent.
    pub fn of_percent(stored: i64) -> Self {
        match u64::try_from(stored) {
            Ok(n) => Self::classify(Decimal { negative: false, mantissa: n, exponent: 0 }, Unit::Percent, |n| {
                (n.mantissa * 10_000) as u32 // classified as 100 at most
            }),
            Err(_) => Self::OutOfRange,
        }
    }

    /// The reading of a stored ratio. An f32 gives back the six decimals that DCGM prints; nine tell any two values
    /// apart and leave none above 0 at 0.
    pub fn of_ratio(stored: f32, on_instance: bool) -> Self {
        let wide = f64::from(stored);
        if stored.is_nan() || wide >= FP64_BLANK || (INT32_BLANKS.0..=INT32_BLANKS.1 + 1.0).contains(&wide) {
            return Self::Sentinel;
        }
        if !(0.0..2.0).contains(&wide) {
            return Self::OutOfRange;
        }
        let ppm = (wide * 1e6).round() as u32;
        let billionths = ((wide * 1e9).round() as u64).max(u64::from(wide > 0.0));
        let printed = Decimal { negative: false, mantissa: billionths, exponent: -9 };
        let unit = if on_instance { Unit::InstanceRatio } else { Unit::Ratio };
        Self::classify(printed, unit, |_| ppm)
    }

    /// The same reading, where the page itself had several values of it.
    #[must_use]
    pub fn in_conflict(self) -> Self {
        match self {
            Self::Valid(value) => Self::Valid(Value { conflict: true, ..value }),
            Self::Absent | Self::Sentinel | Self::OutOfRange => self,
        }
    }

    fn of_decimal(number: Decimal, unit: Unit) -> Result<Self, BadNumber> {
        Ok(Self::classify(number, unit, |number| number.to_ppm(unit)))
    }

    /// Judges a number by its unit; `ppm` is asked only for a number in range that is not clipped.
    fn classify(number: Decimal, unit: Unit, ppm: impl Fn(Decimal) -> u32) -> Self {
        let above = |limit: Decimal| number > limit;
        let (whole, clip_to) = match unit {
            Unit::Percent => (Decimal::whole(100), Decimal::whole(100)),
            Unit::Ratio => (Decimal::whole(1), Decimal { negative: false, mantissa: 101, exponent: -2 }),
            Unit::InstanceRatio => (Decimal::whole(1), Decimal { negative: false, mantissa: 15, exponent: -1 }),
        };
        // Nearly every reading, and nothing below the blanks' numbers is one.
        if !number.is_negative() && !above(whole) {
            return Self::Valid(Value { ppm: ppm(number), printed: number, clipped: false, conflict: false });
        }
        if number >= Decimal::whole(140_737_488_355_328)
            || (number >= Decimal::whole(2_147_483_632) && !above(Decimal::whole(2_147_483_647)))
        {
            return Self::Sentinel;
        }
        if number.is_negative() {
            return Self::OutOfRange;
        }
        if above(clip_to) {
            return Self::OutOfRange;
        }
        Self::Valid(Value { ppm: PPM, printed: number, clipped: true, conflict: false })
    }

    /// One reading of two that two sources gave for the same device and instant (A9): the larger valid value,
    /// else the graver fault. Order-free, and a repetition changes nothing.
    pub fn merge(self, other: Self) -> Self {
        match (self, other) {
            (Self::Valid(a), Self::Valid(b)) => {
                let larger = if a.printed >= b.printed { a } else { b };
                Self::Valid(Value { conflict: a.conflict || b.conflict || a.printed != b.printed, ..larger })
            }
            (Self::Valid(value), _) | (_, Self::Valid(value)) => Self::Valid(value),
            (Self::OutOfRange, _) | (_, Self::OutOfRange) => Self::OutOfRange,
            (Self::Sentinel, _) | (_, Self::Sentinel) => Self::Sentinel,
            (Self::Absent, Self::Absent) => Self::Absent,
        }
    }
}

/// The number that a text prints, exactly: `mantissa x 10^exponent`. Equal and ordered by value.
#[derive(Clone, Copy, Debug)]
struct Decimal {
    negative: bool,
    mantissa: u64,
    exponent: i32,
}

/// Why a text is no number that we take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadNumber {
    /// Not a decimal number.
    #[error("`{0}` is not a decimal number, `NaN`, `+Inf` or `-Inf`")]
    Malformed(String),
    /// More digits than any exporter prints.
    #[error("`{0}` has more than 19 significant digits")]
    TooLong(String),
}

impl Decimal {
    const fn whole(number: u64) -> Self {
        Self { negative: false, mantissa: number, exponent: 0 }
    }

    fn is_negative(self) -> bool {
        self.negative && self.mantissa != 0
    }

    /// Parts per million of the unit's whole, halves away from zero. Only for numbers in range.
    fn to_ppm(self, unit: Unit) -> u32 {
        let shift = self.exponent + if unit == Unit::Percent { 4 } else { 6 };
        let mantissa = u128::from(self.mantissa);
        let ppm = match u32::try_from(shift) {
            Ok(up) => mantissa * 10_u128.pow(up.min(8)), // a value in range leaves no more
            Err(_) if shift < -20 => 0,                  // below half a millionth, whatever the mantissa
            Err(_) => {
                let unit = 10_u128.pow(shift.unsigned_abs());
                (mantissa + unit / 2) / unit
            }
        };
        u32::try_from(ppm).unwrap_or(PPM).min(PPM)
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let magnitude = |a: &Self, b: &Self| {
            if a.exponent == b.exponent || a.mantissa == 0 || b.mantissa == 0 {
                return a.mantissa.cmp(&b.mantissa);
            }
            // Digits before the point decide first; with equally many, the shorter mantissa is padded.
            let (da, db) = (a.mantissa.ilog10() as i32, b.mantissa.ilog10() as i32);
            let pad = |m: u64, by: i32| u128::from(m) * 10_u128.pow(by.max(0).unsigned_abs());
            (i64::from(da) + i64::from(a.exponent))
                .cmp(&(i64::from(db) + i64::from(b.exponent)))
                .then_with(|| pad(a.mantissa, db - da).cmp(&pad(b.mantissa, da - db)))
        };
        match (self.is_negative(), other.is_negative()) {
            (false, false) => magnitude(self, other),
            (true, true) => magnitude(other, self),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Decimal {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Decimal {}

impl FromStr for Decimal {
    type Err = BadNumber;

    fn from_str(text: &str) -> Result<Self, BadNumber> {
        let malformed = || BadNumber::Malformed(text.chars().take(60).collect());
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let (digits, power) = match rest.split_once(['e', 'E']) {
            Some((digits, power)) => (digits, power.parse::<i32>().map_err(|_| malformed())?),
            None => (rest, 0),
        };
        let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
        if whole.len() + part.len() == 0 || !whole.bytes().chain(part.bytes()).all(|b| b.is_ascii_digit()) {
            return Err(malformed());
        }
        let mut significant = whole.bytes().chain(part.bytes()).skip_while(|b| *b == b'0').collect::<Vec<_>>();
        let mut dropped = 0_usize;
        while significant.last() == Some(&b'0') {
            significant.pop();
            dropped += 1;
        }
        if significant.len() > 19 {
            return Err(BadNumber::TooLong(text.chars().take(60).collect()));
        }
        let mantissa = significant.iter().fold(0_u64, |m, b| m * 10 + u64::from(b - b'0'));
        let places = i32::try_from(part.len()).ok().zip(i32::try_from(dropped).ok());
        let exponent = places.and_then(|(part, dropped)| power.checked_sub(part)?.checked_add(dropped));
        // Far outside any range, and far enough inside i32 to compare without care.
        let exponent = exponent.ok_or_else(malformed)?.clamp(-1_000_000, 1_000_000);
        Ok(Self { negative, mantissa, exponent: if mantissa == 0 { 0 } else { exponent } })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ppm(text: &str, unit: Unit) -> Option<u32> {
        match Reading::parse(text, unit).unwrap() {
            Reading::Valid(value) => Some(value.ppm()),
            Reading::Absent | Reading::Sentinel | Reading::OutOfRange => None,
        }
    }

    #[test]
    fn decimals_round_once_and_away_from_zero() {
        for (text, want) in
            [("0.1234565", 123_457), ("0.0000004", 0), ("0.0000005", 1), ("-0", 0), ("1e-40", 0), ("1", PPM), ("1.000001", PPM)]
        {
            assert_eq!(ppm(text, Unit::Ratio), Some(want), "{text}");
        }
        assert_eq!(ppm("47.130143", Unit::Percent), Some(471_301));
        assert_eq!(ppm("1.00e2", Unit::Percent), Some(PPM));
        assert!(matches!(Reading::parse("1e-40", Unit::Ratio), Ok(Reading::Valid(v)) if !v.is_zero()));
    }

    #[test]
    fn blanks_and_nonsense_are_told_apart() {
        for text in ["NaN", "2147483632", "2147483647", "140737488355328.0", "9223372036854775807", "1e300"] {
            assert_eq!(Reading::parse(text, Unit::Ratio), Ok(Reading::Sentinel), "{text}");
        }
        for text in ["+Inf", "-Inf", "-1e-06", "1.010001", "4294967295", "808334905"] {
            assert_eq!(Reading::parse(text, Unit::Ratio), Ok(Reading::OutOfRange), "{text}");
        }
        for text in ["", "-", ".", "1e", "0x1", "1,5", "nan", "0.12345678901234567890123"] {
            assert!(Reading::parse(text, Unit::Ratio).is_err(), "{text}");
        }
    }

    #[test]
    fn an_instance_may_read_above_one() {
        assert_eq!(ppm("1.5", Unit::InstanceRatio), Some(PPM));
        assert_eq!(ppm("1.500001", Unit::InstanceRatio), None);
        assert_eq!(ppm("1.01", Unit::Ratio), Some(PPM));
    }

    #[test]
    fn stored_values_read_like_printed_ones() {
        for n in (0..=1_010_003_u32).step_by(997) {
            let text = format!("{}.{:06}", n / PPM, n % PPM);
            let stored: f32 = text.parse().unwrap();
            let (a, b) = (Reading::parse(&text, Unit::Ratio).unwrap(), Reading::of_ratio(stored, false));
            let key = |r| match r {
                Reading::Valid(v) => Some((v.ppm(), v.clipped(), v.is_zero())),
                Reading::Absent | Reading::Sentinel | Reading::OutOfRange => None,
            };
            assert_eq!(key(a), key(b), "{text}");
        }
        for text in ["1.01", "1.010001", "1.5", "1.500001"] {
            for on_instance in [false, true] {
                let unit = if on_instance { Unit::InstanceRatio } else { Unit::Ratio };
                let stored = Reading::of_ratio(text.parse().unwrap(), on_instance);
                assert_eq!(matches!(stored, Reading::Valid(_)), ppm(text, unit).is_some(), "{text}");
            }
        }
        assert_eq!(Reading::of_percent(101), Reading::OutOfRange);
        assert_eq!(Reading::of_percent(-1), Reading::OutOfRange);
        assert_eq!(Reading::of_percent(i64::MAX), Reading::Sentinel);
        assert_eq!(Reading::of_percent(37), Reading::parse("37", Unit::Percent).unwrap());
        assert_eq!(Reading::of_ratio(f32::NAN, false), Reading::Sentinel);
        assert_eq!(Reading::of_ratio(2_147_483_632.0, false), Reading::Sentinel);
        assert_eq!(Reading::of_ratio(-0.1, false), Reading::OutOfRange);
    }

    #[test]
    fn a_merge_takes_the_larger_and_says_where_they_differ() {
        let r = |text| Reading::parse(text, Unit::InstanceRatio).unwrap();
        let all = ["0.5", "0.50", "0.7", "1.2", "1.3", "NaN", "-1"].map(r);
        for a in all {
            assert_eq!(a.merge(a), a);
            assert_eq!(Reading::Absent.merge(a), a);
            for b in all {
                assert_eq!(a.merge(b), b.merge(a));
            }
        }
        assert!(matches!(r("0.5").merge(r("0.50")), Reading::Valid(v) if !v.conflict()));
        assert!(matches!(r("1.2").merge(r("1.3")), Reading::Valid(v) if v.conflict() && v.clipped()));
        assert_eq!(r("NaN").merge(r("-1")), Reading::OutOfRange);
    }
}
