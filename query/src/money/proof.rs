//! The proof that table `costs` closes, from the lake alone: every pool's rows sum to what its hour states as its source, in money
//! and in time; and the time priced, unpriced and not billed is the time of the hour rows.

use std::collections::BTreeMap;

use datafusion::arrow::array::RecordBatch;
use lake::{Lake, LakeError, read};
use ledger::{input::Text, money::Bucket};
use schemas::{HOUR_MS, Timestamp, Window, status::RowKind, tables};

use super::{
    columns::{Columns, int, text},
    costs::{self, CostRow, SOURCE, UNPRICED},
};

/// What does not close.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CostFault {
    /// A pool's money.
    #[error("costs in the hour of {hour}, pool {pool}: rows sum to {rows} micro, the source is {source_micro} micro")]
    Money {
        /// The hour.
        hour: Timestamp,
        /// The pool.
        pool: Text,
        /// Sum of its rows.
        rows: i128,
        /// What it costs.
        source_micro: i128,
    },
    /// A pool's time.
    #[error("costs in the hour of {hour}, pool {pool}: rows sum to {rows} GPU-ms, {paid} GPU-ms are paid for")]
    Time {
        /// The hour.
        hour: Timestamp,
        /// The pool.
        pool: Text,
        /// Sum of its rows.
        rows: i128,
        /// What is paid for.
        paid: i128,
    },
    /// Money below nothing, other than rounding.
    #[error("costs in the hour of {hour}, pool {pool}, bucket {bucket}: {micro} micro is below 0")]
    Negative {
        /// The hour.
        hour: Timestamp,
        /// The pool.
        pool: Text,
        /// The bucket.
        bucket: Text,
        /// The figure.
        micro: i64,
    },
    /// Hours priced by cards of two currencies.
    #[error(
        "costs in the hour of {hour} are in {second}, those before it in {first}: no sum of them means anything; run `strandline money` over all hours with one card"
    )]
    Currencies {
        /// The hour.
        hour: Timestamp,
        /// Of the hours before.
        first: Text,
        /// Of this one.
        second: Text,
    },
    /// Hour rows and costs of another time.
    #[error(
        "costs in the hour of {hour}: {costs} GPU-ms held or unavailable, and {hours} in the hour rows; were the hours computed \
         anew since? run `strandline money` again"
    )]
    Stale {
        /// The hour.
        hour: Timestamp,
        /// In `costs`.
        costs: i128,
        /// In `gpu_hours`.
        hours: i128,
    },
}

/// What was looked at, and what was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CostVerdict {
    /// Hours with costs.
    pub hours: usize,
    /// (hour, pool) pairs whose rows were held against their source.
    pub pools: usize,
    /// The first fault by hour and pool.
    pub fault: Option<CostFault>,
    /// How many there are.
    pub faults: usize,
}

/// Checks the hours of `costs` inside `window`, or all of them; none is no fault.
pub fn check(lake: &Lake, window: Option<Window>) -> Result<CostVerdict, LakeError> {
    let mut verdict = CostVerdict::default();
    let table = tables::get("costs");
    let mut currency: Option<Text> = None;
    for file in lake.closed_files(table, window)? {
        read::verify(&file.path)?;
        let hour = file.key.hour;
        let mut rows = Vec::new();
        for batch in read::rows(table, &file.path, None)? {
            rows.extend(costs::rows(&batch));
        }
        let mut faults = hour_faults(hour, &rows, &mut verdict.pools);
        for row in &rows {
            let first = currency.get_or_insert_with(|| row.currency.clone());
            if *first != row.currency {
                faults.push(CostFault::Currencies { hour, first: first.clone(), second: row.currency.clone() });
                currency = Some(row.currency.clone());
            }
        }
        let of_hour = Window::new(hour, hour.plus_ms(HOUR_MS)).ok();
        let (table, mut held, mut is_there) = (tables::get("gpu_hours"), 0, false);
        for file in lake.closed_files(table, of_hour)? {
            is_there = true;
            held += held_ms(&read::rows(table, &file.path, Some(&["cluster", "node", "kind", "ms", "flags"]))?);
        }
        let shown: i128 = rows.iter().filter(|row| is_held(row)).map(|row| i128::from(row.gpu_ms)).sum();
        if is_there && shown != held {
            faults.push(CostFault::Stale { hour, costs: shown, hours: held });
        }
        verdict.hours += 1;
        verdict.faults += faults.len();
        verdict.fault = verdict.fault.or_else(|| faults.into_iter().next());
    }
    Ok(verdict)
}

fn hour_faults(hour: Timestamp, rows: &[CostRow], count: &mut usize) -> Vec<CostFault> {
    let mut of_pool: BTreeMap<&Text, [i128; 4]> = BTreeMap::new();
    let mut faults = Vec::new();
    for row in rows {
        if &*row.bucket == SOURCE {
            let sums = of_pool.entry(&row.pool).or_default();
            sums[2] += i128::from(row.source_micro.unwrap_or(0));
            sums[3] += i128::from(row.source_gpu_ms.unwrap_or(0));
            continue;
        }
        let Some(bucket) = row.bucket() else { continue };
        let sums = of_pool.entry(&row.pool).or_default();
        let micro = row.micro.unwrap_or(0);
        sums[0] += i128::from(micro);
        sums[1] += if bucket == Bucket::NotBilled { 0 } else { i128::from(row.gpu_ms) };
        if micro < 0 && bucket != Bucket::Rounding {
            faults.push(CostFault::Negative { hour, pool: row.pool.clone(), bucket: row.bucket.clone(), micro });
        }
    }
    *count += of_pool.len();
    for (pool, [rows, time, source_micro, paid]) in of_pool {
        if rows != source_micro {
            faults.push(CostFault::Money { hour, pool: pool.clone(), rows, source_micro });
        }
        if time != paid {
            faults.push(CostFault::Time { hour, pool: pool.clone(), rows: time, paid });
        }
    }
    faults
}

/// Time that the hour rows call held or unavailable.
fn is_held(row: &CostRow) -> bool {
    if &*row.bucket == UNPRICED {
        return row.reason.as_deref() != Some("free");
    }
    let held =
        [Bucket::Team, Bucket::Unattributed, Bucket::Unready, Bucket::Unavailable, Bucket::NotBilled, Bucket::RestartWaste];
    row.bucket().is_some_and(|bucket| held.contains(&bucket))
}

fn held_ms(batches: &[RecordBatch]) -> i128 {
    let mut held = 0;
    for batch in batches {
        let columns = Columns(batch);
        let (kinds, ms) = (columns.texts("kind"), columns.ints("ms"));
        for row in 0..batch.num_rows() {
            let counts = match text(kinds, row).and_then(RowKind::from_text) {
                Some(RowKind::Owner | RowKind::Unavailable) => true,
                Some(RowKind::Free) | None => false,
            };
            held += if counts { i128::from(int(ms, row).unwrap_or(0)) } else { 0 };
        }
    }
    held
}
