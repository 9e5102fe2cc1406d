//! The hours job: closed hours of samples and holdings to closed hours of `gpu_hours`, `device_hours` and `settled_holdings`.
//!
//! ```text
//! hour h:  allocations, nodes of h ────────────────┐
//!          what the hour before handed on ─────────┤
//!          samples, scrapes of h, and of h-1 and   ├──account──> rows, published over the hour's old ones
//!          h+1 within a horizon ───────────────────┘    └──> what h hands on: holdings that ended and still matter
//! ```
//!
//! An hour is done again only where the files behind it changed: their content hashes stand in the footer of its rows. So
//! the job may be run at any time and any number of times, and a crash leaves the old rows or the new ones. What an hour
//! hands on is one of these files, so a late row reaches as many hours as it changes and no more. Hours go in order, each by
//! pieces of nodes: memory does not grow with the lake, nor work with the age of a pod.

mod carry;
mod files;

use std::collections::BTreeSet;

use datafusion::arrow::array::RecordBatch;
pub(crate) use files::Files;
use lake::{ClosedKey, Footer, Lake, LakeError, read};
use schemas::{
    HOUR_MS, Timestamp, Window,
    tables::{self, Table},
};

use crate::account::{self, Account, AccountError};

/// Version of the arithmetic; a change does every hour again.
const LEDGER_VERSION: &str = "ledger/6";

/// Tables that the job always writes for an hour.
const OUTPUTS: [&str; 3] = ["device_hours", "settled_holdings", "gpu_hours"];
/// The one that most hours need not; the footer of `gpu_hours` names it where they do.
const CARRIED: &str = "carried_allocations";

/// How the job is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Only hours that this window touches, and earlier ones that changed: the later stand on them.
    pub window: Option<Window>,
    /// Do hours of the window again whose inputs did not change.
    pub force: bool,
}

/// What the job did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Hours computed.
    pub computed: usize,
    /// Hours whose inputs had not changed.
    pub unchanged: usize,
    /// Rows of `gpu_hours` written.
    pub rows: u64,
    /// Samples read, lookback included.
    pub samples: u64,
    /// Devices (cluster/node/device) that somebody named and whose weight nobody told: left out, and said so.
    pub unweighed: Vec<String>,
}

/// Computes every closed hour whose inputs changed. `progress` is told after each hour: done, all.
pub fn run(lake: &Lake, options: Options, mut progress: impl FnMut(usize, usize)) -> Result<Summary, AccountError> {
    let files = Files::list(lake)?;
    let mut summary = Summary::default();
    let mut unweighed = BTreeSet::new();
    let inside = |hour: Timestamp| options.window.is_none_or(|w| hour < w.to() && hour.plus_ms(HOUR_MS) > w.from());
    let hours: Vec<Timestamp> = files.hours().filter(|hour| options.window.is_none_or(|w| *hour < w.to())).collect();
    let split = split_hours(lake)?;
    let mut before = None;
    for (done, &hour) in hours.iter().enumerate() {
        if files.is_frozen(hour) {
            summary.unchanged += usize::from(inside(hour));
            before = Some(hour);
            continue;
        }
        let digest = files.digest(lake, hour, before)?;
        let forced = options.force && inside(hour);
        if !forced && is_done(lake, hour, &digest, &split)? {
            summary.unchanged += usize::from(inside(hour));
        } else {
            one_hour(lake, &files, hour, before, &digest, &mut summary, &mut unweighed)?;
        }
        before = Some(hour);
        progress(done + 1, hours.len());
    }
    summary.unweighed = unweighed.into_iter().collect();
    Ok(summary)
}

/// The account of `window`, a part of one UTC hour, from closed hours: what its rows would be, were the hour cut there.
pub(crate) fn part_of_hour(lake: &Lake, files: &Files, window: Window) -> Result<Account, AccountError> {
    let hour = window.from().hour();
    account::account(&files.reach(lake, hour, files.before(hour)), window)
}

