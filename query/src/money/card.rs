//! The rate card: pools with what they match and when they hold.
//!
//! The first pool in file order that matches wins. Pools of one match are of one rank: they may follow each other in time, and
//! two that hold at one instant are an error. Time is known by the hour, so an hour that a pool's validity touches is the
//! pool's; where two of one match meet inside an hour, its time is shared out by the GPU time that each pays for in it.

use std::{collections::BTreeSet, fmt};

use ledger::{
    input::Text,
    money::{Input, MoneyError, Pool, Terms},
};
use schemas::{HOUR_MS, Timestamp, Window};

/// What a match may look at, in the order of [`Labels`].
pub const LABELS: [&str; 5] = ["provider", "region", "product", "purchase_option", "reservation"];

/// Labels of GPU time.
pub type Labels = [Option<Text>; 5];

/// A rate card that was checked.
#[derive(Clone, Debug)]
pub struct Card {
    /// Where it was read from, for messages.
    pub file: String,
    /// Currency of every price.
    pub currency: Text,
    /// Over what idle time is charged by use.
    pub period: Period,
    /// Pools in file order.
    pub entries: Vec<Entry>,
}

/// Over what idle time is charged by use (M7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// UTC months.
    Month,
    /// Whatever window is asked for.
    Window,
}

/// One pool of a card.
#[derive(Clone, Debug)]
pub struct Entry {
    /// How it is priced.
    pub pool: Pool,
    /// What it is for.
    pub matches: Match,
    /// First instant that it holds for.
    pub from: Timestamp,
    /// First instant after.
    pub to: Timestamp,
    /// 1-based line of the card.
    pub line: usize,
}

/// Exact texts by label; an absent label matches anything, also what has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Match(pub [Option<BTreeSet<Text>>; 5]);

impl Match {
    /// Whether it holds for `labels`.
    pub fn fits(&self, labels: &Labels) -> bool {
        let one = |(wanted, has): (&Option<BTreeSet<Text>>, &Option<Text>)| match (wanted, has) {
            (None, _) => true,
            (Some(wanted), Some(has)) => wanted.contains(has),
            (Some(_), None) => false,
        };
        self.0.iter().zip(labels).all(one)
    }

    /// The only text that it allows for a label, where it is one.
    pub fn only(&self, label: usize) -> Option<&Text> {
        self.0[label].as_ref().filter(|texts| texts.len() == 1).and_then(BTreeSet::first)
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |(label, texts): (&&str, &Option<BTreeSet<Text>>)| {
            let texts: Vec<&str> = texts.as_ref()?.iter().map(|text| &**text).collect();
            Some(if texts.len() == 1 { format!("{label}: {}", texts[0]) } else { format!("{label}: [{}]", texts.join(", ")) })
        };
        write!(f, "{{{}}}", LABELS.iter().zip(&self.0).filter_map(one).collect::<Vec<_>>().join(", "))
    }
}

impl Entry {
    /// Whether it holds at some instant of a span.
    pub fn touches(&self, from: Timestamp, to: Timestamp) -> bool {
        self.from < to && self.to > from
    }
}

/// What is wrong with a card as a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardFault {
    /// Two pools of one rank at one instant.
    #[error(
        "pools `{first}` (line {first_line}) and `{second}` (line {second_line}) have the same match {matches} and both hold \
         from {from} to {to}; end one where the other begins, or tell them apart by their match (reservation, for one)"
    )]
    Overlap {
        /// The earlier in the file.
        first: Text,
        /// Its line.
        first_line: usize,
        /// The later.
        second: Text,
        /// Its line.
        second_line: usize,
        /// What both match.
        matches: String,
        /// First instant of both.
        from: Timestamp,
        /// First instant after.
        to: Timestamp,
    },
    /// Usage is known by the hour.
    #[error("line {line}, pool `{pool}`: {at} is not on a full UTC hour, as the validity of a per_use pool must be")]
    InsideHour {
        /// Its line.
        line: usize,
        /// The pool.
        pool: Text,
        /// The bound.
        at: Timestamp,
    },
    /// A validity without length.
    #[error("line {line}, pool `{pool}`: it holds from {from} to {to}, which is no time at all")]
    NoTime {
        /// Its line.
        line: usize,
        /// The pool.
        pool: Text,
        /// Its begin.
        from: Timestamp,
        /// Its end.
        to: Timestamp,
    },
    /// A pool with a name that has a meaning of its own.
    #[error("line {line}: a pool cannot be called `{pool}`, which is where time without a price stands; give it another name")]
    Reserved {
        /// Its line.
        line: usize,
        /// The pool.
        pool: Text,
    },
    /// What the ledger says of a pool.
    #[error("line {line}: {fault}")]
    Pool {
        /// Its line.
        line: usize,
        /// What is wrong.
        fault: MoneyError,
    },
}

