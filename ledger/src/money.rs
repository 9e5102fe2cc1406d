//! Money: what was paid for, shared out to who held it (rules A14, M1 to M10). Pure, exact, by allocation; never by utilization.
//!
//! ```text
//! pools ──┬─> amount: what a pool costs up to an instant, rounded once; a window costs the difference
//! runs ───┤
//! usage ──┼─> settle: GPU time paid for -> teams, unready, unavailable, idle, tail, what is not billed
//! restarts┘                                └──> rows: each priced on its own; `rounding` is what is left of the amount
//! ```
//!
//! The rows of a pool sum to its amount, the amounts to the total. Every row is its exact price to the nearest micro-unit,
//! half up, and depends on no other row. A figure that does not fit is [`MoneyError::Overflow`], never another figure.
//!
//! Modules in reading order: [`input`], `amount`, `settle`, [`case`].

use std::collections::BTreeMap;

use schemas::Window;

use crate::{
    fraction::{Frac, share_out},
    input::Text,
};

mod amount;
pub mod case;
pub mod input;
mod settle;

pub use crate::fraction::TooFine;
pub use amount::{Amount, Rate};
pub use input::{Idle, Input, Opening, PerUse, Pool, Restart, Run, Term, Terms, Usage, UsedBasis};

macro_rules! words {
    ($(#[$top:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$top])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every one, in byte order of the texts.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The text in tables.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// The one whose text is `text`.
            pub fn from_text(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

words! {
    /// What a row's money is for; the order is that of the texts.
    Bucket {
        /// Billed beyond the time used: minimum or increment of a run.
        BillingMinimum = "billing_minimum",
        /// Paid for after a block's instances are gone, and held by nobody.
        BlockTail = "block_tail",
        /// Paid by use, ready, held by nobody.
        Idle = "idle",
        /// Held beyond what the provider bills: time without money.
        NotBilled = "not_billed",
        /// Paid ahead, ready, held by nobody.
        ReservedIdle = "reserved_idle",
        /// Work lost to restarts, where the usage leaves it out.
        RestartWaste = "restart_waste",
        /// The same, where the usage holds it: beside the sum.
        RestartWasteMemo = "restart_waste_memo",
        /// The amount less all other rows: a few micro-units.
        Rounding = "rounding",
        /// Held by pods of a team.
        Team = "team",
        /// Held by pods of no team.
        Unattributed = "unattributed",
        /// Held by nobody on a device that could not be given.
        Unavailable = "unavailable",
        /// Held on a node that was not ready.
        Unready = "unready",
    }
}

words! {
    /// Which rule made an idle row.
    IdleRule {
        /// In proportion of use, once per charging period.
        ByUse = "by_use",
        /// Nobody's.
        Central = "central",
        /// The pool's owner's.
        Owner = "owner",
    }
}

/// One row of a bill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The pool.
    pub pool: Text,
    /// How it is paid for.
    pub purchase_option: Option<Text>,
    /// What for.
    pub bucket: Bucket,
    /// Who pays; none for nobody in particular.
    pub team: Option<Text>,
    /// GPU time.
    pub gpu_ms: i64,
    /// Amount; below 0 in `rounding` only.
    pub micro: i64,
    /// On idle rows.
    pub idle_rule: Option<IdleRule>,
}

/// What one pool costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolBill {
    /// The pool.
    pub pool: Text,
    /// GPU time paid for in the window, pads left out.
    pub gpu_ms: i64,
    /// Its amount in the window.
    pub micro: i64,
    /// What falls due in the window.
    pub cash_micro: i64,
}

/// A window priced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bill {
    /// By (pool, bucket, team), null first; they sum to `total_micro`.
    pub rows: Vec<Row>,
    /// Outside the sum.
    pub memo: Vec<Row>,
    /// By name.
    pub pools: Vec<PoolBill>,
    /// In all.
    pub total_micro: i64,
}

/// Why a window is not priced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoneyError {
    /// A number below 0.
    #[error("{of}: {what} is {value}, and must not be below 0")]
    Negative {
        /// Pool, run or usage.
        of: String,
        /// Which number.
        what: &'static str,
        /// What it is.
        value: i64,
    },
    /// A pool that sells nothing, or by nodes without GPUs.
    #[error("pool `{0}`: the number of GPUs must be above 0")]
    NoGpus(Text),
    /// Two pools of one name.
    #[error("pool `{0}` stands twice; give each pool its own name")]
    PoolTwice(Text),
    /// A run without length.
    #[error("run `{0}` does not end after it begins")]
    RunBackwards(Text),
    /// Two runs of one id.
    #[error("run `{0}` stands twice with different content")]
    RunTwice(Text),
    /// Usage without length.
    #[error("usage of pool `{0}` ends before it begins")]
    UsageBackwards(Text),
    /// More time on unready nodes than time.
    #[error("usage of pool `{pool}`: {unready} GPU-ms on unready nodes are more than the {gpu_ms} used")]
    UnreadyAboveUse {
        /// The pool.
        pool: Text,
        /// On unready nodes.
        unready: i64,
        /// In all.
        gpu_ms: i64,
    },
    /// A window that its charging period does not hold.
    #[error("the window does not lie inside its charging period")]
    OutsidePeriod,
    /// Another currency.
    #[error("pool `{pool}` is priced in {found}, and the card in {expected}; one card holds one currency")]
    MixedCurrency {
        /// The pool.
        pool: Text,
        /// Its currency.
        found: Text,
        /// The card's.
        expected: Text,
    },
    /// A term without length, or instances that go outside it.
    #[error("pool `{0}`: the term must end after it begins, and hold `usable_to`")]
    BadTerm(Text),
    /// Something of a pool that has no price.
    #[error("{what} of pool `{pool}`, which has no price")]
    UnknownPool {
        /// usage, a run or a restart.
        what: &'static str,
        /// The pool.
        pool: Text,
    },
    /// Usage that the window does not hold.
    #[error("usage of pool `{0}` lies outside the window")]
    UsageOutsideWindow(Text),
    /// A wrong join.
    #[error(
        "pool `{pool}`: {used} GPU-ms used of {capacity} paid for, above the tolerance of {tolerance}: \
         is the match of the pool too wide, or are runs missing?"
    )]
    UsageExceedsCapacity {
        /// The pool.
        pool: Text,
        /// Used, unavailable time included.
        used: i64,
        /// Paid for.
        capacity: i64,
        /// What may be over.
        tolerance: i64,
    },
    /// A figure beyond 64 bits, or fractions beyond 128.
    #[error("pool `{0}`: a figure is too large to be computed exactly; is a price given in the wrong unit?")]
    Overflow(Text),
}

