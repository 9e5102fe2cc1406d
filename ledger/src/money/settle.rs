//! Who had the GPU time that was paid for in a window (M4, M6 to M9), before any money.

use std::collections::BTreeMap;

use super::{Bucket, Input, MoneyError, Pool, Run, Terms, UsedBasis, overlap};
use crate::{
    fraction::{Frac, TooFine, share_out},
    input::Text,
};

/// How long pods may outlive what the provider bills (M6).
const TOLERANCE_MS: i64 = 15 * 60_000;

/// One pool's time.
#[derive(Debug)]
pub(super) struct Time {
    /// Paid for, pads left out.
    pub(super) capacity: i64,
    /// Held, lost or not to be given, as far as it is paid for; in order of the rows.
    pub(super) parts: BTreeMap<(Bucket, Option<Text>), i64>,
    /// Held beyond what is paid for.
    pub(super) not_billed: i64,
    /// Of a block, after its instances.
    pub(super) tail: i64,
    /// What is left.
    pub(super) idle: i64,
    /// Work lost, beside the sum.
    pub(super) memo: BTreeMap<Option<Text>, i64>,
}

impl Time {
    /// Use by team, for by_use: without unready time, with restart waste.
    pub(super) fn uses(&self) -> Vec<(Option<Text>, i64)> {
        let mut uses: BTreeMap<Option<Text>, i64> = BTreeMap::new();
        for ((bucket, team), gpu_ms) in &self.parts {
            if matches!(bucket, Bucket::Team | Bucket::Unattributed | Bucket::RestartWaste) {
                *uses.entry(team.clone()).or_default() += gpu_ms;
            }
        }
        uses.into_iter().collect()
    }
}

/// Settles one pool.
pub(super) fn pool(input: &Input, pool: &Pool, runs: &[&Run]) -> Result<Time, MoneyError> {
    settle(input, pool, runs).map_err(|error| match error {
        Stop::TooFine => MoneyError::Overflow(pool.name.clone()),
        Stop::Refused(refused) => refused,
    })
}

enum Stop {
    TooFine,
    Refused(MoneyError),
}

impl From<TooFine> for Stop {
    fn from(_: TooFine) -> Self {
        Self::TooFine
    }
}

fn settle(input: &Input, pool: &Pool, runs: &[&Run]) -> Result<Time, Stop> {
    let window = input.window;
    let (capacity, tail) = match pool.term() {
        None => (runs.iter().map(|run| overlap(run.gpus, run.from.ms(), run.to.ms(), window)).sum(), 0),
        Some(term) => {
            let gone = term.usable_to.unwrap_or(term.to);
            let paid = overlap(term.gpus, term.from.ms(), term.to.ms(), window);
            (paid, overlap(term.gpus, gone.ms(), term.to.ms(), window))
        }
    };
    let (mut parts, memo) = held(input, pool);
    let used: i128 = parts.values().sum();
    let over = used - capacity;
    if over > 0 {
        let tolerance = tolerance(pool, runs, window)?;
        if over > tolerance {
            return Err(Stop::Refused(MoneyError::UsageExceedsCapacity {
                pool: pool.name.clone(),
                used: whole(used)?,
                capacity: whole(capacity)?,
                tolerance: whole(tolerance)?,
            }));
        }
        take_off(&mut parts, over)?;
    }
    let left = (-over).max(0);
    let tail = tail.min(left);
    let parts = parts.into_iter().map(|(key, gpu_ms)| Ok((key, whole(gpu_ms)?))).collect::<Result<_, TooFine>>()?;
    let memo = memo.into_iter().filter(|(_, lost)| *lost > 0).map(|(team, lost)| Ok((team, whole(lost)?)));
    Ok(Time {
        capacity: whole(capacity)?,
        parts,
        not_billed: whole(over.max(0))?,
        tail: whole(tail)?,
        idle: whole(left - tail)?,
        memo: memo.collect::<Result<_, TooFine>>()?,
    })
}

fn whole(gpu_ms: i128) -> Result<i64, TooFine> {
    i64::try_from(gpu_ms).map_err(|_| TooFine)
}

/// GPU time by (bucket, team).
type Parts = BTreeMap<(Bucket, Option<Text>), i128>;

/// Usage and lost work, added up; and lost work that the usage holds.
fn held(input: &Input, pool: &Pool) -> (Parts, BTreeMap<Option<Text>, i128>) {
    let mut parts = Parts::new();
    let mut add = |bucket, team: Option<Text>, gpu_ms: i64| *parts.entry((bucket, team)).or_default() += i128::from(gpu_ms);
    for usage in input.usage.iter().filter(|usage| usage.pool == pool.name) {
        if usage.unavailable {
            add(Bucket::Unavailable, None, usage.gpu_ms);
            continue;
        }
        let bucket = if usage.team.is_some() { Bucket::Team } else { Bucket::Unattributed };
        add(bucket, usage.team.clone(), usage.gpu_ms - usage.on_unready_gpu_ms);
        add(Bucket::Unready, None, usage.on_unready_gpu_ms);
    }
    let productive = matches!(&pool.terms, Terms::PerUse(terms) if terms.basis == UsedBasis::Productive);
    let mut memo: BTreeMap<Option<Text>, i128> = BTreeMap::new();
    let inside = |at: schemas::Timestamp| input.window.from() <= at && at < input.window.to();
    for restart in input.restarts.iter().filter(|restart| restart.pool == pool.name && restart.at.is_none_or(inside)) {
        if productive {
            add(Bucket::RestartWaste, restart.team.clone(), restart.gpu_ms);
        } else {
            *memo.entry(restart.team.clone()).or_default() += i128::from(restart.gpu_ms);
        }
    }
    (parts, memo)
}

/// Usage above capacity that is no wrong join.
fn tolerance(pool: &Pool, runs: &[&Run], window: schemas::Window) -> Result<i128, TooFine> {
    if let Some(given) = pool.tolerance_gpu_ms {
        return Ok(given.into());
    }
    let early = window.from().plus_ms(-TOLERANCE_MS);
    let near = |from: schemas::Timestamp, to: schemas::Timestamp| from < window.to() && to > early;
    let gpus: i128 = match pool.term() {
        Some(term) => {
            if near(term.from, term.to) {
                term.gpus.into()
            } else {
                0
            }
        }
        None => runs.iter().filter(|run| near(run.from, run.to)).map(|run| i128::from(run.gpus)).sum(),
    };
    gpus.checked_mul(TOLERANCE_MS.into()).ok_or(TooFine)
}

/// Takes what is over off the unready time first, then off all parts in proportion.
fn take_off(parts: &mut Parts, over: i128) -> Result<(), TooFine> {
    let mut over = over;
    if let Some(unready) = parts.get_mut(&(Bucket::Unready, None)) {
        let off = over.min(*unready);
        *unready -= off;
        over -= off;
    }
    if over == 0 {
        return Ok(());
    }
    let all: i128 = parts.values().sum();
    let shares: Vec<Frac> = parts.values().map(|gpu_ms| Frac::new(*gpu_ms, 1).times(over, all)).collect::<Result<_, _>>()?;
    for (gpu_ms, off) in parts.values_mut().zip(share_out(whole(over)?, &shares)?) {
        *gpu_ms -= i128::from(off);
    }
    Ok(())
}
