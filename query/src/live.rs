//! Hours that are not closed yet, answered now: the same arithmetic over what the sink has published since.
//!
//! ```text
//! last closed hour: allocations, nodes, what it handed on ─┐
//! hot files since: allocations, nodes, samples, scrapes ───┴─account──> rows of gpu_hours, device_hours, flag `open_hour`
//! ```
//!
//! They reach from the watermark to the newest scrape, and no further: of later time nobody knows anything. When their hour
//! closes, the job's rows stand in their place.

use std::{collections::BTreeMap, sync::Arc};

use datafusion::arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch, StringArray},
    error::ArrowError,
};
use lake::{ClosedKey, Footer, HotFile, Lake, LakeError, read};
use ledger::batch::{BatchError, Source};
use schemas::{
    HOUR_MS, Timestamp, Window,
    tables::{self, Table},
};

use crate::{
    account::{self, AccountError, Part, Reach},
    job::Files,
};

/// Most hours that are answered live; with more than that to close, the sink is behind and not the reader's business.
pub const MAX_HOURS: i64 = 48;
/// Flag of rows of an hour that is not closed.
pub const OPEN_HOUR: &str = "open_hour";

/// Rows of one open hour.
#[derive(Debug)]
pub struct LiveHour {
    /// Its part that is known: from its start to the newest scrape, or its end.
    pub window: Window,
    /// Batches of `gpu_hours`.
    pub rows: Vec<RecordBatch>,
    /// Batches of `device_hours`.
    pub capacities: Vec<RecordBatch>,
}

/// The open hours that `asked` touches (all, where none is given).
pub fn hours(lake: &Lake, asked: Option<Window>) -> Result<Vec<LiveHour>, AccountError> {
    match Open::find(lake)? {
        Some(open) => open.hours(lake, &Files::list(lake)?, asked),
        None => Ok(Vec::new()),
    }
}

/// The files behind an open hour, and how much of it is known; none where `hour` is not open.
pub(crate) fn reach_of(lake: &Lake, files: &Files, hour: Timestamp) -> Result<Option<(Reach, Window)>, AccountError> {
    let Some(open) = Open::find(lake)? else { return Ok(None) };
    let window = Window::new(hour.max(open.from), hour.plus_ms(HOUR_MS).min(open.to));
    Ok(window.ok().map(|window| (open.reach(lake, files, window), window)))
}

/// The time that is open, and the hot files that speak of it.
pub(crate) struct Open {
    from: Timestamp,
    to: Timestamp,
    instants: Vec<Part>,
    intervals: Vec<Part>,
}

impl Open {
    /// Looks for it; none where every hour is closed.
    pub(crate) fn find(lake: &Lake) -> Result<Option<Self>, AccountError> {
        let closed_to = lake.watermark()?.map(|watermark| watermark.closed_to);
        let (mut instants, mut first, mut newest) = (Vec::new(), None, None);
        for (name, source) in [("gpu_samples", Source::GpuSamples), ("scrapes", Source::Scrapes)] {
            let table = tables::get(name);
            for file in lake.hot_files(table)? {
                let Some(footer) = still(read::footer(&file.path))? else { continue };
                let (Some(min), Some(max)) = (footer.min_at, footer.max_at) else { continue };
                if closed_to.is_some_and(|closed_to| max < closed_to.plus_ms(-HOUR_MS)) {
                    continue;
                }
                first = [first, Some(min)].into_iter().flatten().min();
                newest = [newest, Some(max)].into_iter().flatten().max();
                instants.push(Part { source, table, path: file.path });
            }
        }
        let (Some(first), Some(newest)) = (first, newest) else { return Ok(None) };
        let from = closed_to.unwrap_or(first.hour());
        let least = newest.hour().plus_ms(-MAX_HOURS * HOUR_MS);
        if newest <= from || from < least {
            return Ok(None);
        }
        let mut intervals = Vec::new();
        for (name, source) in [("allocations", Source::Allocations), ("nodes", Source::Nodes)] {
            let table = tables::get(name);
            intervals.extend(since(lake, table, closed_to)?.into_iter().map(|file| Part { source, table, path: file.path }));
        }
        // The newest scrape is an instant; what it says begins there.
        Ok(Some(Self { from, to: newest.plus_ms(1), instants, intervals }))
    }

