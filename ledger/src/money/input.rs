//! What is priced: pools with their terms, the runs that a provider bills, usage, and restarts.

use std::collections::BTreeMap;

use schemas::{Timestamp, Window};

use super::{Bucket, MoneyError};
use crate::input::Text;

/// One window to be priced.
#[derive(Clone, Debug)]
pub struct Input {
    /// Currency of every price.
    pub currency: Text,
    /// What is priced.
    pub window: Window,
    /// The invoice's period; none: the window.
    pub period: Option<Window>,
    /// Prices.
    pub pools: Vec<Pool>,
    /// What per-use providers bill; an exact repeat counts once.
    pub runs: Vec<Run>,
    /// Who held how much.
    pub usage: Vec<Usage>,
    /// Work that was lost.
    pub restarts: Vec<Restart>,
}

/// GPU time that is bought alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name, unique.
    pub name: Text,
    /// reserved, on-demand, spot, block, ...
    pub purchase_option: Option<Text>,
    /// Its currency where it names one; must be the card's.
    pub currency: Option<Text>,
    /// Who pays for idle time.
    pub idle: Idle,
    /// Usage above capacity that is no error (M6); none: 15 minutes of the GPUs paid for.
    pub tolerance_gpu_ms: Option<i64>,
    /// How it is paid for.
    pub terms: Terms,
}

/// Who pays for idle time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Nobody in particular.
    Central,
    /// Who used the pool, in proportion, once per charging period.
    ByUse,
    /// One team.
    Owner(Text),
}

/// How a pool is paid for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Terms {
    /// By the time it runs.
    PerUse(PerUse),
    /// A number of GPUs for a term.
    Commitment(Term),
    /// The same for one fee; the instances go before the end.
    Block(Term),
}

/// Paid by the time it runs: on demand, spot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerUse {
    /// Price of an hour of `gpus_per_price` GPUs.
    pub micro_per_hour: i64,
    /// GPUs that the price is for: 1, or those of a node.
    pub gpus_per_price: i64,
    /// A run's length is rounded up to this.
    pub increment_ms: i64,
    /// And billed for this at least.
    pub minimum_ms: i64,
    /// What usage holds.
    pub basis: UsedBasis,
    /// Runs that ended before the window and are not listed.
    pub opening: Opening,
}

/// Whether usage holds the work that restarts lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedBasis {
    /// It does: waste is a memo.
    Billed,
    /// It does not: waste is a row.
    Productive,
}

impl UsedBasis {
    /// The text in tables and rate cards.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Billed => "billed",
            Self::Productive => "productive",
        }
    }
}

/// GPU time of runs that ended before the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// Used.
    pub used_gpu_ms: i64,
    /// Billed beyond that.
    pub pad_gpu_ms: i64,
}

/// Paid ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// How many.
    pub gpus: i64,
    /// First instant paid for.
    pub from: Timestamp,
    /// First instant after.
    pub to: Timestamp,
    /// Upfront, or the block's fee.
    pub fee_micro: i64,
    /// On all hours of the term; 0 for a block.
    pub recurring_micro_per_gpu_hour: i64,
    /// When a block's instances go.
    pub usable_to: Option<Timestamp>,
    /// When the fee is due; none: as the term begins.
    pub paid_at: Option<Timestamp>,
}

/// What a per-use provider bills.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// Its id.
    pub id: Text,
    /// Its pool.
    pub pool: Text,
    /// First instant of this pool.
    pub from: Timestamp,
    /// First instant after.
    pub to: Timestamp,
    /// How many GPUs.
    pub gpus: i64,
    /// Where its length is counted from: before `from` where another price held then.
    pub billed_from: Timestamp,
    /// Whether it ends at `to`; one that goes on has no pad yet.
    pub ends: bool,
}

/// GPU time that somebody held, or that nobody could.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The pool.
    pub pool: Text,
    /// Who; none for the unattributed.
    pub team: Option<Text>,
    /// First instant; inside the window.
    pub from: Timestamp,
    /// First instant after.
    pub to: Timestamp,
    /// How much.
    pub gpu_ms: i64,
    /// Part of it that is not the tenant's.
    pub on_unready_gpu_ms: i64,
    /// Held by nobody, on devices that could not be given.
    pub unavailable: bool,
}

/// Work that was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restart {
    /// The pool.
    pub pool: Text,
    /// Whose.
    pub team: Option<Text>,
    /// GPU time lost.
    pub gpu_ms: i64,
    /// When; one outside the window is another window's. None: inside.
    pub at: Option<Timestamp>,
}

impl Pool {
    /// The bucket of time that is paid for and free.
    pub fn idle_bucket(&self) -> Bucket {
        match self.terms {
            Terms::PerUse(_) => Bucket::Idle,
            Terms::Commitment(_) | Terms::Block(_) => Bucket::ReservedIdle,
        }
    }

    /// Its term, where it has one.
    pub fn term(&self) -> Option<&Term> {
        match &self.terms {
            Terms::PerUse(_) => None,
            Terms::Commitment(term) | Terms::Block(term) => Some(term),
        }
    }