impl Card {
    /// Checks what needs all pools.
    pub fn checked(self) -> Result<Self, CardFault> {
        for entry in &self.entries {
            let (line, pool) = (entry.line, entry.pool.name.clone());
            if &*pool == super::costs::UNPRICED {
                return Err(CardFault::Reserved { line, pool });
            }
            if entry.from >= entry.to && entry.pool.term().is_none() {
                return Err(CardFault::NoTime { line, pool, from: entry.from, to: entry.to });
            }
            if let Some(at) = [entry.from, entry.to].into_iter().find(|at| *at != at.hour() && entry.pool.term().is_none()) {
                return Err(CardFault::InsideHour { line, pool, at });
            }
        }
        self.pools()?;
        for (number, first) in self.entries.iter().enumerate() {
            for second in &self.entries[number + 1..] {
                if first.matches == second.matches && first.touches(second.from, second.to) {
                    return Err(CardFault::Overlap {
                        first: first.pool.name.clone(),
                        first_line: first.line,
                        second: second.pool.name.clone(),
                        second_line: second.line,
                        matches: first.matches.to_string(),
                        from: first.from.max(second.from),
                        to: first.to.min(second.to),
                    });
                }
            }
        }
        Ok(self)
    }

    /// The ledger's own checks, each fault with the line of its pool.
    fn pools(&self) -> Result<(), CardFault> {
        let mut before = Vec::new();
        for entry in &self.entries {
            before.push(entry.pool.clone());
            let window = Window::new(Timestamp::from_ms(0), Timestamp::from_ms(1))
                .map_err(|_| CardFault::Pool { line: entry.line, fault: MoneyError::OutsidePeriod })?;
            let input = Input {
                currency: self.currency.clone(),
                window,
                period: None,
                pools: before,
                runs: vec![],
                usage: vec![],
                restarts: vec![],
            };
            input.validate().map_err(|fault| CardFault::Pool { line: entry.line, fault })?;
            before = input.pools;
        }
        Ok(())
    }

    /// What is odd about it, though it can be used: gaps between the validities of one match.
    pub fn warnings(&self) -> Vec<String> {
        let mut ranks: Vec<&Match> = self.entries.iter().map(|entry| &entry.matches).collect();
        ranks.sort();
        ranks.dedup();
        let mut warnings = Vec::new();
        for rank in ranks {
            let mut of_rank: Vec<&Entry> = self.entries.iter().filter(|entry| entry.matches == *rank).collect();
            of_rank.sort_by_key(|entry| entry.from);
            for pair in of_rank.windows(2).filter(|pair| pair[0].to < pair[1].from) {
                let (before, after) = (pair[0], pair[1]);
                warnings.push(format!(
                    "{}: no price from {} to {} for {rank}, between pools `{}` (line {}) and `{}` (line {}): that time goes to a \
                     later pool that matches it, or is unpriced",
                    self.file, before.to, after.from, before.pool.name, before.line, after.pool.name, after.line
                ));
            }
        }
        warnings
    }

    /// Pools that time with these labels belongs to in the hour: one, or those of one match that meet in it, with the GPU time
    /// that each pays for in it.
    pub fn pools_of(&self, labels: &Labels, hour: Timestamp) -> Vec<(usize, i64)> {
        let end = hour.plus_ms(HOUR_MS);
        let touching = || self.entries.iter().enumerate().filter(move |(_, entry)| entry.touches(hour, end));
        let Some((_, first)) = touching().find(|(_, entry)| entry.matches.fits(labels)) else { return Vec::new() };
        let of_rank = touching().filter(|(_, entry)| entry.matches == first.matches);
        let weighed = of_rank.map(|(number, entry)| {
            let ms = entry.to.min(end).ms() - entry.from.max(hour).ms();
            (number, entry.pool.term().map_or(1, |term| term.gpus).saturating_mul(ms))
        });
        weighed.collect()
    }

    /// The per-use pool of such time in the hour, where that is what it belongs to.
    pub fn per_use_of(&self, labels: &Labels, hour: Timestamp) -> Option<usize> {
        let pools = self.pools_of(labels, hour);
        pools.into_iter().map(|(number, _)| number).find(|number| matches!(self.entries[*number].pool.terms, Terms::PerUse(_)))
    }

    /// First and last instant that any pool holds for.
    pub fn reach(&self) -> Option<(Timestamp, Timestamp)> {
        let from = self.entries.iter().map(|entry| entry.from).min()?;
        Some((from, self.entries.iter().map(|entry| entry.to).max()?))
    }
}
