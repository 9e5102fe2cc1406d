//! What a pool costs (M1 to M3): its cumulative cost up to an instant, rounded; a window costs the difference.

use schemas::{HOUR_MS, Window};

use super::{Pool, Run, Term, Terms, overlap};
use crate::fraction::{Frac, TooFine};

/// The exact price of a GPU millisecond in a pool: the same at every instant of it.
#[derive(Clone, Copy, Debug)]
pub struct Rate(Frac);

impl Rate {
    /// Of a pool.
    pub fn of(pool: &Pool) -> Result<Self, TooFine> {
        let hour = i128::from(HOUR_MS);
        match &pool.terms {
            Terms::PerUse(terms) => Ok(Self(Frac::new(terms.micro_per_hour.into(), hour * i128::from(terms.gpus_per_price)))),
            Terms::Commitment(term) | Terms::Block(term) => {
                let fee = Frac::new(term.fee_micro.into(), i128::from(term.gpus) * i128::from(length(term)));
                Ok(Self(fee.plus(Frac::new(term.recurring_micro_per_gpu_hour.into(), hour))?))
            }
        }
    }

    /// Of so much time, exactly.
    pub(super) fn exact(&self, gpu_ms: Frac) -> Result<Frac, TooFine> {
        gpu_ms.by(self.0)
    }

    /// Of so much time, to the nearest micro-unit, half up.
    pub fn price(&self, gpu_ms: i64) -> Result<i64, TooFine> {
        self.exact(Frac::whole(gpu_ms))?.nearest()
    }
}

/// What a pool costs in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// Its cost.
    pub micro: i64,
    /// Of that what is billed beyond the time used, where a pad falls in the window and it comes to money.
    pub minimum_micro: Option<i64>,
    /// What falls due.
    pub cash_micro: i64,
}

impl Amount {
    /// Of `pool` with its runs, which are distinct.
    pub fn of(pool: &Pool, runs: &[&Run], window: Window) -> Result<Self, TooFine> {
        match &pool.terms {
            Terms::PerUse(_) => per_use(pool, runs, window),
            Terms::Commitment(term) | Terms::Block(term) => paid_ahead(term, window),
        }
    }
}

impl Pool {
    /// GPU time that a run of it is billed beyond its length; none while it goes on.
    pub fn pad_of(&self, run: &Run) -> Result<i128, TooFine> {
        match &self.terms {
            Terms::PerUse(terms) => run_pad(terms.increment_ms, terms.minimum_ms, run),
            Terms::Commitment(_) | Terms::Block(_) => Ok(0),
        }
    }

    /// Cost of so much GPU time of a per-use pool since it began, rounded once.
    pub fn cost_of(&self, gpu_ms: i128) -> Result<i64, TooFine> {
        Rate::of(self)?.exact(Frac::new(gpu_ms, 1))?.nearest()
    }
}

fn length(term: &Term) -> i64 {
    term.to.ms().saturating_sub(term.from.ms())
}

fn difference(later: i64, earlier: i64) -> Result<i64, TooFine> {
    later.checked_sub(earlier).ok_or(TooFine)
}

fn paid_ahead(term: &Term, window: Window) -> Result<Amount, TooFine> {
    let (fee, recurring) = (Frac::whole(term.fee_micro), Frac::new(term.recurring_micro_per_gpu_hour.into(), HOUR_MS.into()));
    let up_to = |at: i64| {
        let elapsed = i128::from(at.clamp(term.from.ms(), term.to.ms()).saturating_sub(term.from.ms()));
        let fee = fee.times(elapsed, length(term).into())?.nearest()?;
        let gpu_ms = elapsed.checked_mul(term.gpus.into()).ok_or(TooFine)?;
        Ok((fee, recurring.times(gpu_ms, 1)?.nearest()?))
    };
    let (before, after) = (up_to(window.from().ms())?, up_to(window.to().ms())?);
    let (fee, recurring) = (difference(after.0, before.0)?, difference(after.1, before.1)?);
    let paid_at = term.paid_at.unwrap_or(term.from);
    let due = if window.from() <= paid_at && paid_at < window.to() { term.fee_micro } else { 0 };
    Ok(Amount {
        micro: fee.checked_add(recurring).ok_or(TooFine)?,
        minimum_micro: None,
        cash_micro: due.checked_add(recurring).ok_or(TooFine)?,
    })
}

fn per_use(pool: &Pool, runs: &[&Run], window: Window) -> Result<Amount, TooFine> {
    let Terms::PerUse(terms) = &pool.terms else { return Err(TooFine) };
    let rate = Rate::of(pool)?;
    let cost = |gpu_ms: i128| rate.exact(Frac::new(gpu_ms, 1))?.nearest();
    let (mut used, mut pad) = (i128::from(terms.opening.used_gpu_ms), i128::from(terms.opening.pad_gpu_ms));
    let (mut used_inside, mut pad_inside, mut has_pad) = (0, 0, false);
    for run in runs {
        if run.from < window.from() {
            used += i128::from(run.gpus) * i128::from(run.to.min(window.from()).ms() - run.from.ms());
        }
        used_inside += overlap(run.gpus, run.from.ms(), run.to.ms(), window);
        let of_run = run_pad(terms.increment_ms, terms.minimum_ms, run)?;
        if run.to <= window.from() {
            pad += of_run;
        } else if run.to <= window.to() {
            pad_inside += of_run;
            has_pad |= of_run > 0;
        }
    }
    let micro = difference(cost(used + pad + used_inside + pad_inside)?, cost(used + pad)?)?;
    let of_use = difference(cost(used + used_inside)?, cost(used)?)?;
    let minimum = difference(micro, of_use)?;
    Ok(Amount { micro, minimum_micro: (has_pad && minimum > 0).then_some(minimum), cash_micro: micro })
}

/// GPU time that a run is billed beyond its length; none while it goes on.
fn run_pad(increment_ms: i64, minimum_ms: i64, run: &Run) -> Result<i128, TooFine> {
    if !run.ends {
        return Ok(0);
    }
    let length = i128::from(run.to.ms()) - i128::from(run.billed_from.ms());
    let increment = i128::from(increment_ms.max(1));
    let billed = ((length + increment - 1) / increment * increment).max(minimum_ms.into());
    (billed - length).checked_mul(run.gpus.into()).ok_or(TooFine)
}
