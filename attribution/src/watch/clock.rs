//! How far the API server's clock is ahead of ours, from the `Date` header of its answers (rules A3, A11). Pure.
//!
//! `Date` has whole seconds: an answer that we asked for at `sent` and had at `received` says that at some instant between the
//! two the server's clock stood in `[date, date + 1 s)`. So each answer bounds the difference, and what all recent answers have
//! in common bounds it better than a second.

use std::collections::VecDeque;

use schemas::Timestamp;

/// Answers that are remembered.
const KEPT: usize = 64;
/// How long an answer counts: clocks drift.
const COUNTS_MS: i64 = 600_000;

/// The difference of two clocks, as bounded by recent answers.
#[derive(Clone, Debug, Default)]
pub struct ApiClock {
    /// When received, by our clock, and bounds of the difference, both inclusive.
    bounds: VecDeque<(i64, i64, i64)>,
}

impl ApiClock {
    /// Takes one answer: `date` is its header.
    pub fn answer(&mut self, sent: Timestamp, received: Timestamp, date: Timestamp) {
        let bound = (received.ms(), date.ms() - received.ms(), date.ms() + 999 - sent.ms());
        if bound.1 > bound.2 {
            return; // our clock was set back meanwhile: it says nothing
        }
        self.bounds.push_back(bound);
        let old = received.ms() - COUNTS_MS;
        while self.bounds.len() > KEPT || self.bounds.front().is_some_and(|(at, _, _)| *at < old) {
            self.bounds.pop_front();
        }
        // One of the clocks was set: what was measured before it does not hold any more.
        while self.common().is_none() && self.bounds.len() > 1 {
            self.bounds.pop_front();
        }
    }

    /// The API server's clock minus ours, in ms, and by how much that may be wrong. None before the first answer.
    pub fn ahead_ms(&self) -> Option<(i64, i64)> {
        let (low, high) = self.common()?;
        Some(((low + high).div_euclid(2), (high - low + 1) / 2))
    }

    fn common(&self) -> Option<(i64, i64)> {
        let low = self.bounds.iter().map(|(_, low, _)| *low).max()?;
        let high = self.bounds.iter().map(|(_, _, high)| *high).min()?;
        (low <= high).then_some((low, high))
    }
}

/// Reads an HTTP date (`Sun, 06 Nov 1994 08:49:37 GMT`).
pub fn http_date(text: &str) -> Option<Timestamp> {
    let mut words = text.trim().split_once(", ")?.1.split(' ');
    let (day, month, year, time, zone) = (words.next()?, words.next()?, words.next()?, words.next()?, words.next()?);
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    if zone != "GMT" || words.next().is_some() {
        return None;
    }
    format!("{year}-{month:02}-{day}T{time}Z").parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ms(ms: i64) -> Timestamp {
        Timestamp::from_ms(ms)
    }

    #[test]
    fn answers_narrow_the_difference_below_their_own_second() {
        let mut clock = ApiClock::default();
        assert_eq!(clock.ahead_ms(), None);
        // The server is 2,350 ms ahead; each answer takes 10 ms and its date is cut to seconds.
        for sent in (0..60_000).step_by(970) {
            let server = sent + 5 + 2_350;
            clock.answer(ms(sent), ms(sent + 10), ms(server - server % 1000));
            let (ahead, error) = clock.ahead_ms().unwrap();
            assert!((ahead - 2_350).abs() <= error, "{ahead} +- {error}");
        }
        let (ahead, error) = clock.ahead_ms().unwrap();
        assert!(error <= 30 && (ahead - 2_350).abs() <= 30, "{ahead} +- {error}");
    }

    #[test]
    fn a_clock_that_was_set_is_measured_anew() {
        let mut clock = ApiClock::default();
        clock.answer(ms(10_000), ms(10_010), ms(10_000));
        clock.answer(ms(20_000), ms(20_010), ms(80_000));
        let (ahead, error) = clock.ahead_ms().unwrap();
        assert!((ahead - 60_500).abs() <= 10 && error <= 510, "{ahead} +- {error}");
        clock.answer(ms(30_000), ms(29_000), ms(90_000));
        assert!(clock.ahead_ms().is_some(), "an answer before its question is left out");
    }

    #[test]
    fn dates_of_headers_are_read() {
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(ms(784_111_777_000)));
        for bad in
            ["", "Sunday", "Sun, 06 Foo 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 CET", "Sun, 99 Nov 1994 08:49:37 GMT"]
        {
            assert_eq!(http_date(bad), None, "{bad}");
        }
    }
}