impl MoneyError {
    /// The fixed word of each refusal.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Negative { .. }
            | Self::NoGpus(_)
            | Self::PoolTwice(_)
            | Self::RunBackwards(_)
            | Self::RunTwice(_)
            | Self::UsageBackwards(_)
            | Self::UnreadyAboveUse { .. }
            | Self::OutsidePeriod => "bad_input",
            Self::MixedCurrency { .. } => "mixed_currency",
            Self::BadTerm(_) => "bad_term",
            Self::UnknownPool { .. } => "unknown_pool",
            Self::UsageOutsideWindow(_) => "usage_outside_window",
            Self::UsageExceedsCapacity { .. } => "usage_exceeds_capacity",
            Self::Overflow(_) => "overflow",
        }
    }
}

/// Prices one window.
///
/// Where a window is longer than one clock hour, a commitment's or block's usage should come from hours settled on their own
/// (M6): see [`share_idle`] for what is then done over their sums.
pub fn price(input: &Input) -> Result<Bill, MoneyError> {
    input.validate()?;
    let runs = input.distinct_runs();
    let mut bill = Bill { rows: Vec::new(), memo: Vec::new(), pools: Vec::new(), total_micro: 0 };
    let mut pools: Vec<&Pool> = input.pools.iter().collect();
    pools.sort_by(|a, b| a.name.cmp(&b.name));
    // Of several errors the one of a wrong join comes before a figure that is too large, whichever pool has it.
    let mut settled = Vec::with_capacity(pools.len());
    for pool in &pools {
        let runs: Vec<&Run> = runs.iter().copied().filter(|run| run.pool == pool.name).collect();
        let time = settle::pool(input, pool, &runs)?;
        settled.push((runs, time));
    }
    for (pool, (runs, time)) in pools.iter().zip(settled) {
        let too_large = |_| MoneyError::Overflow(pool.name.clone());
        let amount = Amount::of(pool, &runs, input.window).map_err(too_large)?;
        rows(input, pool, &time, &amount, &mut bill).map_err(too_large)?;
        bill.total_micro = bill.total_micro.checked_add(amount.micro).ok_or(TooFine).map_err(too_large)?;
        let gpu_ms = time.capacity;
        bill.pools.push(PoolBill { pool: pool.name.clone(), gpu_ms, micro: amount.micro, cash_micro: amount.cash_micro });
    }
    Ok(bill)
}

/// GPU time, money and idle rule by (bucket, team).
type Made = BTreeMap<(Bucket, Option<Text>), (i64, i64, Option<IdleRule>)>;

