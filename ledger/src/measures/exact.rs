//! Checked fractions, and decimals as printed.

use super::MeasureError;

/// `num / den`, den above 0, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ratio {
    num: i128,
    den: i128,
}

impl Ratio {
    pub(super) fn new(num: i128, den: i128) -> Result<Self, MeasureError> {
        if den <= 0 {
            return Err(MeasureError::TooLarge);
        }
        let common = gcd(num, den).max(1);
        Ok(Self { num: num / common, den: den / common })
    }

    pub(super) fn times(self, num: i128, den: i128) -> Result<Self, MeasureError> {
        let other = Self::new(num, den)?;
        let across = Self::new(self.num, other.den)?;
        let back = Self::new(other.num, self.den)?;
        Self::new(mul(across.num, back.num)?, mul(across.den, back.den)?)
    }

    /// The nearest whole number, halves up.
    pub(super) fn nearest(self) -> Result<i128, MeasureError> {
        Ok(add(mul(self.num, 2)?, self.den)?.div_euclid(mul(self.den, 2)?))
    }

    pub(super) fn ceiling(self) -> i128 {
        self.num.div_euclid(self.den) + i128::from(self.num.rem_euclid(self.den) != 0)
    }

    /// With six places, halves up: for figures of 0 and above.
    pub(super) fn six_places(self) -> Result<String, MeasureError> {
        let millionths = self.times(1_000_000, 1)?.nearest()?;
        Ok(format!("{}.{:06}", millionths.div_euclid(1_000_000), millionths.rem_euclid(1_000_000)))
    }

    /// As a fraction.
    pub(super) const fn parts(self) -> (i128, i128) {
        (self.num, self.den)
    }
}

pub(super) fn add(a: i128, b: i128) -> Result<i128, MeasureError> {
    a.checked_add(b).ok_or(MeasureError::TooLarge)
}

pub(super) fn mul(a: i128, b: i128) -> Result<i128, MeasureError> {
    a.checked_mul(b).ok_or(MeasureError::TooLarge)
}

/// The number of a table: 64 bits.
pub(super) fn whole(number: i128) -> Result<i64, MeasureError> {
    i64::try_from(number).map_err(|_| MeasureError::TooLarge)
}

fn gcd(a: i128, b: i128) -> i128 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    i128::try_from(a).unwrap_or(1)
}

/// A decimal of 0 and above, exactly as printed: `0.9` is nine tenths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    digits: i64,
    /// A power of ten.
    unit: i64,
}

impl Decimal {
    /// Reads `12`, `0.125` or `9e-1`, with at most 18 digits.
    pub fn parse(text: &str) -> Result<Self, MeasureError> {
        let bad = || MeasureError::Input(format!("`{}` is no decimal such as 0.125", text.chars().take(40).collect::<String>()));
        let (number, exponent) = match text.split_once(['e', 'E']) {
            Some((number, exponent)) => (number, exponent.parse::<i32>().map_err(|_| bad())?),
            None => (text, 0),
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let digits = format!("{whole}{part}");
        if whole.is_empty() || digits.len() > 18 || !digits.bytes().all(|b| b.is_ascii_digit()) || !(-18..=18).contains(&exponent)
        {
            return Err(bad());
        }
        let places = part.len() as i32 - exponent;
        let digits: i64 = digits.parse().map_err(|_| bad())?;
        let power = |places: i32| u32::try_from(places).ok().and_then(|p| 10_i64.checked_pow(p));
        match places {
            0.. => Ok(Self { digits, unit: power(places).ok_or_else(bad)? }),
            _ => Ok(Self { digits: power(-places).and_then(|p| digits.checked_mul(p)).ok_or_else(bad)?, unit: 1 }),
        }
    }

    /// Whether it is above one.
    pub const fn above_one(self) -> bool {
        self.digits > self.unit
    }

    pub(super) fn parts(self) -> (i128, i128) {
        (self.digits.into(), self.unit.into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn decimals_are_what_is_printed() {
        for (text, digits, unit) in
            [("0.9", 9, 10), ("1", 1, 1), ("5e-1", 5, 10), ("2e2", 200, 1), ("1.50", 150, 100), ("1.5e1", 15, 1)]
        {
            assert_eq!(Decimal::parse(text), Ok(Decimal { digits, unit }), "{text}");
        }
        for text in ["", "-1", "+1", ".5", "1.2.3", "x", "1e", "1e99", "NaN", "inf", &"9".repeat(40), "1e-99", "1 "] {
            assert!(Decimal::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn fractions_round_halves_up_and_never_wrap() {
        let ratio = |num, den| Ratio::new(num, den).unwrap();
        assert_eq!(ratio(1, 2).nearest(), Ok(1));
        assert_eq!(ratio(-1, 2).nearest(), Ok(0));
        assert_eq!(ratio(1, 2_000_000).six_places().unwrap(), "0.000001");
        assert_eq!(ratio(1262, 3).six_places().unwrap(), "420.666667");
        assert_eq!(ratio(6, 3).ceiling(), 2);
        assert_eq!(ratio(7, 3).ceiling(), 3);
        assert_eq!(ratio(i128::MAX, 1).times(3, 2), Err(MeasureError::TooLarge));
        assert_eq!(ratio(i128::MAX, 1).nearest(), Err(MeasureError::TooLarge));
        assert!(Ratio::new(1, 0).is_err() && Ratio::new(i128::MIN, i128::MAX).is_ok());
    }
}
