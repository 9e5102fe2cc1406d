//! Hours, days, weeks and months of a named time zone, as bounds in UTC (rule A13).
//!
//! A day on which clocks shift has 23, 24.5 or 25 hours; an hour that is repeated is two, told apart by their offsets.

use jiff::{ToSpan, Zoned, civil::Date, tz::TimeZone};

use crate::Timestamp;

/// Most buckets of one list: more than twenty years of hours.
const MAX_BUCKETS: usize = 200_000;

/// A time zone by its name in the IANA database.
#[derive(Clone, Debug)]
pub struct Zone(TimeZone);

/// What the calendar cannot tell.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    /// A name that the database does not have.
    #[error("time zone `{0}` is not known; give a name of the IANA database such as Europe/Berlin, Asia/Kolkata or UTC")]
    UnknownZone(String),
    /// A date that is none.
    #[error("`{0}` is no date; give one such as 2026-03-01")]
    BadDate(String),
    /// A month that is none.
    #[error("`{0}` is no month; give one such as 2026-03")]
    BadMonth(String),
    /// More buckets than anyone reads.
    #[error("the window has over {MAX_BUCKETS} {unit}s; narrow it, or take a longer bucket")]
    TooMany {
        /// Of which length.
        unit: &'static str,
    },
    /// Outside the years that a calendar has.
    #[error("{0} ms since 1970 is outside the years of the calendar")]
    OutOfRange(i64),
}

/// Length of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A local hour; cut where the clock shifts.
    Hour,
    /// A local day.
    Day,
    /// An ISO week, from Monday.
    Week,
    /// A month.
    Month,
}

/// One bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// `2026-11-01T01:00-0700`, `2026-11-01`, `2026-W44` or `2026-11`.
    pub label: String,
    /// First instant.
    pub from: Timestamp,
    /// First instant after it.
    pub to: Timestamp,
}

impl Zone {
    /// The zone of that name.
    pub fn parse(name: &str) -> Result<Self, CalendarError> {
        let unknown = |_| CalendarError::UnknownZone(name.to_owned());
        if name.is_empty() {
            return Err(CalendarError::UnknownZone(name.to_owned()));
        }
        TimeZone::get(name).map(Self).map_err(unknown)
    }

    /// The first instant of a local date such as `2026-03-01`.
    pub fn day(&self, text: &str) -> Result<Timestamp, CalendarError> {
        let date: Date = text.parse().map_err(|_| CalendarError::BadDate(text.to_owned()))?;
        self.start(date)
    }

    /// The bounds of a local month such as `2026-03`.
    pub fn month(&self, text: &str) -> Result<(Timestamp, Timestamp), CalendarError> {
        let bad = || CalendarError::BadMonth(text.to_owned());
        let date: Date = format!("{text}-01").parse().map_err(|_| bad())?;
        let next = date.checked_add(1.month()).map_err(|_| bad())?;
        if text.len() != 7 {
            return Err(bad());
        }
        Ok((self.start(date)?, self.start(next)?))
    }

    fn start(&self, date: Date) -> Result<Timestamp, CalendarError> {
        let begin = date.to_zoned(self.0.clone()).map_err(|_| CalendarError::OutOfRange(i64::MAX))?;
        let at = Timestamp::from_ms(begin.timestamp().as_millisecond());
        if begin.hour() == 0 && begin.minute() == 0 && begin.second() == 0 {
            return Ok(at);
        }
        // A shift of the clock leaves midnight out: the day begins where the clock goes on, if that is in it.
        let shift = self.0.preceding(begin.timestamp()).next();
        let shift = shift.map(|shift| Timestamp::from_ms(shift.timestamp().as_millisecond()));
        match shift {
            Some(shift) if self.local(shift)?.date() == date => Ok(shift),
            Some(_) | None => Ok(at),
        }
    }

