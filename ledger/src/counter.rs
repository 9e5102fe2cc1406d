//! Increases of a counter that may start again (rule A10).

use schemas::Timestamp;

/// First blank of DCGM's 64-bit type; what is greater is its kind.
const INT64_BLANK: i64 = 9_223_372_036_854_775_792;

/// What lies between two readings of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The earlier reading's instant.
    pub from: Timestamp,
    /// The later reading's.
    pub to: Timestamp,
    /// By how much it grew at least.
    pub increase: i64,
    /// How it moved.
    pub kind: StepKind,
}

/// How a counter moved from one reading to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Up, or not at all.
    Rise,
    /// It started again: the value after it is a lower bound.
    Reset,
    /// It fell to a value that it could not have reached since: nothing is known, nothing is added.
    Implausible,
}

/// The readings that count: sorted, each instant once with its largest value, blanks left out.
pub fn readings(mut raw: Vec<(Timestamp, i64)>) -> Vec<(Timestamp, i64)> {
    raw.retain(|(_, value)| *value < INT64_BLANK);
    raw.sort_unstable();
    raw.reverse();
    raw.dedup_by_key(|(at, _)| *at);
    raw.reverse();
    raw
}

/// The steps between `readings`, which are sorted. `max_per_s` is the most that it can grow in a second.
pub fn steps(readings: &[(Timestamp, i64)], max_per_s: Option<i64>) -> impl Iterator<Item = Step> {
    readings.windows(2).map(move |pair| {
        let [(from, before), (to, after)] = [pair[0], pair[1]];
        let ms = i128::from(to.ms()) - i128::from(from.ms());
        let possible = max_per_s.is_none_or(|max| i128::from(after) * 1000 <= i128::from(max) * ms);
        let (increase, kind) = match (after >= before, possible) {
            (true, _) => (after.saturating_sub(before), StepKind::Rise),
            (false, true) => (after, StepKind::Reset),
            (false, false) => (0, StepKind::Implausible),
        };
        Step { from, to, increase, kind }
    })
}

impl Step {
    /// The part of the increase in `[from, to)`, which lies inside the step: spread evenly, so that the parts of any
    /// cut sum to the whole.
    pub fn part(self, from: Timestamp, to: Timestamp) -> i64 {
        let length = i128::from(self.to.ms()) - i128::from(self.from.ms());
        let until = |at: Timestamp| {
            let grown = i128::from(self.increase) * (i128::from(at.ms()) - i128::from(self.from.ms()));
            grown.checked_div(length).and_then(|grown| i64::try_from(grown).ok()).unwrap_or(0)
        };
        until(to) - until(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_any_cut_sum_to_the_whole() {
        let at = Timestamp::from_ms;
        let step = Step { from: at(0), to: at(7), increase: 100, kind: StepKind::Rise };
        for cut in 0..=7 {
            assert_eq!(step.part(at(0), at(cut)) + step.part(at(cut), at(7)), 100);
        }
        assert_eq!(step.part(at(0), at(1)), 14);
    }
}
