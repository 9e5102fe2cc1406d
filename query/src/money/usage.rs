//! Hour rows to usage: who held how much of which pool, and the time that no pool prices.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use datafusion::arrow::array::RecordBatch;
use ledger::{
    input::Text,
    money::{TooFine, Usage},
};
use schemas::{HOUR_MS, Timestamp, status::RowKind};

use super::{
    card::{Card, LABELS, Labels},
    columns::{Columns, int, text},
    supply::Supply,
};
use crate::report::has_no_inventory;

/// Columns of `gpu_hours` that are read.
pub(super) const COLUMNS: [&str; 13] = [
    "cluster",
    "node",
    "kind",
    "reason",
    "team",
    "ms",
    "on_unready_ms",
    "flags",
    "provider",
    "region",
    "product",
    "purchase_option",
    "reservation",
];

/// Why time has no price, or what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unpriced {
    /// Unavailable time that a holding known by number took from devices of another pool (A16): below 0.
    Borrowed,
    /// Held by nobody.
    Free,
    /// Held.
    Held,
    /// Held on a node whose inventory nobody told, so that nobody knows what its provider bills.
    NoInventory,
    /// Held by nobody, and not to be given.
    Unavailable,
}

impl Unpriced {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Borrowed => "held_unknown",
            Self::Free => "free",
            Self::Held => "held",
            Self::NoInventory => "no_inventory",
            Self::Unavailable => "unavailable",
        }
    }
}

/// One hour's use.
#[derive(Debug, Default)]
pub(super) struct HourUse {
    pub(super) usage: Vec<Usage>,
    /// By labels, what it is, and team.
    pub(super) unpriced: BTreeMap<(Labels, Unpriced, Option<Text>), i64>,
}

/// Time by pool (none: unpriced), labels, kind and team.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    labels: Labels,
    kind: Unpriced,
    team: Option<Text>,
}

/// Sums the rows of an hour.
pub(super) fn of_hour(card: &Card, supply: &Supply<'_>, hour: Timestamp, batches: &[RecordBatch]) -> Result<HourUse, UseError> {
    let mut sums: BTreeMap<Key, (i128, i128)> = BTreeMap::new();
    for batch in batches {
        add(batch, &mut sums)?;
    }
    let mut found = HourUse::default();
    let mut pools: HashMap<Labels, Vec<(usize, i64)>> = HashMap::new();
    // Per pool, team and whether it could be given: time, and that on unready nodes.
    let mut of_pool: BTreeMap<(usize, bool, Option<Text>), (i128, i128)> = BTreeMap::new();
    for (Key { labels, kind, team }, (ms, unready)) in sums {
        let of_labels = pools.entry(labels.clone()).or_insert_with_key(|labels| card.pools_of(labels, hour));
        let is_per_use = |pool: usize| card.entries[pool].pool.term().is_none();
        // What a provider bills by use is known from the inventory, unless somebody imported it.
        let unknown = kind == Unpriced::NoInventory
            && of_labels.iter().any(|(pool, _)| is_per_use(*pool) && !supply.imported.contains(pool));
        if of_labels.is_empty() || unknown {
            let kind = if kind == Unpriced::NoInventory && of_labels.is_empty() { Unpriced::Held } else { kind };
            *found.unpriced.entry((labels, kind, team)).or_default() += i64::try_from(ms).map_err(|_| UseError::TooLarge)?;
            continue;
        }
        if kind == Unpriced::Free {
            continue; // what is paid for and not used is priced as such, not as free time of the inventory
        }
        let of_labels = of_labels.clone();
        for (pool, ms, unready) in shared_out(&of_labels, ms, unready)? {
            let sum = of_pool.entry((pool, kind == Unpriced::Unavailable, team.clone())).or_default();
            sum.0 += ms;
            sum.1 += unready;
        }
    }
    for ((pool, unavailable, team), (ms, unready)) in of_pool {
        if ms < 0 {
            let borrowed = i64::try_from(ms).map_err(|_| UseError::TooLarge)?;
            *found.unpriced.entry((Labels::default(), Unpriced::Borrowed, None)).or_default() += borrowed;
            continue;
        }
        let whole = |ms: i128| i64::try_from(ms).map_err(|_| UseError::TooLarge);
        found.usage.push(Usage {
            pool: card.entries[pool].pool.name.clone(),
            team,
            from: hour,
            to: hour.plus_ms(HOUR_MS),
            gpu_ms: whole(ms)?,
            on_unready_gpu_ms: whole(unready.clamp(0, ms))?,
            unavailable,
        });
    }
    Ok(found)
}

