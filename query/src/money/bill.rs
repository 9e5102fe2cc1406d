//! The bill: rows of `costs` by any grouping, with a total that is proved to be what the source says.
//!
//! Showback shows everything and moves nothing: idle is nobody's. Chargeback gives idle to whom the card says: a pool's owner, or
//! by use, once per charging period that the window holds whole (M7). Both have the same total.

use std::collections::{BTreeMap, BTreeSet};

use lake::{Lake, read};
use ledger::input::Text;
use schemas::{HOUR_MS, Timestamp, calendar::Zone, tables};

use super::{
    CostsError, Summary,
    card::{Card, Period},
    costs::{self, UNPRICED},
};
use fold::{Folded, Group, Sum};

mod fold;
mod print;

pub use print::{hours, units};

macro_rules! keys {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)+) => {
        /// What a bill is grouped by; the bucket always is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum By { $($(#[$doc])* $variant,)+ }

        impl By {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Its name, as in `--by`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }
    };
}

keys! {
    /// Who pays.
    Team = "team",
    /// Pool of the card.
    Pool = "pool",
    /// What for.
    Bucket = "bucket",
    /// Purchase option.
    PurchaseOption = "purchase_option",
    /// Provider, where the pool's match names one.
    Provider = "provider",
    /// Region, likewise.
    Region = "region",
    /// Product, likewise.
    Product = "product",
    /// UTC hour.
    Hour = "hour",
    /// UTC day.
    Day = "day",
    /// UTC month.
    Month = "month",
}

impl By {
    /// Reads a comma-separated list; the bucket comes last where it is not named.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        let mut list = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let known = || Self::ALL.iter().map(|by| by.as_str()).collect::<Vec<_>>().join(", ");
            let by = Self::ALL.iter().copied().find(|by| by.as_str() == name);
            let by = by.ok_or_else(|| format!("cannot group by `{name}`; give one or more of {}, comma-separated", known()))?;
            if list.contains(&by) {
                return Err(format!("`{name}` stands twice in the grouping"));
            }
            list.push(by);
        }
        if !list.contains(&Self::Bucket) {
            list.push(Self::Bucket);
        }
        Ok(list)
    }
}

/// Who pays for idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Nobody: it is shown.
    Showback,
    /// Whom the card says.
    Chargeback,
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Request {
    /// Grouping, from [`By::parse_list`].
    pub by: Vec<By>,
    /// Who pays for idle time.
    pub basis: Basis,
    /// Share what nobody held (idle, reserved_idle, unavailable) out by use, in every pool.
    pub spread_idle: bool,
}

/// What stopped a bill.
#[derive(Debug, thiserror::Error)]
pub enum BillError {
    /// Pricing, or the lake.
    #[error(transparent)]
    Costs(#[from] CostsError),
    /// Shares have no hour.
    #[error(
        "idle time is shared out over {0}, so that its shares have no {1}; leave that grouping out, or take --basis showback without --spread-idle"
    )]
    NotBy(&'static str, &'static str),
    /// Beyond 64 bits.
    #[error("pool `{0}`: idle time is too large to be shared out exactly")]
    TooLarge(Text),
}

/// Time and money of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// One a grouping; none for nobody in particular.
    pub keys: Vec<Option<String>>,
    /// GPU time.
    pub gpu_ms: i64,
    /// Amount; none where there is no price.
    pub micro: Option<i64>,
    /// Lost to restarts, beside the sum.
    pub memo_gpu_ms: i64,
    /// Its price, beside the sum.
    pub memo_micro: i64,
}

/// What one pool came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolTotal {
    /// Its rows' money.
    pub rows_micro: i64,
    /// What its hours state as their source.
    pub source_micro: i64,
    /// What the card and the runs come to over the window at once.
    pub amount_micro: i64,
    /// Time of its rows that is paid for.
    pub rows_gpu_ms: i64,
    /// Time that its hours state as paid for.
    pub source_gpu_ms: i64,
    /// What falls due.
    pub cash_micro: i64,
    /// inventory, imported or terms.
    pub basis: &'static str,
}

impl PoolTotal {
    /// Whether its rows sum to its source.
    pub fn sums(&self) -> bool {
        self.rows_micro == self.source_micro && self.source_micro == self.amount_micro && self.rows_gpu_ms == self.source_gpu_ms
    }
}

