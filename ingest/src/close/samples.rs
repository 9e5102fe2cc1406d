//! Tables whose rows are instants: new rows are merged into the part of their hour.

use super::{CloseError, CloseReport, Closer, Covered, Told, failed, wrong};
use crate::rows::Rows;
use arrow::array::{Array, AsArray, RecordBatch, UInt32Array};
use arrow::compute::{SortOptions, concat_batches, take_record_batch};
use arrow::datatypes::TimestampMicrosecondType;
use arrow::error::ArrowError;
use arrow::row::{RowConverter, SortField};
use lake::{ClosedKey, Watermark};
use schemas::tables::{self, Table};
use schemas::{HOUR_MS, Timestamp};
use std::collections::BTreeMap;

/// Rows on their way into one hour, and what they bring it up to.
#[derive(Default)]
struct Pending {
    rows: Vec<RecordBatch>,
    covers: Covered,
}

impl Closer {
    /// Merges what hot files have of hours before `upto`. Returns the earliest hour that any hot file touches.
    pub(super) fn samples(
        &mut self,
        table: &'static Table,
        upto: Timestamp,
        now: Timestamp,
        watermark: Option<Watermark>,
        report: &mut CloseReport,
    ) -> Result<Option<Timestamp>, CloseError> {
        let mut pending: BTreeMap<Timestamp, Pending> = BTreeMap::new();
        let mut held = 0;
        let mut earliest: Option<Timestamp> = None;
        for file in self.hot(table)? {
            // What was done once was the earliest then.
            if self.done.contains_key(&file.path) {
                continue;
            }
            let footer = self.footer(table, &file)?;
            let told = Told { next: footer.end.map_or(file.key.start, |end| end) + 1, newest: footer.max_at };
            let (Some(min), Some(max)) = (footer.min_at, footer.max_at) else {
                self.finish(&file.path, told);
                continue;
            };
            earliest = [earliest, Some(min.hour())].into_iter().flatten().min();
            let part = file.key.part();
            let last = max.hour().min(upto.plus_ms(-HOUR_MS));
            if min.hour() <= last && self.lacks(table, &part, file.key.start, min.hour(), last)? {
                let rows = lake::read::rows(table, &file.path, None).map_err(failed(table))?;
                for (hour, rows) in by_hour(table, &rows)? {
                    if hour >= upto || self.covered(table, hour)?.get(&part).is_some_and(|next| *next > file.key.start) {
                        continue;
                    }
                    if self.is_late(hour, now, watermark) {
                        report.late += rows.num_rows() as u64;
                        self.too_late(table, hour, &part, file.key.start, rows.num_rows(), report)?;
                        let known = self.covered(table, hour)?.entry(part.clone()).or_default();
                        *known = (file.key.start + 1).max(*known);
                        continue;
                    }
                    held += rows.num_rows();
                    let into = pending.entry(hour).or_default();
                    into.rows.push(rows);
                    into.covers.insert(part.clone(), told.next);
                }
            }
            if max.hour() < upto {
                self.finish(&file.path, told);
            }
            if held >= self.options.budget_rows {
                self.merge_all(table, std::mem::take(&mut pending), report)?;
                held = 0;
            }
        }
        self.merge_all(table, pending, report)?;
        Ok(earliest)
    }

    /// Nothing of a file is left to be closed, or will not be when this pass ends.
    fn finish(&mut self, place: &lake::Place, told: Told) {
        self.footers.remove(place);
        self.done.insert(place.clone(), told);
    }

    /// Whether any hour in `[first, last]` may lack rows of the file that begins at `start`.
    fn lacks(
        &mut self,
        table: &'static Table,
        part: &str,
        start: u64,
        first: Timestamp,
        last: Timestamp,
    ) -> Result<bool, CloseError> {
        // A file over many hours (a wrong clock, say) is read rather than asked after hour by hour.
        if last.ms() - first.ms() > 48 * HOUR_MS {
            return Ok(true);
        }
        let mut hour = first;
        while hour <= last {
            if self.covered(table, hour)?.get(part).is_none_or(|next| *next <= start) {
                return Ok(true);
            }
            hour = hour.plus_ms(HOUR_MS);
        }
        Ok(false)
    }

    fn merge_all(
        &mut self,
        table: &'static Table,
        pending: BTreeMap<Timestamp, Pending>,
        report: &mut CloseReport,
    ) -> Result<(), CloseError> {
        for (hour, new) in pending {
            self.merge(table, hour, new, report)?;
        }
        Ok(())
    }

