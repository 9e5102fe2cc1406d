//! What is closed and old leaves the lake; what was not closed never does. It is done by whoever closes hours, in its turn.
//!
//! ```text
//! 1. states that go on are written beside the hours       _state/carried-<table>.parquet: the files that told of them may go
//! 2. it is said which offsets will be gone                _state/removed.json: what is left can be proven whole
//! 3. the files are removed
//! ```
//!
//! Whoever dies in between has removed nothing that was not closed, and the next one goes on: files of offsets that were said to
//! go are not read any more, and are removed then. An interval of offsets goes as a whole, with its files in all tables, and
//! only when each of them is in closed hours with every row, and speaks of nothing younger than the limit. The newest interval
//! of a partition stays: the lake is the checkpoint of the sink (D2).
//!
//! The limit is never less than two hours beyond the time in which late rows reopen an hour. So no hour that begins before it is
//! written again, and the states that go on from there suffice to close every other.

use super::{CloseError, CloseReport, Closer, INTERVALS, RetainStep, SAMPLES, failed};
use crate::rows::Kind;
use lake::{HotFile, HotKey, Removed, Watermark};
use schemas::tables::{self, Table};
use schemas::{HOUR_MS, Timestamp, Window};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// The files of one interval of offsets.
type Interval = Vec<(&'static Table, HotFile)>;

/// Tables of closed hours that hour rows are made from, or that explain them.
const RAW: [&str; 7] = ["gpu_samples", "extra_samples", "scrapes", "rejects", "allocations", "demand", "nodes"];
/// Tables that an hour must have before what they were made from may go.
const RESULTS: [&str; 2] = ["gpu_hours", "device_hours"];

impl Closer {
    /// Takes up what an earlier retention has left.
    pub(super) fn recall(&mut self) -> Result<(), CloseError> {
        self.removed = Some(self.lake.removed().map_err(|e| CloseError::Removed(Box::new(e)))?);
        INTERVALS.into_iter().try_for_each(|name| self.take_up(name))
    }

    /// Removes what is old enough, at most once for each hour that becomes old.
    pub(super) fn retain(
        &mut self,
        now: Timestamp,
        watermark: Option<Watermark>,
        report: &mut CloseReport,
    ) -> Result<(), CloseError> {
        let (Some(hot_ms), Some(watermark)) = (self.options.hot_retention_ms, watermark) else { return Ok(()) };
        let hot_ms = hot_ms.max(self.options.late_limit_ms.saturating_add(2 * HOUR_MS));
        let limit = now.plus_ms(-hot_ms).hour();
        if limit <= watermark.from || limit > watermark.closed_to || self.retained_to.is_some_and(|to| to >= limit) {
            return Ok(());
        }
        self.retain_hot(limit, report)?;
        if let Some(closed_ms) = self.options.closed_retention_ms {
            self.retain_closed(now.plus_ms(-closed_ms.max(hot_ms)).hour(), watermark, report)?;
        }
        self.retained_to = Some(limit);
        Ok(())
    }

    fn retain_hot(&mut self, limit: Timestamp, report: &mut CloseReport) -> Result<(), CloseError> {
        let (mut chains, left) = self.chains()?;
        let (mut removed, version) = self.removed.clone().unwrap_or_default();
        let mut going: Vec<(&'static Table, HotKey)> = left;
        for (part, chain) in &mut chains {
            // The newest stays.
            chain.pop_last();
            for (start, files) in std::mem::take(chain) {
                if let Some(next) = self.is_over(&files, limit)? {
                    removed.add(part, start, next);
                    going.extend(files.into_iter().map(|(table, file)| (table, file.key)));
                }
            }
        }
        if going.is_empty() {
            return Ok(());
        }
        for name in INTERVALS {
            self.carry(name, limit)?;
            self.step(RetainStep::Carried(name))?;
        }
        self.say(removed, version)?;
        self.step(RetainStep::Said)?;
        for (table, key) in going {
            self.lake.remove_hot(table, &key).map_err(failed(table))?;
            let place = self.lake.place(&key.path(table));
            self.done.remove(&place);
            self.footers.remove(&place);
            for book in self.books.values_mut() {
                book.read.remove(&place);
            }
            report.removed_hot += 1;
            self.step(RetainStep::Removed)?;
        }
        // Hours that are not written again need not be remembered.
        let old = |(_, hour): &(&str, Timestamp)| hour.plus_ms(HOUR_MS) < limit;
        self.covered.retain(|key, _| !old(key));
        self.versions.retain(|key, _| !old(key));
        Ok(())
    }

    /// Every partition's intervals with their files, and the files that an earlier retention was about to remove.
    #[allow(clippy::type_complexity)]
    fn chains(&self) -> Result<(BTreeMap<String, BTreeMap<u64, Interval>>, Vec<(&'static Table, HotKey)>), CloseError> {
        let mut chains: BTreeMap<String, BTreeMap<u64, Interval>> = BTreeMap::new();
        let mut left = Vec::new();
        let none = Removed::default();
        let removed = self.removed.as_ref().map_or(&none, |(removed, _)| removed);
        for name in SAMPLES.into_iter().chain(INTERVALS) {
            let table = tables::get(name);
            for file in self.lake.hot_files(table).map_err(failed(table))? {
                let part = file.key.part();
                if removed.holds(&part, file.key.start) {
                    left.push((table, file.key));
                } else {
                    chains.entry(part).or_default().entry(file.key.start).or_default().push((table, file));
                }
            }
        }
        Ok((chains, left))
    }

    /// The first offset after an interval whose files are all in closed hours, or in what is carried over, and speak of nothing
    /// at `limit` or later; none for another.
    fn is_over(&mut self, files: &Interval, limit: Timestamp) -> Result<Option<u64>, CloseError> {
        let mut over = None;
        // An interval without the file that fixes it is not complete.
        let anchors = [Kind::Samples, Kind::Allocations, Kind::Nodes].map(|kind| kind.tables()[0].name);
        if !files.iter().any(|(table, _)| anchors.contains(&table.name)) {
            return Ok(None);
        }
        for (table, file) in files {
            let told = match self.books.get(table.name) {
                None => self.done.get(&file.path).copied(),
                Some(book) if book.has(&file.key) => self.told(table, &file.path)?,
                Some(_) => None,
            };
            match told {
                Some(told) if told.newest.is_none_or(|newest| newest < limit) => over = over.max(Some(told.next)),
                _ => return Ok(None),
            }
        }
        Ok(over)
    }

    /// Says what will be gone.
    fn say(&mut self, removed: Removed, version: Option<lake::Version>) -> Result<(), CloseError> {
        let failed = |e| CloseError::Removed(Box::new(e));
        if !self.lake.set_removed_over(&removed, version.as_ref()).map_err(failed)? {
            return Err(self.overtaken());
        }
        self.removed = Some(self.lake.removed().map_err(failed)?);
        Ok(())
    }

    /// Removes what old hours were made from, where their hour rows are there. Those stay.
    fn retain_closed(&mut self, limit: Timestamp, watermark: Watermark, report: &mut CloseReport) -> Result<(), CloseError> {
        let Ok(old) = Window::new(watermark.from, limit.plus_ms(HOUR_MS)) else { return Ok(()) };
        let mut raw: BTreeMap<Timestamp, Vec<(&'static Table, lake::ClosedKey)>> = BTreeMap::new();
        for name in RAW {
            let table = tables::get(name);
            for file in self.lake.closed_files(table, Some(old)).map_err(failed(table))? {
                raw.entry(file.key.hour).or_default().push((table, file.key));
            }
        }
        // An hour's rows are made from its neighbours too: the first one that stays must have its rows as well.
        let mut gone_to = None;
        for hour in raw.keys().copied() {
            for name in RESULTS {
                let table = tables::get(name);
                let place = self.lake.place(&lake::ClosedKey { hour, shard: 0 }.path(table));
                if !place.exists().map_err(failed(table))? {
                    tracing::warn!(%hour, table = name, "kept what this hour is made from: its hour rows are not there; run `strandline hours`");
                    return self.remove_raw(gone_to, raw, report);
                }
            }
            gone_to = Some(hour.min(limit));
        }
        self.remove_raw(gone_to, raw, report)
    }

    fn remove_raw(
        &mut self,
        upto: Option<Timestamp>,
        raw: BTreeMap<Timestamp, Vec<(&'static Table, lake::ClosedKey)>>,
        report: &mut CloseReport,
    ) -> Result<(), CloseError> {
        let Some(upto) = upto.filter(|upto| raw.keys().next().is_some_and(|first| first < upto)) else { return Ok(()) };
        // Said first: hour rows of the first hour that stays are not made anew without what was before it.
        self.lake.set_raw_from(upto).map_err(|e| CloseError::Removed(Box::new(e)))?;
        for (table, key) in raw.range(..upto).flat_map(|(_, files)| files) {
            self.lake.remove_closed(table, *key).map_err(failed(table))?;
            report.removed_closed += 1;
        }
        Ok(())
    }

    fn step(&mut self, step: RetainStep) -> Result<(), CloseError> {
        match self.hook.as_mut().map(|hook| hook(step)) {
            Some(ControlFlow::Break(())) => Err(CloseError::Stopped(step)),
            Some(ControlFlow::Continue(())) | None => Ok(()),
        }
    }
}