/// Why rows make no usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UseError {
    /// Rows that are not ours.
    #[error("{0}")]
    BadRow(&'static str),
    /// Beyond 64 bits.
    #[error("its GPU time does not fit 64 bits")]
    TooLarge,
}

impl From<TooFine> for UseError {
    fn from(_: TooFine) -> Self {
        Self::TooLarge
    }
}

fn add(batch: &RecordBatch, sums: &mut BTreeMap<Key, (i128, i128)>) -> Result<(), UseError> {
    let columns = Columns(batch);
    let (kinds, teams) = (columns.texts("kind"), columns.texts("team"));
    let flags = columns.texts("flags");
    let (ms, unready, labels) = (columns.ints("ms"), columns.ints("on_unready_ms"), columns.labels());
    let mut last: Option<(usize, Labels)> = None;
    for row in 0..batch.num_rows() {
        let kind = text(kinds, row).and_then(RowKind::from_text).ok_or(UseError::BadRow("a row of unknown kind"))?;
        let is_unlisted = || text(flags, row).is_some_and(has_no_inventory);
        let kind = match kind {
            RowKind::Owner if is_unlisted() => Unpriced::NoInventory,
            RowKind::Owner => Unpriced::Held,
            RowKind::Free => Unpriced::Free,
            RowKind::Unavailable => Unpriced::Unavailable,
        };
        let of_row = match last.take() {
            Some((before, of_row)) if labels.alike(before, row) => of_row,
            _ => labels.of(row),
        };
        let team = text(teams, row).map(Text::from);
        let sum = sums.entry(Key { labels: of_row.clone(), kind, team }).or_default();
        last = Some((row, of_row));
        sum.0 += i128::from(int(ms, row).ok_or(UseError::BadRow("a row without ms"))?);
        sum.1 += i128::from(int(unready, row).unwrap_or(0));
    }
    Ok(())
}

/// Time shared out to pools of one match that meet inside the hour, by what each pays for.
fn shared_out(pools: &[(usize, i64)], ms: i128, unready: i128) -> Result<Vec<(usize, i128, i128)>, UseError> {
    let [(only, _)] = pools else {
        let weights: Vec<i64> = pools.iter().map(|(_, weight)| *weight).collect();
        let split = |ms: i128| {
            let whole = i64::try_from(ms).map_err(|_| UseError::TooLarge)?;
            // A negative balance (A16) is shared like a positive one.
            Ok::<_, UseError>(ledger::money::in_proportion(whole.abs(), &weights)?.into_iter().map(move |n| n * whole.signum()))
        };
        let (times, unreadies) = (split(ms)?, split(unready)?);
        let shares = pools.iter().zip(times.zip(unreadies));
        return Ok(shares.map(|((pool, _), (ms, unready))| (*pool, ms.into(), unready.into())).collect());
    };
    Ok(vec![(*only, ms, unready)])
}

/// Values of the labels that the card names and no row has, each with the pool and the nearest that there is.
pub(super) fn unseen(card: &Card, seen: &[BTreeSet<Text>; 5]) -> Vec<String> {
    let mut warnings = Vec::new();
    for entry in &card.entries {
        for ((label, wanted), has) in LABELS.iter().zip(&entry.matches.0).zip(seen) {
            for text in wanted.iter().flatten().filter(|text| !has.contains(*text)) {
                let nearest = has.iter().min_by_key(|has| strsim::damerau_levenshtein(has, text));
                let nearest =
                    nearest.map_or("hour rows have none".to_owned(), |nearest| format!("the nearest there is: `{nearest}`"));
                warnings.push(format!(
                    "{}, line {}: pool `{}` matches {label} `{text}`, which no hour row of the window has; {nearest}",
                    card.file, entry.line, entry.pool.name
                ));
            }
        }
    }
    warnings
}