    fn local(&self, at: Timestamp) -> Result<Zoned, CalendarError> {
        let out = |_| CalendarError::OutOfRange(at.ms());
        Ok(jiff::Timestamp::from_millisecond(at.ms()).map_err(out)?.to_zoned(self.0.clone()))
    }
}

impl Unit {
    const fn word(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }

    fn label(self, begin: &Zoned) -> String {
        let format = match self {
            Self::Hour => "%Y-%m-%dT%H:%M%z",
            Self::Day => "%Y-%m-%d",
            Self::Week => "%G-W%V",
            Self::Month => "%Y-%m",
        };
        begin.strftime(format).to_string()
    }
}

/// Every bucket of `zone` that has an instant of `[from, to)`, in order; the first and the last may reach over its ends.
pub fn buckets(zone: &Zone, unit: Unit, from: Timestamp, to: Timestamp) -> Result<Vec<Bucket>, CalendarError> {
    let mut buckets = Vec::new();
    let mut begin = begin_of(zone, unit, from)?;
    while begin < to {
        if buckets.len() == MAX_BUCKETS {
            return Err(CalendarError::TooMany { unit: unit.word() });
        }
        let local = zone.local(begin)?;
        let end = end_of(zone, unit, &local)?;
        buckets.push(Bucket { label: unit.label(&local), from: begin, to: end });
        begin = end;
    }
    Ok(buckets)
}

/// The begin of the bucket that holds `at`.
fn begin_of(zone: &Zone, unit: Unit, at: Timestamp) -> Result<Timestamp, CalendarError> {
    let local = zone.local(at)?;
    let date = local.date();
    let first = match unit {
        Unit::Hour => {
            let past = i64::from(local.minute()) * 60_000 + i64::from(local.second()) * 1000 + i64::from(local.millisecond());
            let full = at.plus_ms(-past);
            // A shift of the clock since the full hour begins a bucket of its own.
            let shifts = shifts(zone, full.plus_ms(-86_400_000), at.plus_ms(1))?;
            let last = shifts.into_iter().rfind(|shift| *shift <= at);
            return Ok(last.map_or(full, |shift| shift.max(full)));
        }
        Unit::Day => date,
        Unit::Week => {
            let back = i64::from(date.weekday().to_monday_zero_offset());
            date.checked_sub(back.days()).map_err(|_| CalendarError::OutOfRange(at.ms()))?
        }
        Unit::Month => date.first_of_month(),
    };
    zone.start(first)
}

/// The end of the bucket that begins at `begin`.
fn end_of(zone: &Zone, unit: Unit, begin: &Zoned) -> Result<Timestamp, CalendarError> {
    let at = Timestamp::from_ms(begin.timestamp().as_millisecond());
    if unit == Unit::Hour {
        let past = i64::from(begin.minute()) * 60_000 + i64::from(begin.second()) * 1000;
        let full = at.plus_ms(3_600_000 - past);
        return Ok(shifts(zone, at, full)?.into_iter().find(|shift| *shift > at).unwrap_or(full));
    }
    let mut date = begin.date();
    loop {
        let step = match unit {
            Unit::Hour | Unit::Day => 1.day(),
            Unit::Week => 1.week(),
            Unit::Month => 1.month(),
        };
        date = date.checked_add(step).map_err(|_| CalendarError::OutOfRange(at.ms()))?;
        // A day that the zone leaves out has no time.
        let end = zone.start(date)?;
        if end > at {
            return Ok(end);
        }
    }
}

