//! What time it is in the fleet: set by the caller, or running from an instant at some speed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Instant,
};

use schemas::Timestamp;

/// The fleet's clock; clones are the same clock.
#[derive(Clone, Debug)]
pub struct SimClock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Fleet time at `origin`.
    base_ms: AtomicI64,
    origin: Instant,
    speed: f64,
}

impl SimClock {
    /// A clock that stands at `at` until it is set.
    pub fn stopped(at: Timestamp) -> Self {
        Self::running(at, 0.0)
    }

    /// A clock that shows `at` now and runs `speed` times as fast as the wall's.
    pub fn running(at: Timestamp, speed: f64) -> Self {
        Self(Arc::new(Inner { base_ms: AtomicI64::new(at.ms()), origin: Instant::now(), speed }))
    }

    fn run_ms(&self) -> i64 {
        (self.0.origin.elapsed().as_secs_f64() * 1000.0 * self.0.speed) as i64
    }

    /// What time it is.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_ms(self.0.base_ms.load(Ordering::Acquire) + self.run_ms())
    }

    /// Makes it `at` now; a running clock runs on from there.
    pub fn set(&self, at: Timestamp) {
        self.0.base_ms.store(at.ms() - self.run_ms(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_clock_shows_what_it_was_set_to() {
        let clock = SimClock::stopped(Timestamp::from_ms(5));
        assert_eq!(clock.now(), Timestamp::from_ms(5));
        clock.clone().set(Timestamp::from_ms(7));
        assert_eq!(clock.now(), Timestamp::from_ms(7));
    }

    #[test]
    fn a_running_clock_runs_on_from_where_it_was_set() {
        let clock = SimClock::running(Timestamp::from_ms(0), 1e6);
        clock.set(Timestamp::from_ms(1_000_000_000_000));
        let first = clock.now();
        while clock.now() == first {}
        assert!(first.ms() >= 1_000_000_000_000 && clock.now() > first);
    }
}
