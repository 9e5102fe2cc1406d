//! Tables whose rows are intervals: the latest state of each id stands, and every hour has its part of it.
//!
//! A state is what one message says: of one holding, of one pod's demand, or of a node with all of its devices and spells. The
//! latest by (observed at, revision) replaces the earlier one whole. A change rewrites those closed hours in which the two
//! differ: a holding that goes on, or ends later, changes no hour that it filled before.

use super::{CloseError, CloseReport, Closer, Covered, failed, part_of, wrong};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use arrow::row::{OwnedRow, RowConverter, SortField};
use lake::{HotFile, Watermark};
use schemas::tables::{self, Table};
use schemas::{HOUR_MS, Timestamp};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

/// Columns that name a state, by table.
fn id_columns(table: &Table) -> &'static [&'static str] {
    match table.name {
        "allocations" => &["cluster", "node", "source", "holding_id"],
        "demand" => &["cluster", "pod_uid"],
        _ => &["cluster", "node", "source"],
    }
}

/// Columns that say when and from where a state was observed, or how the interval goes on after the hour: no difference there
/// is a difference in an hour.
const ASIDE: [&str; 12] = [
    "from_at",
    "to_at",
    "interval_to",
    "observed_at",
    "revision",
    "log_partition",
    "log_offset",
    "end_reason",
    "outcome",
    "last_listed",
    "last_checkpoint",
    "terminal_phase",
];
/// Moments inside an interval: they differ in the hours after them only.
const MOMENTS: [&str; 3] = ["known_from", "started_at", "terminating_from"];

/// The latest states of one table, as hot files tell them.
pub(super) struct Book {
    table: &'static Table,
    /// Rows come back only from the converter that made them.
    whole: RowConverter,
    states: BTreeMap<OwnedRow, State>,
    read: HashSet<PathBuf>,
    covered: Covered,
    /// Closed hours to be written again.
    dirty: BTreeSet<Timestamp>,
}

struct State {
    order: (i64, i64),
    intervals: Vec<Interval>,
}

/// One row of a state.
struct Interval {
    from: i64,
    to: Option<i64>,
    moments: [Option<i64>; MOMENTS.len()],
    /// What else the row says, for comparing.
    rest: OwnedRow,
    /// The row, for writing.
    whole: OwnedRow,
}

/// What an hour has of an interval.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Piece<'a> {
    rest: &'a OwnedRow,
    from: i64,
    to: i64,
    moments: [Option<i64>; MOMENTS.len()],
}

impl Interval {
    fn in_hour(&self, hour: Timestamp) -> Option<Piece<'_>> {
        let (begin, end) = (hour.ms(), hour.plus_ms(HOUR_MS).ms());
        let (from, to) = (self.from.max(begin), self.to.map_or(end, |to| to.min(end)));
        let moments = self.moments.map(|m| m.filter(|ms| *ms < end));
        (from < to).then_some(Piece { rest: &self.rest, from, to, moments })
    }
}

impl State {
    fn in_hour(&self, hour: Timestamp) -> Vec<Piece<'_>> {
        let mut pieces: Vec<_> = self.intervals.iter().filter_map(|i| i.in_hour(hour)).collect();
        pieces.sort();
        pieces
    }

    /// The hours in which the state may have anything, below `end`.
    fn hours(&self, end: Timestamp) -> (Timestamp, Timestamp) {
        let from = self.intervals.iter().map(|i| i.from).min().unwrap_or(end.ms());
        let to = self.intervals.iter().map(|i| i.to.unwrap_or(end.ms())).max().unwrap_or(from);
        (Timestamp::from_ms(from).hour(), Timestamp::from_ms(to).min(end))
    }

    /// Whether two states say the same of every hour.
    fn alike(&self, other: &State) -> bool {
        let same =
            |(a, b): (&Interval, &Interval)| a.from == b.from && a.to == b.to && a.moments == b.moments && a.rest == b.rest;
        self.intervals.len() == other.intervals.len() && self.intervals.iter().zip(&other.intervals).all(same)
    }
}

impl Book {
    pub(super) fn new(table: &'static Table) -> Self {
        let whole = converter(table.schema().fields().iter().map(|f| f.data_type().clone()));
        let whole = whole.expect("the tables have only column types that Arrow can order");
        Book { table, whole, states: BTreeMap::new(), read: HashSet::new(), covered: Covered::new(), dirty: BTreeSet::new() }
    }

    /// The first instant of any interval.
    pub(super) fn earliest(&self) -> Option<Timestamp> {
        self.states.values().flat_map(|s| &s.intervals).map(|i| i.from).min().map(Timestamp::from_ms)
    }

