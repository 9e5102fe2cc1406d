//! When each target is due: once an interval, at an offset of its own.
//!
//! The offset is a hash of the target's node and page over the interval, so that a fleet's scrapes are spread evenly, each
//! target keeps its instants over restarts and reloads, and no two rounds of it are more than an interval apart.

use schemas::Timestamp;
use std::collections::BTreeSet;

/// Targets by number, and when each is due next.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    interval_ms: i64,
    due: BTreeSet<(Timestamp, usize)>,
}

impl Schedule {
    /// An empty one; the interval is at least 1 ms.
    pub fn new(interval_ms: i64) -> Self {
        Schedule { interval_ms: interval_ms.max(1), due: BTreeSet::new() }
    }

    /// Adds target `number`, whose first round is within one interval after `now`.
    pub fn add(&mut self, number: usize, offset_ms: i64, now: Timestamp) {
        let into = (now.ms() - offset_ms).rem_euclid(self.interval_ms);
        self.due.insert((now.plus_ms(self.interval_ms - into), number));
    }

    /// Takes out all targets but those that `stay`.
    pub fn keep(&mut self, stay: impl Fn(usize) -> bool) {
        self.due.retain(|(_, number)| stay(*number));
    }

    /// When the next target is due; none where there is none.
    pub fn next(&self) -> Option<Timestamp> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The targets that are due by `now`, each with the number of its rounds that have no time any more. Each is due again at
    /// its first instant after `now`.
    pub fn take(&mut self, now: Timestamp) -> Vec<(usize, u64)> {
        // Where the clock was put back, instants that are far away come down to the first after now. Not those of the next
        // interval: a small step back must not have a target asked twice.
        while let Some(&(at, number)) = self.due.last()
            && at.ms() - now.ms() > 2 * self.interval_ms
        {
            self.due.pop_last();
            let wait = (at.ms() - now.ms() - 1).rem_euclid(self.interval_ms) + 1;
            self.due.insert((now.plus_ms(wait), number));
        }
        let mut taken = Vec::new();
        while let Some(&(at, number)) = self.due.first()
            && at <= now
        {
            self.due.pop_first();
            let late = (now.ms() - at.ms()) / self.interval_ms;
            self.due.insert((at.plus_ms((late + 1) * self.interval_ms), number));
            taken.push((number, late.unsigned_abs()));
        }
        taken
    }
}

/// A target's offset within the interval, in milliseconds: equal on every machine.
pub(crate) fn offset_ms(node: &str, page: &str, interval_ms: i64) -> i64 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(node.as_bytes());
    hash.update(&[0]);
    hash.update(page.as_bytes());
    // Below the interval, for the hash is below 2^32; intervals are below 2^32 ms.
    ((i128::from(hash.finalize()) * i128::from(interval_ms)) >> 32) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_ms(ms)
    }

    #[test]
    fn each_target_is_due_once_an_interval_at_its_offset() {
        let mut schedule = Schedule::new(1000);
        assert_eq!(schedule.next(), None);
        schedule.add(0, 300, at(10_000));
        schedule.add(1, 0, at(10_000));
        schedule.add(2, 300, at(10_300));
        assert_eq!(schedule.next(), Some(at(10_300)));
        assert_eq!(schedule.take(at(10_299)), []);
        assert_eq!(schedule.take(at(10_310)), [(0, 0)]);
        assert_eq!(schedule.take(at(11_299)), [(1, 0)]);
        assert_eq!(schedule.take(at(13_300)), [(0, 2), (2, 2), (1, 1)], "late rounds are told, and are not made up for");
        assert_eq!(schedule.next(), Some(at(14_000)));
        schedule.keep(|number| number != 1);
        assert_eq!(schedule.next(), Some(at(14_300)));
        assert_eq!(schedule.take(at(14_300)), [(0, 0), (2, 0)]);
    }

    #[test]
    fn a_clock_that_is_put_back_stops_nothing() {
        let mut schedule = Schedule::new(1000);
        schedule.add(0, 300, at(100_000));
        schedule.add(1, 0, at(100_000));
        assert_eq!(schedule.take(at(50_000)), []);
        assert_eq!(schedule.next(), Some(at(50_300)));
        assert_eq!(schedule.take(at(51_000)), [(0, 0), (1, 0)]);
        assert_eq!(schedule.take(at(50_999)), [], "a step back is no second round");
        assert_eq!(schedule.next(), Some(at(51_300)));
    }

    #[test]
    fn before_1970_too() {
        let mut schedule = Schedule::new(1000);
        schedule.add(0, 300, at(-1_500));
        assert_eq!(schedule.next(), Some(at(-700)));
    }

    #[test]
    fn offsets_spread_a_fleet_evenly_and_never_change() {
        assert_eq!(offset_ms("dune-1", "http://dune-1:9400/metrics", 15_000), 12_885);
        let mut slots = [0; 15];
        for n in 0..10_000 {
            let node = format!("gpu-node-{n:05}");
            let offset = offset_ms(&node, &format!("http://{node}:9400/metrics"), 15_000);
            slots[usize::try_from(offset).unwrap_or(usize::MAX) / 1000] += 1;
        }
        assert!(slots.iter().all(|n| (467..=867).contains(n)), "a second has some 667 of 10,000: {slots:?}");
    }
}