/// One pool's rows and memos, in order.
fn rows(input: &Input, pool: &Pool, time: &settle::Time, amount: &Amount, bill: &mut Bill) -> Result<(), TooFine> {
    let rate = Rate::of(pool)?;
    let mut made = Made::new();
    for ((bucket, team), gpu_ms) in &time.parts {
        made.insert((*bucket, team.clone()), (*gpu_ms, rate.price(*gpu_ms)?, None));
    }
    if time.tail > 0 {
        made.insert((Bucket::BlockTail, None), (time.tail, rate.price(time.tail)?, None));
    }
    if time.not_billed > 0 {
        made.insert((Bucket::NotBilled, None), (time.not_billed, 0, None));
    }
    let idle = pool.idle_bucket();
    let uses = if input.period.is_none_or(|period| period == input.window) { time.uses() } else { Vec::new() };
    match &pool.idle {
        _ if time.idle == 0 => {}
        Idle::ByUse if uses.iter().any(|(_, used)| *used > 0) => {
            for share in share_idle(time.idle, &rate, &uses)? {
                made.insert((idle, share.team), (share.gpu_ms, share.micro, Some(IdleRule::ByUse)));
            }
        }
        Idle::Central | Idle::ByUse => {
            made.insert((idle, None), (time.idle, rate.price(time.idle)?, Some(IdleRule::Central)));
        }
        Idle::Owner(team) => {
            made.insert((idle, Some(team.clone())), (time.idle, rate.price(time.idle)?, Some(IdleRule::Owner)));
        }
    }
    made.retain(|_, (gpu_ms, ..)| *gpu_ms != 0);
    if let Some(minimum) = amount.minimum_micro {
        made.insert((Bucket::BillingMinimum, None), (0, minimum, None));
    }
    let priced: i128 = made.values().map(|(_, micro, _)| i128::from(*micro)).sum();
    let rounding = i64::try_from(i128::from(amount.micro) - priced).map_err(|_| TooFine)?;
    if rounding != 0 {
        made.insert((Bucket::Rounding, None), (0, rounding, None));
    }
    let row = |bucket, team, gpu_ms, micro, idle_rule| Row {
        pool: pool.name.clone(),
        purchase_option: pool.purchase_option.clone(),
        bucket,
        team,
        gpu_ms,
        micro,
        idle_rule,
    };
    bill.rows.extend(made.into_iter().map(|((bucket, team), (ms, micro, rule))| row(bucket, team, ms, micro, rule)));
    for (team, lost) in &time.memo {
        bill.memo.push(row(Bucket::RestartWasteMemo, team.clone(), *lost, rate.price(*lost)?, None));
    }
    Ok(())
}

/// A share of idle time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleShare {
    /// Whose; none for the unattributed.
    pub team: Option<Text>,
    /// GPU time; the shares sum to the idle time.
    pub gpu_ms: i64,
    /// From the exact share, to the nearest micro-unit.
    pub micro: i64,
}

/// Idle time shared out in proportion of use (M7), where anything was used: `uses` is in order of the teams, null first.
pub fn share_idle(idle: i64, rate: &Rate, uses: &[(Option<Text>, i64)]) -> Result<Vec<IdleShare>, TooFine> {
    let all: i128 = uses.iter().map(|(_, used)| i128::from(*used)).sum();
    if all == 0 {
        return Ok(Vec::new());
    }
    let parts: Vec<Frac> = uses.iter().map(|(_, used)| Frac::whole(idle).times((*used).into(), all)).collect::<Result<_, _>>()?;
    let times = share_out(idle, &parts)?;
    let share = |((team, _), (gpu_ms, exact)): (&(Option<Text>, i64), (i64, &Frac))| {
        Ok(IdleShare { team: team.clone(), gpu_ms, micro: rate.exact(*exact)?.nearest()? })
    };
    uses.iter().zip(times.into_iter().zip(&parts)).map(share).collect()
}

/// `total`, not below 0, in proportion of weights, by the largest remainder, ties in the order given; where all weights are 0,
/// the first takes it.
pub fn in_proportion(total: i64, weights: &[i64]) -> Result<Vec<i64>, TooFine> {
    let all: i128 = weights.iter().map(|weight| i128::from(*weight)).sum();
    if all == 0 {
        return Ok((0..weights.len()).map(|at| if at == 0 { total } else { 0 }).collect());
    }
    let parts: Vec<Frac> =
        weights.iter().map(|weight| Frac::whole(total).times((*weight).into(), all)).collect::<Result<_, _>>()?;
    share_out(total, &parts)
}

/// `whole` x `num` / `den`, to the nearest, half up; `den` is above 0.
pub fn nearest_part(whole: i64, num: i64, den: i64) -> Result<i64, TooFine> {
    Frac::whole(whole).times(num.into(), den.into())?.nearest()
}

/// GPU time of `gpus` in the part of a span that the window holds.
fn overlap(gpus: i64, from: i64, to: i64, window: Window) -> i128 {
    let ms = to.min(window.to().ms()).saturating_sub(from.max(window.from().ms())).max(0);
    i128::from(gpus) * i128::from(ms)
}