/// Instants in `(from, to)` at which the zone's offset changes.
fn shifts(zone: &Zone, from: Timestamp, to: Timestamp) -> Result<Vec<Timestamp>, CalendarError> {
    let begin = zone.local(from)?;
    let mut offset = begin.offset();
    let mut found = Vec::new();
    for transition in zone.0.following(begin.timestamp()) {
        let at = Timestamp::from_ms(transition.timestamp().as_millisecond());
        if at >= to {
            break;
        }
        if transition.offset() != offset {
            offset = transition.offset();
            found.push(at);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn check(zone: &str, unit: Unit, from: &str, to: &str, expected: &[(&str, i64)]) {
        let zone = Zone::parse(zone).unwrap();
        let list = buckets(&zone, unit, zone.day(from).unwrap(), zone.day(to).unwrap()).unwrap();
        let list: Vec<(&str, i64)> = list.iter().map(|b| (b.label.as_str(), (b.to.ms() - b.from.ms()) / 60_000)).collect();
        assert_eq!(list, expected);
    }

    #[test]
    fn days_of_23_and_25_hours() {
        check("America/Los_Angeles", Unit::Day, "2026-11-01", "2026-11-02", &[("2026-11-01", 25 * 60)]);
        check("America/Los_Angeles", Unit::Day, "2026-03-08", "2026-03-09", &[("2026-03-08", 23 * 60)]);
        check("Europe/Berlin", Unit::Month, "2026-10-01", "2026-11-01", &[("2026-10", 745 * 60)]);
    }

    #[test]
    fn weeks_begin_on_monday_and_have_the_years_of_iso() {
        check("UTC", Unit::Week, "2026-12-31", "2027-01-05", &[("2026-W53", 7 * 1440), ("2027-W01", 7 * 1440)]);
    }

    #[test]
    fn a_day_that_the_zone_left_out_is_no_bucket() {
        check("Pacific/Apia", Unit::Day, "2011-12-29", "2012-01-01", &[("2011-12-29", 1440), ("2011-12-31", 1440)]);
    }

    #[test]
    fn a_day_without_a_midnight_begins_where_the_clock_goes_on() {
        // Toronto, 30 March 1919: 23:30 was followed by 00:30.
        check("America/Toronto", Unit::Day, "1919-03-30", "1919-04-01", &[("1919-03-30", 1410), ("1919-03-31", 1410)]);
    }

    #[test]
    fn hours_are_those_of_the_wall() {
        let zone = Zone::parse("Asia/Kolkata").unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let list = buckets(&zone, Unit::Hour, at("2026-03-02T10:00:00Z"), at("2026-03-02T11:00:00Z")).unwrap();
        let labels: Vec<&str> = list.iter().map(|b| b.label.as_str()).collect();
        assert_eq!(labels, ["2026-03-02T15:00+0530", "2026-03-02T16:00+0530"]);
        assert_eq!(list[0].to, at("2026-03-02T10:30:00Z"));
        let howe = Zone::parse("Australia/Lord_Howe").unwrap();
        let day = buckets(&howe, Unit::Hour, howe.day("2026-04-05").unwrap(), howe.day("2026-04-06").unwrap()).unwrap();
        assert_eq!(day.len(), 25);
        assert_eq!(day.iter().map(|b| b.to.ms() - b.from.ms()).min(), Some(1_800_000));
        assert_eq!(day.iter().map(|b| b.to.ms() - b.from.ms()).sum::<i64>(), 24 * 3_600_000 + 1_800_000);
    }

    #[test]
    fn what_is_no_zone_date_or_month_is_refused() {
        assert!(Zone::parse("Europe/Berlim").unwrap_err().to_string().contains("`Europe/Berlim` is not known"));
        assert!(Zone::parse("").is_err() && Zone::parse("../../etc/passwd").is_err());
        let utc = Zone::parse("UTC").unwrap();
        assert!(utc.day("2026-02-30").is_err() && utc.month("2026-13").is_err() && utc.month("2026-3").is_err());
        assert!(matches!(
            buckets(&utc, Unit::Hour, Timestamp::from_ms(0), Timestamp::from_ms(253_402_300_000_000)),
            Err(CalendarError::TooMany { .. })
        ));
        assert!(buckets(&utc, Unit::Day, Timestamp::from_ms(i64::MAX - 5), Timestamp::from_ms(i64::MAX)).is_err());
    }
}
