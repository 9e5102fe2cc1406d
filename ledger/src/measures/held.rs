//! Things held over time in units of their own: memory (V20) and the seats of a serving page (V21).

use super::{
    MeasureError,
    exact::{Ratio, add, mul, whole},
    length,
};

/// Memory over time; DCGM's unit is MiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryHours {
    /// MiB x ms.
    pub mib_ms: i64,
    /// In GiB-hours, six places.
    pub gib_hours: String,
    /// In GB-hours (10^9 bytes), six places.
    pub gb_hours: String,
}

/// Sum of `(mib, ms)` steps.
pub fn memory_hours(steps: &[(u64, i64)]) -> Result<MemoryHours, MeasureError> {
    let sum = steps.iter().try_fold(0, |sum, (mib, ms)| add(sum, mul(i128::from(*mib), length(*ms)?)?))?;
    let hours = |num: i128, den: i128| Ratio::new(sum, 3_600_000)?.times(num, den)?.six_places();
    Ok(MemoryHours { mib_ms: whole(sum)?, gib_hours: hours(1, 1024)?, gb_hours: hours(1_048_576, 1_000_000_000)? })
}

/// Seats over time and their share of the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeatHours {
    /// Seats taken x ms.
    pub seat_ms: i64,
    /// Seats there x ms.
    pub capacity_seat_ms: i64,
    /// Taken of those there, in parts per million; none where there were none.
    pub used_ppm: Option<i64>,
}

/// Sum of `(seats, ms)` steps of a page with `capacity` seats.
pub fn seat_hours(capacity: u64, steps: &[(u64, i64)]) -> Result<SeatHours, MeasureError> {
    let (mut taken, mut there) = (0, 0);
    for (seats, ms) in steps {
        let ms = length(*ms)?;
        taken = add(taken, mul(i128::from(*seats), ms)?)?;
        there = add(there, mul(capacity.into(), ms)?)?;
    }
    let share = || whole(Ratio::new(taken, there)?.times(1_000_000, 1)?.nearest()?);
    let used_ppm = if there == 0 { None } else { Some(share()?) };
    Ok(SeatHours { seat_ms: whole(taken)?, capacity_seat_ms: whole(there)?, used_ppm })
}