/// A bill.
#[derive(Clone, Debug)]
pub struct Bill {
    /// Grouping.
    pub by: Vec<By>,
    /// Who pays for idle time.
    pub basis: Basis,
    /// Whether idle was spread.
    pub spread_idle: bool,
    /// Currency.
    pub currency: Text,
    /// Groups in order.
    pub lines: Vec<Line>,
    /// By name.
    pub pools: BTreeMap<Text, PoolTotal>,
    /// All money.
    pub total_micro: i64,
    /// Time with a price (what is paid for, and not billed), and without.
    pub priced_gpu_ms: i64,
    /// Time without a price.
    pub unpriced_gpu_ms: i64,
    /// Pools whose idle is charged by use, and was not: their period is not whole in the window.
    pub not_yet: BTreeSet<Text>,
    /// Hours asked for, and priced.
    pub hours: (usize, usize),
    /// First instant and first after.
    pub window: (Timestamp, Timestamp),
    /// Cost of what is paid ahead in hours that have no rows.
    pub unsettled: BTreeMap<Text, i64>,
}

impl Bill {
    /// Whether all of it sums to its source.
    pub fn sums(&self) -> bool {
        self.pools.values().all(PoolTotal::sums) && self.pools.values().map(|p| p.rows_micro).sum::<i64>() == self.total_micro
    }
}

/// The bill of the hours that [`super::run`] priced.
pub fn bill(lake: &Lake, card: &Card, summary: &Summary, request: &Request) -> Result<Bill, BillError> {
    let mut folded = Folded { by: &request.by, period: card.period, groups: BTreeMap::new(), pools: BTreeMap::new() };
    for (name, micro) in &summary.amounts {
        let basis = summary.basis.get(name).copied().unwrap_or("terms");
        folded.pools.insert(name.clone(), PoolTotal { amount_micro: *micro, basis, ..PoolTotal::default() });
    }
    let hours: BTreeSet<Timestamp> = summary.hours.iter().copied().collect();
    let table = tables::get("costs");
    for file in lake.closed_files(table, Some(summary.window)).map_err(CostsError::from)? {
        if hours.contains(&file.key.hour) {
            for batch in read::rows(table, &file.path, None).map_err(CostsError::from)? {
                costs::rows(&batch).iter().for_each(|row| folded.add(row));
            }
        }
    }
    let whole = whole_periods(card.period, summary, &hours);
    let not_yet = folded.charge(card, request, &whole)?;
    let (priced, unpriced): (Vec<_>, Vec<_>) = folded.groups.iter().partition(|(group, _)| *group.bucket != *UNPRICED);
    let time = |groups: &[(&Group, &Sum)]| groups.iter().map(|(_, sum)| sum.gpu_ms).sum::<i64>();
    let total_micro = priced.iter().filter_map(|(_, sum)| sum.micro).sum();
    let all = (summary.window.to().ms() - summary.window.from().ms()) / HOUR_MS;
    Ok(Bill {
        by: request.by.clone(),
        basis: request.basis,
        spread_idle: request.spread_idle,
        currency: card.currency.clone(),
        total_micro,
        priced_gpu_ms: time(&priced),
        unpriced_gpu_ms: time(&unpriced),
        lines: folded.lines(),
        pools: folded.pools,
        not_yet,
        hours: (usize::try_from(all).unwrap_or(usize::MAX), summary.hours.len()),
        window: (summary.window.from(), summary.window.to()),
        unsettled: summary.unsettled.clone(),
    })
}

fn month_of(hour: Timestamp) -> String {
    hour.to_string()[..7].to_owned()
}

/// Charging periods that the window holds and that were priced in every hour.
fn whole_periods(period: Period, summary: &Summary, hours: &BTreeSet<Timestamp>) -> BTreeSet<String> {
    let all = |from: Timestamp, to: Timestamp| {
        let count = usize::try_from((to.ms() - from.ms()) / HOUR_MS).unwrap_or(usize::MAX);
        hours.range(from..to).count() == count
    };
    match period {
        Period::Window => {
            let (from, to) = (summary.window.from(), summary.window.to());
            if all(from, to) { BTreeSet::from([String::new()]) } else { BTreeSet::new() }
        }
        Period::Month => {
            let months: BTreeSet<String> = hours.iter().map(|hour| month_of(*hour)).collect();
            let bounds = |month: &str| Zone::parse("UTC").and_then(|utc| utc.month(month));
            let is_whole = |month: &String| bounds(month).is_ok_and(|(from, to)| all(from, to));
            months.into_iter().filter(is_whole).collect()
        }
    }
}
