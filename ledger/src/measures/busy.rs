//! How many devices of a gang were busy over time (worked number V12). The gang's width is the floor of what it can do with;
//! percentiles say what it did with.

use super::{
    MeasureError,
    exact::{add, mul},
    length,
};

/// Devices busy, by share of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyProfile {
    /// Smallest number not exceeded for half of the time.
    pub p50: u32,
    /// The same for 95 % of it.
    pub p95: u32,
    /// The most at any time.
    pub max: u32,
}

/// The profile of `(busy devices, ms)` steps; none where they have no time.
pub fn profile(steps: &[(u32, i64)]) -> Result<Option<BusyProfile>, MeasureError> {
    let mut sorted = Vec::with_capacity(steps.len());
    let mut total = 0;
    for (busy, ms) in steps {
        let ms = length(*ms)?;
        if ms > 0 {
            sorted.push((*busy, ms));
            total = add(total, ms)?;
        }
    }
    sorted.sort_unstable();
    let at = |percent: i128| -> Result<Option<u32>, MeasureError> {
        let (enough, mut sum) = (mul(total, percent)?, 0);
        for (busy, ms) in &sorted {
            sum = add(sum, *ms)?;
            if mul(sum, 100)? >= enough {
                return Ok(Some(*busy));
            }
        }
        Ok(None)
    };
    let (p50, p95, max) = (at(50)?, at(95)?, at(100)?);
    Ok(p50.zip(p95).zip(max).map(|((p50, p95), max)| BusyProfile { p50, p95, max }))
}
