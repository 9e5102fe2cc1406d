//! Mean utilization by jobs and by the time that they held (worked number V27).

use super::{
    Decimal, MeasureError,
    exact::{Ratio, add, mul},
    length,
};

/// Jobs that were alike.
#[derive(Clone, Copy, Debug)]
pub struct Jobs {
    /// How many.
    pub count: u32,
    /// Devices of each.
    pub gpus: u32,
    /// Time that each held them.
    pub ms: i64,
    /// Utilization of each.
    pub u: Decimal,
}

/// Both means with six places; none where there is nothing to take the mean of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Means {
    /// Every job counts the same.
    pub per_job: Option<String>,
    /// Every device-hour counts the same.
    pub gpu_hour: Option<String>,
}

/// Both means of `jobs`.
pub fn means(jobs: &[Jobs]) -> Result<Means, MeasureError> {
    let weighted = |weight: &dyn Fn(&Jobs) -> Result<i128, MeasureError>| -> Result<Option<String>, MeasureError> {
        let mut unit = 1;
        for job in jobs {
            unit = unit.max(job.u.parts().1); // powers of ten: the largest is common
        }
        let (mut sum, mut weights) = (0, 0);
        for job in jobs {
            let (digits, own) = job.u.parts();
            let weight = weight(job)?;
            sum = add(sum, mul(weight, mul(digits, unit / own)?)?)?;
            weights = add(weights, weight)?;
        }
        if weights == 0 { Ok(None) } else { Ratio::new(sum, weights)?.times(1, unit)?.six_places().map(Some) }
    };
    Ok(Means {
        per_job: weighted(&|job| Ok(job.count.into()))?,
        gpu_hour: weighted(&|job| mul(i128::from(job.count) * i128::from(job.gpus), length(job.ms)?))?,
    })
}