    /// The states of a file, in order of its rows.
    fn states(&self, rows: &RecordBatch) -> Result<Vec<(OwnedRow, State)>, CloseError> {
        let table = self.table;
        let of = |names: &dyn Fn(&str) -> bool| -> Result<arrow::row::Rows, CloseError> {
            let columns: Vec<usize> = (0..table.columns.len()).filter(|i| names(&table.columns[*i].name)).collect();
            encode(rows, &columns).map_err(wrong(table))
        };
        // In the order in which the id's columns are listed, not the table's: ids are compared with themselves only.
        let ids = of(&|name| id_columns(table).contains(&name))?;
        let rest = of(&|name| !ASIDE.contains(&name) && !MOMENTS.contains(&name))?;
        let whole = self.whole.convert_columns(rows.columns()).map_err(wrong(table))?;
        let times = |name: &str| table.index(name).map(|i| rows.column(i).as_primitive::<TimestampMicrosecondType>());
        let ints = |name: &str| table.index(name).map(|i| rows.column(i).as_primitive::<Int64Type>());
        let ms = |column: Option<&arrow::array::PrimitiveArray<TimestampMicrosecondType>>, row: usize| {
            column.filter(|c| c.is_valid(row)).map(|c| Timestamp::from_micros(c.value(row)).ms())
        };
        let number = |column: Option<&arrow::array::PrimitiveArray<Int64Type>>, row: usize| {
            column.filter(|c| c.is_valid(row)).map_or(-1, |c| c.value(row))
        };
        let (from, to, observed) = (times("interval_from"), times("interval_to"), times("observed_at"));
        let moments = MOMENTS.map(times);
        let (revision, partition, offset) = (ints("revision"), ints("log_partition"), ints("log_offset"));
        // One message is one state, whatever order its rows have in the file.
        let mut by_message: BTreeMap<(i64, i64, OwnedRow), State> = BTreeMap::new();
        for row in 0..rows.num_rows() {
            let id = ids.row(row).owned();
            let state = by_message.entry((number(partition, row), number(offset, row), id)).or_insert_with(|| State {
                order: (ms(observed, row).unwrap_or(i64::MIN), number(revision, row)),
                intervals: Vec::new(),
            });
            state.intervals.push(Interval {
                from: ms(from, row).unwrap_or_default(),
                to: ms(to, row),
                moments: moments.map(|m| ms(m, row)),
                rest: rest.row(row).owned(),
                whole: whole.row(row).owned(),
            });
        }
        Ok(by_message.into_iter().map(|((_, _, id), state)| (id, state)).collect())
    }

    /// What an hour has, as rows.
    fn rows(&self, hour: Timestamp) -> Result<RecordBatch, CloseError> {
        let table = self.table;
        let mut whole = Vec::new();
        let (mut from, mut to) = (Vec::new(), Vec::new());
        for interval in self.states.values().flat_map(|s| &s.intervals) {
            if let Some(piece) = interval.in_hour(hour) {
                whole.push(interval.whole.row());
                from.push(Timestamp::from_ms(piece.from).micros());
                to.push(Timestamp::from_ms(piece.to).micros());
            }
        }
        if whole.is_empty() {
            return Ok(RecordBatch::new_empty(table.schema()));
        }
        let mut columns: Vec<ArrayRef> = self.whole.convert_rows(whole).map_err(wrong(table))?;
        let time = |ms: Vec<i64>| Arc::new(TimestampMicrosecondArray::from(ms).with_timezone("UTC")) as ArrayRef;
        for (name, values) in [("from_at", from), ("to_at", to)] {
            if let Some(index) = table.index(name) {
                columns[index] = time(values);
            }
        }
        let batch = RecordBatch::try_new(table.schema(), columns).map_err(wrong(table))?;
        lake::encode::sorted(table, &[batch]).map_err(failed(table))
    }
}

