//! The local hour and weekday of every hour of a fleet: what the load of a day and of a week hangs on.

use jiff::{Timestamp, tz::TimeZone};
use schemas::HOUR_MS;

use crate::spec::FleetSpec;

/// Load by hour of the local day, permille of the peak.
const DAY: [i64; 24] =
    [330, 270, 230, 210, 220, 270, 360, 480, 620, 760, 860, 920, 950, 970, 1000, 990, 960, 910, 850, 780, 700, 610, 510, 410];
/// Load by day of the local week, Monday first, permille of the peak (chosen).
const WEEK: [i64; 7] = [1000, 1000, 1000, 1000, 950, 700, 720];

/// The load of every hour of a fleet, computed when it is planned.
#[derive(Clone, Debug)]
pub(crate) struct Calendar {
    start: i64,
    hours: Vec<i64>,
}

impl Calendar {
    /// The hours of `spec` and one more, in its time zone; UTC where there is no such zone.
    pub fn of(spec: &FleetSpec) -> Self {
        Self::in_zone(spec.start.ms(), spec.hours, &TimeZone::get(&spec.time_zone).unwrap_or(TimeZone::UTC))
    }

    fn in_zone(start: i64, hours: u32, zone: &TimeZone) -> Self {
        let load = |hour: u32| {
            let at = Timestamp::from_millisecond(start + i64::from(hour) * HOUR_MS).unwrap_or(Timestamp::UNIX_EPOCH);
            let local = at.to_zoned(zone.clone());
            let day = local.weekday().to_monday_zero_offset() as usize % 7;
            DAY[local.hour() as usize % 24] * WEEK[day] / 1000
        };
        Self { start, hours: (0..=hours).map(load).collect() }
    }

    /// A day in UTC from the epoch on.
    #[cfg(test)]
    pub fn utc() -> Self {
        Self::in_zone(0, 24, &TimeZone::UTC)
    }

    /// Mean load of the fleet's hours, permille of the peak.
    pub fn mean_pm(&self) -> i64 {
        self.hours.iter().sum::<i64>() / self.hours.len() as i64
    }

    /// Load at `at`, permille of the peak; outside the fleet's time as in its first or last hour.
    pub fn load_pm(&self, at: i64) -> i64 {
        let hour = (at - self.start).div_euclid(HOUR_MS).clamp(0, self.hours.len() as i64 - 1);
        self.hours[hour as usize]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_day_has_the_hours_of_its_zone_and_a_week_its_end() {
        let zone = TimeZone::get("America/New_York").unwrap();
        let start = "2026-03-06T00:00:00Z".parse::<Timestamp>().unwrap().as_millisecond();
        let calendar = Calendar::in_zone(start, 72, &zone);
        let at = |hour: i64| calendar.load_pm(start + hour * HOUR_MS + 1);
        assert_eq!(at(0), DAY[19], "Thursday, seven in the evening");
        assert_eq!(at(19), DAY[14] * 950 / 1000, "Friday, two in the afternoon");
        assert_eq!(at(43), DAY[14] * 700 / 1000, "Saturday");
        // The clock goes forward on Sunday at two: five hours behind UTC, then four.
        assert_eq!((at(54), at(55)), (DAY[1] * 720 / 1000, DAY[3] * 720 / 1000));
        assert_eq!(at(-5), at(0));
    }
}