    /// Checks numbers by themselves.
    pub fn validate(&self) -> Result<(), MoneyError> {
        let mut numbers = vec![("tolerance", self.tolerance_gpu_ms.unwrap_or(0))];
        let gpus = match &self.terms {
            Terms::PerUse(terms) => {
                numbers.extend([
                    ("the price", terms.micro_per_hour),
                    ("increment", terms.increment_ms),
                    ("minimum", terms.minimum_ms),
                    ("opening used time", terms.opening.used_gpu_ms),
                    ("opening pad", terms.opening.pad_gpu_ms),
                ]);
                terms.gpus_per_price
            }
            Terms::Commitment(term) | Terms::Block(term) => {
                numbers.extend([("upfront or fee", term.fee_micro), ("recurring", term.recurring_micro_per_gpu_hour)]);
                term.gpus
            }
        };
        none_negative(|| format!("pool `{}`", self.name), &numbers)?;
        if gpus <= 0 { Err(MoneyError::NoGpus(self.name.clone())) } else { Ok(()) }
    }
}

impl Term {
    fn is_bad(&self) -> bool {
        self.to <= self.from || self.usable_to.is_some_and(|usable| usable < self.from || usable > self.to)
    }
}

fn none_negative(of: impl FnOnce() -> String, numbers: &[(&'static str, i64)]) -> Result<(), MoneyError> {
    match numbers.iter().find(|(_, value)| *value < 0) {
        Some(&(what, value)) => Err(MoneyError::Negative { of: of(), what, value }),
        None => Ok(()),
    }
}

impl Input {
    /// Every check but that of usage against capacity, in the order in which errors are named.
    pub fn validate(&self) -> Result<(), MoneyError> {
        self.bad_input()?;
        for pool in &self.pools {
            if let Some(found) = pool.currency.as_ref().filter(|found| **found != self.currency) {
                let expected = self.currency.clone();
                return Err(MoneyError::MixedCurrency { pool: pool.name.clone(), found: found.clone(), expected });
            }
        }
        if let Some(pool) = self.pools.iter().find(|pool| pool.term().is_some_and(Term::is_bad)) {
            return Err(MoneyError::BadTerm(pool.name.clone()));
        }
        let known: std::collections::BTreeSet<&Text> = self.pools.iter().map(|pool| &pool.name).collect();
        let per_use: std::collections::BTreeSet<&Text> =
            self.pools.iter().filter(|pool| pool.term().is_none()).map(|pool| &pool.name).collect();
        let unknown = |what, pool: &Text| MoneyError::UnknownPool { what, pool: pool.clone() };
        if let Some(usage) = self.usage.iter().find(|usage| !known.contains(&usage.pool)) {
            return Err(unknown("usage", &usage.pool));
        }
        if let Some(run) = self.runs.iter().find(|run| !per_use.contains(&run.pool)) {
            return Err(unknown("a run", &run.pool));
        }
        if let Some(restart) = self.restarts.iter().find(|restart| !known.contains(&restart.pool)) {
            return Err(unknown("a restart", &restart.pool));
        }
        let window = self.window;
        match self.usage.iter().find(|usage| usage.from < window.from() || usage.to > window.to()) {
            Some(usage) => Err(MoneyError::UsageOutsideWindow(usage.pool.clone())),
            None => Ok(()),
        }
    }

    fn bad_input(&self) -> Result<(), MoneyError> {
        if self.period.is_some_and(|period| period.from() > self.window.from() || period.to() < self.window.to()) {
            return Err(MoneyError::OutsidePeriod);
        }
        let mut names = std::collections::BTreeSet::new();
        for pool in &self.pools {
            pool.validate()?;
            if !names.insert(&pool.name) {
                return Err(MoneyError::PoolTwice(pool.name.clone()));
            }
        }
        let mut runs: BTreeMap<&Text, &Run> = BTreeMap::new();
        for run in &self.runs {
            none_negative(|| format!("run `{}`", run.id), &[("the number of GPUs", run.gpus)])?;
            if run.to <= run.from || run.billed_from > run.from {
                return Err(MoneyError::RunBackwards(run.id.clone()));
            }
            if runs.insert(&run.id, run).is_some_and(|other| other != run) {
                return Err(MoneyError::RunTwice(run.id.clone()));
            }
        }
        for usage in &self.usage {
            let numbers = [("GPU time", usage.gpu_ms), ("time on unready nodes", usage.on_unready_gpu_ms)];
            none_negative(|| format!("usage of pool `{}`", usage.pool), &numbers)?;
            if usage.to < usage.from {
                return Err(MoneyError::UsageBackwards(usage.pool.clone()));
            }
            if usage.on_unready_gpu_ms > usage.gpu_ms {
                let (unready, gpu_ms) = (usage.on_unready_gpu_ms, usage.gpu_ms);
                return Err(MoneyError::UnreadyAboveUse { pool: usage.pool.clone(), unready, gpu_ms });
            }
        }
        for restart in &self.restarts {
            none_negative(|| format!("a restart of pool `{}`", restart.pool), &[("the time lost", restart.gpu_ms)])?;
        }
        Ok(())
    }

    /// Runs, exact repeats once.
    pub(super) fn distinct_runs(&self) -> Vec<&Run> {
        let mut runs: Vec<&Run> = self.runs.iter().collect();
        runs.sort();
        runs.dedup();
        runs
    }
}