/// Closed hours of `window` that have inputs and no hour rows, and the first of them; none where there are none.
pub(crate) fn not_computed(lake: &Lake, files: &Files, window: Option<Window>) -> Result<Option<(usize, Timestamp)>, LakeError> {
    let done: BTreeSet<Timestamp> =
        lake.closed_files(tables::get("gpu_hours"), window)?.into_iter().map(|file| file.key.hour).collect();
    let inside = |hour: &Timestamp| window.is_none_or(|w| *hour < w.to() && hour.plus_ms(HOUR_MS) > w.from());
    let missing: Vec<Timestamp> = files.hours().filter(inside).filter(|hour| !done.contains(hour)).collect();
    Ok(missing.first().map(|first| (missing.len(), *first)))
}

fn one_hour(
    lake: &Lake,
    files: &Files,
    hour: Timestamp,
    before: Option<Timestamp>,
    digest: &str,
    summary: &mut Summary,
    unweighed: &mut BTreeSet<String>,
) -> Result<(), AccountError> {
    let Ok(window) = Window::new(hour, hour.plus_ms(HOUR_MS)) else { return Ok(()) };
    let account = account::account(&files.reach(lake, hour, before), window)?;
    let carried = carry::carried(lake, files, hour, before)?;
    let hands_on = carried.iter().any(|batch| batch.num_rows() > 0);
    if hands_on {
        publish(lake, CARRIED, hour, &carried, digest, None)?;
    } else {
        lake.remove_closed(tables::get(CARRIED), ClosedKey { hour, shard: 0 })?;
    }
    publish(lake, "device_hours", hour, &account.capacities, digest, None)?;
    publish(lake, "settled_holdings", hour, &account.settled, digest, None)?;
    summary.rows += publish(lake, "gpu_hours", hour, &account.rows, digest, hands_on.then_some(CARRIED))?;
    summary.samples += account.samples;
    summary.computed += 1;
    unweighed.extend(account.unweighed);
    Ok(())
}

fn is_done(lake: &Lake, hour: Timestamp, digest: &str, split: &BTreeSet<(&str, Timestamp)>) -> Result<bool, LakeError> {
    let place = |table| lake.place(&ClosedKey { hour, shard: 0 }.path(tables::get(table)));
    let footer = |table| read::footer(&place(table));
    let made_so = |found: &Footer| found.inputs.as_deref() == Some(digest);
    for table in OUTPUTS {
        // A damaged result is done again, not complained about; so is one of another table, or with another beside it.
        if split.contains(&(table, hour)) || read::schema(tables::get(table), &place(table)).is_err() {
            return Ok(false);
        }
        let Some(found) = footer(table).ok().filter(made_so) else { return Ok(false) };
        if found.tables.as_deref() == Some(CARRIED) && !footer(CARRIED).is_ok_and(|carried| made_so(&carried)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Results with other shards beside the one that the job writes.
fn split_hours(lake: &Lake) -> Result<BTreeSet<(&'static str, Timestamp)>, LakeError> {
    let mut split = BTreeSet::new();
    for table in OUTPUTS {
        let files = lake.closed_files(tables::get(table), None)?;
        split.extend(files.iter().filter(|file| file.key.shard != 0).map(|file| (table, file.key.hour)));
    }
    Ok(split)
}

fn publish(
    lake: &Lake,
    name: &'static str,
    hour: Timestamp,
    batches: &[RecordBatch],
    digest: &str,
    beside: Option<&str>,
) -> Result<u64, LakeError> {
    let table: &'static Table = tables::get(name);
    let key = ClosedKey { hour, shard: 0 };
    let rows = lake::encode::sorted(table, batches)?;
    let count = rows.num_rows() as u64;
    let footer = Footer {
        inputs: Some(digest.to_owned()),
        tables: beside.map(str::to_owned),
        writer_epoch: LEDGER_VERSION.into(),
        ..Footer::default()
    };
    lake.publish_closed(table, key, &[rows], footer)?;
    let whole = Window::new(hour, hour.plus_ms(HOUR_MS)).ok();
    for other in lake.closed_files(table, whole)?.into_iter().filter(|file| file.key.hour == hour && file.key.shard != 0) {
        lake.remove_closed(table, other.key)?;
    }
    Ok(count)
}