impl Closer {
    /// Takes new hot files of a table into its book, and notes which closed hours they change.
    pub(super) fn learn(
        &mut self,
        name: &'static str,
        now: Timestamp,
        watermark: Option<Watermark>,
        report: &mut CloseReport,
    ) -> Result<(), CloseError> {
        let table = tables::get(name);
        for (file, footer) in self.hot(table)? {
            if self.books.get(name).is_none_or(|book| book.read.contains(&file.path)) {
                continue;
            }
            let rows = lake::read::rows(table, &file.path, None).map_err(failed(table))?;
            let rows = arrow::compute::concat_batches(&table.schema(), &rows).map_err(wrong(table))?;
            let states = self.books.get(name).map_or(Ok(Vec::new()), |book| book.states(&rows))?;
            for (id, new) in states {
                self.change(table, &file, id, new, now, watermark, report)?;
            }
            if let Some(book) = self.books.get_mut(name) {
                let next = footer.end.unwrap_or(file.key.start) + 1;
                let known = book.covered.entry(part_of(&file)).or_default();
                *known = next.max(*known);
                book.read.insert(file.path.clone());
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn change(
        &mut self,
        table: &'static Table,
        file: &HotFile,
        id: OwnedRow,
        new: State,
        now: Timestamp,
        watermark: Option<Watermark>,
        report: &mut CloseReport,
    ) -> Result<(), CloseError> {
        let Some(book) = self.books.get_mut(table.name) else { return Ok(()) };
        let old = book.states.get(&id);
        if old.is_some_and(|old| old.order >= new.order) {
            return Ok(()); // a repeat, or one that was overtaken
        }
        let mut candidates = Vec::new();
        if let Some(w) = watermark
            && !old.is_some_and(|old| old.alike(&new))
        {
            let (mut first, mut last) = new.hours(w.closed_to);
            if let Some((f, l)) = old.map(|old| old.hours(w.closed_to)) {
                (first, last) = (first.min(f), last.max(l));
            }
            let mut hour = first.max(w.from).max(last.plus_ms(-self.options.max_hours * HOUR_MS).hour());
            while hour < last {
                let before = old.map_or(Vec::new(), |old| old.in_hour(hour));
                if before != new.in_hour(hour) {
                    candidates.push(hour);
                }
                hour = hour.plus_ms(HOUR_MS);
            }
        }
        book.states.insert(id, new);
        let part = part_of(file);
        let mut late: Option<Timestamp> = None;
        for hour in candidates {
            if self.covered(table, hour)?.get(&part).is_some_and(|next| *next > file.key.start) {
                continue; // the hour was written when this was known
            }
            if self.is_late(hour, now, watermark) {
                late = late.max(Some(hour));
            } else if let Some(book) = self.books.get_mut(table.name) {
                book.dirty.insert(hour);
            }
        }
        if let Some(hour) = late {
            report.late += 1;
            self.too_late(table, hour, &part, file.key.start, 1, report)?;
        }
        Ok(())
    }

    /// Writes the hours that close now, and those that changed.
    pub(super) fn intervals(
        &mut self,
        name: &'static str,
        watermark: Watermark,
        before: Option<Watermark>,
        report: &mut CloseReport,
    ) -> Result<(), CloseError> {
        let table = tables::get(name);
        let Some(book) = self.books.get_mut(name) else { return Ok(()) };
        let mut hours = std::mem::take(&mut book.dirty);
        // Not before the first interval: there is nothing to write there.
        let earliest = book.earliest().map_or(watermark.closed_to, Timestamp::hour);
        let least = watermark.closed_to.plus_ms(-self.options.max_hours * HOUR_MS);
        let begin = watermark.from.max(earliest);
        if begin < least && before.is_none_or(|w| begin < w.from) {
            tracing::warn!(table = name, from = %begin, to = %least, "hours so long ago were not closed; is a clock wrong?");
        }
        let mut hour = begin.max(least);
        while hour < watermark.closed_to {
            if before.is_none_or(|w| hour < w.from || hour >= w.closed_to) {
                hours.insert(hour);
            }
            hour = hour.plus_ms(HOUR_MS);
        }
        let covered = book.covered.clone();
        for hour in hours {
            let rows = match self.books.get(name) {
                Some(book) => book.rows(hour)?,
                None => continue,
            };
            let known = self.covered(table, hour)?;
            if rows.num_rows() == 0 && known.is_empty() {
                continue; // there was nothing, and is nothing
            }
            known.clone_from(&covered);
            self.publish(table, hour, &rows, &covered, 0, report)?;
        }
        Ok(())
    }
}

fn converter(types: impl Iterator<Item = arrow::datatypes::DataType>) -> Result<RowConverter, arrow::error::ArrowError> {
    RowConverter::new(types.map(SortField::new).collect())
}

fn encode(rows: &RecordBatch, columns: &[usize]) -> Result<arrow::row::Rows, arrow::error::ArrowError> {
    let types = columns.iter().map(|i| rows.column(*i).data_type().clone());
    let arrays: Vec<ArrayRef> = columns.iter().map(|i| rows.column(*i).clone()).collect();
    converter(types)?.convert_columns(&arrays)
}