    fn merge(
        &mut self,
        table: &'static Table,
        hour: Timestamp,
        new: Pending,
        report: &mut CloseReport,
    ) -> Result<(), CloseError> {
        // Asked first, so that a part is put over the one that is read here.
        self.covered(table, hour)?;
        let place = self.lake.place(&ClosedKey::of(hour).path(table));
        let mut rows = Vec::new();
        let mut repeats = 0;
        if self.versions.contains_key(&(table.name, hour)) {
            repeats = lake::read::footer(&place).map_err(failed(table))?.repeats;
            rows = lake::read::rows(table, &place, None).map_err(failed(table))?;
        }
        rows.extend(new.rows);
        let (merged, dropped) = unique(table, &rows)?;
        report.repeats += dropped;
        let covered = self.covered(table, hour)?;
        for (part, next) in new.covers {
            let known = covered.entry(part).or_default();
            *known = next.max(*known);
        }
        let covered = covered.clone();
        self.publish(table, hour, &merged, &covered, repeats + dropped, report)
    }

    /// Counts rows that came too late in the `rejects` of their own hour: the same row again where this is done again.
    pub(super) fn too_late(
        &mut self,
        table: &'static Table,
        hour: Timestamp,
        part: &str,
        offset: u64,
        count: usize,
        report: &mut CloseReport,
    ) -> Result<(), CloseError> {
        let mut rows = Rows::new(tables::get("rejects"));
        rows.time("at", hour.ms());
        rows.text("source", table.name);
        rows.text("reason", "late");
        rows.text("text", &format!("{part} file {offset}: {count} rows of a closed hour"));
        rows.int("rows", count as i64);
        rows.end_row();
        tracing::warn!(table = table.name, %hour, rows = count, "rows came too late and went to rejects");
        let late = Pending { rows: vec![rows.finish()], covers: Covered::new() };
        self.merge(tables::get("rejects"), hour, late, report)
    }
}

/// Rows by the hour of their time.
fn by_hour(table: &'static Table, batches: &[RecordBatch]) -> Result<BTreeMap<Timestamp, RecordBatch>, CloseError> {
    let all = concat_batches(&table.schema(), batches).map_err(wrong(table))?;
    let mut indexes: BTreeMap<Timestamp, Vec<u32>> = BTreeMap::new();
    let times = table.index(table.time).and_then(|i| all.column(i).as_primitive_opt::<TimestampMicrosecondType>());
    if let Some(times) = times {
        for row in 0..times.len() {
            indexes.entry(Timestamp::from_micros(times.value(row)).hour()).or_default().push(row as u32);
        }
    }
    let mut out = BTreeMap::new();
    for (hour, rows) in indexes {
        let rows = take_record_batch(&all, &UInt32Array::from(rows)).map_err(wrong(table))?;
        out.insert(hour, rows);
    }
    Ok(out)
}

/// One row for each key, in order of the table's sort columns, and how many rows were dropped.
fn unique(table: &'static Table, batches: &[RecordBatch]) -> Result<(RecordBatch, u64), CloseError> {
    let all = concat_batches(&table.schema(), batches).map_err(wrong(table))?;
    let mut key: Vec<usize> = table.sort.iter().filter_map(|name| table.index(name)).collect();
    // A round is itself by its sequence too (D1): an agent may begin, and say so, in the very millisecond of its first round.
    let more: &[&str] = if table.name == "rejects" { &["reason", "text"] } else { &["sequence"] };
    key.extend(more.iter().filter_map(|name| table.index(name)));
    let ascending = SortOptions { descending: false, nulls_first: true };
    let prefer = ["log_partition", "log_offset"];
    let prefer: Vec<_> = prefer.into_iter().filter_map(|name| Some((table.index(name)?, ascending))).collect();
    let rows_of = |columns: &[(usize, SortOptions)]| -> Result<arrow::row::Rows, ArrowError> {
        let fields = columns.iter().map(|(i, order)| SortField::new_with_options(all.column(*i).data_type().clone(), *order));
        let arrays: Vec<_> = columns.iter().map(|(i, _)| all.column(*i).clone()).collect();
        RowConverter::new(fields.collect())?.convert_columns(&arrays)
    };
    let key: Vec<_> = key.into_iter().map(|i| (i, ascending)).collect();
    let keys = rows_of(&key).map_err(wrong(table))?;
    let preferences = rows_of(&prefer).map_err(wrong(table))?;
    let mut order: Vec<u32> = (0..all.num_rows() as u32).collect();
    order.sort_unstable_by(|a, b| {
        let (a, b) = (*a as usize, *b as usize);
        keys.row(a).cmp(&keys.row(b)).then_with(|| preferences.row(a).cmp(&preferences.row(b))).then(a.cmp(&b))
    });
    order.dedup_by(|later, first| keys.row(*later as usize) == keys.row(*first as usize));
    let dropped = (all.num_rows() - order.len()) as u64;
    let kept = take_record_batch(&all, &UInt32Array::from(order)).map_err(wrong(table))?;
    Ok((kept, dropped))
}