    /// The open hours that `asked` touches (all, where none is given).
    pub(crate) fn hours(&self, lake: &Lake, files: &Files, asked: Option<Window>) -> Result<Vec<LiveHour>, AccountError> {
        let mut hours = Vec::new();
        let mut hour = self.from;
        while hour < self.to {
            let next = hour.plus_ms(HOUR_MS);
            if asked.is_none_or(|w| hour < w.to() && next > w.from())
                && let Ok(window) = Window::new(hour, next.min(self.to))
            {
                let account = account::account(&self.reach(lake, files, window), window)?;
                let rows = account.rows.iter().map(|batch| marked(batch).map_err(|err| build(hour, err)));
                hours.push(LiveHour { window, rows: rows.collect::<Result<_, _>>()?, capacities: account.capacities });
            }
            hour = next;
        }
        Ok(hours)
    }

    /// Rows of a part of an open hour, as far as it is known; none where the hour is not open.
    pub(crate) fn part(&self, lake: &Lake, files: &Files, part: Window) -> Result<Option<Vec<RecordBatch>>, AccountError> {
        if part.from() < self.from || part.to() > self.to {
            return Ok(None);
        }
        let account = account::account(&self.reach(lake, files, part), part)?;
        let rows = account.rows.iter().map(|batch| marked(batch).map_err(|err| build(part.from(), err)));
        rows.collect::<Result<_, _>>().map(Some)
    }

    fn reach(&self, lake: &Lake, files: &Files, window: Window) -> Reach {
        let mut reach = Reach { lasting: Some(window.to()), ..Reach::default() };
        if let Some(last) = files.before(self.from) {
            let closed = files.reach(lake, last, None);
            reach.intervals = closed.intervals;
            reach.intervals.extend(files.allocations(lake, self.from, Some(last)));
            reach.instants = closed.instants;
        }
        reach.intervals.extend(self.intervals.iter().cloned());
        reach.instants.extend(self.instants.iter().cloned());
        reach
    }
}

/// Hot files of intervals with anything that the last closed hour does not say: of offsets that it was not made from, or of
/// states that begin after it.
fn since(lake: &Lake, table: &'static Table, closed_to: Option<Timestamp>) -> Result<Vec<HotFile>, AccountError> {
    let files = lake.hot_files(table)?;
    let Some(closed_to) = closed_to else { return Ok(files) };
    let last = lake.place(&ClosedKey::of(closed_to.plus_ms(-1)).path(table));
    let covered: BTreeMap<String, u64> = if last.exists()? {
        read::footer(&last)?.inputs.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    } else {
        BTreeMap::new()
    };
    let mut found = Vec::new();
    for file in files {
        let Some(footer) = still(read::footer(&file.path))? else { continue };
        let next = covered.get(&format!("{}/{:05}", file.key.topic_id.as_str(), file.key.partition));
        let is_new = next.is_none_or(|next| footer.end.unwrap_or(file.key.start) >= *next);
        if is_new || footer.max_at.is_some_and(|at| at >= closed_to) {
            found.push(file);
        }
    }
    Ok(found)
}

/// None where retention has taken the hot file away meanwhile: then closed hours say what it said.
fn still(footer: Result<Footer, LakeError>) -> Result<Option<Footer>, LakeError> {
    match footer {
        Ok(footer) => Ok(Some(footer)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The batch with flag `open_hour` on every row.
fn marked(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let place = batch.schema().index_of("flags")?;
    let Some(flags) = batch.column(place).as_string_opt::<i32>() else { return Ok(batch.clone()) };
    let with = |row: usize| {
        let mut words: Vec<&str> = if flags.is_valid(row) { flags.value(row).split(',').collect() } else { Vec::new() };
        words.retain(|word| !word.is_empty());
        words.push(OPEN_HOUR);
        words.sort_unstable();
        Some(words.join(","))
    };
    let mut columns = batch.columns().to_vec();
    columns[place] = Arc::new((0..batch.num_rows()).map(with).collect::<StringArray>()) as ArrayRef;
    RecordBatch::try_new(batch.schema(), columns)
}

fn build(hour: Timestamp, err: ArrowError) -> AccountError {
    AccountError::Rows { hour, source: BatchError::Build { table: "gpu_hours", err } }
}
