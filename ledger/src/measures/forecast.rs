//! Whether a forecast's quantile was honest (worked number V31): as many of the held-out values at or below it as it promised,
//! within two standard deviations of the binomial.

use super::{
    Decimal, MeasureError,
    exact::{Ratio, mul},
};

/// What was promised and what came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// Values expected at or below the quantile, six places.
    pub expected: String,
    /// The square of two standard deviations, six places: 4 n p (1 - p).
    pub two_sd_squared: String,
    /// Whether the count lies within them, bounds included.
    pub honest: bool,
}

/// Of `n` held-out values, `at_or_below` lay at or below the quantile `p` (in (0, 1)).
pub fn calibration(n: u32, p: Decimal, at_or_below: u32) -> Result<Calibration, MeasureError> {
    let (digits, unit) = p.parts();
    if digits == 0 || digits >= unit {
        return Err(MeasureError::Input("p is not between 0 and 1; a quantile is, such as 0.9".into()));
    }
    if n == 0 || at_or_below > n {
        return Err(MeasureError::Input(format!("{at_or_below} of {n} values; give 0 to n of n > 0")));
    }
    let n = i128::from(n);
    let expected = Ratio::new(mul(n, digits)?, unit)?;
    let two_sd_squared = expected.times(unit - digits, unit)?.times(4, 1)?;
    let (num, den) = expected.parts();
    // (k - np)^2 <= 4 n p (1 - p)
    let away = Ratio::new(mul(at_or_below.into(), den)? - num, den)?;
    let (away_num, away_den) = away.parts();
    let away = Ratio::new(away_num, away_den)?.times(away_num, away_den)?;
    let ((a, b), (c, d)) = (away.parts(), two_sd_squared.parts());
    let honest = mul(a, d)? <= mul(c, b)?;
    Ok(Calibration { expected: expected.six_places()?, two_sd_squared: two_sd_squared.six_places()?, honest })
}
